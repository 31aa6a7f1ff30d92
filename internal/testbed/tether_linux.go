package testbed

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// runTethered starts cmd, reports how that went and returns when the process
// has ended. The process does not outlive this one, not even after kill -9.
//
// The trap is that the kernel sends the death signal when the thread that
// forked the child ends, not when its process does, and the Go runtime ends
// threads when it likes: one that any test locked and left behind would take
// the API server with it. Hence the goroutine that forks is the one that waits,
// locked to its thread for as long as the child lives. A parent that dies
// between fork and prctl is noticed by the syscall package, which looks in the
// child whether its parent has changed.
//
// The process group of its own keeps a Ctrl-C in the terminal from reaching the
// child before the parent has shut down in order.
func runTethered(cmd *exec.Cmd, started func(error)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	err := cmd.Start()
	started(err)
	if err != nil {
		return err
	}
	return cmd.Wait()
}

// freeze stops a process and returns when a child of this one stands still: the
// same, or the one that leads to it.
func freeze(pid, child int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, child, nil, unix.WSTOPPED, nil)
		if err == unix.ECHILD {
			return fmt.Errorf("process %d ended instead of stopping", child)
		}
		if err != unix.EINTR {
			return err
		}
	}
}
