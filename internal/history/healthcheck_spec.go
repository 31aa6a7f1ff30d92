package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
)

const (
	excludeLabel     = "remediation.medik8s.io/exclude-from-remediation"
	shortestTimeout  = time.Minute
	defaultSignsLast = 5 * time.Minute
)

// checkSpec is the parsed spec of a version of a NodeHealthCheck.
type checkSpec struct {
	signs    []sign
	selector labels.Selector
	number   int // the bound
	percent  bool
	healthy  bool // the bound is a minimum of healthy nodes
	paused   bool
	steps    []step
	delay    time.Duration // how long a node must have been healthy
	byHand   bool          // only a user can confirm that the node is healthy
	cooldown time.Duration

	// invalid is the reason why the health check cannot be applied. All other fields are
	// empty then.
	invalid string
}

// sign is an unhealthy condition: its bad statuses, and how long each must last.
type sign struct {
	condition string
	bad       statuses
	waits     [3]time.Duration // by index of the status
}

// statuses is a bit set of True, False and Unknown.
type statuses int

const (
	badTrue statuses = 1 << iota
	badFalse
	badUnknown
	allStatuses // the number of sets
)

// place returns the index of a status, -1 if it is unknown.
func place(status corev1.ConditionStatus) int {
	return slices.Index([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}, status)
}

// of compares the current condition with the statuses.
func (s statuses) of(c condition, there bool) verdict {
	at := place(c.status)
	switch {
	case !there:
		return not
	case at < 0, c.status == corev1.ConditionUnknown && (s&badUnknown == 0 || c.reason == agentSilent):
		return unclear
	}
	return when(s&(1<<at) != 0)
}

// step is a remediation in the list of a health check.
type step struct {
	template templateName
	timeout  time.Duration // 0: no timeout
}

// templateName identifies a template, without its version.
type templateName struct {
	schema.GroupKind
	namespace, name string
}

func (t templateName) String() string { return t.Kind + " " + t.namespace + "/" + t.name }

// makes returns the kind of the objects that are created from the template.
func (t templateName) makes() schema.GroupKind {
	return schema.GroupKind{Group: t.Group, Kind: strings.TrimSuffix(t.Kind, "Template")}
}

// readCheckSpec parses the stored spec of a health check.
func readCheckSpec(spec any) *checkSpec {
	text, err := json.Marshal(spec)
	if err != nil {
		return &checkSpec{invalid: err.Error()}
	}
	var s v1alpha1.NodeHealthCheckSpec
	if err := json.Unmarshal(text, &s); err != nil {
		return &checkSpec{invalid: err.Error()}
	}
	if s.Unreadable != "" {
		return &checkSpec{invalid: s.Unreadable}
	}
	r := &checkSpec{paused: len(s.PauseRequests) > 0, selector: labels.Everything()}
	for _, read := range []func(v1alpha1.NodeHealthCheckSpec) error{r.readSelector, r.readSigns, r.readBound, r.readSteps, r.readWaits} {
		if err := read(s); err != nil {
			return &checkSpec{invalid: err.Error()}
		}
	}
	return r
}

func (r *checkSpec) readSelector(s v1alpha1.NodeHealthCheckSpec) (err error) {
	if s.Selector != nil {
		r.selector, err = metav1.LabelSelectorAsSelector(s.Selector)
	}
	return err
}

func (r *checkSpec) readSigns(s v1alpha1.NodeHealthCheckSpec) error {
	given := s.UnhealthyConditions
	if given == nil {
		for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown} {
			given = append(given, v1alpha1.UnhealthyCondition{Type: corev1.NodeReady, Status: status, Duration: defaultSignsLast.String()})
		}
	}
	if len(given) == 0 {
		return fmt.Errorf("there are no conditions")
	}
	for _, c := range given {
		at := slices.IndexFunc([]string{"true", "false", "unknown"}, func(s string) bool { return strings.EqualFold(s, string(c.Status)) })
		wait, err := time.ParseDuration(c.Duration)
		if at < 0 || err != nil || wait < 0 || c.Type == "" {
			return fmt.Errorf("the condition %s=%s for %q", c.Type, c.Status, c.Duration)
		}
		i := slices.IndexFunc(r.signs, func(s sign) bool { return s.condition == string(c.Type) })
		if i < 0 {
			i = len(r.signs)
			r.signs = append(r.signs, sign{condition: string(c.Type)})
		}
		if r.signs[i].bad&(1<<at) != 0 {
			return fmt.Errorf("the condition %s=%s is there twice", c.Type, c.Status)
		}
		r.signs[i].bad |= 1 << at
		r.signs[i].waits[at] = wait
	}
	return nil
}

func (r *checkSpec) readBound(s v1alpha1.NodeHealthCheckSpec) error {
	bound := defaultBound
	switch {
	case s.MinHealthy != nil && s.MaxUnhealthy != nil:
		return fmt.Errorf("there are two bounds")
	case s.MinHealthy != nil:
		bound, r.healthy = s.MinHealthy.String(), true
	case s.MaxUnhealthy != nil:
		bound = s.MaxUnhealthy.String()
	}
	digits, percent := strings.CutSuffix(bound, "%")
	number, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || percent && number > 100 {
		return fmt.Errorf("the bound is %q", bound)
	}
	r.number, r.percent = int(number), percent
	return nil
}

func (r *checkSpec) readSteps(s v1alpha1.NodeHealthCheckSpec) error {
	given := slices.Clone(s.EscalatingRemediations)
	slices.SortFunc(given, func(a, b v1alpha1.EscalatingRemediation) int { return cmp.Compare(a.Order, b.Order) })
	if (s.RemediationTemplate == nil) == (len(given) == 0) {
		return fmt.Errorf("want one form of templates")
	}
	if s.RemediationTemplate != nil {
		given = []v1alpha1.EscalatingRemediation{{RemediationTemplate: *s.RemediationTemplate}}
	}
	for i, e := range given {
		ref := e.RemediationTemplate
		group, version, _ := strings.Cut(ref.APIVersion, "/")
		kind, isTemplate := strings.CutSuffix(ref.Kind, "Template")
		if group == "" || version == "" || kind == "" || !isTemplate || ref.Name == "" {
			return fmt.Errorf("the template %s %s %s", ref.APIVersion, ref.Kind, ref.Name)
		}
		if i > 0 && given[i-1].Order == e.Order {
			return fmt.Errorf("the order %d is there twice", e.Order)
		}
		next := step{template: templateName{schema.GroupKind{Group: group, Kind: ref.Kind}, ref.Namespace, ref.Name}}
		if s.RemediationTemplate == nil {
			timeout, err := time.ParseDuration(e.Timeout)
			if err != nil || timeout < shortestTimeout {
				return fmt.Errorf("the timeout is %q", e.Timeout)
			}
			next.timeout = timeout
		}
		if slices.ContainsFunc(r.steps, func(s step) bool { return s.template == next.template }) {
			return fmt.Errorf("the template %s is there twice", next.template)
		}
		r.steps = append(r.steps, next)
	}
	return nil
}

func (r *checkSpec) readWaits(s v1alpha1.NodeHealthCheckSpec) error {
	for _, wait := range []struct {
		text string
		into *time.Duration
	}{{s.HealthyDelay, &r.delay}, {s.StormCooldownDuration, &r.cooldown}} {
		if wait.text == "" {
			continue
		}
		d, err := time.ParseDuration(wait.text)
		if err != nil {
			return err
		}
		*wait.into = d
	}
	if r.cooldown < 0 {
		return fmt.Errorf("the cooldown is %s", r.cooldown)
	}
	r.byHand = r.delay < 0
	return nil
}

// isValid reports whether the health check exists and is valid.
func (r *checkSpec) isValid() bool { return r != nil && r.invalid == "" }

// selects reports whether the health check selects a node with these labels.
func (r *checkSpec) selects(set map[string]string) bool {
	return r.isValid() && r.selector.Matches(labels.Set(set))
}

// bound returns how many of the selected nodes may be unhealthy when a treatment starts.
// Percentages are rounded up.
func (r *checkSpec) bound(selected int) int {
	if !r.isValid() {
		return 0
	}
	number := r.number
	if r.percent {
		number = (selected*r.number + 99) / 100
	}
	if r.healthy {
		return max(0, selected-number)
	}
	return number
}

// stepOf returns the step for which an object was created.
func (r *checkSpec) stepOf(o *remediationObject) (int, bool) {
	if !r.isValid() {
		return 0, false
	}
	i := slices.IndexFunc(r.steps, func(s step) bool {
		samePlace := o.namespace == "" || o.namespace == s.template.namespace
		return s.template.makes() == o.kind && samePlace && (o.template == "" || o.template == s.template.name)
	})
	return max(i, 0), i >= 0
}

// examine judges a node by a health check. A node that is not selected is not unhealthy.
func (n *node) examine(r *checkSpec) finding {
	if !r.selects(n.labels) {
		return finding{}
	}
	f := finding{timed: true}
	for _, s := range r.signs {
		c, there := n.conditions[s.condition]
		v := s.bad.of(c, there)
		if v == holds {
			wait, clock := s.waits[place(c.status)], n.signs[s.condition][s.bad]
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
