package watch

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func named(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

func TestInbox(t *testing.T) {
	open := func() (*Inbox[*corev1.Node], chan struct{}) {
		signal := make(chan struct{}, 1)
		return NewInbox(signal, nodewatch.Same), signal
	}
	t.Run("keeps the newest version of every object, and signals once", func(t *testing.T) {
		box, signal := open()
		testkit.Must(t, box.Add(named("a", "1")))
		testkit.Must(t, box.Update(named("a", "2")))
		testkit.Must(t, box.Add(named("b", "3")))
		<-signal
		testkit.Check(t, len(signal) == 0, "it signals twice")
		batch := box.Take()
		if len(batch.Changes) != 2 || batch.Changes["a"].Object.ResourceVersion != "2" || batch.ListVersion != "" {
			t.Errorf("it held %+v", batch)
		}
		if again := box.Take(); len(again.Changes) != 0 {
			t.Errorf("it still held %+v", again)
		}
	})
	t.Run("keeps when the last version arrived in which nothing had changed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			box, _ := open()
			began := time.Now()
			after := func(seconds int, node *corev1.Node, status corev1.ConditionStatus) {
				<-time.After(time.Until(began.Add(time.Duration(seconds) * time.Second)))
				node.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: status}}
				testkit.Must(t, box.Update(node))
			}
			after(0, named("a", "1"), "True")
			box.Take()
			after(10, named("a", "2"), "True") // a heartbeat
			after(20, named("a", "3"), "False")
			after(30, named("a", "4"), "False") // the change was not taken yet
			after(40, named("a", "5"), "Unknown")
			got := box.Take().Changes["a"]
			testkit.Check(t, got.Previous.Equal(began.Add(10*time.Second)) && got.At.Equal(began.Add(40*time.Second)), "Previous is %s, At is %s", got.Previous, got.At)
			after(50, named("a", "6"), "True")
			testkit.Check(t, box.Take().Changes["a"].Previous.IsZero(), "a change has a previous version that was taken")
		})
	})
	t.Run("does not signal a change that is not news, but keeps it", func(t *testing.T) {
		box, signal := open()
		testkit.Must(t, box.Replace([]any{named("a", "1"), named("b", "1")}, "1"))
		<-signal
		box.Take()
		testkit.Must(t, box.Update(named("a", "2")))
		testkit.Check(t, len(signal) == 0, "it signals a heartbeat")
		if batch := box.Take(); batch.Changes["a"].Object.ResourceVersion != "2" {
			t.Errorf("it held %+v", batch)
		}
		unhealthy := named("a", "3")
		unhealthy.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "False"}}
		testkit.Must(t, box.Update(unhealthy))
		<-signal
		testkit.Must(t, box.Update(named("a", "4"))) // healthy again, as at first
		<-signal
		testkit.Must(t, box.Delete(named("b", "5")))
		<-signal
		testkit.Must(t, box.Add(named("b", "6"))) // unchanged, but it was deleted
		<-signal
	})
	t.Run("drops managed fields", func(t *testing.T) {
		managed := func(name string) *corev1.Node {
			node := named(name, "1")
			node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
			return node
		}
		box, _ := open()
		testkit.Must(t, box.Replace([]any{managed("listed")}, "5"))
		testkit.Must(t, box.Update(managed("watched")))
		for name, a := range box.Take().Changes {
			testkit.Check(t, len(a.Object.ManagedFields) == 0, "%s has some", name)
		}
	})
	t.Run("remembers a deletion", func(t *testing.T) {
		box, _ := open()
		testkit.Must(t, box.Add(named("a", "1")))
		testkit.Must(t, box.Delete(named("a", "2")))
		if a := box.Take().Changes["a"]; !a.Gone || a.Object.ResourceVersion != "2" {
			t.Errorf("it held %+v", a)
		}
	})
	t.Run("has synced once a list has arrived, and not before", func(t *testing.T) {
		box, _ := open()
		testkit.Must(t, box.Add(named("a", "1")))
		testkit.Check(t, !box.HasSynced(), "it has everything before the list")
		testkit.Must(t, box.Replace([]any{named("b", "2")}, "5"))
		testkit.Must(t, box.Update(named("c", "6")))
		batch := box.Take()
		testkit.Check(t, box.HasSynced() && batch.ListVersion == "5" && len(batch.Changes) == 2, "it held %+v", batch)
		if _, stays := batch.Changes["a"]; stays {
			t.Error("what came before the list outlives it")
		}
	})
	t.Run("rejects objects of another type", func(t *testing.T) {
		box, _ := open()
		for _, err := range []error{box.Add(&corev1.Pod{}), box.Delete(&corev1.Pod{}), box.Replace([]any{&corev1.Pod{}}, "1")} {
			testkit.Check(t, err != nil, "a pod was taken for a node")
		}
	})
}
