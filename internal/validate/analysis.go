package validate

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/triage"
)

// analysis is a case with the data that several checks need.
type analysis struct {
	Case
	rule       triage.Rule
	compileErr *triage.FieldError // why the set does not compile
	reach      *reach             // nil if the nodes are unknown
}

func analyze(c Case) *analysis {
	s := &analysis{Case: c}
	s.rule, s.compileErr = compile(c.Set)
	rule := s.rule
	if s.compileErr != nil {
		// A key that is not allowed does not change which nodes the set matches.
		if s.compileErr.Field != taintKeyField {
			return s
		}
		allowed := c.Set.DeepCopy()
		allowed.Spec.TaintKey = "example.com/any"
		var wrong *triage.FieldError
		if rule, wrong = compile(allowed); wrong != nil {
			return s
		}
	}
	s.reach = s.reachOf(c.Set, rule)
	return s
}

func (s *analysis) run(checks []check) (v Verdict) {
	for _, finds := range checks {
		problems, warnings := finds(s)
		v.Problems = append(v.Problems, problems...)
		v.Warnings = append(v.Warnings, warnings...)
	}
	return v
}

// compile returns the rule of a set, or why it does not compile.
func compile(set *v1alpha1.ConditionSet) (triage.Rule, *triage.FieldError) {
	if set.Name == "" && set.GenerateName != "" { // the API server has not named it yet
		named := *set
		named.Name = set.GenerateName
		set = &named
	}
	rule, err := observe.ConditionSet(set)
	return rule, fieldError(err)
}

// fieldError converts an error to one with a field; nil stays nil.
func fieldError(err error) *triage.FieldError {
	var wrong *triage.FieldError
	if err == nil || errors.As(err, &wrong) {
		return wrong
	}
	return &triage.FieldError{Field: "spec", Problem: err.Error()}
}

// types returns the condition types of the set in a fixed order.
func (s *analysis) types() []string { return slices.Sorted(maps.Keys(s.Set.Spec.Conditions)) }

// status returns the required status of a condition of the set, in Kubernetes'
// spelling.
func (s *analysis) status(conditionType string) catalog.Status {
	written := string(s.Set.Spec.Conditions[conditionType].Status)
	if read, err := triage.ParseStatus(written); err == nil {
		written = read.String()
	}
	return catalog.Status(written)
}

// reach is what a set would do to the current nodes.
type reach struct {
	triage.Impact
	effect   triage.Effect
	bound    string        // maxUnhealthy
	limit    int           // maxUnhealthy of the selected nodes, for every effect
	excluded int           // matching control-plane nodes that NoExecute does not empty
	wait     time.Duration // how long conditions must last before the set acts
}

// reachOf returns what a rule would do, or nil if the nodes are unknown.
func (s *analysis) reachOf(set *v1alpha1.ConditionSet, rule triage.Rule) *reach {
	if s.Impact == nil {
		return nil
	}
	impact, err := s.Impact(rule)
	if err != nil { // a compiled rule is valid
		return nil
	}
	bound := dialect.DefaultMaxUnhealthy
	if set.Spec.MaxUnhealthy != nil {
		bound = cmp.Or(set.Spec.MaxUnhealthy.String(), bound)
	}
	limit, err := triage.ParseLimit(bound)
	if err != nil { // likewise
		return nil
	}
	r := &reach{Impact: impact, effect: rule.Response.Taint.Effect, bound: bound, limit: limit.Of(impact.Selected)}
	for _, signal := range rule.When.Signals {
		r.wait = max(r.wait, signal.For)
	}
	if r.effect == triage.NoExecute && !rule.Response.Taint.ControlPlane {
		r.excluded = impact.ControlPlane
	}
	return r
}

// over reports whether more nodes match than the bound allows.
func (r *reach) over() bool { return r.Matching > r.limit }

// emptied returns how many nodes would lose their pods.
func (r *reach) emptied() int {
	if r.effect != triage.NoExecute {
		return 0
	}
	return min(r.Matching-r.excluded, r.limit)
}

// isNarrower reports whether the change has no effect on a node that the set in force does
// not already have. If no new node matches, the effect is not stronger and no more nodes
// are emptied, but the effect on some nodes still grows, more says how. The function runs
// the comparisons that need no nodes first.
func (s *analysis) isNarrower() (narrows bool, more string) {
	if s.Before == nil || s.Before.Spec.Observes() || s.reach == nil {
		return false, ""
	}
	rule, wrong := compile(s.Before)
	if wrong != nil || s.reach.effect > rule.Response.Taint.Effect {
		return false, ""
	}
	if was := s.reachOf(s.Before, rule); was == nil || s.reach.emptied() > was.emptied() {
		return false, ""
	}
	if added, err := s.Impact(s.rule, rule); err != nil || added.Matching > 0 {
		return false, ""
	}
	more = addedEffect(rule, s.rule, s.reach.emptied() > 0)
	return more == "", more
}

// addedEffect says what a node gets from the new rule that it does not get from the rule in
// force; "" for nothing. More nodes may match than NoExecute may empty. If the new rule
// matches other nodes, some emptied nodes recover and other nodes are emptied instead.
func addedEffect(was, is triage.Rule, empties bool) string {
	before, now := was.Response.Taint, is.Response.Taint
	switch {
	case now.Key != before.Key:
		return ", under another taint key than now, which other pods tolerate"
	case empties && now.ControlPlane && !before.ControlPlane:
		return ", and those of the control plane were excluded until now"
	case !waitsAsLong(is, was):
		return ", sooner than it does now"
	case empties && !sameMatch(is, was):
		return ", and they need not be those that are emptied now"
	}
	return ""
}

// waitsAsLong reports whether a rule waits for every condition at least as long as the
// rule before. A condition that the rule no longer names counts as not waited for.
func waitsAsLong(rule, before triage.Rule) bool {
	for _, was := range before.When.Signals {
		at := slices.IndexFunc(rule.When.Signals, func(is triage.Signal) bool { return is.Condition == was.Condition })
		if was.For > 0 && (at < 0 || rule.When.Signals[at].For < was.For) {
			return false
		}
	}
	return true
}
