package subprocess

import (
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Spec describes a program to run, and its limits.
type Spec struct {
	// Path is the path of the file. A relative path starts at the working directory of the
	// agent.
	Path string
	Args []string
	// Timeout limits the run time. Zero means no limit except the context.
	Timeout time.Duration
	// MaxOutput is the number of bytes kept of each of its two outputs. The rest is read and
	// discarded. Zero means [MaxOutput].
	MaxOutput int
}

// MaxOutput is the default of Spec.MaxOutput.
const MaxOutput = 4096

// name identifies a program. The same file with other arguments is another program.
func (s Spec) name() string { return s.Path + "\x00" + strings.Join(s.Args, "\x00") }

// Result is the result of a program.
type Result struct {
	// Fault says why there is no exit code. It is empty if there is one.
	Fault Fault
	// Err describes the fault to the user. It names the program and the next step.
	Err error
	// Code is the exit code.
	Code int
	// Output and Complaint are the beginnings of its standard output and its standard error.
	Output, Complaint string
}

// Fault is the reason why a program has no exit code.
type Fault string

// The faults.
const (
	Missing       Fault = "Missing"       // the file or its interpreter does not exist
	Folder        Fault = "IsFolder"      // the path is a directory
	NotExecutable Fault = "NotExecutable" // the file is not executable
	NotAProgram   Fault = "NotAProgram"   // the system cannot execute the file
	NotStarted    Fault = "NotStarted"    // the system could not start a process
	Timeout       Fault = "Timeout"       // it was killed because its timeout had passed
	Hangs         Fault = "Hangs"         // not started, because an earlier run cannot be killed
	Killed        Fault = "Killed"        // another process or the kernel killed it
	Cancelled     Fault = "Cancelled"     // it was killed because the context was cancelled
)

func failed(fault Fault, format string, args ...any) Result {
	return Result{Fault: fault, Err: fmt.Errorf(format, args...)}
}

// result returns the result of a program that has ended.
func (s Spec) result(status syscall.WaitStatus) Result {
	if status.Signaled() {
		return failed(Killed, "running %s: it was killed by signal %d (%s); check the kernel log for an out-of-memory kill", s.Path, status.Signal(), status.Signal())
	}
	return Result{Code: status.ExitStatus()}
}
