package history

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
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
	wants        []want
	selector     labels.Selector
	controlPlane bool // the selector names the control plane
	number       int  // the bound
	percent      bool
	dryRun       bool

	// invalid is the reason why the set cannot be applied. All other fields are empty then.
	invalid string
}

// want is the status that a condition must have, and for how long.
type want struct {
	condition string
	status    wantedStatus
	wait      time.Duration
}

// wantedStatus is a status that a set can ask for.
type wantedStatus int

const (
	isTrue wantedStatus = iota
	isFalse
	isUnknown
	isUnknownEvenSilent
	numWantedStatuses // the number of values
)

type verdict int

const (
	not     verdict = iota // also for a missing condition
	unclear                // Unknown, and the set does not ask for Unknown
	holds
)

// of compares the current condition with the wanted status.
func (l wantedStatus) of(c condition, there bool) verdict {
	switch {
	case !there:
		return not
	case c.status == corev1.ConditionTrue:
		return when(l == isTrue)
	case c.status == corev1.ConditionFalse:
		return when(l == isFalse)
	case l == isUnknownEvenSilent, l == isUnknown && c.reason != agentSilent:
		return holds
	}
	return unclear
}

func when(yes bool) verdict {
	if yes {
		return holds
	}
	return not
}

// readRule parses the stored spec of a set.
func readRule(spec any) *rule {
	text, err := json.Marshal(spec)
	if err != nil {
		return &rule{invalid: err.Error()}
	}
	var s v1alpha1.ConditionSetSpec
	if err := json.Unmarshal(text, &s); err != nil {
		return &rule{invalid: err.Error()}
	}
	r := &rule{key: s.TaintKey, effect: string(s.Effect), dryRun: s.DryRun}
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
		w := want{condition: name}
		switch {
		case c.Status == "True":
			w.status = isTrue
		case c.Status == "False":
			w.status = isFalse
		case c.Status == "Unknown" && c.EvenSilent:
			w.status = isUnknownEvenSilent
		case c.Status == "Unknown":
			w.status = isUnknown
		default:
			return fmt.Errorf("%s has the status %q", name, c.Status)
		}
		if c.Duration != "" {
			wait, err := time.ParseDuration(c.Duration)
			if err != nil || wait < 0 {
				return fmt.Errorf("%s has the duration %q", name, c.Duration)
			}
			w.wait = wait
		}
		r.wants = append(r.wants, w)
	}
	return r.readScope(s)
}

// readScope parses the selector and the bound.
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
	digits, percent := strings.CutSuffix(bound, "%")
	number, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || percent && number > 100 {
		return fmt.Errorf("maxUnhealthy is %q", bound)
	}
	r.number, r.percent = int(number), percent
	return nil
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

// bound returns how many of the selected nodes may have the set's NoExecute taint. A
// percentage is rounded down, with a minimum of 1 unless it is 0%.
func (r *rule) bound(selected int) int {
	if !r.isValid() || !r.percent {
		if r.isValid() {
			return r.number
		}
		return 0
	}
	allowed := selected * r.number / 100
	if allowed == 0 && r.number > 0 {
		return 1
	}
	return allowed
}

// allows reports whether the set may place this taint: its own taint, or NoSchedule as the
// fallback for NoExecute.
func (r *rule) allows(key, effect string) bool {
	return key == r.key && (effect == r.effect || r.effect == noExecute && effect == noSchedule)
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

// find judges a node by a set. A node that is not selected does not match.
func (n *node) find(r *rule) finding {
	if !r.selects(n.labels) {
		return finding{}
	}
	f := finding{verdict: holds}
	for _, w := range r.wants {
		c, there := n.conditions[w.condition]
		f.verdict = min(f.verdict, w.status.of(c, there))
		if clocks := n.clocks[w.condition]; clocks != nil {
			f.earliest = last(f.earliest, clocks[w.status].earliest.Add(w.wait))
			f.latest = last(f.latest, clocks[w.status].latest.Add(w.wait))
		}
		f.timed = f.timed || w.wait > 0
	}
	return f
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
