package nodefacts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// unhealthyRule matches nodes with Disk=True.
func unhealthyRule() triage.Rule {
	return triage.Rule{
		ID:       triage.RuleID{Kind: policykind.ConditionSet, Name: "asked"},
		Stage:    policykind.StageTaint,
		When:     triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.True}}},
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "example.com/asked", Effect: triage.NoSchedule}},
	}
}

func facts(name string, status triage.Status) triage.Node {
	return triage.Node{
		Name: name, UID: "u-" + name, Conditions: []triage.Condition{{Type: "Disk", Status: status}},
		// Rules do not match the remediation of a node.
		Taints: []triage.Taint{{Rule: triage.RuleID{Kind: policykind.ConditionSet, Name: "asked"}, Key: "example.com/asked", Effect: triage.NoSchedule}},
	}
}

// matching returns the matching nodes, and the number of all nodes.
func matching(t testkit.TB, c *Store) (names []string, of int) {
	impact, err := c.Impact(unhealthyRule())
	testkit.Must(t, err)
	if len(impact.First) != impact.Matching {
		t.Fatal(impact.Matching, "nodes match: too many for this test to compare their names")
	}
	return impact.First, impact.Selected
}

func is(t *testing.T, c *Store, nodes int, unhealthy ...string) {
	t.Helper()
	if names, of := matching(t, c); of != nodes || !slices.Equal(names, unhealthy) {
		t.Errorf("%v of %d nodes match, want %v of %d", names, of, unhealthy, nodes)
	}
}

func TestStore(t *testing.T) {
	c := New()
	is(t, c, 0)
	c.Observe(facts("a", triage.True), facts("b", triage.False))
	c.Observe(facts("c", triage.True))
	is(t, c, 3, "a", "c")
	testkit.Check(t, !c.Ready(), "it is ready before Takeover")
	c.Takeover()
	testkit.Check(t, c.Ready(), "it is not ready after Takeover")
	c.Observe(facts("a", triage.False))
	c.Forget("c")
	c.Forget("unknown")
	is(t, c, 2)
	c.Observe(triage.Node{Name: "b", UID: "u-b", ControlPlane: true, Conditions: []triage.Condition{{Type: "Disk", Status: triage.True}}})
	if got, err := c.Impact(unhealthyRule()); err != nil || got.ControlPlane != 1 {
		t.Errorf("one node of the control plane is unhealthy, and %d are counted: %v", got.ControlPlane, err)
	}
	if got := c.Reported(); !slices.Equal(got, []string{"Disk"}) {
		t.Errorf("the reported conditions are %v", got)
	}
	c.Forget("a")
	c.Forget("b")
	if got := c.Reported(); got == nil || len(got) > 0 {
		t.Errorf("the reported conditions are %v although there is no node", got)
	}
	if _, err := c.Impact(triage.Rule{}); err == nil {
		t.Error("an invalid rule has an impact")
	}
}

// A deleted node must not stay in the list of nodes whose plan may have changed.
func TestNoNodeStaysWoken(t *testing.T) {
	c := New()
	c.Observe(facts("a", triage.True))
	c.Observe(facts("a", triage.False))
	if name, ok := c.core.NextWoken(); ok {
		t.Errorf("%s is still woken", name)
	}
	if work := c.core.Work(); work.Judged != 0 {
		t.Errorf("%d judgements in a core without rules", work.Judged)
	}
}

func TestConcurrentUse(t *testing.T) {
	c := New()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 50 {
				if _, err := c.Impact(unhealthyRule()); err != nil {
					t.Error(err)
				}
				c.Reported()
				c.Ready()
			}
		})
		all.Go(func() {
			for k := range 50 {
				name := fmt.Sprintf("node-%d-%d", i, k%5)
				if c.Observe(facts(name, triage.True)); k%3 == 0 {
					c.Forget(name)
				}
			}
		})
	}
	all.Go(c.Takeover)
	all.Wait()
}

// A caller gets an answer while very many nodes are added or removed.
func TestReadsDoNotWaitForLargeChanges(t *testing.T) {
	const size = 100 * batchSize
	list, all := make([]any, size), make([]triage.Node, size)
	for i := range list {
		name := fmt.Sprintf("node-%04d", i)
		list[i], all[i] = object(name, triage.False), facts(name, triage.False)
	}
	for name, test := range map[string]struct {
		before []any
		left   int
		change func(*follower) error
	}{
		"list":       {left: size, change: func(f *follower) error { return f.Replace(list, "2") }},
		"empty list": {before: list, change: func(f *follower) error { return f.Replace(nil, "2") }},
		"leader's loop": {left: size, change: func(f *follower) error {
			f.store.Observe(all...)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			watch := &follower{store: New(), known: map[string]*corev1.Node{}}
			testkit.Must(t, watch.Replace(test.before, "1"))
			asking, ended := make(chan struct{}), make(chan struct{})
			between := 0
			var asker sync.WaitGroup
			asker.Go(func() {
				for first := true; ; first = false {
					got, err := watch.store.Impact(unhealthyRule())
					if err != nil {
						t.Error(err)
					}
					if 0 < got.Selected && got.Selected < size {
						between++
					}
					if first {
						close(asking)
					}
					select {
					case <-ended:
						return
					default:
					}
				}
			})
			<-asking
			if err := test.change(watch); err != nil {
				t.Error(err)
			}
			close(ended)
			asker.Wait()
			testkit.Check(t, between != 0, "no read succeeded before the change was complete")
			t.Logf("%d answers in between", between)
			is(t, watch.store, test.left)
		})
	}
}

// object returns a node as a watch sends it.
func object(name string, status triage.Status) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("u-" + name)},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Disk", Status: corev1.ConditionStatus(status.String())}}},
	}
}

// TestTakeOver lets a watch lag behind the loop of a loading leader. Facts from the loop must
// hold from the moment of Observe, whatever the watch sends later. After Takeover only facts
// from the loop remain.
func TestTakeOver(t *testing.T) {
	saw := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		watch := &follower{store: c, known: map[string]*corev1.Node{}}
		names := []string{"a", "b", "c", "d"}
		watched, told := map[string]triage.Status{}, map[string]triage.Status{}
		spoken, taken := map[string]bool{}, false
		draw := func() (string, triage.Status) {
			return rapid.SampledFrom(names).Draw(t, "node"), rapid.SampledFrom([]triage.Status{triage.True, triage.False}).Draw(t, "status")
		}
		t.Repeat(map[string]func(*rapid.T){
			"watch": func(t *rapid.T) {
				name, status := draw()
				if old, met := told[name]; met && old != status {
					saw["late updates of the watch"]++
				}
				if spoken[name] && !has(told, name) {
					saw["late updates of a deleted node"]++
				}
				watched[name] = status
				ok(t, watch.Update(object(name, status)))
			},
			"watch deletes": func(t *rapid.T) {
				name, _ := draw()
				if has(told, name) {
					saw["late deletions"]++
				}
				delete(watched, name)
				ok(t, watch.Delete(object(name, triage.True)))
			},
			"watch lists": func(t *rapid.T) {
				var list []any
				clear(watched)
				for _, name := range names {
					if rapid.Bool().Draw(t, name) {
						_, watched[name] = draw()
						list = append(list, object(name, watched[name]))
					}
				}
				ok(t, watch.Replace(list, "1"))
			},
			"loop": func(t *rapid.T) {
				name, status := draw()
				told[name], spoken[name] = status, true
				c.Observe(facts(name, status))
			},
			"loop forgets": func(t *rapid.T) {
				name, _ := draw()
				delete(told, name)
				spoken[name] = true
				c.Forget(name)
			},
			"take": func(t *rapid.T) {
				if !rapid.Bool().Draw(t, "now") {
					return
				}
				for name := range watched {
					if !spoken[name] && !taken {
						saw["nodes that only the watch knew"]++
					}
				}
				taken = true
				c.Takeover()
			},
			"": func(t *rapid.T) {
				want := maps.Clone(told)
				for name, status := range watched {
					if !taken && !spoken[name] {
						want[name] = status
					}
				}
				var unhealthy []string
				for name, status := range want {
					if status == triage.True {
						unhealthy = append(unhealthy, name)
					}
				}
				slices.Sort(unhealthy)
				got, of := matching(t, c)
				if diff := cmp.Diff(unhealthy, got, cmpopts.EquateEmpty()); diff != "" || of != len(want) {
					t.Fatalf("%d nodes, want %d; those that match (-want +got):\n%s", of, len(want), diff)
				}
			},
		})
	})
	t.Logf("saw %v", saw)
	for _, what := range []string{"late updates of the watch", "late updates of a deleted node", "late deletions", "nodes that only the watch knew"} {
		testkit.Check(t, saw[what] != 0, "the random cases never included: %s", what)
	}
}

func has(nodes map[string]triage.Status, name string) bool {
	_, there := nodes[name]
	return there
}

func ok(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// Most watch events change nothing, and must cost almost nothing.
func TestHeartbeatCostsNothing(t *testing.T) {
	c := New()
	watch := &follower{store: c, known: map[string]*corev1.Node{}}
	versions := []*corev1.Node{object("a", triage.True), object("a", triage.True)}
	i := 0
	beat := func() {
		i++
		if err := watch.Update(versions[i%2]); err != nil {
			t.Error(err)
		}
	}
	beat()
	work := c.core.Work()
	if allocated := testing.AllocsPerRun(100, beat); allocated > 0 {
		t.Errorf("%.1f allocations for a heartbeat", allocated)
	}
	testkit.Check(t, c.core.Work() == work, "a heartbeat reached the core")
}

func TestWatchOfAnotherKindFails(t *testing.T) {
	watch := &follower{store: New(), known: map[string]*corev1.Node{}}
	for _, err := range []error{watch.Add(&corev1.Pod{}), watch.Update(&corev1.Pod{}), watch.Delete(&corev1.Pod{}), watch.Replace([]any{&corev1.Pod{}}, "1")} {
		testkit.Check(t, err != nil && strings.Contains(err.Error(), "*v1.Pod"), "the error is %v", err)
	}
	testkit.Check(t, !watch.store.Ready(), "a list of another kind makes it ready")
}
