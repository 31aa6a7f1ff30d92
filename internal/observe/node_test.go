package observe_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
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
			name: "reads identity, zone and conditions",
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
			name: "recognizes the control plane by its label",
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "control-1", Labels: labels("node-role.kubernetes.io/control-plane")}},
			want: triage.Node{
				Name: "control-1", Zone: "zone-a", ControlPlane: true,
				Labels: labels("node-role.kubernetes.io/control-plane"), Conditions: []triage.Condition{},
			},
		},
		{
			name: "recognizes the control plane by its old label",
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"node-role.kubernetes.io/master": ""}}},
			want: triage.Node{ControlPlane: true, Labels: map[string]string{"node-role.kubernetes.io/master": ""}, Conditions: []triage.Condition{}},
		},
		{
			name: "recognizes initialized nodes by the label of Karpenter",
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"karpenter.sh/initialized": "true"}}},
			want: triage.Node{Initialized: true, Labels: map[string]string{"karpenter.sh/initialized": "true"}, Conditions: []triage.Condition{}},
		},
		{
			name: "reads who has paused the node",
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{nodepause.Annotation: "until=2026-03-01T12:00:00Z by=anna"}}},
			want: triage.Node{
				Hold: "paused by anna with the annotation " + nodepause.Annotation, HoldUntil: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Conditions: []triage.Condition{},
			},
		},
		{
			name: "reads an invalid status as Unknown",
			node: corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "A", Status: "Maybe"}, {Type: "B"}}}},
			want: triage.Node{Conditions: []triage.Condition{{Type: "A", Status: triage.Unknown}, {Type: "B", Status: triage.Unknown}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := testkit.Value(observe.Node(&tt.node)).Must(t)
			testkit.Equal(t, "facts", tt.want, got)
		})
	}
}

func TestNodeFindsOwnTaints(t *testing.T) {
	added := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }
	set := func(name string) triage.RuleID { return triage.RuleID{Kind: policykind.ConditionSet, Name: name} }
	// noted is the record of a taint by some sets, and ours are these taints.
	noted := func(key string, effect corev1.TaintEffect, sets ...string) (note ownership.Record) {
		for _, name := range sets {
			note.Taints = append(note.Taints, ownership.Taint{Rule: ownership.Rule(set(name)), Key: key, Effect: effect, Added: added})
		}
		return note
	}
	ours := func(key string, effect triage.Effect, sets ...string) (node triage.Node) {
		for _, name := range sets {
			node.Taints = append(node.Taints, triage.Taint{Rule: set(name), Key: key, Effect: effect})
		}
		return node
	}
	foreign := triage.Node{Foreign: []string{"example.com/a"}, Dedicated: true}
	type taints = []corev1.Taint
	for _, tt := range []struct {
		name   string
		note   ownership.Record
		taints taints
		want   triage.Node
	}{
		{"a taint in the record and on the node", noted("example.com/a", "NoExecute", "a"),
			taints{{Key: "other"}, {Key: "example.com/a", Effect: "NoExecute", TimeAdded: at(added)}}, ours("example.com/a", triage.NoExecute, "a")},
		{"a time in another time zone", noted("example.com/a", "NoSchedule", "a"),
			taints{{Key: "example.com/a", Effect: "NoSchedule", TimeAdded: at(added.In(time.FixedZone("", 3600)))}}, ours("example.com/a", triage.NoSchedule, "a")},
		{"a taint of several rules, once for each rule", noted("example.com/shared", "PreferNoSchedule", "a", "b"),
			taints{{Key: "example.com/shared", Effect: "PreferNoSchedule", TimeAdded: at(added)}}, ours("example.com/shared", triage.PreferNoSchedule, "a", "b")},
		{"no taint that is only in the record", noted("example.com/a", "NoExecute", "a"), nil, triage.Node{}},
		{"no taint that is only on the node", ownership.Record{}, taints{{Key: "example.com/a", Effect: "NoExecute", TimeAdded: at(added)}}, foreign},
		{"no taint with a changed value", noted("example.com/a", "NoExecute", "a"),
			taints{{Key: "example.com/a", Value: "theirs", Effect: "NoExecute", TimeAdded: at(added)}}, foreign},
		{"no taint that was replaced by an equal one", noted("example.com/a", "NoExecute", "a"), taints{
			{Key: "example.com/a", Effect: "NoExecute", TimeAdded: at(added.Add(time.Second))}, {Key: "example.com/a", Effect: "NoSchedule", TimeAdded: at(added)},
		}, foreign},
		{"no taint with an invalid effect", noted("example.com/a", "Evict", "a"), taints{{Key: "example.com/a", Effect: "Evict", TimeAdded: at(added)}}, triage.Node{}},
		{"remembered starts", ownership.Record{Starts: []ownership.RememberedStart{
			{Rule: ownership.Rule(set("a")), Condition: "A", Since: added, Transition: added.Add(time.Minute)},
			{Rule: ownership.Rule(set("a")), Condition: "B", Since: added},
		}}, nil, triage.Node{Memories: []triage.Memory{
			{Rule: set("a"), Condition: "A", Since: added, Transition: added.Add(time.Minute)}, {Rule: set("a"), Condition: "B", Since: added},
		}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := corev1.Node{Spec: corev1.NodeSpec{Taints: tt.taints}}
			if text, noted := tt.note.Encode(); noted {
				node.Annotations = map[string]string{ownership.Annotation: text}
			}
			got := testkit.Value(observe.Node(&node)).Must(t)
			tt.want.Conditions = []triage.Condition{}
			testkit.Equal(t, "facts", tt.want, got)
		})
	}
}

func TestNodeWithUnreadableRecord(t *testing.T) {
	for _, text := range []string{"", "null and void", `{"taints":[{"rule":"ConditionSet/a","key":"k","effect":"NoExecute","added":"soon"}]}`, `[]`} {
		t.Run(text, func(t *testing.T) {
			node := corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "worker-1", Annotations: map[string]string{ownership.Annotation: text}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: "NoExecute", TimeAdded: &metav1.Time{Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}}}},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "A", Status: "True"}}},
			}
			got, err := observe.Node(&node)
			testkit.Fails(t, err, "node worker-1: annotation "+ownership.Annotation)
			want := triage.Node{Name: "worker-1", Conditions: []triage.Condition{{Type: "A", Status: triage.True}}, Foreign: []string{"k"}, Dedicated: true}
			testkit.Equal(t, "facts", want, got)
		})
	}
}

// A cordon and taints that other components place for a while close a node. All other taints
// dedicate it to certain pods, except those that only ask the scheduler to prefer others.
func TestNodeIsClosedOrDedicatedByOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		spec                corev1.NodeSpec
		closed, isDedicated bool
	}{
		"nothing":                     {corev1.NodeSpec{}, false, false},
		"a cordon":                    {corev1.NodeSpec{Unschedulable: true}, true, false},
		"the node is not ready":       {corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node.kubernetes.io/not-ready", Effect: "NoExecute"}}}, true, false},
		"Karpenter disrupts it":       {corev1.NodeSpec{Taints: []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: "NoSchedule"}}}, true, false},
		"the autoscaler deletes it":   {corev1.NodeSpec{Taints: []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}}, true, false},
		"the control plane":           {corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"}}}, false, true},
		"GPUs":                        {corev1.NodeSpec{Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Effect: "NoSchedule"}}}, false, true},
		"GPUs, preferred":             {corev1.NodeSpec{Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Effect: "PreferNoSchedule"}}}, false, false},
		"the control plane, cordoned": {corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"}}}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := testkit.Value(observe.Node(&corev1.Node{Spec: tt.spec})).Must(t)
			testkit.Check(t, got.Closed == tt.closed && got.Dedicated == tt.isDedicated, "closed %t, dedicated %t", got.Closed, got.Dedicated)
		})
	}
}
