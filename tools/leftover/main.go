// Command leftover runs a command and fails if that leaves a process behind:
// `leftover make run-tests`.
//
// It is the subreaper of the command: the kernel makes it the parent of every
// descendant whose own parent has ended, so that it finds all of them, also those in
// another session or with another environment, and no process of another command. It names
// each with the folder that it was started in, which for a test is that of its package,
// and ends it. It does not look at processes that containerd or another service of the
// machine has started for a test.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// grace is how long a process may take to end after the command: a killed process takes a
// moment to end on a busy machine.
const grace = 10 * time.Second

func main() {
	code, err := run(os.Args[1:], grace, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "leftover:", err)
	}
	os.Exit(code)
}

// run runs a command and returns the exit code of it, or 1 if it left a process.
func run(args []string, grace time.Duration, out io.Writer) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("name the command to run, with its arguments")
	}
	if err := becomeSubreaper(); err != nil {
		return 2, fmt.Errorf("becoming the subreaper of %s: %w", args[0], err)
	}
	// The command gets an interrupt from the terminal as well, and ends in its own way.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	command := exec.CommandContext(context.Background(), args[0], args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		return 2, err
	}
	code, err := waitFor(command.Process.Pid, interrupts)
	if err != nil {
		return 2, err
	}
	left, err := leftovers(grace)
	if err != nil {
		return 2, err
	}
	for _, p := range left {
		fmt.Fprintf(out, "leftover: process %d (%s), started in %s, outlives the tests: end it in the test that starts it\n", p.pid, p.command, p.folder)
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // its number is its own until it is reaped here
	}
	if _, err := leftovers(grace); err != nil {
		return 2, err
	}
	if len(left) > 0 && code == 0 {
		code = 1
	}
	return code, nil
}

func becomeSubreaper() error {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		return errno
	}
	return nil
}

// waitFor reaps all children until one has ended, and returns the exit code of that.
func waitFor(pid int, interrupts <-chan os.Signal) (int, error) {
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		for {
			var status syscall.WaitStatus
			got, err := syscall.Wait4(-1, &status, 0, nil)
			switch {
			case errors.Is(err, syscall.EINTR):
			case err != nil:
				ended <- end{err: fmt.Errorf("waiting for process %d: %w", pid, err)}
				return
			case got == pid && status.Signaled():
				ended <- end{code: 128 + int(status.Signal())}
				return
			case got == pid:
				ended <- end{code: status.ExitStatus()}
				return
			}
		}
	}()
	for {
		select {
		case e := <-ended:
			return e.code, e.err
		case s := <-interrupts:
			if s == syscall.SIGTERM { // only this process got it
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
		}
	}
}

// process is a descendant that has not ended.
type process struct {
	pid             int
	command, folder string
}

// leftovers returns the descendants that do not end by themselves within the grace.
func leftovers(grace time.Duration) ([]process, error) {
	deadline := time.Now().Add(grace)
	for {
		reap()
		left, err := descendants(os.Getpid())
		if err != nil || len(left) == 0 || time.Now().After(deadline) {
			return left, err
		}
		<-time.After(50 * time.Millisecond)
	}
}

// reap takes leave of the children that have ended.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if !errors.Is(err, syscall.EINTR) && (err != nil || pid == 0) {
			return
		}
	}
}

// descendants returns the processes below one. The Go command may leave a child that
// sends its own counts; that is no process of a test.
func descendants(of int) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if parent, ok := parentOf(pid); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	var found []process
	for queue := children[of]; len(queue) > 0; queue = queue[1:] {
		queue = slices.Concat(queue, children[queue[0]])
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", queue[0]))
		if name := filepath.Base(exe); name == "go" {
			continue
		}
		folder, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", queue[0]))
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", queue[0]))
		found = append(found, process{queue[0], strings.TrimSpace(strings.ReplaceAll(string(words), "\x00", " ")), folder})
	}
	return found, nil
}

// parentOf returns the parent of a process that has not ended.
func parentOf(pid int) (parent int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name of a process may hold anything, also brackets.
	var state string
	rest := string(text)[strings.LastIndexByte(string(text), ')')+1:]
	_, err = fmt.Sscan(rest, &state, &parent)
	return parent, err == nil && state != "Z" && state != "X"
}
