package helpers

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/probe/unit"
)

// The exit codes.
const (
	healthy   = 0
	unhealthy = 1
	unknown   = 2
	notFound  = 127 // of a shell that cannot run the command
)

// node gives programs access to the machine.
type node struct {
	getenv  func(string) string
	proc    string
	journal string // empty means both default folders
	repairs string
	units   check.Units
	boot    func() (procfs.Boot, error)
	now     func() time.Time
	exec    func(path string, argv, env []string) error // returns only if it fails
}

// program is a helper program. It writes a line to out and returns the exit code.
type program func(n node, args []string, out io.Writer) int

// programs returns all programs by name.
func programs() map[string]program {
	return map[string]program{
		"health-checker":     healthChecker,
		"log-counter":        logCounter,
		"check_ntp.sh":       checkNTP,
		"network_problem.sh": networkProblem,
		"dns_problem.sh":     dnsProblem,
		"iptables_mode.sh":   iptablesMode,
		"sh":                 shell,
	}
}

// Program returns the program for a name or path (argv[0]).
func Program(name string) (run func(args []string, out io.Writer) int, ok bool) {
	p, ok := programs()[filepath.Base(name)]
	if !ok {
		return nil, false
	}
	return func(args []string, out io.Writer) int {
		return p(node{
			getenv: os.Getenv, proc: check.Proc, repairs: check.RepairsFolder, units: unit.New(unit.Config{}),
			boot: func() (procfs.Boot, error) { return procfs.ReadBoot("") }, now: time.Now, exec: syscall.Exec,
		}, args, out)
	}, true
}

// say prints a line and returns the exit code.
func say(out io.Writer, code int, format string, args ...any) int {
	line := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	fmt.Fprintln(out, line)
	return code
}

// runCheck runs a check with a time limit, prints its message and returns the exit code.
func runCheck(out io.Writer, limit time.Duration, e periodic.Check) int {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer := e(ctx)
	return say(out, code(answer.Verdict), "%s", answer.Message)
}

func code(v periodic.Verdict) int {
	switch v {
	case periodic.Healthy:
		return healthy
	case periodic.Unhealthy:
		return unhealthy
	}
	return unknown
}
