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
	masterLabel       = "node-role.kubernetes.io/master" // the same, in old clusters
	agentSilent       = "AgentSilent"
	defaultBound      = "49%"
)

// rule is what one version of a ConditionSet asks for.
type rule struct {
	key, effect  string
	wants        []want
	selector     labels.Selector
	controlPlane bool // the selector asks for the control plane
	number       int  // the bound
	percent      bool
	dryRun       bool

	// refused says why nobody can follow the set; the rest is empty then.
	refused string
}

// want is what one condition must look like, and for how long.
type want struct {
	condition string
	look      look
	wait      time.Duration
}

// look is a status that a set can ask for.
type look int

const (
	isTrue look = iota
	isFalse
	isUnknown
	isUnknownEvenSilent
	looks // how many there are
)

type verdict int

const (
	not     verdict = iota // also: not there
	unclear                // Unknown, and nobody asked for that
	holds
)

// of judges a condition as it stands.
func (l look) of(c condition, there bool) verdict {
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

// readRule reads the spec of a set as it is stored.
func readRule(spec any) *rule {
	text, err := json.Marshal(spec)
	if err != nil {
		return &rule{refused: err.Error()}
	}
	var s v1alpha1.ConditionSetSpec
	if err := json.Unmarshal(text, &s); err != nil {
		return &rule{refused: err.Error()}
	}
	r := &rule{key: s.TaintKey, effect: string(s.Effect), dryRun: s.DryRun}
	if err := r.read(s); err != nil {
		return &rule{refused: err.Error()}
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
			w.look = isTrue
		case c.Status == "False":
			w.look = isFalse
		case c.Status == "Unknown" && c.EvenSilent:
			w.look = isUnknownEvenSilent
		case c.Status == "Unknown":
			w.look = isUnknown
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

// readScope reads which nodes are meant, and how many of them.
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

// follows says whether the set is there and can be followed.
func (r *rule) follows() bool { return r != nil && r.refused == "" }

// places says whether the set places taints at all.
func (r *rule) places() bool { return r.follows() && !r.dryRun }

// selects says whether the set is about a node with such labels.
func (r *rule) selects(set map[string]string) bool {
	return r.follows() && r.selector.Matches(labels.Set(set))
}

// spares says whether the set must keep its NoExecute off a node with such labels.
func (r *rule) spares(set map[string]string) bool {
	return onControlPlane(set) && !r.controlPlane
}

// onControlPlane says whether such labels are those of the control plane.
func onControlPlane(set map[string]string) bool {
	_, now := set[controlPlaneLabel]
	_, once := set[masterLabel]
	return now || once
}

// bound is how many of so many selected nodes may carry the set's NoExecute:
// a share is rounded down, but a share of more than nothing allows one.
func (r *rule) bound(selected int) int {
	if !r.follows() || !r.percent {
		if r.follows() {
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

// allows says whether a taint is one that the set may place: its own, or
// NoSchedule where there is no room for NoExecute.
func (r *rule) allows(key, effect string) bool {
	return key == r.key && (effect == r.effect || r.effect == noExecute && effect == noSchedule)
}

// clock tells since when a condition has had a look. It runs on through Unknown.
type clock struct {
	since            time.Time // when that was seen to begin; zero: it does not run
	earliest, latest time.Time // between what moments one may believe it began
	ended            time.Time // when it stopped the last time
	before           time.Time // the earliest of that time
}

// wind brings the clock up to a moment at which the condition is judged so.
func (c *clock) wind(v verdict, stamp, now time.Time, lag time.Duration) {
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
			// Who looks now and then does not see a short recovery.
			if !c.ended.IsZero() && now.Sub(c.ended) <= lag {
				c.earliest = c.before
			}
		}
		c.earliest = first(c.earliest, stamp)
		c.latest = last(c.since, stamp)
	}
}

// finding is what a set finds on a node.
type finding struct {
	verdict verdict
	// earliest and latest are the moments between which its time has come.
	earliest, latest time.Time
	timed            bool // it has to wait for something
}

// surely says that the set asks for its taint by a moment, however one reads it.
func (f finding) surely(at time.Time, lag time.Duration) bool {
	return f.verdict == holds && (!f.timed || !f.latest.After(at.Add(-lag)))
}

// maybe says that the set may ask for its taint by a moment.
func (f finding) maybe(at time.Time, lag time.Duration) bool {
	return f.verdict == holds && (!f.timed || !f.earliest.After(at.Add(lag)))
}

// find judges a node by a set. A node that is not selected is not sick.
func (n *node) find(r *rule) finding {
	if !r.selects(n.labels) {
		return finding{}
	}
	f := finding{verdict: holds}
	for _, w := range r.wants {
		c, there := n.conditions[w.condition]
		f.verdict = min(f.verdict, w.look.of(c, there))
		if clocks := n.clocks[w.condition]; clocks != nil {
			f.earliest = last(f.earliest, clocks[w.look].earliest.Add(w.wait))
			f.latest = last(f.latest, clocks[w.look].latest.Add(w.wait))
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
