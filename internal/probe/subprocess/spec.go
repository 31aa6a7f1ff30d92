package subprocess

import (
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Spec is a program to be run, and what it may take.
type Spec struct {
	// Path of the file. A relative one begins at the working directory of the agent.
	Path string
	Args []string
	// Timeout is how long it may run. Zero means as long as the context lasts.
	Timeout time.Duration
	// MaxOutput is how many bytes are kept of what it writes, of each of its two outputs.
	// The rest is read and thrown away. Zero means [MaxOutput].
	MaxOutput int
}

// MaxOutput is how many bytes are kept of an output if a Spec does not say.
const MaxOutput = 4096

// name tells a program from others: the same one with other arguments does other work.
func (s Spec) name() string { return s.Path + "\x00" + strings.Join(s.Args, "\x00") }

// Result is what became of a program.
type Result struct {
	// Fault says why there is no exit code, empty if there is one.
	Fault Fault
	// Err is the fault for people: it names the program and the way out.
	Err error
	// Code is the exit code.
	Code int
	// Output and Complaint are the beginnings of what it wrote to its standard output
	// and to its standard error.
	Output, Complaint string
}

// Fault is one word for why a program gave no exit code.
type Fault string

// The faults.
const (
	Missing       Fault = "Missing"       // there is no such file, or its interpreter is not there
	Folder        Fault = "IsFolder"      // the path is one of a folder
	NotExecutable Fault = "NotExecutable" // it may not be executed
	NotAProgram   Fault = "NotAProgram"   // the system cannot execute what is in it
	NotStarted    Fault = "NotStarted"    // the system had no room for it, or the like
	Timeout       Fault = "Timeout"       // it was killed as it took too long
	Hangs         Fault = "Hangs"         // an earlier one does not die, so that none was started
	Killed        Fault = "Killed"        // somebody else has killed it
	Cancelled     Fault = "Cancelled"     // it was killed as nobody wants to know any more
)

func failed(fault Fault, format string, args ...any) Result {
	return Result{Fault: fault, Err: fmt.Errorf(format, args...)}
}

// judge says what the end of a program was.
func (s Spec) judge(status syscall.WaitStatus) Result {
	if status.Signaled() {
		return failed(Killed, "running %s: it was killed by signal %d (%s); look into the kernel log for the memory that it may have wanted", s.Path, status.Signal(), status.Signal())
	}
	return Result{Code: status.ExitStatus()}
}
