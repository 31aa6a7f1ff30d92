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
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// typePattern is the pattern of the CRD. It is checked here too, because the CRD does not
// validate sets in ConfigMaps, or sets stored by an older CRD.
var typePattern = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// ConditionSet returns the rule of a set. The error is a *[triage.FieldError] with the path
// of the field in the object.
func ConditionSet(set *v1alpha1.ConditionSet) (triage.Rule, error) {
	rule, err := conditionSet(set.Name, set.Spec)
	return rule, shortenValue(err)
}

func conditionSet(name string, spec v1alpha1.ConditionSetSpec) (triage.Rule, error) {
	switch {
	case spec.Unreadable != "":
		return triage.Rule{}, &triage.FieldError{Field: "spec", Problem: "cannot be read: " + text.Shorten(spec.Unreadable, 3*maxValueLength, "...") + "; what is wanted is told by kubectl explain conditionset.spec"}
	case spec.Type == "":
		return triage.Rule{}, &triage.FieldError{Field: "spec.type", Problem: "a set needs a type that names the combination, for example KubeletContainerRuntimeUnhealthy"}
	case len(spec.Type) > v1alpha1.MaxTypeLength || !typePattern.MatchString(spec.Type):
		return triage.Rule{}, &triage.FieldError{Field: "spec.type", Value: spec.Type, Problem: "want a name of letters, digits, dashes, underscores and dots like KubeletContainerRuntimeUnhealthy, or one with a domain before it like example.com/FanBroken"}
	case len(spec.Conditions) > v1alpha1.MaxConditions:
		return triage.Rule{}, &triage.FieldError{Field: "spec.conditions", Value: strconv.Itoa(len(spec.Conditions)), Problem: fmt.Sprintf("a set has at most %d conditions", v1alpha1.MaxConditions)}
	}
	if err := ValidateMode(spec.Mode); err != nil {
		return triage.Rule{}, err
	}
	if spec.DryRun && spec.Mode == v1alpha1.PolicyEnforce {
		return triage.Rule{}, &triage.FieldError{Field: "spec.dryRun", Value: "true", Problem: "it means mode: Observe, and mode is Enforce; want mode alone, so remove dryRun"}
	}
	who, err := nodeSelector(spec.Selector)
	if err != nil {
		return triage.Rule{}, err
	}
	policy := dialect.ConditionSet{
		Name:         name,
		TaintKey:     spec.TaintKey,
		Effect:       string(spec.Effect),
		Selector:     who,
		ControlPlane: asksForControlPlane(who),
		DryRun:       spec.Observes(),
		Windows:      windows(spec.Windows),
	}
	if spec.MaxUnhealthy != nil {
		policy.MaxUnhealthy = spec.MaxUnhealthy.String()
	}
	for _, condition := range slices.Sorted(maps.Keys(spec.Conditions)) {
		c := spec.Conditions[condition]
		policy.Conditions = append(policy.Conditions, dialect.SetCondition{
			Type: condition, Status: string(c.Status), Duration: c.Duration, EvenSilent: c.EvenSilent,
		})
	}
	return policy.Rule()
}

// maxValueLength limits how much of an invalid value an error repeats. Some fields have no
// limit, and the API server would refuse the status.
const maxValueLength = 100

// shortenValue shortens the value in an error.
func shortenValue(err error) error {
	var field *triage.FieldError
	if !errors.As(err, &field) {
		return err
	}
	short := *field
	short.Value = text.Shorten(field.Value, maxValueLength, "...")
	return &short
}
