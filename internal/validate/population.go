package validate

import (
	"fmt"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// bound returns the field that bounds the health check and its value. If the user wrote
// neither field, it returns the default of maxUnhealthy.
func (s *healthAnalysis) bound() (field, value string, written bool) {
	switch spec := s.Check.Spec; {
	case spec.MinHealthy != nil:
		return "minHealthy", spec.MinHealthy.String(), true
	case spec.MaxUnhealthy != nil:
		return "maxUnhealthy", spec.MaxUnhealthy.String(), true
	default:
		return "maxUnhealthy", s.rule.Bound.Gate.String(), false
	}
}

// outOfBounds warns of a bound that allows no remediation, and of a bound that allows all.
func outOfBounds(s *healthAnalysis) (_, warnings []Problem) {
	field, value, written := s.bound()
	if !written {
		return nil, nil
	}
	gate := s.rule.Bound.Gate
	// Some values do this for any number of nodes, others only for the current number.
	never := gate.Number == 0 && !gate.Healthy || gate.Number == 100 && gate.Percent && gate.Healthy
	none := gate.Number == 0 && gate.Healthy || gate.Number == 100 && gate.Percent && !gate.Healthy
	now, of := "", ""
	if s.found != nil && s.found.Selected > 0 && !never && !none {
		now, of = ", and "+nodes(s.found.Selected)+" now,", " for "+nodes(s.found.Selected)
		allowed := gate.Of(s.found.Selected)
		never, none = allowed == 0, allowed >= s.found.Selected && s.found.Selected > 1
	}
	less, more := "want fewer, for example the default of 49%", "want at least 1"
	if gate.Healthy {
		less, more = "want more, for example 51%", "want fewer, for example maxUnhealthy: 49% in its place"
	}
	switch {
	case never:
		return nil, []Problem{warning("spec."+field, "with %s%s nothing is ever begun, because one unhealthy node is too many; %s, or pauseRequests to stop for a while", value, now, more)}
	case none:
		return nil, []Problem{warning("spec."+field, "%s%s is no limit: when something makes all nodes look unhealthy, all are remediated at once; %s", value, of, less)}
	}
	return nil, nil
}

// selectorNodes warns of a selector that selects no node, or both control-plane nodes and workers.
func selectorNodes(s *healthAnalysis) (_, warnings []Problem) {
	switch {
	case s.found == nil:
		return nil, nil
	case s.found.Selected == 0 && !s.rule.Selector.Everything():
		return nil, []Problem{warning("spec.selector", "no node has these labels now (%s)", truncate(s.rule.Selector.String()))}
	case 0 < s.found.ControlPlane && s.found.ControlPlane < s.found.Selected:
		return nil, []Problem{warning("spec.selector", "%d of %s are of the control plane, and one limit counts them and the workers together; want one health check for those with the label node-role.kubernetes.io/control-plane, and others for those without", s.found.ControlPlane, nodes(s.found.Selected))}
	}
	return nil, nil
}

// overlaps warns of nodes that another health check remediates with other templates.
func overlaps(s *healthAnalysis) (_, warnings []Problem) {
	if s.found == nil {
		return nil, nil
	}
	var with []string
	for i, shared := range s.found.Shared {
		if shared.Nodes > 0 {
			with = append(with, fmt.Sprintf("%s (%d, the first is %s)", truncate(s.otherChecks[i]), shared.Nodes, truncate(shared.First)))
		}
	}
	if len(with) == 0 {
		return nil, nil
	}
	told, rest := with[:min(len(with), maxNames)], ""
	if more := len(with) - len(told); more > 0 {
		rest = fmt.Sprintf(" and %d more", more)
	}
	return nil, []Problem{warning("spec.selector", "some of these nodes are also chosen by health checks with other templates: %s%s; only one health check at a time remediates a node, and the others wait. Use selectors without common nodes", strings.Join(told, ", "), rest)}
}

// impactLine says in one line what a health check will do, unless a problem already says
// it. Too many unhealthy nodes are no reason to reject it: the controller then starts no
// remediation.
func (s *healthAnalysis) impactLine(v Verdict) string {
	if s.found == nil || s.found.Matching == 0 {
		return ""
	}
	for _, p := range v.Problems {
		if p.Reason == HealthyStatus {
			return ""
		}
	}
	limit := s.rule.Bound.Gate.Of(s.found.Selected)
	switch {
	case s.rule.Hold != "":
		return s.matches() + ": nothing is begun while it is paused"
	case s.found.Matching > limit:
		field, value, _ := s.bound()
		return fmt.Sprintf("%s, and %s %s allows %d: nothing is begun until no more than that are unhealthy", s.matches(), field, value, limit)
	}
	verb := "will"
	if len(v.Problems) > 0 {
		verb = "would"
	}
	return fmt.Sprintf("%s: the health check %s remediate %s, when the condition has lasted for %s", s.matches(), verb, pronoun(s.found.Matching), waitRange(s.rule))
}

func pronoun(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

func (s *healthAnalysis) matches() string { return surveyMatches(s.found) }

// surveyMatches says how many nodes match, and which.
func surveyMatches(found *triage.Survey) string { return surveyMatchesOf(found, nodes(found.Selected)) }

// surveyMatchesOf does the same, with the given words for the selected nodes.
func surveyMatchesOf(found *triage.Survey, selected string) string {
	told := make([]string, len(found.First))
	for i, name := range found.First {
		told[i] = truncate(name)
	}
	names := joinAnd(told)
	if more := found.Matching - len(told); more > 0 {
		names = fmt.Sprintf("%s and %d more", strings.Join(told, ", "), more)
	}
	verb := "match"
	if found.Selected == 1 {
		verb = "matches"
	}
	return fmt.Sprintf("%d of %s (%d%%) %s now (%s)", found.Matching, selected, 100*found.Matching/found.Selected, verb, names)
}

// waitRange says how long a condition must last.
func waitRange(rule triage.Rule) string {
	shortest, longest := triage.Never, time.Duration(0)
	for _, signal := range rule.When.Signals {
		if signal.For < triage.Never {
			shortest, longest = min(shortest, signal.For), max(longest, signal.For)
		}
	}
	if shortest == longest {
		return text.Duration(longest)
	}
	return fmt.Sprintf("%s to %s", text.Duration(shortest), text.Duration(longest))
}
