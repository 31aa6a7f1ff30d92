package testbed

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestNodes(t *testing.T) {
	t.Run("spread over zones and pools evenly", func(t *testing.T) {
		set := Nodes{Count: 12, Zones: []string{"z1", "z2"}, Pools: []string{"p1", "p2", "p3"}}
		seen := make(map[[2]string]int)
		for i := range set.Count {
			labels := set.node(i, time.Now()).Labels
			seen[[2]string{labels[corev1.LabelTopologyZone], labels[PoolLabel]}]++
		}
		testkit.Require(t, len(seen) == 6, "%d pairs of zone and pool: %v", len(seen), seen)
		for pair, n := range seen {
			testkit.Check(t, n == 2, "%v has %d nodes, not 2", pair, n)
		}
	})

	t.Run("have the same names every time", func(t *testing.T) {
		for want, set := range map[string]Nodes{
			"node-0003":  {},
			"blue-0003":  {Prefix: "blue"},
			"node-0042":  {First: 40},
			"node-10002": {First: 10000},
		} {
			if got := set.node(2, time.Now()).Name; got != want {
				t.Errorf("%+v: third node is %s, not %s", set, got, want)
			}
		}
	})

	t.Run("have realistic sizes on request", func(t *testing.T) {
		node := RealNodes(1).node(0, time.Now())
		if n := len(node.Status.Conditions); n != 10 {
			t.Errorf("%d conditions, not 10", n)
		}
		encoded := testkit.Value(json.Marshal(node)).Must(t)
		if size := len(encoded); size < 12<<10 || size > 18<<10 {
			t.Errorf("%d bytes, not about 15 KB", size)
		}
	})

	t.Run("that are invalid are refused", func(t *testing.T) {
		err := Nodes{Count: -1, Images: -2, Conditions: []corev1.NodeCondition{{Type: "X"}}}.Validate()
		for _, want := range []string{"Count is -1", "Images is -2", "Conditions[0] needs"} {
			testkit.Check(t, err != nil && strings.Contains(err.Error(), want), "%v does not say %q", err, want)
		}
	})
}

func TestCreateNodes(t *testing.T) {
	c := New(t, Config{})

	t.Run("creates the described nodes", func(t *testing.T) {
		nodes, err := c.CreateNodes(t.Context(), Nodes{Count: 40, Prefix: "many", Labels: map[string]string{"team": "red"}, Annotations: map[string]string{"a": "b"}})
		testkit.Must(t, err)
		listed := testkit.Value(c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "team=red"})).Must(t)
		testkit.Require(t, len(nodes) == 40 && len(listed.Items) == 40, "%d returned and %d there, not 40", len(nodes), len(listed.Items))
		for i, node := range listed.Items {
			if node.Name != nodes[i].Name || node.UID != nodes[i].UID {
				t.Errorf("%d: %s returned, %s there", i, nodes[i].Name, node.Name)
			}
			if len(node.Status.Conditions) != 4 || condition(&node, corev1.NodeReady).Status != corev1.ConditionTrue {
				t.Errorf("%s: conditions %v", node.Name, node.Status.Conditions)
			}
			testkit.Check(t, len(node.Spec.Taints) == 0, "%s: taints %v, and no component would remove them", node.Name, node.Spec.Taints)
			if node.Annotations["a"] != "b" || node.Annotations[FakeNodeAnnotation] != "" {
				t.Errorf("%s: annotations %v", node.Name, node.Annotations)
			}
		}
	})

	t.Run("says which node could not be created", func(t *testing.T) {
		createNode(t, c, "twice")
		testkit.Value(c.CreateNodes(t.Context(), Nodes{Count: 3, Prefix: "twice"})).Fails(t, "creating node twice-0001")
	})

	t.Run("and SetCondition changes one condition", func(t *testing.T) {
		node := createNode(t, c, "unhealthy")
		for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
			testkit.Must(t, c.SetCondition(t.Context(), node.Name, corev1.NodeCondition{Type: "KernelDeadlock", Status: status, Reason: "R", Message: "m"}))
			after := testkit.Value(c.client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})).Must(t)
			got := condition(after, "KernelDeadlock")
			if len(after.Status.Conditions) != 5 || got.Status != status || got.Reason != "R" || got.LastTransitionTime.IsZero() || got.LastHeartbeatTime.IsZero() {
				t.Errorf("conditions %v", after.Status.Conditions)
			}
		}
		testkit.Fails(t, c.SetCondition(t.Context(), "missing", corev1.NodeCondition{Type: "X", Status: "True"}), "setting X of node missing")
	})
}
