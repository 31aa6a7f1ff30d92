package remediation

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// oneAtATime limits unhealthy, treated, and not yet replaced nodes to one.
func oneAtATime(c *remediationv1alpha1.NodeHealthCheck) {
	c.Spec.MaxUnhealthy = new(intstr.FromInt32(1))
}

// succeeds marks the object as finished: the remediator has removed the node.
func succeeds(u *unstructured.Unstructured) {
	u.Object["status"] = map[string]any{"conditions": []any{
		map[string]any{"type": remediation.DeletesNodeCondition, "status": "True"},
		map[string]any{"type": remediation.SucceededCondition, "status": "True"},
	}}
}

var takesAway = says(remediation.DeletesNodeCondition, metav1.ConditionTrue)

// isReady makes a node a new node that is Ready.
func isReady(n *corev1.Node) {
	n.CreationTimestamp = metav1.Now()
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
}

// updates delivers a newer version of an object.
func (w *healthCheckFixture) updates(u *unstructured.Unstructured, change func(*unstructured.Unstructured)) {
	w.T.Helper()
	u.SetResourceVersion(w.nextVersion())
	change(u)
	w.finds(u)
}

// removes delivers the deletion of a node.
func (w *healthCheckFixture) removes(node string) {
	w.T.Helper()
	testkit.Must(w.T, w.NodeInbox().Delete(w.Node(node).Object))
	w.runRound()
}

// takesAwayNode treats a node with a remediator that deletes it.
func (w *healthCheckFixture) takesAwayNode(node string) *unstructured.Unstructured {
	w.T.Helper()
	object := w.treats(node)
	w.updates(object, takesAway)
	w.removes(node)
	return object
}

// writeSnapshot writes the next snapshot, if one is due, and returns it as the next leader reads
// it.
func (w *healthCheckFixture) writeSnapshot() []ledger.Entry {
	w.T.Helper()
	entries, _ := w.Snapshot()
	if entries == nil {
		return nil
	}
	testkit.Must(w.T, w.Stored(nil))
	if again, _ := w.Snapshot(); again != nil { // as every round does
		w.T.Errorf("there is another snapshot: %+v", again)
	}
	w.runRound()
	return entries
}

// successor returns the fixture of the next leader, with the stored ledger, the nodes and the
// objects.
func (w *healthCheckFixture) successor(page []ledger.Entry, objects []*unstructured.Unstructured, changes ...func(*remediationv1alpha1.NodeHealthCheck)) *healthCheckFixture {
	w.T.Helper()
	successor := newHealthCheckFixture(enginetest.New(w.T))
	successor.version = w.version
	successor.Restore(page)
	for _, state := range w.Nodes() {
		testkit.Must(w.T, successor.NodeInbox().Update(state.Object))
	}
	successor.loads(objects, changes...)
	for _, g := range successor.Core().Grants() {
		if n := successor.remediations.nodes[g.Node]; g.Gone.IsZero() && (n == nil || len(n.objects) == 0) {
			w.T.Errorf("%s is to be treated before the removed nodes are known", g.Node)
		}
	}
	successor.runRound()
	return successor
}

// waits checks that a node is not treated because of deleted nodes.
func (w *healthCheckFixture) waits(node string) {
	w.T.Helper()
	w.WantNoTask(node)
	if is := w.reason(node); is.Code != triage.GateClosed || is.Departed == 0 {
		w.T.Errorf("%s is not kept waiting by removed nodes: %v", node, is)
	}
}

func (w *healthCheckFixture) departed() int {
	counts, _ := w.Core().Population(checkRule("check"))
	return counts.Departed
}

func TestARemovedNodeKeepsItsSlot(t *testing.T) {
	for name, test := range map[string]struct {
		takesAway func(*healthCheckFixture) *unstructured.Unstructured
	}{
		"known to be taken away": {func(w *healthCheckFixture) *unstructured.Unstructured { return w.takesAwayNode("a") }},
		"the words come later than the node went": {func(w *healthCheckFixture) *unstructured.Unstructured {
			object := w.treats("a")
			w.removes("a")
			w.updates(object, takesAway)
			return object
		}},
		"its object has succeeded, and is gone": {func(w *healthCheckFixture) *unstructured.Unstructured {
			object := w.takesAwayNode("a")
			w.writeSnapshot()
			w.updates(object, succeeds)
			w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
			w.loses(object)
			return object
		}},
		"another node has its name, and is not ready": {func(w *healthCheckFixture) *unstructured.Unstructured {
			object := w.treats("a")
			w.updates(object, takesAway)
			w.node("a", corev1.ConditionFalse, madeAnew) // the watch has missed the deletion
			return object
		}},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				w.node("b", corev1.ConditionFalse)
				object := test.takesAway(w)
				if w.departed() != 1 {
					t.Errorf("%d are gone", w.departed())
				}
				w.node("b", corev1.ConditionTrue)
				w.waits("b")
				w.advance(time.Minute)
				if w.updates(object, succeeds); w.departed() != 1 {
					t.Errorf("%d are gone after another word of its object", w.departed())
				}
				w.node("c", corev1.ConditionFalse, isReady)
				w.WantTask("b", CreateRemediation)
				if w.updates(object, func(*unstructured.Unstructured) {}); w.departed() != 0 {
					t.Error("it is counted once more")
				}
			}, oneAtATime)
		})
	}
	t.Run("for a quarter of an hour", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			w.node("b", corev1.ConditionFalse)
			w.takesAwayNode("a")
			w.advance(triage.ReplacementWait - time.Minute)
			w.node("b", corev1.ConditionTrue)
			w.waits("b")
			w.advance(time.Minute)
			w.WantTask("b", CreateRemediation)
		}, oneAtATime)
	})
	t.Run("and no longer than its replacement takes that has its name", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			w.node("b", corev1.ConditionFalse)
			w.updates(w.treats("a"), takesAway)
			w.node("a", corev1.ConditionFalse, madeAnew, isReady) // all of it between two rounds
			w.node("b", corev1.ConditionTrue)
			if w.WantTask("b", CreateRemediation); w.departed() != 0 {
				t.Errorf("%d are gone", w.departed())
			}
		}, oneAtATime)
	})
}

// TestANewLeaderKnowsRemovedNodes replaces the leader at every point between the deletion of a
// node and the end of the object that removed it.
func TestANewLeaderKnowsRemovedNodes(t *testing.T) {
	for name, dies := range map[string]func(w *healthCheckFixture) (page []ledger.Entry, objects []*unstructured.Unstructured){
		"before the node went": func(w *healthCheckFixture) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.treats("a")
			w.updates(object, takesAway)
			w.removes("a")
			return nil, []*unstructured.Unstructured{object}
		},
		"before the ledger, and the remediator was done meanwhile": func(w *healthCheckFixture) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			w.updates(object, succeeds)
			w.WantNoTask("a") // waits for the ledger
			return nil, []*unstructured.Unstructured{object}
		},
		"before the ledger, and a finalizer keeps the object": func(w *healthCheckFixture) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			w.updates(object, deleting)
			return nil, []*unstructured.Unstructured{object}
		},
		"after the ledger": func(w *healthCheckFixture) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			return w.writeSnapshot(), []*unstructured.Unstructured{object}
		},
		"after the object is deleted": func(w *healthCheckFixture) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			page := w.writeSnapshot()
			w.updates(object, succeeds)
			w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
			w.loses(object)
			return page, nil
		},
		"after the next snapshot": func(w *healthCheckFixture) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			w.writeSnapshot()
			w.updates(object, succeeds)
			w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
			w.loses(object)
			return w.Entries(), nil
		},
		"twice": func(w *healthCheckFixture) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			page := w.writeSnapshot()
			successor := w.successor(page, []*unstructured.Unstructured{object}, oneAtATime)
			if successor.writeSnapshot() != nil {
				w.T.Error("what the ledger names is named again")
			}
			return successor.Entries(), []*unstructured.Unstructured{object}
		},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				w.node("b", corev1.ConditionFalse)
				page, objects := dies(w)
				testkit.Check(t, len(page) <= 1, "the ledger: %+v", page)
				w.advance(time.Minute)
				successor := w.successor(page, objects, oneAtATime)
				if successor.departed() != 1 {
					t.Errorf("%d are gone", successor.departed())
				}
				successor.node("b", corev1.ConditionTrue)
				successor.waits("b")
				if !successor.LedgerNames(ledger.Slot{Rule: ownership.Rule(checkRule("check")), Node: "a", UID: "uid-a"}) {
					if page := enginetest.EntriesOf[ledger.DeletedNode](successor.writeSnapshot()); len(page) != 1 || page[0].Node != "a" || page[0].UID != "uid-a" {
						t.Errorf("the successor's ledger: %+v", page)
					}
				}
				successor.advance(time.Minute)
				successor.waits("b")
				successor.node("c", corev1.ConditionFalse, isReady)
				successor.WantTask("b", CreateRemediation)
			}, oneAtATime)
		})
	}
	t.Run("and does not begin at once what has to wait", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			w.node("b", corev1.ConditionFalse)
			object := w.takesAwayNode("a")
			w.node("b", corev1.ConditionTrue)
			successor := w.successor(nil, []*unstructured.Unstructured{object}, oneAtATime)
			successor.waits("b")
			if strings.Contains(successor.Log.String(), "remediation begun") {
				t.Error(successor.Log.String())
			}
		}, oneAtATime)
	})
	t.Run("on the control plane as well", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			w.node("b", corev1.ConditionFalse, inControl)
			w.node("a", corev1.ConditionTrue, inControl)
			object := w.made("a", "quick", takesAway)
			w.finds(object)
			w.removes("a")
			page := w.writeSnapshot()
			successor := w.successor(page, nil)
			successor.node("b", corev1.ConditionTrue, inControl)
			if successor.WantNoTask("b"); successor.finding("b") != triage.ControlPlaneBusy {
				t.Errorf("b is %s", successor.finding("b"))
			}
		})
	})
	t.Run("and knows replaced nodes", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			object := w.takesAwayNode("a")
			w.writeSnapshot()
			w.node("c", corev1.ConditionFalse, isReady)
			page := w.writeSnapshot()
			if gone := enginetest.EntriesOf[ledger.DeletedNode](page); len(page) != 1 || len(gone) != 1 || !gone[0].Replaced {
				t.Errorf("the ledger: %+v", page)
			}
			successor := w.successor(page, []*unstructured.Unstructured{object}, oneAtATime)
			if successor.departed() != 0 || successor.writeSnapshot() != nil {
				t.Errorf("%d are gone", successor.departed())
			}
			successor.updates(object, succeeds)
			successor.runs(successor.WantTask("a", DeleteRemediation), "a", treat.Made)
			successor.loses(object)
			w.updates(object, succeeds)
			w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
			w.loses(object)
			object = w.takesAwayNode("c")
			if page := enginetest.EntriesOf[ledger.DeletedNode](w.writeSnapshot()); len(page) != 1 || page[0].Node != "c" {
				t.Errorf("the next snapshot: %+v", page)
			}
			w.loses(object)
			w.node("d", corev1.ConditionFalse, isReady)
			if page := w.writeSnapshot(); page == nil || len(page) != 0 {
				t.Errorf("the last snapshot: %+v", page)
			}
		}, oneAtATime)
	})
	t.Run("and what is over is over", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			w.node("b", corev1.ConditionFalse)
			object := w.takesAwayNode("a") // its remediator never reports success
			w.writeSnapshot()
			w.advance(triage.ReplacementWait)
			other := w.takesAwayNode("b")
			page := w.writeSnapshot()
			testkit.Check(t, len(page) == 2, "the ledger does not name the removed node whose object still exists: %+v", page)
			if successor := w.successor(page, []*unstructured.Unstructured{object, other}, oneAtATime); successor.departed() != 1 {
				t.Errorf("%d are gone", successor.departed())
			}
		}, oneAtATime)
	})
}

// TestTheLedgerNamesRemovedNodes checks that the ledger names a node before its object is
// deleted.
func TestTheLedgerNamesRemovedNodes(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		object := w.takesAwayNode("a")
		w.updates(object, succeeds)
		w.WantNoTask("a")
		entries, _ := w.Snapshot()
		testkit.Require(t, len(entries) == 1, "the ledger is to name %+v", entries)
		if again, _ := w.Snapshot(); again != nil {
			t.Error("two pages are written at a time")
		}
		testkit.Must(t, w.Stored(enginetest.ErrBroken))
		w.runRound()
		w.WantNoTask("a")
		if again, due := w.Snapshot(); again != nil || due.IsZero() {
			t.Errorf("after a failure it is written again at %v", due)
		}
		w.advance(time.Minute)
		if page := w.writeSnapshot(); len(page) != 1 {
			t.Errorf("the ledger is to name %+v", page)
		}
		w.WantTask("a", DeleteRemediation)
		if again, due := w.Snapshot(); again != nil || !due.IsZero() {
			t.Errorf("the same snapshot is written again at %v: %+v", due, again)
		}
	})
	t.Run("is not waited for when the slot is free", func(t *testing.T) {
		withHealthCheck(t, func(w *healthCheckFixture) {
			object := w.takesAwayNode("a")
			w.updates(object, succeeds)
			w.node("b", corev1.ConditionFalse, isReady)
			w.advance(time.Minute)
			if page, _ := w.Snapshot(); page != nil { // as every round does
				t.Errorf("a snapshot is written: %+v", page)
			}
			w.WantTask("a", DeleteRemediation)
		})
	})
}

// TestClocksOfTwoControllers restores the deletion of a node with a time from another
// clock.
func TestClocksOfTwoControllers(t *testing.T) {
	for name, test := range map[string]struct{ ago, kept time.Duration }{
		"the same":    {0, triage.ReplacementWait},
		"a while ago": {10 * time.Minute, triage.ReplacementWait - 10*time.Minute},
		"it is ahead": {-time.Hour, triage.ReplacementWait},
		"almost over": {triage.ReplacementWait - time.Second, time.Second},
		"long ago":    {triage.ReplacementWait, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withHealthCheck(t, func(w *healthCheckFixture) {
				gone := time.Now().Add(-test.ago)
				successor := w.successor([]ledger.Entry{ledger.DeletedNode{Slot: ledger.Slot{Rule: ownership.Rule(checkRule("check")), Node: "a", UID: "uid-a"}, Gone: gone, Since: gone}}, nil)
				began := time.Now()
				for successor.departed() > 0 {
					successor.advance(time.Second)
				}
				if kept := time.Since(began); kept != test.kept {
					t.Errorf("the slot is taken for %s, want %s", kept, test.kept)
				}
			})
		})
	}
}

func TestANodeRemovedWhileDeferring(t *testing.T) {
	withHealthCheck(t, func(w *healthCheckFixture) {
		w.node("b", corev1.ConditionFalse)
		object := w.treats("a")
		w.updates(object, takesAway)
		w.defers(20 * time.Second)
		w.removes("a")
		if !w.checks.IsDeferring() || w.departed() != 0 || w.writeSnapshot() != nil {
			t.Errorf("back %t, and %d are gone, which is the other's business", w.checks.IsDeferring(), w.departed())
		}
		w.advance(time.Hour)
		if w.checks.IsDeferring() || w.departed() != 1 {
			t.Errorf("back %t, and %d are gone", w.checks.IsDeferring(), w.departed())
		}
		w.node("b", corev1.ConditionTrue)
		w.waits("b")
	}, oneAtATime)
}
