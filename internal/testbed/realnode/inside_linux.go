package realnode

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// inside runs f in the network namespace of a process. Sockets that f opens stay there.
func inside[T any](pid int, f func() (T, error)) (made T, err error) {
	var done sync.WaitGroup
	done.Go(func() {
		// Never unlocked: the thread cannot be reused, and ends with this goroutine.
		runtime.LockOSThread()
		var there *os.File
		if there, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
			return
		}
		defer there.Close()
		if err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("entering the network of process %d: %w", pid, err)
			return
		}
		made, err = f()
	})
	done.Wait()
	return made, err
}
