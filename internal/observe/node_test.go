package observe_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestNode(t *testing.T) {
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	changed := created.Add(time.Hour)
	labels := func(extra ...string) map[string]string {
		l := map[string]string{"topology.kubernetes.io/zone": "zone-a"}
		for _, key := range extra {
			l[key] = ""
		}
		return l
	}
	tests := []struct {
		name string
		node corev1.Node
		want triage.Node
	}{
		{
			name: "reads identity, place and conditions",
			node: corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u1", Labels: labels(), CreationTimestamp: metav1.NewTime(created)},
				Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
					{Type: "Ready", Status: corev1.ConditionFalse, Reason: "KubeletNotReady", LastTransitionTime: metav1.NewTime(changed)},
					{Type: "KernelDeadlock", Status: corev1.ConditionTrue},
				}},
			},
			want: triage.Node{
				Name: "worker-1", UID: "u1", Zone: "zone-a", Labels: labels(), Created: created,
				Conditions: []triage.Condition{
					{Type: "Ready", Status: triage.False, Reason: "KubeletNotReady", Transition: changed},
					{Type: "KernelDeadlock", Status: triage.True},
				},
			},
		},
		{
			name: "knows the control plane by its label",
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "control-1", Labels: labels("node-role.kubernetes.io/control-plane")}},
			want: triage.Node{
				Name: "control-1", Zone: "zone-a", ControlPlane: true,
				Labels: labels("node-role.kubernetes.io/control-plane"), Conditions: []triage.Condition{},
			},
		},
		{
			name: "knows by Karpenter's label that a node once was ready",
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"karpenter.sh/initialized": "true"}}},
			want: triage.Node{Initialized: true, Labels: map[string]string{"karpenter.sh/initialized": "true"}, Conditions: []triage.Condition{}},
		},
		{
			name: "takes a status that is none for Unknown",
			node: corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "A", Status: "Maybe"}, {Type: "B"}}}},
			want: triage.Node{Conditions: []triage.Condition{{Type: "A", Status: triage.Unknown}, {Type: "B", Status: triage.Unknown}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, observe.Node(&tt.node)); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
		})
	}
}
