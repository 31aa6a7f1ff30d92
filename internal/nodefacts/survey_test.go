package nodefacts

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Survey finds nodes from the watch and from the leader's loop alike.
func TestSurvey(t *testing.T) {
	labels := map[string]string{"pool": "a", "node-role.kubernetes.io/control-plane": ""}
	observed := facts("b", triage.True)
	observed.Labels, observed.ControlPlane = labels, true
	c := New()
	c.Observe(observed, facts("a", triage.False))
	watched := factsOf(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "u", Labels: labels},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Disk", Status: corev1.ConditionTrue}}},
	})
	c.set(&watched)
	pool, err := triage.ParseSelector("pool")
	testkit.Must(t, err)
	found, err := c.Survey(unhealthyRule(), pool)
	testkit.Must(t, err)
	want := triage.Survey{Selected: 3, ControlPlane: 2, Matching: 2, First: []string{"b", "c"}, Shared: []triage.Shared{{Nodes: 2, First: "b"}}}
	testkit.Equal(t, "the survey differs", want, found)
}
