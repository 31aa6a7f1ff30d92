package observe_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

func guardrails(spec v1alpha1.GuardrailsSpec) *v1alpha1.Guardrails {
	return &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}, Spec: spec}
}

func TestGuardrailsCompilesTheExample(t *testing.T) {
	var example v1alpha1.Guardrails
	testkit.Must(t, yaml.UnmarshalStrict(testkit.Value(os.ReadFile("../../api/autohealer/v1alpha1/testdata/guardrails.yaml")).Must(t), &example))
	share := func(percent int) triage.Limit { return triage.Limit{Number: percent, Percent: true} }
	respect := dialect.RespectAll()
	respect.Cordons = false
	want := dialect.Rails{
		Mode: dialect.ModeEnforce,
		Core: triage.Rails{
			Hold:          map[triage.Stage]string{policykind.StageRepair: "Guardrails cluster does not enforce Repair"},
			InTreatment:   new(share(10)),
			Unschedulable: new(share(20)),
			Pace:          &triage.Pace{Limit: triage.Limit{Number: 5}, Period: 10 * time.Minute},
			Topology:      []triage.Share{{Label: "topology.kubernetes.io/zone", Limit: share(25)}, {Label: "example.com/rack", Limit: triage.Limit{Number: 1}}},
			KeepLast:      true,
			CorrelatedFailure: &triage.CorrelatedFailure{
				Threshold: share(30), MinNodes: 5, Window: 10 * time.Minute, Labels: []string{"topology.kubernetes.io/zone"}, Image: true, LongestHold: 2 * time.Hour,
			},
			MaxAttempts: &triage.MaxAttempts{Limit: 2, Window: 12 * time.Hour},
		},
		Respect: respect,
	}
	testkit.Equal(t, "rails", want, testkit.Value(observe.Guardrails(&example)).Must(t))
}

func TestGuardrailsReliesOnNoDefaultOfTheSchema(t *testing.T) {
	want := testkit.Value(dialect.DefaultRails(dialect.ModeEnforce)).Must(t)
	testkit.Equal(t, "rails of an empty spec", want, testkit.Value(observe.Guardrails(guardrails(v1alpha1.GuardrailsSpec{}))).Must(t))
}

func TestGuardrailsKeepsEmptyLists(t *testing.T) {
	rails := testkit.Value(observe.Guardrails(guardrails(v1alpha1.GuardrailsSpec{
		Enforce: []v1alpha1.Stage{}, Topology: []v1alpha1.TopologyLimit{},
		CorrelatedFailure: v1alpha1.CorrelatedFailure{Keys: []v1alpha1.DomainKey{}},
		Pace:              v1alpha1.Pace{AtLeast: new(int32(0))},
	}))).Must(t)
	if len(rails.Core.Hold) != 3 || len(rails.Core.Topology) != 0 || rails.Core.CorrelatedFailure != nil || rails.Core.Pace.AtLeast != 0 {
		t.Errorf("compiled to %+v", rails)
	}
}

func TestGuardrailsRefuses(t *testing.T) {
	for _, test := range []struct {
		name               string
		spec               v1alpha1.GuardrailsSpec
		field, value, says string
	}{
		{"a spec that cannot be read", v1alpha1.GuardrailsSpec{Unreadable: strings.Repeat("x", 1000)}, "spec", "", "kubectl explain guardrails.spec"},
		{"too many labels", v1alpha1.GuardrailsSpec{Topology: make([]v1alpha1.TopologyLimit, 17)}, "spec.topology", "17", "at most 16 keys"},
		{"too many keys", v1alpha1.GuardrailsSpec{CorrelatedFailure: v1alpha1.CorrelatedFailure{Keys: make([]v1alpha1.DomainKey, 17)}}, "spec.correlatedFailure.keys", "17", "at most 16 keys"},
		{"a percentage above 100", v1alpha1.GuardrailsSpec{MaxInTreatment: new(intstr.FromString("101%"))}, "spec.maxInTreatment", "101%", "more than 100%"},
		{"a long value", v1alpha1.GuardrailsSpec{Mode: v1alpha1.Mode(strings.Repeat("x", 1000))}, "spec.mode", strings.Repeat("x", 97) + "...", "want Enforce"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := observe.Guardrails(guardrails(test.spec))
			refuses(t, triage.Rule{}, err, test.field, test.value, test.says)
		})
	}
	t.Run("another name", func(t *testing.T) {
		other := guardrails(v1alpha1.GuardrailsSpec{})
		other.Name = "default"
		_, err := observe.Guardrails(other)
		refuses(t, triage.Rule{}, err, "metadata.name", "default", "want metadata.name: cluster")
	})
}

func TestReleasedUntil(t *testing.T) {
	annotated := func(value string) *v1alpha1.Guardrails {
		object := guardrails(v1alpha1.GuardrailsSpec{})
		object.Annotations = map[string]string{v1alpha1.ReleaseHoldAnnotation: value}
		return object
	}
	for value, want := range map[string]time.Time{
		"until=2026-03-01T12:00:00Z":      time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		"until=2026-03-01T12:00:00+02:00": time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC),
	} {
		got := testkit.Value(observe.ReleasedUntil(annotated(value))).Must(t)
		testkit.Check(t, got.Equal(want), "%s is read as %s", value, got)
	}
	none := testkit.Value(observe.ReleasedUntil(guardrails(v1alpha1.GuardrailsSpec{}))).Must(t)
	testkit.Check(t, none.IsZero(), "without the annotation it is released until %s", none)
	for _, bad := range []string{"", "true", "2026-03-01T12:00:00Z", "until=", "until=12:00", "until=2026-13-01T12:00:00Z", "until 2026-03-01T12:00:00Z"} {
		until, err := observe.ReleasedUntil(annotated(bad))
		var field *triage.FieldError
		if !errors.As(err, &field) || field.Field != "metadata.annotations[autohealer.resourcestack.com/release-hold]" || field.Value != bad || !until.IsZero() {
			t.Errorf("%q is read as %s, %v", bad, until, err)
		}
	}
}
