package nodefacts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/triage"
)

// What is told by a watch and what is told by the leader's loop is found alike.
func TestSurvey(t *testing.T) {
	labels := map[string]string{"pool": "a", "node-role.kubernetes.io/control-plane": ""}
	told := facts("b", triage.True)
	told.Labels, told.ControlPlane = labels, true
	c := New()
	c.Observe(told, facts("a", triage.False))
	watched := factsOf(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "u", Labels: labels},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Disk", Status: corev1.ConditionTrue}}},
	})
	c.enter(&watched)
	pool, err := triage.ParseSelector("pool")
	if err != nil {
		t.Fatal(err)
	}
	found, err := c.Survey(sickRule(), pool)
	if err != nil {
		t.Fatal(err)
	}
	want := triage.Survey{Selected: 3, ControlPlane: 2, Matching: 2, First: []string{"b", "c"}, Shared: []triage.Shared{{Nodes: 2, First: "b"}}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("what is found (-want +got):\n%s", diff)
	}
}
