package subprocess

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// self is the executable of this process, even if its file was renamed or removed.
	self = "/proc/self/exe"
	// childName is argv[0] of a process that this process starts to execute another program.
	childName = "autohealer-child"
	// errnoFile is the file descriptor to which that process writes why exec failed.
	errnoFile = 3
	// maxErrnoDigits limits the length of the written errno.
	maxErrnoDigits = 8
)

// Become executes the program of a [Children.Run] if that call started this process. Every
// main that uses Children calls it first, before it parses arguments. If it returns true,
// exec failed, and main returns.
func Become() bool {
	if len(os.Args) < 2 || os.Args[0] != childName {
		return false
	}
	// The program does not inherit the file. That it was closed without data tells the parent
	// that exec succeeded.
	unix.CloseOnExec(errnoFile)
	err := syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	code, _ := errors.AsType[syscall.Errno](err)
	// The write fails only if the parent has given up, and then it does not need the errno.
	_, _ = unix.Write(errnoFile, []byte(strconv.Itoa(int(code))))
	return true
}

// execError returns the errno that a process wrote before it exited, nil if exec
// succeeded.
func execError(written string) error {
	if written == "" {
		return nil
	}
	code, err := strconv.Atoi(written)
	if err != nil {
		return err
	}
	return syscall.Errno(code)
}
