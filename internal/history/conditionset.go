package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/naive"
)

const (
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	masterLabel       = "node-role.kubernetes.io/master" // the same, in older clusters
	agentSilent       = "AgentSilent"
	defaultBound      = "49%"
)

// rule is the parsed spec of a version of a ConditionSet.
type rule struct {
	key, effect  string
	when         naive.When
	selector     labels.Selector
	controlPlane bool // the selector names the control plane
	limit        naive.Limit
	dryRun       bool
	windows      []window
	paused       bool

	// invalid is the reason why the set cannot be applied. All other fields are empty then,
	// except lastValid, which may stay in force; nil for none.
	invalid   string
	lastValid *rule
}

type verdict = naive.Verdict

const (
	not     = naive.Not
	unclear = naive.Unclear
	holds   = naive.Holds
)

func when(yes bool) verdict {
	if yes {
		return holds
	}
	return not
}

// decoded reads the stored spec of a policy.
func decoded[Spec any](spec any) (s Spec, err error) {
	text, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

// limitIn parses a bound.
func limitIn(text string) (naive.Limit, error) {
	digits, percent := strings.CutSuffix(text, "%")
	number, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || percent && number > 100 {
		return naive.Limit{}, fmt.Errorf("the bound is %q", text)
	}
	return naive.Limit{Number: int(number), Percent: percent}, nil
}

// statusIn parses a status in any case.
func statusIn(text string) (naive.Status, bool) {
	at := slices.IndexFunc(statusNames, func(name string) bool { return strings.EqualFold(name, text) })
	return naive.True + naive.Status(max(at, 0)), at >= 0
}

var statusNames = []string{"True", "False", "Unknown"} // in the order of package naive

// readRule parses the stored spec of a set.
func readRule(spec any) *rule {
	s, err := decoded[v1alpha1.ConditionSetSpec](spec)
	if err != nil {
		return &rule{invalid: err.Error()}
	}
	r := &rule{key: s.TaintKey, effect: string(s.Effect), dryRun: s.DryRun || s.Mode == "Observe", when: naive.When{All: true}}
	if err := r.read(s); err != nil {
		return &rule{invalid: err.Error()}
	}
	return r
}

func (r *rule) read(s v1alpha1.ConditionSetSpec) error {
	if strength[r.effect] == 0 {
		return fmt.Errorf("the effect is %q", r.effect)
	}
	if problems := validation.IsQualifiedName(r.key); len(problems) > 0 {
		return fmt.Errorf("the taint key %q %s", r.key, problems[0])
	}
	if domain, _, _ := strings.Cut(r.key, "/"); strings.HasSuffix("."+domain, ".kubernetes.io") || strings.HasSuffix("."+domain, ".k8s.io") {
		return fmt.Errorf("the taint key %q belongs to Kubernetes", r.key)
	}
	if len(s.Conditions) == 0 {
		return fmt.Errorf("there are no conditions")
	}
	for name, c := range s.Conditions {
		status, known := statusIn(string(c.Status))
		if !known || string(c.Status) != statusNames[status-naive.True] {
			return fmt.Errorf("%s has the status %q", name, c.Status)
		}
		signal := naive.Signal{Condition: name, Status: status, EvenSilent: c.EvenSilent}
		if c.Duration != "" {
			wait, err := duration(c.Duration)
			if err != nil {
				return fmt.Errorf("%s has the duration %q", name, c.Duration)
			}
			signal.For = wait
		}
		r.when.Signals = append(r.when.Signals, signal)
	}
	return r.readScope(s)
}

// readScope parses the selector, the bound and the windows.
func (r *rule) readScope(s v1alpha1.ConditionSetSpec) error {
	r.selector = labels.Everything()
	if s.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(s.Selector)
		if err != nil {
			return err
		}
		r.selector = selector
		r.controlPlane = onControlPlane(s.Selector.MatchLabels)
		for _, e := range s.Selector.MatchExpressions {
			asks := e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpExists
			r.controlPlane = r.controlPlane || asks && (e.Key == controlPlaneLabel || e.Key == masterLabel)
		}
	}
	bound := defaultBound
	if s.MaxUnhealthy != nil {
		bound = s.MaxUnhealthy.String()
	}
	var err error
	if r.limit, err = limitIn(bound); err != nil {
		return err
	}
	r.windows, err = readWindows(s.Windows)
	return err
}

// isValid reports whether the set exists and is valid.
func (r *rule) isValid() bool { return r != nil && r.invalid == "" }

// placesTaints reports whether the set places taints at all.
func (r *rule) placesTaints() bool { return r.isValid() && !r.dryRun }

// selects reports whether the set selects a node with these labels.
func (r *rule) selects(set map[string]string) bool {
	return r.isValid() && r.selector.Matches(labels.Set(set))
}

// exempts reports whether the set must not place NoExecute on a node with these labels.
func (r *rule) exempts(set map[string]string) bool {
	return onControlPlane(set) && !r.controlPlane
}

// onControlPlane reports whether these are the labels of a control-plane node.
func onControlPlane(set map[string]string) bool {
	_, now := set[controlPlaneLabel]
	_, once := set[masterLabel]
	return now || once
}

// bound returns how many of the selected nodes may have the set's NoExecute taint.
func (r *rule) bound(selected int) int {
	if !r.isValid() {
		return 0
	}
	return naive.Allows(&r.limit, selected)
}

// allows reports whether the set may place this taint: its own taint, or NoSchedule as the
// fallback for NoExecute.
func (r *rule) allows(key, effect string) bool {
	return key == r.key && (effect == r.effect || r.effect == noExecute && effect == noSchedule)
}

// statuses is a bit set of statuses that a clock counts: True, False, Unknown, and Unknown
// even if the agent is silent.
type statuses int

const (
	evenSilent  statuses = 1 << 3
	allStatuses          = evenSilent << 1 // the number of sets
)

// signalsOf has the signals of each set of statuses.
var signalsOf = func() (of [allStatuses][]naive.Signal) {
	for set := range allStatuses {
		for i := range statusNames {
			if set&(1<<i) != 0 {
				of[set] = append(of[set], naive.Signal{Status: naive.True + naive.Status(i), EvenSilent: set&evenSilent != 0})
			}
		}
	}
	return of
}()

func statusesOf(signals []naive.Signal) (set statuses) {
	for _, s := range signals {
		set |= 1 << (s.Status - naive.True)
		if s.EvenSilent {
			set |= evenSilent
		}
	}
	return set
}

// row returns a condition of a node as package naive has it. An unknown status is unclear.
func (f facts) row(name string) naive.Condition {
	c, there := f.conditions[name]
	if !there {
		return naive.Condition{}
	}
	status, known := statusIn(string(c.status))
	if !known {
		return naive.Condition{Status: naive.Unknown, Reason: naive.AgentSilent}
	}
	return naive.Condition{Status: status, Reason: c.reason}
}

// clock stores since when a condition has had a status. It keeps running while the
// condition is Unknown.
type clock struct {
	since            time.Time // when the change was seen; zero: the clock does not run
	earliest, latest time.Time // the range of plausible start times
	ended            time.Time // when it last stopped
	before           time.Time // the earliest start of that run
}

// update sets the clock to the current verdict on the condition.
func (c *clock) update(v verdict, stamp, now time.Time, lag time.Duration) {
	running := !c.since.IsZero()
	switch {
	case v == not && running:
		*c = clock{ended: now, before: c.earliest}
	case v == holds:
		if stamp.IsZero() || stamp.After(now) {
			stamp = now
		}
		if !running {
			c.since, c.earliest = now, now
			// A controller that looks periodically misses a short recovery.
			if !c.ended.IsZero() && now.Sub(c.ended) <= lag {
				c.earliest = c.before
			}
		}
		c.earliest = first(c.earliest, stamp)
		c.latest = last(c.since, stamp)
	}
}

// finding is the result of a set for a node.
type finding struct {
	verdict verdict
	// earliest and latest are the range in which the wait ends.
	earliest, latest time.Time
	timed            bool // the set has to wait for a duration
}

// surely reports whether the set asks for its taint at this time under every reading.
func (f finding) surely(at time.Time, lag time.Duration) bool {
	return f.verdict == holds && (!f.timed || !f.latest.After(at.Add(-lag)))
}

// maybe reports whether the set may ask for its taint at this time.
func (f finding) maybe(at time.Time, lag time.Duration) bool {
	return f.verdict == holds && (!f.timed || !f.earliest.After(at.Add(lag)))
}

// find judges a node by the conditions of a rule.
func (n *node) find(w naive.When) finding {
	f := finding{timed: !w.All}
	var verdicts []verdict
	for _, condition := range naive.Groups(w) {
		signals := naive.SignalsOf(w, condition)
		v, wait := naive.Group(signals, n.row(condition))
		isAnother := v == holds && slices.Contains(verdicts, holds)
		verdicts = append(verdicts, v)
		clocks := n.clocks[condition]
		if clocks == nil || !w.All && v != holds {
			continue
		}
		if w.All {
			wait = signals[0].For
			f.timed = f.timed || wait > 0
		}
		clock := clocks[statusesOf(signals)]
		earliest, latest := clock.earliest.Add(wait), clock.latest.Add(wait)
		switch {
		case w.All:
			earliest, latest = last(f.earliest, earliest), last(f.latest, latest)
		case isAnother: // any unhealthy condition is enough
			earliest, latest = first(f.earliest, earliest), first(f.latest, latest)
		}
		f.earliest, f.latest = earliest, latest
	}
	f.verdict = naive.Combine(w.All, verdicts...)
	return f
}

// findSet judges a node by a set. A node that is not selected does not match.
func (n *node) findSet(r *rule) finding {
	if !r.selects(n.labels) {
		return finding{}
	}
	return n.find(r.when)
}

func first(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func last(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
