package observe

import (
	"strconv"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Guardrails returns the compiled guardrails. The error is a *[triage.FieldError] with the
// path of the field in the object. The function relies on no default of the CRD, because an
// object may be older than the CRD.
func Guardrails(guardrails *v1alpha1.Guardrails) (dialect.Rails, error) {
	rails, err := compileGuardrails(guardrails.Name, guardrails.Spec)
	return rails, shortenValue(err)
}

func compileGuardrails(name string, spec v1alpha1.GuardrailsSpec) (dialect.Rails, error) {
	tooMany := func(field string, count int) error {
		return &triage.FieldError{Field: field, Value: strconv.Itoa(count), Problem: "want at most " + strconv.Itoa(v1alpha1.MaxDomainKeys) + " keys"}
	}
	failure := spec.CorrelatedFailure
	switch {
	case spec.Unreadable != "":
		return dialect.Rails{}, &triage.FieldError{Field: "spec", Problem: "cannot be read: " + text.Shorten(spec.Unreadable, 3*maxValueLength, "...") + "; what is wanted is told by kubectl explain guardrails.spec"}
	case len(spec.Topology) > v1alpha1.MaxDomainKeys:
		return dialect.Rails{}, tooMany("spec.topology", len(spec.Topology))
	case len(failure.Keys) > v1alpha1.MaxDomainKeys:
		return dialect.Rails{}, tooMany("spec.correlatedFailure.keys", len(failure.Keys))
	}
	policy := dialect.Guardrails{
		Name:             name,
		Mode:             string(spec.Mode),
		Enforce:          texts(spec.Enforce),
		MaxInTreatment:   limitText(spec.MaxInTreatment),
		MaxUnschedulable: limitText(spec.MaxUnschedulable),
		Pace:             dialect.Pace{Max: limitText(spec.Pace.Max), Period: spec.Pace.Period},
		CorrelatedFailure: dialect.CorrelatedFailure{
			Threshold: limitText(failure.Threshold), MinNodes: int(failure.MinNodes), Window: failure.Window,
			Keys: texts(failure.Keys), LongestHold: failure.LongestHold,
		},
		MaxAttempts: dialect.MaxAttempts{Limit: int(spec.MaxAttempts.Limit), Window: spec.MaxAttempts.Window},
		Respect:     respect(spec.Respect),
	}
	if atLeast := spec.Pace.AtLeast; atLeast != nil {
		policy.Pace.AtLeast = new(int(*atLeast))
	}
	if spec.Topology != nil {
		policy.Topology = []dialect.TopologyLimit{}
	}
	for _, limit := range spec.Topology {
		policy.Topology = append(policy.Topology, dialect.TopologyLimit{Key: limit.Key, Max: limitText(limit.Max)})
	}
	return policy.Rails()
}

// texts converts a list. Nil stays nil, because it means the default.
func texts[T ~string](list []T) []string {
	if list == nil {
		return nil
	}
	converted := make([]string, 0, len(list))
	for _, one := range list {
		converted = append(converted, string(one))
	}
	return converted
}

func respect(spec v1alpha1.Respect) *dialect.Respect {
	isOn := func(field *bool) bool { return field == nil || *field }
	return &dialect.Respect{
		Cordons: isOn(spec.Cordons), ClusterAutoscaler: isOn(spec.ClusterAutoscaler), Karpenter: isOn(spec.Karpenter), Maintenance: isOn(spec.Maintenance),
		DeletingMachines: isOn(spec.DeletingMachines), ExcludeLabel: isOn(spec.ExcludeLabel), DoNotDisrupt: isOn(spec.DoNotDisrupt),
	}
}

// ReleasedUntil returns until when an annotation of the guardrails lets treatments start
// although a correlated failure holds them; zero without the annotation. The error is a
// *[triage.FieldError]. It concerns the annotation alone: the spec may be valid.
func ReleasedUntil(guardrails *v1alpha1.Guardrails) (time.Time, error) {
	value, isSet := guardrails.Annotations[v1alpha1.ReleaseHoldAnnotation]
	if !isSet {
		return time.Time{}, nil
	}
	text, hasPrefix := strings.CutPrefix(value, "until=")
	until, err := time.Parse(time.RFC3339, text)
	if !hasPrefix || err != nil {
		return time.Time{}, shortenValue(&triage.FieldError{
			Field: "metadata.annotations[" + v1alpha1.ReleaseHoldAnnotation + "]", Value: value,
			Problem: "want until= and a time in RFC 3339, for example until=2026-03-01T12:00:00Z",
		})
	}
	return until, nil
}
