package subprocess

import (
	"context"
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reap reaps orphaned processes that have become children of this process, because it is
// process 1 of its container. It returns when ctx ends.
func (c *Children) Reap(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		c.reapOrphans()
		select {
		case <-ctx.Done():
			return
		case <-ended:
		case <-c.reaped:
		}
	}
}

// reapOrphans reaps ended children that Run did not start. Waitid may return a program of
// Run first, or a program may be starting. Then the orphans wait until the next signal.
func (c *Children) reapOrphans() {
	if !c.starting.TryLock() {
		return
	}
	defer c.starting.Unlock()
	for {
		pid := endedChild()
		c.mu.Lock()
		own := c.own[pid]
		c.mu.Unlock()
		if pid == 0 || own {
			return
		}
		// Only this goroutine reaps orphans.
		_ = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG, nil)
	}
}

// endedChild returns a child that has ended and is not reaped, 0 if there is none.
func endedChild() int {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || info.Signo == 0 {
		return 0
	}
	// The kernel stores the process ID behind the first three fields, aligned like a pointer.
	// The Go type has no field for it.
	const offset = (unsafe.Offsetof(info.Code) + unsafe.Sizeof(info.Code) + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), offset)))
}
