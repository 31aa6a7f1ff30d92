package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/naive"
)

const defaultRepairBound = "20%"

// Of so few nodes, the default threshold is another one.
const fewNodes, defaultThresholdOfFew = 5, 49

// The built-in list of unhealthy conditions with their tolerations.
const recommended = 30 * time.Minute

func statedAnywhere() map[string]time.Duration {
	stated := map[string]time.Duration{
		"Ready=False": recommended, "Ready=Unknown": recommended, "NetworkUnavailable=True": recommended,
		"AcceleratedHardwareReady=False": 10 * time.Minute,
	}
	for _, what := range []string{"Storage", "Networking", "Kernel", "ContainerRuntime"} {
		stated[what+"Ready=False"] = recommended
	}
	return stated
}

// block is the parsed version of a repair block.
type block struct {
	when      naive.When
	off       bool
	limit     naive.Limit
	threshold naive.Limit // of unhealthy nodes
	graceful  bool
	period    *time.Duration // nil: no limit
	timeout   time.Duration  // for a node to become ready, 0 if it is not set
	windows   []window
	urgent    []v1alpha1.ConditionRepair // those that do not wait for a window

	// invalid is the reason why the block cannot be applied. All other fields are empty
	// then.
	invalid string
}

// readBlock parses a stored block. The keys of the stated conditions are like Ready=False,
// with the recommended toleration.
func readBlock(spec any, stated map[string]time.Duration) *block {
	s, err := decoded[v1alpha1.RepairSpec](spec)
	if err != nil {
		return &block{invalid: err.Error()}
	}
	if s.Unreadable != "" {
		return &block{invalid: s.Unreadable}
	}
	b := &block{off: s.Enabled != nil && !*s.Enabled}
	for _, read := range []func(v1alpha1.RepairSpec) error{
		func(s v1alpha1.RepairSpec) error { return b.readPolicies(s, stated) }, b.readBound, b.readEnd, b.readDurations, b.readWindows,
	} {
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

// toleration reads a duration, or Never.
func toleration(text string) (time.Duration, error) {
	if text == "Never" {
		return naive.Never, nil
	}
	return duration(text)
}

// readPolicies reads which conditions are unhealthy, and how long each is tolerated. The
// order is: the block's own entries, its default, the recommended time. An entry for a
// reason goes before an entry for any reason, and an entry for a status before an entry for
// all statuses.
func (b *block) readPolicies(s v1alpha1.RepairSpec, stated map[string]time.Duration) error {
	type entry struct{ condition, status, reason string }
	byDefault, err := toleration(s.DefaultTolerationDuration)
	if err != nil && s.DefaultTolerationDuration != "" {
		return err
	}
	own := map[entry]time.Duration{}
	conditions := map[string]bool{}
	for what := range stated {
		condition, _, _ := strings.Cut(what, "=")
		conditions[condition] = true
	}
	for _, p := range s.Policies {
		status, known := statusIn(p.ConditionStatus)
		if !known && p.ConditionStatus != "" {
			return fmt.Errorf("the status of %s is %q", p.ConditionType, p.ConditionStatus)
		}
		wait, err := toleration(p.Toleration)
		if err != nil || p.ConditionType == "" {
			return fmt.Errorf("the condition %q for %q", p.ConditionType, p.Toleration)
		}
		next := entry{p.ConditionType, "", p.Reason}
		if known {
			next.status = statusNames[status-naive.True]
		}
		if _, twice := own[next]; twice {
			return fmt.Errorf("the condition %s is there twice", p.ConditionType)
		}
		own[next], conditions[p.ConditionType] = wait, true
	}
	for _, condition := range slices.Sorted(maps.Keys(conditions)) {
		for i, status := range statusNames {
			recommended, isUnhealthy := stated[condition+"="+status]
			if s.DefaultTolerationDuration != "" {
				recommended = byDefault
			}
			if wait, is := own[entry{condition, "", ""}]; is {
				recommended = wait
			}
			if wait, is := own[entry{condition, status, ""}]; is {
				recommended, isUnhealthy = wait, true
			}
			signal := naive.Signal{Condition: condition, Status: naive.True + naive.Status(i), For: recommended}
			if isUnhealthy {
				b.when.Signals = append(b.when.Signals, signal)
			}
			for e, wait := range own {
				_, isMoreExact := own[entry{condition, status, e.reason}]
				if e.condition == condition && e.reason != "" && (e.status == status || e.status == "" && isUnhealthy && !isMoreExact) {
					signal.Reason, signal.For = e.reason, wait
					b.when.Signals = append(b.when.Signals, signal)
				}
			}
		}
	}
	return nil
}

func (b *block) readWindows(s v1alpha1.RepairSpec) (err error) {
	b.urgent = slices.DeleteFunc(slices.Clone(s.Policies), func(p v1alpha1.ConditionRepair) bool { return !p.Urgent })
	b.windows, err = readWindows(s.Windows)
	return err
}

func (b *block) readBound(s v1alpha1.RepairSpec) (err error) {
	bound, threshold := defaultRepairBound, defaultRepairBound
	switch {
	case s.MaxUnhealthy != nil && s.MaxConcurrent != nil:
		return fmt.Errorf("the bound is there twice")
	case s.MaxUnhealthy != nil:
		bound = s.MaxUnhealthy.String()
	case s.MaxConcurrent != nil:
		bound = s.MaxConcurrent.String()
	}
	if b.limit, err = limitIn(bound); err != nil {
		return err
	}
	if s.UnhealthyThreshold != nil {
		threshold = s.UnhealthyThreshold.String()
	}
	b.threshold, err = limitIn(threshold)
	b.threshold.RoundUp = true
	if s.UnhealthyThreshold == nil {
		b.threshold.Few, b.threshold.FewNumber = fewNodes, defaultThresholdOfFew
	}
	return err
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

// bound returns how many nodes may be in repair.
func (b *block) bound(nodes int) int { return naive.Allows(&b.limit, nodes) }

// isReady reports whether the node's Ready condition is True.
func (f facts) isReady() bool {
	return f.conditions[string(corev1.NodeReady)].status == corev1.ConditionTrue
}
