package helpers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/unit"
)

// healthOptions are the flags of health-checker.
type healthOptions struct {
	component, service string
	repair             bool
	socket             string
	criTimeout         time.Duration
	cooldown, loopback time.Duration
	timeout            time.Duration
	patterns           logPatterns
}

// unitsOf maps each component to the unit that runs it.
var unitsOf = map[string]string{"kubelet": "kubelet", "kube-proxy": "kube-proxy", "docker": "docker", "cri": "containerd"}

func parseHealth(args []string, out io.Writer) (healthOptions, error) {
	var o healthOptions
	f := flags("health-checker", out)
	f.StringVar(&o.component, "component", "kubelet", "the component to check: kubelet, kube-proxy, docker or cri")
	f.StringVar(&o.service, "service", "", "`unit` of systemd that runs it (that of the component)")
	f.StringVar(&o.service, "systemd-service", "", "old name of --service")
	f.BoolVar(&o.repair, "enable-repair", true, "restart the unit if it is unhealthy")
	f.String("crictl-path", "", "accepted without effect: the runtime is asked directly")
	f.StringVar(&o.socket, "cri-socket-path", "unix:///var/run/containerd/containerd.sock", "`socket` of the container runtime")
	f.DurationVar(&o.criTimeout, "cri-timeout", 2*time.Second, "how long the container runtime may take")
	f.DurationVar(&o.cooldown, "cooldown-time", 2*time.Minute, "how long the unit must be unchanged before it is restarted")
	f.DurationVar(&o.loopback, "loopback-time", 0, "how far back the journal is searched for the patterns, 0 means up to the unit's start")
	f.DurationVar(&o.timeout, "health-check-timeout", 10*time.Second, "how long an answer may take")
	f.Var(&o.patterns, "log-pattern", "`N:regex`, several separated by commas: unhealthy if at least N lines of the unit's journal match")
	if err := parse(f, args); err != nil {
		return o, err
	}
	usual, ok := unitsOf[o.component]
	switch {
	case !ok:
		return o, fmt.Errorf("--component %q is not known; write kubelet, kube-proxy, docker or cri", o.component)
	case o.timeout <= 0 || o.criTimeout <= 0:
		return o, errors.New("--health-check-timeout and --cri-timeout must be more than zero, for example 10s")
	case o.component == "cri" && o.socket == "":
		return o, errors.New("--cri-socket-path is empty; write one like unix:///run/containerd/containerd.sock")
	}
	if o.service == "" {
		o.service = usual
	}
	return o, nil
}

// spare extends the time of a check, to leave time for asking systemd.
const spare = 1.25

func healthChecker(n node, args []string, out io.Writer) int {
	o, err := parseHealth(args, out)
	if err != nil {
		return refuse(out, "health-checker", err)
	}
	limit := o.timeout
	if o.component == "cri" {
		limit = min(limit, o.criTimeout)
	}
	guard := check.Guard{
		GuardConfig: check.GuardConfig{Check: "health-checker " + strings.Join(args, " "), Unit: o.service, Repair: o.repair, Cooldown: o.cooldown},
		Units:       n.units, Repairs: &check.Repairs{Folder: n.repairs}, Now: n.now,
	}
	examineBoth := func(ctx context.Context) periodic.Result {
		if answer := o.check(n)(ctx); answer.Verdict != periodic.Healthy || len(o.patterns) == 0 {
			return answer
		}
		return o.searchJournal(ctx, n)
	}
	return runCheck(out, time.Duration(float64(limit)*spare), guard.Around(examineBoth))
}

func (o healthOptions) check(n node) periodic.Check {
	switch o.component {
	case "kube-proxy":
		return check.Endpoint("kube-proxy", check.KubeProxyURL(n.getenv))
	case "docker":
		return check.Docker(check.DockerSocket)
	case "cri":
		return check.Runtime(o.socket)
	}
	return check.Endpoint("kubelet", check.KubeletURL(n.getenv))
}

// searchJournal searches the journal of the unit for the patterns.
func (o healthOptions) searchJournal(ctx context.Context, n node) periodic.Result {
	u, err := n.units.Look(ctx, o.service)
	if err != nil {
		return periodic.Result{Message: fmt.Sprintf("searching the journal: %v", err)}
	}
	since, err := o.since(n.now(), u)
	if err != nil {
		return periodic.Result{Message: fmt.Sprintf("searching the journal: %v", err)}
	}
	counts := make([]int, len(o.patterns))
	err = readJournal(ctx, journal.Config{Path: n.journal, Unit: u.Name, Since: since}, n.now(), func(line []byte) {
		for i, p := range o.patterns {
			if p.pattern.Match(line) {
				counts[i]++
			}
		}
	})
	if err != nil {
		return periodic.Result{Message: fmt.Sprintf("searching the journal: %v", err)}
	}
	for i, p := range o.patterns {
		if counts[i] >= p.count {
			return periodic.Result{Verdict: periodic.Unhealthy, Message: fmt.Sprintf("%s has written %d lines that match %q", o.service, counts[i], p.text)}
		}
	}
	return periodic.Result{Verdict: periodic.Healthy, Message: o.service + " is well"}
}

// since returns the start of the search in the unit's journal. The search is always bounded,
// because a journal may cover years.
func (o healthOptions) since(now time.Time, u unit.Unit) (time.Time, error) {
	back := now.Add(-o.loopback)
	switch {
	case !u.Known():
		return time.Time{}, fmt.Errorf("there is no unit %s (%s); name another with --service", u.Name, u.Load)
	case o.loopback > 0 && back.After(u.Started):
		return back, nil
	case u.Started.IsZero():
		return time.Time{}, fmt.Errorf("%s was never started; write how far to look back with --loopback-time", u.Name)
	}
	return u.Started, nil
}

// logPatterns is the flag --log-pattern.
type logPatterns []logPattern

type logPattern struct {
	count   int
	text    string
	pattern *regexp.Regexp
}

// String implements flag.Value.
func (p *logPatterns) String() string { return "" }

// Set adds patterns. A comma separates two patterns only if a number follows it. Other commas
// belong to the pattern.
func (p *logPatterns) Set(text string) error {
	for _, item := range splitPatterns(text) {
		count, pattern, ok := strings.Cut(item, ":")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 1 || pattern == "" {
			return fmt.Errorf("%q is not N:regex, for example 10:connection refused", item)
		}
		compiled, err := regexp.Compile("(?i)" + pattern)
		if err != nil {
			return fmt.Errorf("%q is no regular expression: %w", pattern, err)
		}
		*p = append(*p, logPattern{n, pattern, compiled})
	}
	return nil
}

var nextPattern = regexp.MustCompile(`,\d+:`)

func splitPatterns(text string) []string {
	var items []string
	for {
		at := nextPattern.FindStringIndex(text)
		if at == nil {
			return append(items, text)
		}
		items = append(items, text[:at[0]])
		text = text[at[0]+1:]
	}
}
