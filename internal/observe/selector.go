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

// operators maps label selector operators to those of triage.
var operators = map[metav1.LabelSelectorOperator]triage.Operator{
	metav1.LabelSelectorOpIn:           triage.In,
	metav1.LabelSelectorOpNotIn:        triage.NotIn,
	metav1.LabelSelectorOpExists:       triage.Exists,
	metav1.LabelSelectorOpDoesNotExist: triage.Absent,
}

// nodeSelector parses the selector of a policy. A nil or empty selector selects every node.
func nodeSelector(s *metav1.LabelSelector) (triage.Selector, error) {
	path := field.NewPath("spec", "selector")
	if bad := validation.ValidateLabelSelector(s, validation.LabelSelectorValidationOptions{}, path); len(bad) > 0 {
		// The validation checks labels in random order, but the same object must always get
		// the same error.
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
	var requirements []triage.Requirement
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		requirements = append(requirements, triage.Requirement{Key: key, Op: triage.In, Values: []string{s.MatchLabels[key]}})
	}
	for _, e := range s.MatchExpressions {
		requirements = append(requirements, triage.Requirement{Key: e.Key, Op: operators[e.Operator], Values: e.Values})
	}
	selector, err := triage.NewSelector(requirements...)
	if err != nil {
		return triage.Selector{}, &triage.FieldError{Field: path.String(), Value: metav1.FormatLabelSelector(s), Problem: err.Error()}
	}
	return selector, nil
}

// asksForControlPlane says whether a selector requires control-plane nodes. A selector that
// merely allows them does not count.
func asksForControlPlane(s triage.Selector) bool {
	return slices.ContainsFunc(s.Requirements(), func(r triage.Requirement) bool {
		return (r.Key == controlPlaneLabel || r.Key == masterLabel) && (r.Op == triage.In || r.Op == triage.Exists)
	})
}
