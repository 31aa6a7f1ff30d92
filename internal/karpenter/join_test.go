package karpenter_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func claim(name, providerID string) *karpenter.NodeClaim {
	return &karpenter.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: karpenter.NodeClaimStatus{ProviderID: providerID}}
}

func TestStartupTaintsAndInitialized(t *testing.T) {
	ready := func(status corev1.ConditionStatus) []corev1.NodeCondition {
		return []corev1.NodeCondition{{Type: "MemoryPressure", Status: "False"}, {Type: "Ready", Status: status}}
	}
	wants := &karpenter.NodeClaim{Spec: karpenter.NodeClaimSpec{StartupTaints: []corev1.Taint{
		{Key: "cilium", Value: "true", Effect: corev1.TaintEffectNoExecute}, {Key: "gpu", Effect: corev1.TaintEffectNoSchedule},
	}}}
	was := func(status metav1.ConditionStatus) *karpenter.NodeClaim {
		return &karpenter.NodeClaim{Spec: wants.Spec, Status: karpenter.NodeClaimStatus{Conditions: []metav1.Condition{{Type: "Initialized", Status: status}}}}
	}
	cilium := corev1.Taint{Key: "cilium", Value: "true", Effect: corev1.TaintEffectNoExecute}
	unregistered := corev1.Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}
	initialized := map[string]string{"karpenter.sh/initialized": "true"}
	tests := []struct {
		name   string
		labels map[string]string
		ready  []corev1.NodeCondition
		taints []corev1.Taint
		claim  *karpenter.NodeClaim
		still  []corev1.Taint
		is     bool
	}{
		{name: "ready without startup taints is initialised", ready: ready("True"), claim: wants, is: true},
		{name: "ready with a startup taint is not", ready: ready("True"), claim: wants, taints: []corev1.Taint{cilium}, still: []corev1.Taint{cilium}},
		{name: "a startup taint of another value is one", ready: ready("True"), claim: wants,
			taints: []corev1.Taint{{Key: "gpu", Value: "later", Effect: "NoSchedule"}}, still: []corev1.Taint{{Key: "gpu", Value: "later", Effect: "NoSchedule"}}},
		{name: "a startup taint of another effect is none", ready: ready("True"), claim: wants,
			taints: []corev1.Taint{{Key: "gpu", Effect: "NoExecute"}}, is: true},
		{name: "other taints do not matter", ready: ready("True"), claim: wants, taints: []corev1.Taint{{Key: "team", Effect: "NoSchedule"}}, is: true},
		{name: "before the node has the startup taints of its claim it is not initialised", ready: ready("True"), claim: wants,
			taints: []corev1.Taint{unregistered}, still: []corev1.Taint{unregistered}},
		{name: "a node that is not ready is not", ready: ready("False"), claim: wants},
		{name: "a node with an unknown status is not", ready: ready("Unknown"), claim: wants},
		{name: "a node that says nothing is not", claim: wants},
		{name: "by the label it once was, whatever it is now", labels: initialized, ready: ready("False"), claim: wants, taints: []corev1.Taint{cilium}, still: []corev1.Taint{cilium}, is: true},
		{name: "by another value of the label it never was", labels: map[string]string{"karpenter.sh/initialized": "false"}, ready: ready("False"), claim: wants},
		{name: "by its claim it once was", ready: ready("Unknown"), claim: was("True"), is: true},
		{name: "by its claim it never was", ready: ready("Unknown"), claim: was("Unknown")},
		{name: "without a claim ready is enough", ready: ready("True"), taints: []corev1.Taint{cilium}, is: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}, Spec: corev1.NodeSpec{Taints: test.taints}, Status: corev1.NodeStatus{Conditions: test.ready}}
			testkit.Equal(t, "startup taints", test.still, karpenter.StartupTaints(node, test.claim))
			if is := karpenter.IsInitialized(node, test.claim); is != test.is {
				t.Errorf("initialised: %v", is)
			}
		})
	}
}

func TestDoNotRepair(t *testing.T) {
	const theirs, ours = "karpenter.sh/do-not-repair", "autohealer.resourcestack.com/do-not-repair"
	tests := []struct {
		name        string
		annotations map[string]string
		by          string
	}{
		{"no annotation", nil, ""},
		{"something else is forbidden", map[string]string{"karpenter.sh/do-not-disrupt": "true"}, ""},
		{"Karpenter's word", map[string]string{theirs: "true"}, theirs},
		{"a word that Karpenter does not take", map[string]string{theirs: "True"}, ""},
		{"our word", map[string]string{ours: "true"}, ours},
		{"our word, empty", map[string]string{ours: ""}, ours},
		{"our word with a reason", map[string]string{ours: "anna looks at it"}, ours},
		{"our word taken back", map[string]string{ours: "false"}, ""},
		{"ours, though Karpenter's is taken back", map[string]string{ours: "yes", theirs: "false"}, ours},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if by, is := karpenter.DoNotRepair(test.annotations); by != test.by || is != (test.by != "") {
				t.Errorf("by %q, %v", by, is)
			}
		})
	}
}

func TestDisrupted(t *testing.T) {
	with := func(kind, status, reason string) *karpenter.NodeClaim {
		c := claim("a", "a")
		c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True"}, {Type: kind, Status: metav1.ConditionStatus(status), Reason: reason}}
		return c
	}
	deleting := claim("a", "a")
	deleting.DeletionTimestamp = new(metav1.Now())
	tests := []struct {
		name  string
		claim *karpenter.NodeClaim
		how   string
	}{
		{"not disrupted", claim("a", "a"), ""},
		{"deleted", deleting, "is being deleted"},
		{"chosen by Karpenter's own repair, before it deletes", with("DisruptionReason", "True", "Unhealthy"), "is about to be deleted by Karpenter: Unhealthy"},
		{"a choice that was taken back", with("DisruptionReason", "False", "Unhealthy"), ""},
		{"restarted", with("Rebooting", "True", "RebootIssued"), "is being rebooted by Karpenter"},
		{"restarted earlier", with("Rebooting", "False", "RebootSucceeded"), ""},
		{"its machine is going", with("InstanceTerminating", "True", "InstanceTerminating"), "has its machine terminated"},
		{"drifted only", with("Drifted", "True", "NodePoolDrifted"), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if how, is := test.claim.Disrupted(); how != test.how || is != (test.how != "") {
				t.Errorf("%q, %v", how, is)
			}
		})
	}
}
