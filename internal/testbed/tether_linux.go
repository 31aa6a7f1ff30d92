package testbed

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// runTethered starts cmd, reports the result of the start and returns when the process
// has ended. The process does not outlive this one, not even after kill -9.
//
// The kernel sends the death signal when the thread that forked the child ends, not when
// its process ends. The Go runtime may end threads at any time: a thread that a test
// locked and left would end the API server. Hence the goroutine that forks also waits,
// locked to its thread for as long as the child lives. The syscall package handles a
// parent that dies between fork and prctl: it checks in the child whether its parent has
// changed.
//
// The child has its own process group, so that a Ctrl-C in the terminal does not reach it
// before the parent has shut down in order.
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

// freeze stops a process and returns when a child of this process has stopped: the process
// itself, or its wrapper.
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
