package v1alpha1_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
)

// decode reads a list as a client does.
func decode(tb rapid.TB, items ...any) []v1alpha1.NodeHealthCheck {
	tb.Helper()
	data, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeHealthCheckList", "items": items})
	if err != nil {
		tb.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	object, err := runtime.Decode(serializer.NewCodecFactory(scheme).UniversalDeserializer(), data)
	if err != nil {
		tb.Fatalf("the list cannot be read: %v\n%s", err, data)
	}
	list, ok := object.(*v1alpha1.NodeHealthCheckList)
	if !ok {
		tb.Fatalf("read as %T", object)
	}
	return list.Items
}

// full has every field.
func full() v1alpha1.NodeHealthCheck {
	then := metav1.Unix(1, 0).Rfc3339Copy()
	template := corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "a", Name: "b"}
	return v1alpha1.NodeHealthCheck{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeHealthCheck"},
		ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec: v1alpha1.NodeHealthCheckSpec{
			Selector:               &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}},
			UnhealthyConditions:    []v1alpha1.UnhealthyCondition{{Type: "Ready", Status: "False", Duration: "300s"}},
			MinHealthy:             new(intstr.FromString("51%")),
			MaxUnhealthy:           new(intstr.FromInt32(3)),
			StormCooldownDuration:  "5m",
			RemediationTemplate:    &template,
			EscalatingRemediations: []v1alpha1.EscalatingRemediation{{RemediationTemplate: template, Order: 1, Timeout: "10m"}},
			PauseRequests:          []string{"anna"},
			HealthyDelay:           "-1s",
		},
		Status: v1alpha1.NodeHealthCheckStatus{
			ObservedGeneration: 1, ObservedNodes: new(5), HealthyNodes: new(4), InTreatment: new(1),
			UnhealthyNodes: []v1alpha1.UnhealthyNode{{
				Name: "n", ConditionsHealthyTimestamp: &then, HealthyDelayed: new(true), Reason: "Recovering", Message: "it is",
				Remediations: []v1alpha1.Remediation{{Resource: template, Started: then, TimedOut: &then, TemplateName: "b"}},
			}},
			InFlightRemediations: map[string]metav1.Time{"n": then},
			Conditions:           []metav1.Condition{{Type: "Disabled", Status: "False", Reason: "Fine", LastTransitionTime: then}},
			Phase:                v1alpha1.PhaseRemediating, Reason: "so", LastUpdateTime: &then,
		},
	}
}

// document returns the same object as the API server would.
func document(tb rapid.TB) map[string]any {
	tb.Helper()
	text, err := json.Marshal(full())
	if err != nil {
		tb.Fatal(err)
	}
	var read map[string]any
	if err := json.Unmarshal(text, &read); err != nil {
		tb.Fatal(err)
	}
	return read
}

func TestDecode(t *testing.T) {
	t.Run("reads back what was written", func(t *testing.T) {
		if diff := cmp.Diff(full(), decode(t, full())[0]); diff != "" {
			t.Errorf("(-written +read)\n%s", diff)
		}
	})

	t.Run("tells what is wrong with a spec that does not fit", func(t *testing.T) {
		bad := document(t)
		bad["spec"].(map[string]any)["maxUnhealthy"] = 3000000000
		got := decode(t, bad)[0]
		if says := got.Spec.Unreadable; !strings.Contains(says, "3000000000") || !strings.Contains(says, "maxUnhealthy") {
			t.Errorf("it says %q", says)
		}
		if got.Spec.RemediationTemplate != nil {
			t.Error("half of the spec was read")
		}
		if got.Status.Phase != v1alpha1.PhaseRemediating {
			t.Error("the status was not read")
		}
	})

	t.Run("takes a status that does not fit for none", func(t *testing.T) {
		bad := document(t)
		bad["status"].(map[string]any)["lastUpdateTime"] = "yesterday"
		got := decode(t, bad)[0]
		if diff := cmp.Diff(v1alpha1.NodeHealthCheckStatus{}, got.Status); diff != "" {
			t.Errorf("(-none +read)\n%s", diff)
		}
		if got.Spec.RemediationTemplate == nil {
			t.Error("the spec was not read")
		}
	})
}

// An invalid health check must not hide the others, whatever its fields contain.
func TestAnyBadHealthCheckLeavesTheOthersReadable(t *testing.T) {
	var unreadable, readable int
	rapid.Check(t, func(t *rapid.T) {
		bad := document(t)
		part := rapid.SampledFrom([]string{"spec", "status"}).Draw(t, "part")
		bad[part] = spoiled(t, bad[part])
		list := decode(t, full(), bad, full())
		for _, i := range []int{0, 2} {
			if diff := cmp.Diff(full(), list[i]); diff != "" {
				t.Fatalf("health check %d suffered:\n%s", i, diff)
			}
		}
		if list[1].Spec.Unreadable != "" {
			unreadable++
		} else {
			readable++
		}
	})
	t.Logf("saw %d specs that do not fit and %d that do", unreadable, readable)
	if unreadable == 0 || readable == 0 {
		t.Error("one kind of health checks was never tried")
	}
}

// spoiled inserts a random JSON value into another.
func spoiled(t *rapid.T, value any) any {
	if rapid.IntRange(0, 3).Draw(t, "stop") > 0 {
		switch value := value.(type) {
		case map[string]any:
			key := rapid.SampledFrom(slices.Sorted(maps.Keys(value))).Draw(t, "key")
			value[key] = spoiled(t, value[key])
			return value
		case []any:
			value[0] = spoiled(t, value[0])
			return value
		}
	}
	return rapid.SampledFrom([]any{
		nil, true, "", "word", "2026-03-01T12:00:00+99:99", -1, 0.5, 1e300, []any{}, []any{nil}, []any{1, "a"}, map[string]any{}, map[string]any{"a": nil},
	}).Draw(t, "odd")
}
