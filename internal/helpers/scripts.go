package helpers

import (
	"context"
	"io"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/check"
)

// scriptTime is how long a script may take: less than the 3 s that their files allow.
const scriptTime = 2500 * time.Millisecond

// The scripts take no arguments, and ignore those that they get.

func networkProblem(n node, _ []string, out io.Writer) int {
	return examine(out, scriptTime, check.Conntrack(n.proc, 100))
}

func dnsProblem(_ node, _ []string, out io.Writer) int {
	return examine(out, scriptTime, check.DNS(check.KubernetesService))
}

func iptablesMode(n node, _ []string, out io.Writer) int {
	return examine(out, scriptTime, check.IPTables(n.proc))
}

// clockServices are units that keep a clock right, as distributions call them.
var clockServices = []string{"ntp", "chrony", "chronyd", "systemd-timesyncd", "ntpsec", "ntpd", "openntpd"}

// checkNTP looks for a service that runs. Without a systemd to ask, the kernel knows
// whether somebody keeps its clock right.
func checkNTP(n node, _ []string, out io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	for _, name := range clockServices {
		u, err := n.units.Look(ctx, name)
		if err != nil {
			return examine(out, scriptTime, check.Clock(0))
		}
		if u.Active == "active" || u.Active == "reloading" {
			return say(out, well, "%s is running", u.Name)
		}
	}
	return say(out, sick, "no service that keeps the clock right is running")
}
