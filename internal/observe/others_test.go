package observe_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestWorkOfOthers(t *testing.T) {
	tainted := func(key string) corev1.Node {
		return corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.com/gpu"}, {Key: key}}}}
	}
	labelled := func(value string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"remediation.medik8s.io/exclude-from-remediation": value}}}
	}
	announced := func(status corev1.ConditionStatus) corev1.Node {
		return corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "VMEventScheduled", Status: status}}}}
	}
	for name, test := range map[string]struct {
		node  corev1.Node
		field string // that respects it, empty for none
		off   func(*dialect.Respect)
		// whileTreated says that it counts also while a treatment of Autohealer is on the node.
		whileTreated bool
	}{
		"nothing":               {node: tainted("node.kubernetes.io/not-ready")},
		"a cordon":              {corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, "cordons", func(r *dialect.Respect) { r.Cordons = false }, false},
		"the autoscaler":        {tainted("ToBeDeletedByClusterAutoscaler"), "clusterAutoscaler", func(r *dialect.Respect) { r.ClusterAutoscaler = false }, true},
		"a candidate":           {node: tainted("DeletionCandidateOfClusterAutoscaler")},
		"Karpenter":             {tainted("karpenter.sh/disrupted"), "karpenter", func(r *dialect.Respect) { r.Karpenter = false }, false},
		"an old Karpenter":      {tainted("karpenter.sh/disruption"), "karpenter", func(r *dialect.Respect) { r.Karpenter = false }, false},
		"another of Karpenter":  {node: tainted("karpenter.sh/unregistered")},
		"maintenance":           {tainted("medik8s.io/drain"), "maintenance", func(r *dialect.Respect) { r.Maintenance = false }, true},
		"announced maintenance": {announced(corev1.ConditionTrue), "maintenance", func(r *dialect.Respect) { r.Maintenance = false }, true},
		"no maintenance":        {node: announced(corev1.ConditionFalse)},
		"excluded":              {labelled("true"), "excludeLabel", func(r *dialect.Respect) { r.ExcludeLabel = false }, true},
		"not excluded":          {node: labelled("false")},
	} {
		t.Run(name, func(t *testing.T) {
			all := dialect.RespectAll()
			got := observe.WorkOfOthers(&test.node, all, false)
			if test.field == "" {
				testkit.Same(t, strings.Join(got, ", "), "", "the reasons")
				return
			}
			testkit.Check(t, len(got) == 1 && strings.HasPrefix(got[0], "held by respect."+test.field+" of Guardrails: ") && strings.Contains(got[0], "; continues when "), "the reasons are %q", got)
			testkit.Same(t, len(observe.WorkOfOthers(&test.node, all, true)) > 0, test.whileTreated, "it counts while the node is treated")
			test.off(&all)
			testkit.Same(t, len(observe.WorkOfOthers(&test.node, all, false)), 0, "reasons with the field switched off")
		})
	}
}
