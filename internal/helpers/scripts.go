package helpers

import (
	"context"
	"io"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/check"
)

// scriptTime is the time limit of a script. It is less than the 3 s that the configuration files
// allow.
const scriptTime = 2500 * time.Millisecond

// The scripts ignore their arguments.

func networkProblem(n node, _ []string, out io.Writer) int {
	return runCheck(out, scriptTime, check.Conntrack(n.proc, 90))
}

func dnsProblem(_ node, _ []string, out io.Writer) int {
	return runCheck(out, scriptTime, check.DNS(check.KubernetesService))
}

func iptablesMode(n node, _ []string, out io.Writer) int {
	return runCheck(out, scriptTime, check.IPTables(n.proc))
}

// clockServices are the names of time services in various distributions.
var clockServices = []string{"ntp", "chrony", "chronyd", "systemd-timesyncd", "ntpsec", "ntpd", "openntpd"}

// checkNTP checks whether a time service is running. Without systemd it checks the kernel's clock
// instead.
func checkNTP(n node, _ []string, out io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	for _, name := range clockServices {
		u, err := n.units.Look(ctx, name)
		if err != nil {
			return runCheck(out, scriptTime, check.Clock(0))
		}
		if u.Active == "active" || u.Active == "reloading" {
			return say(out, healthy, "%s is running", u.Name)
		}
	}
	return say(out, unhealthy, "no time service is running")
}
