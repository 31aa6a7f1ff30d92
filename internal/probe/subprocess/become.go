package subprocess

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// self is the program of this process, also if its file has another name by now.
	self = "/proc/self/exe"
	// calling is the name by which this process starts itself to become another program.
	calling = "autohealer-child"
	// refusals is the file to which such a process writes why it could not become one.
	refusals = 3
	// mostDigits is how many digits the number of a reason may have.
	mostDigits = 8
)

// Become makes this process the program that it was started for, if it was started by
// [Children.Run]. It comes first in main, before anything that looks at arguments, of
// every program that has children. If it returns true, there is nothing left to do.
func Become() bool {
	if len(os.Args) < 2 || os.Args[0] != calling {
		return false
	}
	// The program does not get the file, and that it is closed says that there is one.
	unix.CloseOnExec(refusals)
	err := syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	code, _ := errors.AsType[syscall.Errno](err)
	// If nobody listens any more, nobody wants to know.
	_, _ = unix.Write(refusals, []byte(strconv.Itoa(int(code))))
	return true
}

// refusal returns why a process could not become a program; nil if it has.
func refusal(written string) error {
	if written == "" {
		return nil
	}
	code, err := strconv.Atoi(written)
	if err != nil {
		return err
	}
	return syscall.Errno(code)
}
