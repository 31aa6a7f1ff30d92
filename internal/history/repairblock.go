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

// What is called sick where nobody says otherwise, and for how long that is tolerated.
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

// block is what one version of a repair block asks for.
type block struct {
	stated    map[string]time.Duration // such as Ready=False, with what is recommended
	own       []toleration
	byDefault *time.Duration
	off       bool
	number    int // the bound
	percent   bool
	graceful  bool
	period    *time.Duration // nil: for as long as it takes
	timeout   time.Duration  // for a node to become ready, 0 if it does not say

	// refused says why nobody can follow the block; the rest is empty then.
	refused string
}

// toleration is one policy of a block. Without a status it is for all that are sick,
// without a reason for any.
type toleration struct {
	condition, status, reason string
	wait                      time.Duration
}

// readBlock reads a block as it is stored.
func readBlock(spec any, stated map[string]time.Duration) *block {
	text, err := json.Marshal(spec)
	if err != nil {
		return &block{refused: err.Error()}
	}
	var s v1alpha1.RepairSpec
	if err := json.Unmarshal(text, &s); err != nil {
		return &block{refused: err.Error()}
	}
	if s.Unreadable != "" {
		return &block{refused: s.Unreadable}
	}
	b := &block{stated: stated, off: s.Enabled != nil && !*s.Enabled}
	for _, read := range []func(v1alpha1.RepairSpec) error{b.readPolicies, b.readBound, b.readEnd, b.readDurations} {
		if err := read(s); err != nil {
			return &block{refused: err.Error()}
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

func (b *block) follows() bool { return b != nil && b.refused == "" }

// bound is how many of so many nodes may be in repair: a share is rounded down, but a
// share of more than nothing allows one.
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

// tolerates says whether a condition that stands so is sick, and for how long that is
// tolerated: by the block's own word, then by its default, then by what is recommended.
// The word for one reason goes before that for any, and one for a status before one for
// all of them.
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

// bad are the statuses of a condition that are sick, for whatever reason.
func (b *block) bad(condition string) (bad statuses) {
	for at, status := range []string{"True", "False", "Unknown"} {
		_, isStated := b.stated[condition+"="+status]
		if isStated || slices.ContainsFunc(b.own, func(p toleration) bool { return p.condition == condition && p.status == status }) {
			bad |= 1 << at
		}
	}
	return bad
}

// ails judges a node by a block.
func (n *node) ails(b *block) finding {
	f := finding{timed: true}
	for name, c := range n.conditions {
		bad := b.bad(name)
		if bad == 0 {
			continue
		}
		v := bad.of(c, true)
		wait, isSick := b.tolerates(name, string(c.status), c.reason)
		switch {
		case v == holds && !isSick: // for another reason it would be
			v = not
		case v == holds:
			clock := n.signs[name][bad]
			earliest, latest := clock.earliest.Add(wait), clock.latest.Add(wait)
			if f.verdict == holds { // any of them is enough
				earliest, latest = first(f.earliest, earliest), first(f.latest, latest)
			}
			f.earliest, f.latest = earliest, latest
		}
		f.verdict = max(f.verdict, v)
	}
	return f
}

// isReady says whether the node says so of itself.
func (f facts) isReady() bool {
	return f.conditions[string(corev1.NodeReady)].status == corev1.ConditionTrue
}
