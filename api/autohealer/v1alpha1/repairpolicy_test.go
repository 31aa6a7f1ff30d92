package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

func decodePolicies(tb rapid.TB, data []byte) []v1alpha1.RepairPolicy {
	tb.Helper()
	return decode[*v1alpha1.RepairPolicyList](tb, data).Items
}

func listOfPolicies(tb rapid.TB, items ...any) []byte {
	tb.Helper()
	return listOf(tb, "RepairPolicy", items...)
}

// fullPolicy has every field.
func fullPolicy() v1alpha1.RepairPolicy {
	return v1alpha1.RepairPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "RepairPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec: v1alpha1.RepairPolicySpec{
			NodePool: "default",
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}},
			Repair: v1alpha1.RepairSpec{
				Enabled:                   new(true),
				Policies:                  []v1alpha1.ConditionRepair{{ConditionType: "Ready", ConditionStatus: "False", Reason: "KubeletNotReady", Toleration: "45m"}},
				DefaultTolerationDuration: "30m",
				MaxUnhealthy:              new(intstr.FromInt32(3)),
				Termination:               v1alpha1.Graceful,
				TerminationGracePeriod:    "1h",
				ReadyTimeout:              "10m",
			},
			RemediationTemplate: &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "a", Name: "b"},
		},
		Status: v1alpha1.RepairPolicyStatus{
			ObservedGeneration: 1, Nodes: 5, Unhealthy: 4, Repairing: 2, Held: 1,
			UnhealthyNodes: []v1alpha1.UnhealthyNode{{Name: "n", Reason: "Pending", Message: "it waits", EligibleAt: new(metav1.Unix(60, 0).Rfc3339Copy())}},
			Conditions:     []metav1.Condition{{Type: v1alpha1.Conflict, Status: "False", Reason: "Fine", LastTransitionTime: metav1.Unix(1, 0).Rfc3339Copy()}},
		},
	}
}

func TestDecodeRepairPolicy(t *testing.T) {
	t.Run("reads back what was written", func(t *testing.T) {
		if diff := cmp.Diff(fullPolicy(), decodePolicies(t, listOfPolicies(t, fullPolicy()))[0]); diff != "" {
			t.Errorf("(-written +read)\n%s", diff)
		}
	})
	for name, test := range map[string]struct{ old, bad, says string }{
		"tells in the block what does not fit there":         {`"toleration":"45m"`, `"toleration":45`, "toleration"},
		"tells in the block what does not fit elsewhere":     {`"nodePool":"default"`, `"nodePool":["default"]`, "nodePool"},
		"tells in the block of a bound that no number holds": {`"maxUnhealthy":3`, `"maxUnhealthy":3000000000`, "3000000000"},
		"tells of a block that is none":                      {`"repair":{`, `"repair":"30m","other":{`, "string"},
	} {
		t.Run(name, func(t *testing.T) {
			policy := decodePolicies(t, []byte(strings.ReplaceAll(string(listOfPolicies(t, fullPolicy())), test.old, test.bad)))[0]
			if got := policy.Spec.Repair.Unreadable; !strings.Contains(got, test.says) {
				t.Errorf("it says %q, want something with %q", got, test.says)
			}
			if policy.Spec.Repair.Policies != nil {
				t.Error("half of the block was read")
			}
			if policy.Status.Unhealthy != 4 {
				t.Error("the status was not read")
			}
		})
	}
	t.Run("knows whose nodes a block is for that cannot be read", func(t *testing.T) {
		policy := decodePolicies(t, []byte(strings.ReplaceAll(string(listOfPolicies(t, fullPolicy())), `"toleration":"45m"`, `"toleration":45`)))[0]
		if policy.Spec.NodePool != "default" || policy.Spec.RemediationTemplate == nil {
			t.Errorf("it has pool %q and template %v", policy.Spec.NodePool, policy.Spec.RemediationTemplate)
		}
	})
	t.Run("takes a status that does not fit for none", func(t *testing.T) {
		policy := decodePolicies(t, []byte(strings.ReplaceAll(string(listOfPolicies(t, fullPolicy())), `"unhealthy":4`, `"unhealthy":-1e30`)))[0]
		if diff := cmp.Diff(v1alpha1.RepairPolicyStatus{}, policy.Status); diff != "" {
			t.Errorf("(-none +read)\n%s", diff)
		}
		if policy.Spec.NodePool != "default" {
			t.Error("the spec was not read")
		}
	})
}

// An invalid policy must not hide the others, whatever its fields contain.
func TestAnyBadPolicyLeavesTheOthersReadable(t *testing.T) {
	leavesTheOthersReadable(t, fullPolicy, func(t *rapid.T, items ...any) []v1alpha1.RepairPolicy {
		return decodePolicies(t, listOfPolicies(t, items...))
	},
		func(policy v1alpha1.RepairPolicy) bool { return policy.Spec.Repair.Unreadable == "" })
}
