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

// study is a case, with what several checks want to know of it.
type study struct {
	Case
	rule  triage.Rule
	wrong *triage.FieldError // why there is no rule
	reach *reach             // nil if nobody knows
}

func look(c Case) *study {
	s := &study{Case: c}
	s.rule, s.wrong = compile(c.Set)
	rule := s.rule
	if s.wrong != nil {
		// A key that is not allowed keeps nobody from telling where it would go.
		if s.wrong.Field != taintKeyField {
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

func (s *study) run(checks []check) (v Verdict) {
	for _, finds := range checks {
		problems, warnings := finds(s)
		v.Problems = append(v.Problems, problems...)
		v.Warnings = append(v.Warnings, warnings...)
	}
	return v
}

// compile returns the rule that a set asks for, or why there is none.
func compile(set *v1alpha1.ConditionSet) (triage.Rule, *triage.FieldError) {
	if set.Name == "" && set.GenerateName != "" { // the API server has not named it yet
		named := *set
		named.Name = set.GenerateName
		set = &named
	}
	rule, err := observe.ConditionSet(set)
	return rule, fieldError(err)
}

// fieldError returns what is wrong with which field, nil if nothing is.
func fieldError(err error) *triage.FieldError {
	var wrong *triage.FieldError
	if err == nil || errors.As(err, &wrong) {
		return wrong
	}
	return &triage.FieldError{Field: "spec", Problem: err.Error()}
}

// types returns the condition types of the set in a fixed order.
func (s *study) types() []string { return slices.Sorted(maps.Keys(s.Set.Spec.Conditions)) }

// status returns the status that a condition of the set must have, as Kubernetes
// writes it.
func (s *study) status(conditionType string) catalog.Status {
	written := string(s.Set.Spec.Conditions[conditionType].Status)
	if read, err := triage.ParseStatus(written); err == nil {
		written = read.String()
	}
	return catalog.Status(written)
}

// reach is what a set would do to which nodes now.
type reach struct {
	triage.Impact
	effect triage.Effect
	bound  string        // maxUnhealthy
	limit  int           // of the selected nodes, for every effect
	spared int           // matching nodes of the control plane that NoExecute leaves alone
	wait   time.Duration // that conditions must stand before anything happens
}

// reachOf asks what a rule would do. Nobody knows if nobody can be asked.
func (s *study) reachOf(set *v1alpha1.ConditionSet, rule triage.Rule) *reach {
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
		r.spared = impact.ControlPlane
	}
	return r
}

// over says whether more nodes match than the bound allows.
func (r *reach) over() bool { return r.Matching > r.limit }

// emptied is how many nodes would lose their pods.
func (r *reach) emptied() int {
	if r.effect != triage.NoExecute {
		return 0
	}
	return min(r.Matching-r.spared, r.limit)
}

// narrows says whether no node gets more than it has from the set as it is in force.
// If none matches that did not, the effect is not stronger and no more nodes are
// emptied, but some get more all the same, more says in which way. What can be told
// without a look at the nodes is told first.
func (s *study) narrows() (narrows bool, more string) {
	if s.Before == nil || s.Before.Spec.DryRun || s.reach == nil {
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
	more = moreThan(rule, s.rule, s.reach.emptied() > 0)
	return more == "", more
}

// moreThan says what nodes get more of that match one rule and another that was in
// force; empty for nothing. More of them match than may be emptied: where a rule that
// empties some does not ask for quite the same nodes, some of those that were emptied
// recover, and others take their places.
func moreThan(was, is triage.Rule, empties bool) string {
	before, now := was.Response.Taint, is.Response.Taint
	switch {
	case now.Key != before.Key:
		return ", under another taint key than now, which other pods tolerate"
	case empties && now.ControlPlane && !before.ControlPlane:
		return ", and those of the control plane were spared until now"
	case !waitsAsLong(is, was):
		return ", sooner than it does now"
	case empties && !sameQuestion(is, was):
		return ", and they need not be those that are emptied now"
	}
	return ""
}

// waitsAsLong says whether a rule waits for every condition at least as long as the
// one before. A condition that is no longer asked for is not waited for.
func waitsAsLong(rule, before triage.Rule) bool {
	for _, was := range before.When.Signals {
		at := slices.IndexFunc(rule.When.Signals, func(is triage.Signal) bool { return is.Condition == was.Condition })
		if was.For > 0 && (at < 0 || rule.When.Signals[at].For < was.For) {
			return false
		}
	}
	return true
}
