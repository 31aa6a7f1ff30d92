package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/triage"
)

// impactOverBound rejects a set that matches more nodes now than its bound allows, unless
// the user accepted the impact. A set that matches healthy nodes is rejected for that
// reason instead, because accepting the impact would not help.
func impactOverBound(s *analysis) (problems, _ []Problem) {
	if s.compileErr != nil || s.reach == nil || !s.reach.over() || s.Set.Spec.Observes() || s.acceptsImpact() || s.actsOnHealthy() {
		return nil, nil
	}
	narrows, more := s.isNarrower()
	if narrows || s.isPlaced() {
		return nil, nil
	}
	return []Problem{{"spec.conditions", fmt.Sprintf(
		"%s, and maxUnhealthy allows %s: the set would %s%s. If that is not meant, correct the conditions or the selector, or try it with dryRun: true. If it is, annotate the %s with %s: \"true\", or write it again once fewer nodes match",
		s.reach.matches(), s.reach.allowed(), s.reach.actions(), more, s.kind(), v1alpha1.AcceptImpactAnnotation), Impact}}, nil
}

// isPlaced reports whether the full effect of the set is already on the nodes: its taint
// on every matching node, and NoExecute on as many as it would empty. The new leader does
// not know which version placed them, and a rejection would remove taints from unhealthy
// nodes.
func (s *analysis) isPlaced() bool {
	if s.Placed == nil {
		return false
	}
	tainted, emptied := s.Placed(s.rule)
	return tainted >= s.reach.Matching && emptied >= s.reach.emptied()
}

func (s *analysis) acceptsImpact() bool {
	return s.Set.Annotations[v1alpha1.AcceptImpactAnnotation] == "true"
}

// impactLine says in one line what a set will do, unless a problem already says it.
func (s *analysis) impactLine(v Verdict) string {
	if s.compileErr != nil || s.reach == nil {
		return ""
	}
	if s.reach.Matching == 0 {
		if s.PreviewOnly && s.reach.Selected > 0 && len(v.Problems) == 0 {
			return fmt.Sprintf("no node of %d selected matches now", s.reach.Selected)
		}
		return ""
	}
	for _, p := range v.Problems {
		if p.Reason == Impact || p.Reason == HealthyStatus {
			return ""
		}
	}
	if !s.Set.Spec.Observes() {
		verb := "will"
		switch {
		case len(v.Problems) > 0:
			verb = "would"
		case s.Before != nil && equality.Semantic.DeepEqual(s.Before.Spec, s.Set.Spec): // and may have done so
			verb = "is in force, to"
		}
		return fmt.Sprintf("%s: the set %s %s", s.reach.matches(), verb, s.reach.actions())
	}
	line := fmt.Sprintf("%s: nothing is done on dry run; without it the set would %s", s.reach.matches(), s.reach.actions())
	if s.reach.over() && !s.acceptsImpact() {
		line += ", and would be refused, because maxUnhealthy allows " + s.reach.allowed()
	}
	return line
}

// annotation warns of annotations that look like an acceptance but are not.
func annotation(s *analysis) (_, warnings []Problem) {
	return nil, unusualAcceptance(s.Set.Annotations)
}

func unusualAcceptance(annotations map[string]string) (warnings []Problem) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		switch value := annotations[key]; {
		case key == v1alpha1.AcceptImpactAnnotation && value != "true":
			warnings = append(warnings, warning("metadata.annotations["+key+"]", "%q accepts nothing; want \"true\", or no such annotation", truncate(value)))
		case key != v1alpha1.AcceptImpactAnnotation && normalizeKey(key) == normalizeKey(v1alpha1.AcceptImpactAnnotation):
			warnings = append(warnings, warning("metadata.annotations["+truncate(key)+"]", "it accepts nothing; did you mean %s?", v1alpha1.AcceptImpactAnnotation))
		}
	}
	return warnings
}

// normalizeKey returns the letters of a key, without its domain, capitals and separators.
func normalizeKey(key string) string {
	return strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(key[strings.LastIndexByte(key, '/')+1:]))
}

// unusualBound warns of a bound that lets NoExecute empty all nodes, or none. It ignores the
// default.
func unusualBound(s *analysis) (_, warnings []Problem) {
	if s.compileErr != nil || s.rule.Response.Taint.Effect != triage.NoExecute || s.Set.Spec.MaxUnhealthy == nil {
		return nil, nil
	}
	bound := s.Set.Spec.MaxUnhealthy.String()
	all := "all selected nodes"
	switch known, digits := s.reach != nil && s.reach.Selected > 1, strings.TrimLeft(bound, "0"); {
	case bound != "" && (digits == "" || digits == "%"):
		return nil, []Problem{warning("spec.maxUnhealthy", "%s lets NoExecute empty no node, so that every node that matches gets NoSchedule in its place; if that is meant, write effect: NoSchedule", bound)}
	case known && s.reach.limit >= s.reach.Selected:
		all = "all " + nodes(s.reach.Selected)
	case digits == "100%":
	default:
		return nil, nil
	}
	return nil, []Problem{warning("spec.maxUnhealthy", "%s lets NoExecute empty %s at once, when something makes them all look unhealthy; want fewer, for example the default of %s", bound, all, dialect.DefaultMaxUnhealthy)}
}

// noNodes warns of a selector that selects no node.
func noNodes(s *analysis) (_, warnings []Problem) {
	if s.compileErr != nil || s.reach == nil || s.reach.Selected > 0 || s.rule.Selector.Everything() {
		return nil, nil
	}
	return nil, []Problem{warning("spec.selector", "no node has these labels now (%s)", truncate(s.rule.Selector.String()))}
}
