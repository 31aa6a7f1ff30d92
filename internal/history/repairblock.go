package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

const defaultRepairBound = "20%"

// The built-in list of unhealthy conditions with their tolerations.
const recommended = 30 * time.Minute

func statedAnywhere() map[string]time.Duration {
	return map[string]time.Duration{"Ready=False": recommended, "Ready=Unknown": recommended, "NetworkUnavailable=True": recommended}
}

func statedOfMachines() map[string]time.Duration {
	stated := statedAnywhere()
	for _, what := range []string{"AcceleratedHardware", "Storage", "Networking", "Kernel", "ContainerRuntime"} {
		stated[what+"Ready=False"] = recommended
	}
	return stated
}

// block is the parsed version of a repair block.
type block struct {
	stated    map[string]time.Duration // keys like Ready=False, with the recommended toleration
	own       []toleration
	byDefault *time.Duration
	off       bool
	number    int // the bound
	percent   bool
	graceful  bool
	period    *time.Duration // nil: no limit
	timeout   time.Duration  // for a node to become ready, 0 if it is not set

	// invalid is the reason why the block cannot be applied. All other fields are empty
	// then.
	invalid string
}

// toleration is an entry of a block. An empty status matches all unhealthy statuses, an
// empty reason matches any reason.
type toleration struct {
	condition, status, reason string
	wait                      time.Duration
}

// readBlock parses a stored block.
func readBlock(spec any, stated map[string]time.Duration) *block {
	text, err := json.Marshal(spec)
	if err != nil {
		return &block{invalid: err.Error()}
	}
	var s v1alpha1.RepairSpec
	if err := json.Unmarshal(text, &s); err != nil {
		return &block{invalid: err.Error()}
	}
	if s.Unreadable != "" {
		return &block{invalid: s.Unreadable}
	}
	b := &block{stated: stated, off: s.Enabled != nil && !*s.Enabled}
	for _, read := range []func(v1alpha1.RepairSpec) error{b.readPolicies, b.readBound, b.readEnd, b.readDurations} {
		if err := read(s); err != nil {
			return &block{invalid: err.Error()}
		}
	}
	return b
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	return d, err
}

func (b *block) readPolicies(s v1alpha1.RepairSpec) error {
	for _, p := range s.Policies {
		status := ""
		if p.ConditionStatus != "" {
			at := slices.IndexFunc([]string{"True", "False", "Unknown"}, func(known string) bool { return strings.EqualFold(known, p.ConditionStatus) })
			if at < 0 {
				return fmt.Errorf("the status of %s is %q", p.ConditionType, p.ConditionStatus)
			}
			status = []string{"True", "False", "Unknown"}[at]
		}
		wait, err := duration(p.Toleration)
		if err != nil || p.ConditionType == "" {
			return fmt.Errorf("the condition %q for %q", p.ConditionType, p.Toleration)
		}
		next := toleration{p.ConditionType, status, p.Reason, wait}
		if _, twice := b.find(next.condition, next.status, next.reason); twice {
			return fmt.Errorf("the condition %s is there twice", p.ConditionType)
		}
		b.own = append(b.own, next)
	}
	return nil
}

func (b *block) readBound(s v1alpha1.RepairSpec) error {
	bound := defaultRepairBound
	if s.MaxUnhealthy != nil {
		bound = s.MaxUnhealthy.String()
	}
	digits, percent := strings.CutSuffix(bound, "%")
	number, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || percent && number > 100 {
		return fmt.Errorf("the bound is %q", bound)
	}
	b.number, b.percent = int(number), percent
	return nil
}

func (b *block) readEnd(s v1alpha1.RepairSpec) error {
	if s.Termination != "" && s.Termination != v1alpha1.Forceful && s.Termination != v1alpha1.Graceful {
		return fmt.Errorf("the termination is %q", s.Termination)
	}
	b.graceful = s.Termination == v1alpha1.Graceful
	return nil
}

func (b *block) readDurations(s v1alpha1.RepairSpec) error {
	for _, each := range []struct {
		text string
		into func(time.Duration)
	}{
		{s.DefaultTolerationDuration, func(d time.Duration) { b.byDefault = &d }},
		{s.TerminationGracePeriod, func(d time.Duration) { b.period = &d }},
		{s.ReadyTimeout, func(d time.Duration) { b.timeout = d }},
	} {
		if each.text == "" {
			continue
		}
		d, err := duration(each.text)
		if err != nil {
			return err
		}
		each.into(d)
	}
	if s.ReadyTimeout != "" && b.timeout == 0 {
		return fmt.Errorf("a node has no time to become ready")
	}
	return nil
}

func (b *block) isValid() bool { return b != nil && b.invalid == "" }

// bound returns how many nodes may be in repair. A percentage is rounded down, with a
// minimum of 1 unless it is 0%.
func (b *block) bound(nodes int) int {
	switch share := nodes * b.number / 100; {
	case !b.percent:
		return b.number
	case b.number > 0:
		return max(1, share)
	}
	return 0
}

func (b *block) find(condition, status, reason string) (time.Duration, bool) {
	at := slices.IndexFunc(b.own, func(p toleration) bool { return p.condition == condition && p.status == status && p.reason == reason })
	if at < 0 {
		return 0, false
	}
	return b.own[at].wait, true
}

// tolerates reports whether a condition is unhealthy, and how long it is tolerated. The
// order is: the block's own entries, its default, the recommended time. An entry for a
// reason goes before an entry for any reason, and an entry for a status before an entry for
// all statuses.
func (b *block) tolerates(condition, status, reason string) (wait time.Duration, isSick bool) {
	recommended, isStated := b.stated[condition+"="+status]
	_, isNamed := b.find(condition, status, "")
	isSick = isStated || isNamed
	if reason != "" {
		if wait, is := b.find(condition, status, reason); is {
			return wait, true
		}
		if wait, is := b.find(condition, "", reason); is && isSick {
			return wait, true
		}
	}
	if !isSick {
		return 0, false
	}
	for _, named := range []string{status, ""} {
		if wait, is := b.find(condition, named, ""); is {
			return wait, true
		}
	}
	if b.byDefault != nil {
		return *b.byDefault, true
	}
	return recommended, true
}

// bad returns the unhealthy statuses of a condition, for any reason.
func (b *block) bad(condition string) (bad statuses) {
	for at, status := range []string{"True", "False", "Unknown"} {
		_, isStated := b.stated[condition+"="+status]
		if isStated || slices.ContainsFunc(b.own, func(p toleration) bool { return p.condition == condition && p.status == status }) {
			bad |= 1 << at
		}
	}
	return bad
}

// examineBlock judges a node by a block.
func (n *node) examineBlock(b *block) finding {
	f := finding{timed: true}
	for name, c := range n.conditions {
		bad := b.bad(name)
		if bad == 0 {
			continue
		}
		v := bad.of(c, true)
		wait, isSick := b.tolerates(name, string(c.status), c.reason)
		switch {
		case v == holds && !isSick: // for another reason it would be unhealthy
			v = not
		case v == holds:
			clock := n.signs[name][bad]
			earliest, latest := clock.earliest.Add(wait), clock.latest.Add(wait)
			if f.verdict == holds { // any unhealthy condition is enough
				earliest, latest = first(f.earliest, earliest), first(f.latest, latest)
			}
			f.earliest, f.latest = earliest, latest
		}
		f.verdict = max(f.verdict, v)
	}
	return f
}

// isReady reports whether the node's Ready condition is True.
func (f facts) isReady() bool {
	return f.conditions[string(corev1.NodeReady)].status == corev1.ConditionTrue
}
