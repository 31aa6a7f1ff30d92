package observe

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/triage"
)

// isType is that of the CRD, which does not see the sets in ConfigMaps, nor those
// that were stored before it knew better.
var isType = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// ConditionSet returns the rule that a set asks for. The error is a
// *[triage.FieldError] that names the field as it stands in the object.
func ConditionSet(set *v1alpha1.ConditionSet) (triage.Rule, error) {
	rule, err := conditionSet(set.Name, set.Spec)
	return rule, briefly(err)
}

func conditionSet(name string, spec v1alpha1.ConditionSetSpec) (triage.Rule, error) {
	switch {
	case spec.Unreadable != "":
		return triage.Rule{}, &triage.FieldError{Field: "spec", Problem: "cannot be read: " + cut(spec.Unreadable, 3*longestValue) + "; what is wanted is told by kubectl explain conditionset.spec"}
	case spec.Type == "":
		return triage.Rule{}, &triage.FieldError{Field: "spec.type", Problem: "a set needs a type that names the combination, such as KubeletContainerRuntimeUnhealthy"}
	case len(spec.Type) > v1alpha1.MaxTypeLength || !isType.MatchString(spec.Type):
		return triage.Rule{}, &triage.FieldError{Field: "spec.type", Value: spec.Type, Problem: "want a name of letters, digits, dashes, underscores and dots such as KubeletContainerRuntimeUnhealthy, or one with a domain before it such as example.com/FanBroken"}
	case len(spec.Conditions) > v1alpha1.MaxConditions:
		return triage.Rule{}, &triage.FieldError{Field: "spec.conditions", Value: strconv.Itoa(len(spec.Conditions)), Problem: fmt.Sprintf("a set has at most %d conditions", v1alpha1.MaxConditions)}
	}
	who, err := nodeSelector(spec.Selector)
	if err != nil {
		return triage.Rule{}, err
	}
	words := dialect.ConditionSet{
		Name:         name,
		TaintKey:     spec.TaintKey,
		Effect:       string(spec.Effect),
		Selector:     who,
		ControlPlane: asksForControlPlane(who),
		DryRun:       spec.DryRun,
	}
	if spec.MaxUnhealthy != nil {
		words.MaxUnhealthy = spec.MaxUnhealthy.String()
	}
	for _, condition := range slices.Sorted(maps.Keys(spec.Conditions)) {
		c := spec.Conditions[condition]
		words.Conditions = append(words.Conditions, dialect.SetCondition{
			Type: condition, Status: string(c.Status), Duration: c.Duration, EvenSilent: c.EvenSilent,
		})
	}
	return words.Rule()
}

// longestValue is how much of a bad value an error repeats. Some fields have no
// bound, and a status that the API server does not take tells nobody anything.
const longestValue = 100

// briefly shortens the value that an error repeats.
func briefly(err error) error {
	var field *triage.FieldError
	if !errors.As(err, &field) {
		return err
	}
	short := *field
	short.Value = cut(field.Value, longestValue)
	return &short
}

func cut(text string, longest int) string {
	if runes := []rune(text); len(runes) > longest {
		return string(runes[:longest]) + "..."
	}
	return text
}
