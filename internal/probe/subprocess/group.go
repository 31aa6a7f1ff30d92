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

// awaitEnd waits until a child has ended. It does not reap the child.
func awaitEnd(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		runtime.Gosched()
	}
}

// groupIsGone says whether a process group is empty. It reaps ended processes of the group
// that are children of this process.
func groupIsGone(group int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PGID, group, &info, unix.WEXITED|unix.WNOHANG, nil)
		if (err != nil && !errors.Is(err, unix.EINTR)) || (err == nil && info.Signo == 0) {
			break // no children in the group, or none has ended
		}
	}
	return errors.Is(unix.Kill(-group, 0), unix.ESRCH)
}

// living returns the processes of a group that have not ended; zombies do not count. It
// scans all of /proc and is meant for rare cases.
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

// lives says whether a process belongs to a group and has not ended.
func lives(pid, group int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The process name may contain any character, also parentheses.
	var state string
	var parent, itsGroup int
	_, err = fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &parent, &itsGroup)
	return err == nil && itsGroup == group && state != "Z" && state != "X"
}
