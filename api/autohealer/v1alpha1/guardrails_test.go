package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

func decodeGuardrails(tb rapid.TB, data []byte) []v1alpha1.Guardrails {
	tb.Helper()
	return decode[*v1alpha1.GuardrailsList](tb, data).Items
}

func listOfGuardrails(tb rapid.TB, items ...any) []byte {
	tb.Helper()
	return listOf(tb, "Guardrails", items...)
}

// fullGuardrails has every field.
func fullGuardrails() v1alpha1.Guardrails {
	return v1alpha1.Guardrails{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Guardrails"},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName},
		Spec: v1alpha1.GuardrailsSpec{
			Mode: v1alpha1.Observe, Enforce: []v1alpha1.Stage{"Taint"},
			MaxInTreatment: new(intstr.FromString("10%")), MaxUnschedulable: new(intstr.FromInt32(3)),
			Pace:              v1alpha1.Pace{Max: new(intstr.FromInt32(5)), AtLeast: new(int32(0)), Period: "10m"},
			Topology:          []v1alpha1.TopologyLimit{{Key: "rack", Max: new(intstr.FromInt32(1))}},
			CorrelatedFailure: v1alpha1.CorrelatedFailure{Threshold: new(intstr.FromString("30%")), MinNodes: 5, Window: "10m", Keys: []v1alpha1.DomainKey{v1alpha1.ImageKey}, LongestHold: "2h"},
			MaxAttempts:       v1alpha1.MaxAttempts{Limit: 2, Window: "12h"},
			Respect: v1alpha1.Respect{
				Cordons: new(false), ClusterAutoscaler: new(false), Karpenter: new(true), Maintenance: new(false),
				DeletingMachines: new(true), ExcludeLabel: new(false), DoNotDisrupt: new(true),
			},
		},
		Status: v1alpha1.GuardrailsStatus{
			ObservedGeneration: 1, Mode: v1alpha1.Observe, Nodes: 9, Unhealthy: 4, InTreatment: 2, Unschedulable: 3, Held: 1, GivenUp: 1,
			Rails:        []v1alpha1.RailStatus{{Name: "topology", Domain: "rack=7", Limit: 1, Used: 1, Held: 1}},
			AcceptedSpec: "{}",
			Conditions:   []metav1.Condition{{Type: v1alpha1.Ready, Status: "True", Reason: "Fine", LastTransitionTime: metav1.Unix(1, 0).Rfc3339Copy()}},
		},
	}
}

func TestDecodeGuardrails(t *testing.T) {
	t.Run("reads back what was written", func(t *testing.T) {
		if diff := cmp.Diff(fullGuardrails(), decodeGuardrails(t, listOfGuardrails(t, fullGuardrails()))[0]); diff != "" {
			t.Errorf("(-written +read)\n%s", diff)
		}
	})
	t.Run("distinguishes an empty list from none", func(t *testing.T) {
		guardrails := fullGuardrails()
		guardrails.Spec.Enforce, guardrails.Spec.Topology, guardrails.Spec.CorrelatedFailure.Keys = []v1alpha1.Stage{}, nil, []v1alpha1.DomainKey{}
		if diff := cmp.Diff(guardrails, decodeGuardrails(t, listOfGuardrails(t, guardrails))[0]); diff != "" {
			t.Errorf("(-written +read)\n%s", diff)
		}
	})
	for name, test := range map[string]struct {
		old, bad, says string
		mode           v1alpha1.Mode // a user can pause with an invalid version
	}{
		"tells of a limit that no number holds": {`"maxUnschedulable":3`, `"maxUnschedulable":3000000000`, "3000000000", fullGuardrails().Spec.Mode},
		"tells of a field of another type":      {`"period":"10m"`, `"period":600`, "period", fullGuardrails().Spec.Mode},
		"tells of a spec that is none":          {`"spec":{`, `"spec":"Paused","other":{`, "string", ""},
	} {
		t.Run(name, func(t *testing.T) {
			guardrails := decodeGuardrails(t, []byte(strings.ReplaceAll(string(listOfGuardrails(t, fullGuardrails())), test.old, test.bad)))[0]
			if got := guardrails.Spec.Unreadable; !strings.Contains(got, test.says) {
				t.Errorf("it says %q, want something with %q", got, test.says)
			}
			if diff := cmp.Diff(v1alpha1.GuardrailsSpec{Mode: test.mode, Unreadable: guardrails.Spec.Unreadable}, guardrails.Spec); diff != "" {
				t.Errorf("half of the spec was read (-want +got)\n%s", diff)
			}
			if guardrails.Status.AcceptedSpec != "{}" {
				t.Error("the status was not read")
			}
		})
	}
	t.Run("takes a status that does not fit for none", func(t *testing.T) {
		guardrails := decodeGuardrails(t, []byte(strings.ReplaceAll(string(listOfGuardrails(t, fullGuardrails())), `"unhealthy":4`, `"unhealthy":-1e30`)))[0]
		if diff := cmp.Diff(v1alpha1.GuardrailsStatus{}, guardrails.Status); diff != "" {
			t.Errorf("(-none +read)\n%s", diff)
		}
		if guardrails.Spec.Mode != v1alpha1.Observe {
			t.Error("the spec was not read")
		}
	})
}

// An invalid object must not hide others, whatever its fields contain.
func TestAnyBadGuardrailsLeaveTheOthersReadable(t *testing.T) {
	leavesTheOthersReadable(t, fullGuardrails, func(t *rapid.T, items ...any) []v1alpha1.Guardrails {
		return decodeGuardrails(t, listOfGuardrails(t, items...))
	},
		func(guardrails v1alpha1.Guardrails) bool { return guardrails.Spec.Unreadable == "" })
}
