package subprocess

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// awaitEnd waits until a child has ended, and does not reap it.
func awaitEnd(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		runtime.Gosched()
	}
}

// groupIsGone says whether a group has no processes any more, and reaps those that have
// become our children.
func groupIsGone(group int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PGID, group, &info, unix.WEXITED|unix.WNOHANG, nil)
		if (err != nil && !errors.Is(err, unix.EINTR)) || (err == nil && info.Signo == 0) {
			break // none of them is ours, or none has ended
		}
	}
	return errors.Is(unix.Kill(-group, 0), unix.ESRCH)
}

// living returns those of a group who have not ended, whether or not somebody has reaped
// those who have. It looks at all processes, and is for the rare case.
func living(group int) []int {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var left []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name.Name()); err == nil && lives(pid, group) {
			left = append(left, pid)
		}
	}
	return left
}

// lives says whether a process is of a group and has not ended.
func lives(pid, group int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The name of a process may hold anything, also brackets.
	var state string
	var parent, itsGroup int
	_, err = fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &parent, &itsGroup)
	return err == nil && itsGroup == group && state != "Z" && state != "X"
}
