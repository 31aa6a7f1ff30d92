package check

import (
	"cmp"
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// Node gives checks access to the node.
type Node struct {
	// Getenv reads environment variables (HOST_ADDRESS, KUBELET_PORT, KUBEPROXY_PORT).
	Getenv func(string) string
	// Boot is when the node started; zero if not known.
	Boot time.Time
	// Units is systemd.
	Units Units
	// Repairs is shared by all checks of a node.
	Repairs *Repairs
	// Tell receives an Event for each restarted unit. It may be nil.
	Tell func(finding.Event)
}

// New returns the check of a rule.
func New(rule config.CheckRule, node Node) (periodic.Check, error) {
	examine, err := newUnguarded(rule, node)
	if err != nil {
		return nil, err
	}
	s := rule.Settings
	care := GuardConfig{Check: rule.Check + "/" + rule.Reason, Unit: s.Unit, Grace: s.Grace, Repair: s.Repair, Cooldown: s.Cooldown}
	if err := care.Validate(); err != nil {
		return nil, fmt.Errorf("check %s: %w", rule.Check, err)
	}
	guard := Guard{GuardConfig: care, Boot: node.Boot, Units: node.Units, Repairs: node.Repairs, Tell: node.Tell, Now: time.Now}
	return guard.Around(examine), nil
}

// newUnguarded returns the check without its guard.
func newUnguarded(rule config.CheckRule, node Node) (periodic.Check, error) {
	s := rule.Settings
	switch rule.Check {
	case config.CheckKubelet:
		return Endpoint("the kubelet", cmp.Or(s.URL, KubeletURL(node.Getenv))), nil
	case config.CheckKubeProxy:
		return Endpoint("kube-proxy", cmp.Or(s.URL, KubeProxyURL(node.Getenv))), nil
	case config.CheckRuntime:
		return Runtime(cmp.Or(s.Socket, ContainerdSocket)), nil
	case config.CheckReadonly:
		return Readonly(cmp.Or(s.MountTable, MountTable)), nil
	case config.CheckClock:
		return Clock(s.MaxError), nil
	case config.CheckConntrack:
		return Conntrack(Proc, s.FullPercent), nil
	case config.CheckDNS:
		return DNS(cmp.Or(s.Name, KubernetesService)), nil
	case config.CheckIPTables:
		return IPTables(Proc), nil
	}
	return nil, fmt.Errorf("unknown check %q", rule.Check)
}
