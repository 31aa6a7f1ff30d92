package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/nodewatch"
)

func named(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// must fails a test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestInbox(t *testing.T) {
	open := func() (*inbox[*corev1.Node], chan struct{}) {
		signal := make(chan struct{}, 1)
		return newInbox(signal, nodewatch.Same), signal
	}
	t.Run("keeps the newest version of every object, and signals once", func(t *testing.T) {
		box, signal := open()
		must(t, box.Add(named("a", "1")))
		must(t, box.Update(named("a", "2")))
		must(t, box.Add(named("b", "3")))
		<-signal
		if len(signal) > 0 {
			t.Error("it called twice")
		}
		letter := box.take()
		if len(letter.changes) != 2 || letter.changes["a"].object.ResourceVersion != "2" || letter.listVersion != "" {
			t.Errorf("it held %+v", letter)
		}
		if again := box.take(); len(again.changes) != 0 {
			t.Errorf("it still held %+v", again)
		}
	})
	t.Run("does not signal a change that is not news, but keeps it", func(t *testing.T) {
		box, signal := open()
		must(t, box.Replace([]any{named("a", "1"), named("b", "1")}, "1"))
		<-signal
		box.take()
		must(t, box.Update(named("a", "2")))
		if len(signal) > 0 {
			t.Error("it called for a heartbeat")
		}
		if letter := box.take(); letter.changes["a"].object.ResourceVersion != "2" {
			t.Errorf("it held %+v", letter)
		}
		sick := named("a", "3")
		sick.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "False"}}
		must(t, box.Update(sick))
		<-signal
		must(t, box.Update(named("a", "4"))) // healthy again, as at first
		<-signal
		must(t, box.Delete(named("b", "5")))
		<-signal
		must(t, box.Add(named("b", "6"))) // unchanged, but it was deleted
		<-signal
	})
	t.Run("drops managed fields", func(t *testing.T) {
		managed := func(name string) *corev1.Node {
			node := named(name, "1")
			node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
			return node
		}
		box, _ := open()
		must(t, box.Replace([]any{managed("listed")}, "5"))
		must(t, box.Update(managed("watched")))
		for name, a := range box.take().changes {
			if len(a.object.ManagedFields) > 0 {
				t.Errorf("%s has some", name)
			}
		}
	})
	t.Run("remembers a deletion", func(t *testing.T) {
		box, _ := open()
		must(t, box.Add(named("a", "1")))
		must(t, box.Delete(named("a", "2")))
		if a := box.take().changes["a"]; !a.gone || a.object.ResourceVersion != "2" {
			t.Errorf("it held %+v", a)
		}
	})
	t.Run("has synced once a list has arrived, and not before", func(t *testing.T) {
		box, _ := open()
		must(t, box.Add(named("a", "1")))
		if box.hasSynced() {
			t.Error("it has everything before the list")
		}
		must(t, box.Replace([]any{named("b", "2")}, "5"))
		must(t, box.Update(named("c", "6")))
		letter := box.take()
		if !box.hasSynced() || letter.listVersion != "5" || len(letter.changes) != 2 {
			t.Errorf("it held %+v", letter)
		}
		if _, stays := letter.changes["a"]; stays {
			t.Error("what came before the list outlives it")
		}
	})
	t.Run("rejects objects of another type", func(t *testing.T) {
		box, _ := open()
		for _, err := range []error{box.Add(&corev1.Pod{}), box.Delete(&corev1.Pod{}), box.Replace([]any{&corev1.Pod{}}, "1")} {
			if err == nil {
				t.Error("a pod was taken for a node")
			}
		}
	})
}
