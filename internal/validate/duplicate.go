package validate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/triage"
)

// duplicate rejects a set if another set has the same type, or matches the same
// conditions on the same nodes. A copy is not rejected, so that a set can be moved without a gap: a
// ConditionSet takes over from its copy in a ConfigMap, and the copy waits for its deletion.
func duplicate(s *analysis) (problems, warnings []Problem) {
	var namesakes, twins []string
	for _, other := range s.Others {
		switch {
		case other == nil || other.Name == s.Set.Name:
		case IsCopy(other, s.Set) && isInConfigMap(other):
			warnings = append(warnings, warning("", "this set takes over the taints of %s, which is the same: remove it there", others([]string{other.Name})))
		case IsCopy(other, s.Set):
			problems = append(problems, Problem{"spec.type", WaitsFor(other), Duplicate})
		case other.Spec.Type == s.Set.Spec.Type && other.Spec.Type != "":
			namesakes = append(namesakes, other.Name)
		case s.compileErr == nil && matchesSame(s, other):
			twins = append(twins, other.Name)
		}
	}
	if len(namesakes) > 0 {
		problems = append(problems, Problem{"spec.type", fmt.Sprintf(
			"%s is already the type of %s, so users could not tell them apart%s. Change or delete the existing set, or give this set its own type",
			truncate(s.Set.Spec.Type), others(namesakes), s.matchNote()), Duplicate})
	}
	if len(twins) > 0 {
		problems = append(problems, Problem{"spec.conditions", fmt.Sprintf(
			"the same conditions on the same nodes are already in %s%s. Change or delete the existing set, or change a condition, a duration or the selector of this set",
			others(twins), s.matchNote()), Duplicate})
	}
	return problems, warnings
}

// WaitsFor says that the copy of a ConditionSet in a ConfigMap waits for its deletion.
func WaitsFor(other *v1alpha1.ConditionSet) string {
	return fmt.Sprintf("ConditionSet %s is the same set and in force; this one takes over when that is deleted", truncate(other.Name))
}

// IsCopy reports whether one of two sets is a ConditionSet, the other is in a ConfigMap, and both
// mean the same.
func IsCopy(a, b *v1alpha1.ConditionSet) bool {
	if a.Spec.Type != b.Spec.Type || isInConfigMap(a) == isInConfigMap(b) {
		return false
	}
	one, err := compile(a)
	other, otherErr := compile(b)
	return err == nil && otherErr == nil && one.DryRun == other.DryRun && sameMatch(one, other) &&
		equality.Semantic.DeepEqual(one.Response, other.Response) && equality.Semantic.DeepEqual(one.Bound, other.Bound)
}

// isInConfigMap reports whether a set is in a ConfigMap: it has a namespace.
func isInConfigMap(set *v1alpha1.ConditionSet) bool { return set.Namespace != "" }

// kind names the object that users annotate.
func (s *analysis) kind() string {
	if isInConfigMap(s.Set) {
		return "ConfigMap"
	}
	return "set"
}

// statusField names the field with the status of a condition.
func (s *analysis) statusField() string {
	if isInConfigMap(s.Set) {
		return "conditionStatus"
	}
	return "status"
}

// matchNote says how many nodes match, if any.
func (s *analysis) matchNote() string {
	if s.reach == nil || s.reach.Matching == 0 {
		return ""
	}
	return "; " + s.reach.matches()
}

// others names sets. A name with a slash belongs to a set from a ConfigMap.
func others(names []string) string {
	slices.Sort(names)
	if len(names) > 1 {
		return "the sets " + shortList(names)
	}
	if configMap, key, ok := strings.Cut(names[0], "/"); ok {
		key, _, _ = strings.Cut(key, "/")
		return fmt.Sprintf("a set in ConfigMap %s, key %s", truncate(configMap), truncate(key))
	}
	return "the set " + truncate(names[0])
}

// matchesSame reports whether another set matches the same conditions, statuses and
// durations on the same nodes.
func matchesSame(s *analysis, other *v1alpha1.ConditionSet) bool {
	if len(other.Spec.Conditions) != len(s.Set.Spec.Conditions) {
		return false
	}
	for name := range other.Spec.Conditions {
		if _, ok := s.Set.Spec.Conditions[name]; !ok {
			return false
		}
	}
	rule, wrong := compile(other)
	return wrong == nil && sameMatch(rule, s.rule)
}

// sameMatch reports whether two rules match the same signals on the same nodes,
// regardless of their spelling.
func sameMatch(a, b triage.Rule) bool {
	return slices.Equal(signals(a), signals(b)) && slices.Equal(requirements(a), requirements(b))
}

// signals returns the signals of a rule in a fixed order. EvenSilent only matters for
// Unknown.
func signals(rule triage.Rule) []triage.Signal {
	list := slices.Clone(rule.When.Signals)
	for i := range list {
		list[i].EvenSilent = list[i].EvenSilent && list[i].Status == triage.Unknown
	}
	slices.SortFunc(list, func(a, b triage.Signal) int { return cmp.Compare(a.Condition, b.Condition) })
	return list
}

// requirements returns the label requirements of a rule, without repetitions and in a fixed order.
func requirements(rule triage.Rule) []string {
	asked := rule.Selector.Requirements()
	list := make([]string, 0, len(asked))
	for _, r := range asked {
		list = append(list, r.String())
	}
	slices.Sort(list)
	return slices.Compact(list)
}
