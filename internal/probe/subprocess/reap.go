package subprocess

import (
	"context"
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reap reaps those that programs have left behind and that have become children of this
// process, as they do if it is process 1 of its container. It returns when ctx ends.
func (c *Children) Reap(ctx context.Context) {
	deaths := make(chan os.Signal, 1)
	signal.Notify(deaths, unix.SIGCHLD)
	defer signal.Stop(deaths)
	for {
		c.reapStrangers()
		select {
		case <-ctx.Done():
			return
		case <-deaths:
		case <-c.buried:
		}
	}
}

// reapStrangers reaps children that have ended and that nobody here has started. If one
// that somebody waits for stands before them, or one is just being started, they have
// to wait until that one is buried.
func (c *Children) reapStrangers() {
	if !c.starting.TryLock() {
		return
	}
	defer c.starting.Unlock()
	for {
		pid := someDead()
		c.mu.Lock()
		own := c.own[pid]
		c.mu.Unlock()
		if pid == 0 || own {
			return
		}
		// Nobody else can have reaped it.
		_ = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG, nil)
	}
}

// someDead returns a child that has ended and is not reaped, 0 if there is none.
func someDead() int {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || info.Signo == 0 {
		return 0
	}
	// The kernel puts the process right behind the three numbers, aligned like a pointer;
	// the type has no name for it.
	const place = (unsafe.Offsetof(info.Code) + unsafe.Sizeof(info.Code) + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), place)))
}
