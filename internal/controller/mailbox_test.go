package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/record"
)

func named(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// must fails a test on an error of a mailbox, which has none for a node.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMailbox(t *testing.T) {
	open := func() (*mailbox[*corev1.Node], chan struct{}) {
		signal := make(chan struct{}, 1)
		return newMailbox[*corev1.Node](signal), signal
	}
	t.Run("keeps the newest of every object, and calls once", func(t *testing.T) {
		box, signal := open()
		must(t, box.Add(named("a", "1")))
		must(t, box.Update(named("a", "2")))
		must(t, box.Add(named("b", "3")))
		<-signal
		if len(signal) > 0 {
			t.Error("it called twice")
		}
		letter := box.take()
		if len(letter.latest) != 2 || letter.latest["a"].object.ResourceVersion != "2" || letter.whole != "" {
			t.Errorf("it held %+v", letter)
		}
		if again := box.take(); len(again.latest) != 0 {
			t.Errorf("it still held %+v", again)
		}
	})
	t.Run("keeps nobody's managed fields", func(t *testing.T) {
		managed := func(name string) *corev1.Node {
			node := named(name, "1")
			node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
			return node
		}
		box, _ := open()
		must(t, box.Replace([]any{managed("listed")}, "5"))
		must(t, box.Update(managed("watched")))
		for name, a := range box.take().latest {
			if len(a.object.ManagedFields) > 0 {
				t.Errorf("%s has some", name)
			}
		}
	})
	t.Run("remembers that an object is gone", func(t *testing.T) {
		box, _ := open()
		must(t, box.Add(named("a", "1")))
		must(t, box.Delete(named("a", "2")))
		if a := box.take().latest["a"]; !a.gone || a.object.ResourceVersion != "2" {
			t.Errorf("it held %+v", a)
		}
	})
	t.Run("has everything once a list has come, and not before", func(t *testing.T) {
		box, _ := open()
		must(t, box.Add(named("a", "1")))
		if box.hasSynced() {
			t.Error("it has everything before the list")
		}
		must(t, box.Replace([]any{named("b", "2")}, "5"))
		must(t, box.Update(named("c", "6")))
		letter := box.take()
		if !box.hasSynced() || letter.whole != "5" || len(letter.latest) != 2 {
			t.Errorf("it held %+v", letter)
		}
		if _, stays := letter.latest["a"]; stays {
			t.Error("what came before the list outlives it")
		}
	})
	t.Run("says so when the watch brings something else", func(t *testing.T) {
		box, _ := open()
		for _, err := range []error{box.Add(&corev1.Pod{}), box.Delete(&corev1.Pod{}), box.Replace([]any{&corev1.Pod{}}, "1")} {
			if err == nil {
				t.Error("a pod was taken for a node")
			}
		}
	})
}

func TestSameNodeSeesEverythingThatIsKept(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		added := metav1.Unix(100, 0)
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "v"}, Annotations: map[string]string{record.Annotation: "note"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: "NoExecute", TimeAdded: &added}}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True", Reason: "r", LastTransitionTime: added}}},
		}
		change(n)
		return nodewatch.Trim(n)
	}
	plain := node(func(*corev1.Node) {})
	later := metav1.Unix(101, 0)
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		same   bool
	}{
		"a new version":            {func(n *corev1.Node) { n.ResourceVersion = "8" }, true},
		"a heartbeat":              {func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = later }, true},
		"another's annotation":     {func(n *corev1.Node) { n.Annotations["other"] = "x" }, true},
		"another node of the name": {func(n *corev1.Node) { n.UID = "v" }, false},
		"a label":                  {func(n *corev1.Node) { n.Labels["l"] = "w" }, false},
		"the record":               {func(n *corev1.Node) { n.Annotations[record.Annotation] = "other" }, false},
		"a taint gone":             {func(n *corev1.Node) { n.Spec.Taints = nil }, false},
		"a taint's effect":         {func(n *corev1.Node) { n.Spec.Taints[0].Effect = "NoSchedule" }, false},
		"a taint's value":          {func(n *corev1.Node) { n.Spec.Taints[0].Value = "v" }, false},
		"a taint's time":           {func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = &later }, false},
		"a taint's time gone":      {func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = nil }, false},
		"a status":                 {func(n *corev1.Node) { n.Status.Conditions[0].Status = "False" }, false},
		"a reason":                 {func(n *corev1.Node) { n.Status.Conditions[0].Reason = "s" }, false},
		"a transition":             {func(n *corev1.Node) { n.Status.Conditions[0].LastTransitionTime = later }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sameNode(plain, node(test.change)); got != test.same {
				t.Errorf("same: %v, want %v", got, test.same)
			}
		})
	}
}
