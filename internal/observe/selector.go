package observe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/resourcestack/autohealer/internal/triage"
)

// operators are the words of a label selector for what triage knows.
var operators = map[metav1.LabelSelectorOperator]triage.Operator{
	metav1.LabelSelectorOpIn:           triage.In,
	metav1.LabelSelectorOpNotIn:        triage.NotIn,
	metav1.LabelSelectorOpExists:       triage.Exists,
	metav1.LabelSelectorOpDoesNotExist: triage.Absent,
}

// nodeSelector reads the selector of a policy. One that is not there picks every
// node, and so does an empty one.
func nodeSelector(s *metav1.LabelSelector) (triage.Selector, error) {
	path := field.NewPath("spec", "selector")
	if bad := validation.ValidateLabelSelector(s, validation.LabelSelectorValidationOptions{}, path); len(bad) > 0 {
		// The labels are checked in a random order; the same object must get the
		// same answer every time.
		first := slices.MinFunc(bad, func(a, b *field.Error) int { return cmp.Compare(a.Error(), b.Error()) })
		wrong := &triage.FieldError{Field: first.Field, Value: fmt.Sprint(first.BadValue), Problem: first.Detail}
		if strings.HasSuffix(first.Field, ".operator") {
			wrong.Problem += "; want In, NotIn, Exists or DoesNotExist"
		}
		return triage.Selector{}, wrong
	}
	if s == nil {
		return triage.Selector{}, nil
	}
	var demands []triage.Requirement
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		demands = append(demands, triage.Requirement{Key: key, Op: triage.In, Values: []string{s.MatchLabels[key]}})
	}
	for _, e := range s.MatchExpressions {
		demands = append(demands, triage.Requirement{Key: e.Key, Op: operators[e.Operator], Values: e.Values})
	}
	selector, err := triage.NewSelector(demands...)
	if err != nil {
		return triage.Selector{}, &triage.FieldError{Field: path.String(), Value: metav1.FormatLabelSelector(s), Problem: err.Error()}
	}
	return selector, nil
}

// asksForControlPlane says whether a selector names the control plane. That it
// merely does not rule it out is not enough.
func asksForControlPlane(s triage.Selector) bool {
	return slices.ContainsFunc(s.Requirements(), func(r triage.Requirement) bool {
		return (r.Key == controlPlaneLabel || r.Key == masterLabel) && (r.Op == triage.In || r.Op == triage.Exists)
	})
}
