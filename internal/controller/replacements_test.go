package controller

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// oneAtATime lets one node be sick, in treatment, or gone and not replaced.
func oneAtATime(c *remediationv1alpha1.NodeHealthCheck) {
	c.Spec.MaxUnhealthy = new(intstr.FromInt32(1))
}

// succeeds says that the remediator has taken the node away, and is done.
func succeeds(u *unstructured.Unstructured) {
	u.Object["status"] = map[string]any{"conditions": []any{
		map[string]any{"type": remediation.DeletesNodeCondition, "status": "True"},
		map[string]any{"type": remediation.SucceededCondition, "status": "True"},
	}}
}

var takesAway = says(remediation.DeletesNodeCondition, metav1.ConditionTrue)

// isReady makes a node one that was made now and is ready.
func isReady(n *corev1.Node) {
	n.CreationTimestamp = metav1.Now()
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
}

// updates brings a newer version of an object by the watch.
func (w *ward) updates(u *unstructured.Unstructured, change func(*unstructured.Unstructured)) {
	w.t.Helper()
	u.SetResourceVersion(w.nextVersion())
	change(u)
	w.finds(u)
}

// removes tells by the watch that a node is gone.
func (w *ward) removes(node string) {
	w.t.Helper()
	must(w.t, w.nodeInbox.Delete(w.nodeStates[node].node))
	w.goesOn()
}

// takesAwayNode has a node treated by a remediator that deletes it.
func (w *ward) takesAwayNode(node string) *unstructured.Unstructured {
	w.t.Helper()
	object := w.treats(node)
	w.updates(object, takesAway)
	w.removes(node)
	return object
}

// turns has the next page written, if one is to be, and returns it as an heir reads it.
func (w *ward) turns() []ledger.Entry {
	w.t.Helper()
	entries, _ := w.nextSnapshot(time.Now())
	if entries == nil {
		return nil
	}
	w.ledger.busy = true
	must(w.t, w.snapshotStored(nil))
	if again, _ := w.nextSnapshot(time.Now()); again != nil { // as every round asks
		w.t.Errorf("there is another page: %+v", again)
	}
	w.goesOn()
	text, err := json.Marshal(entries)
	must(w.t, err)
	var read []ledger.Entry
	must(w.t, json.Unmarshal(text, &read))
	return read
}

// heir returns a ward that takes over from this one, which is no more: it knows the
// page that it inherits, the nodes, and the objects that are there.
func (w *ward) heir(page []ledger.Entry, objects []*unstructured.Unstructured, changes ...func(*remediationv1alpha1.NodeHealthCheck)) *ward {
	w.t.Helper()
	c := &clinic{t: w.t}
	c.loop = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(word treat.Event) { c.events = append(c.events, word) })
	heir := wardIn(w.t, c, changes...)
	heir.version = w.version
	// As it is before anything is known but the health check and its templates.
	heir.core, heir.loaded, heir.checks.changed = triage.New(), false, true
	heir.checks.known["check"].rule = triage.Rule{}
	heir.ledger.restored = page
	for _, p := range w.nodeStates {
		must(w.t, heir.nodeInbox.Update(p.node))
	}
	for _, object := range objects {
		must(w.t, heir.checks.watches.known[object.GroupVersionKind()].Update(object.DeepCopy()))
	}
	now := time.Now()
	heir.takeNodes(now)
	heir.takeChecks(now)
	heir.takeObjects(now)
	heir.followChecks(now)
	heir.loaded = true
	heir.restore(now)
	heir.core.Loaded(now)
	for _, g := range heir.core.Grants() {
		if b := heir.treatments[g.Node]; g.Gone.IsZero() && (b == nil || len(b.objects) == 0) {
			w.t.Errorf("%s is to be treated before anybody knows who is gone", g.Node)
		}
	}
	for node := range heir.treatments {
		heir.reconcileTreatments(now, node)
	}
	heir.goesOn()
	return heir
}

// waits says that a node is not treated because of those who are gone.
func (w *ward) waits(node string) {
	w.t.Helper()
	w.rests(node)
	if is := w.checks.known["check"].nodes[node]; is.Code != triage.GateClosed || is.Departed == 0 {
		w.t.Errorf("%s is not kept waiting by those who are gone: %v", node, is)
	}
}

func (w *ward) departed() int {
	counts, _ := w.core.Population(checkRule("check"))
	return counts.Departed
}

func TestANodeThatIsTakenAwayKeepsItsPlace(t *testing.T) {
	for name, test := range map[string]struct {
		takesAway func(*ward) *unstructured.Unstructured
	}{
		"known to be taken away": {func(w *ward) *unstructured.Unstructured { return w.takesAwayNode("a") }},
		"the words come later than the node went": {func(w *ward) *unstructured.Unstructured {
			object := w.treats("a")
			w.removes("a")
			w.updates(object, takesAway)
			return object
		}},
		"its object has succeeded, and is gone": {func(w *ward) *unstructured.Unstructured {
			object := w.takesAwayNode("a")
			w.turns()
			w.updates(object, succeeds)
			w.runs(w.wants("a", deleteRemediation), "a", treat.Made)
			w.loses(object)
			return object
		}},
		"another node has its name, and is not ready": {func(w *ward) *unstructured.Unstructured {
			object := w.treats("a")
			w.updates(object, takesAway)
			w.node("a", corev1.ConditionFalse, madeAnew) // the watch did not tell that it was gone
			return object
		}},
	} {
		t.Run(name, func(t *testing.T) {
			openWard(t, func(w *ward) {
				w.node("b", corev1.ConditionFalse)
				object := test.takesAway(w)
				if w.departed() != 1 {
					t.Errorf("%d are gone", w.departed())
				}
				w.node("b", corev1.ConditionTrue)
				w.waits("b")
				w.passes(time.Minute)
				if w.updates(object, succeeds); w.departed() != 1 {
					t.Errorf("%d are gone after another word of its object", w.departed())
				}
				w.node("c", corev1.ConditionFalse, isReady)
				w.wants("b", createRemediation)
				if w.updates(object, func(*unstructured.Unstructured) {}); w.departed() != 0 {
					t.Error("it is counted once more")
				}
			}, oneAtATime)
		})
	}
	t.Run("for a quarter of an hour", func(t *testing.T) {
		openWard(t, func(w *ward) {
			w.node("b", corev1.ConditionFalse)
			w.takesAwayNode("a")
			w.passes(triage.ReplacementWait - time.Minute)
			w.node("b", corev1.ConditionTrue)
			w.waits("b")
			w.passes(time.Minute)
			w.wants("b", createRemediation)
		}, oneAtATime)
	})
	t.Run("and no longer than its replacement takes that has its name", func(t *testing.T) {
		openWard(t, func(w *ward) {
			w.node("b", corev1.ConditionFalse)
			w.updates(w.treats("a"), takesAway)
			w.node("a", corev1.ConditionFalse, madeAnew, isReady) // all of it between two looks
			w.node("b", corev1.ConditionTrue)
			if w.wants("b", createRemediation); w.departed() != 0 {
				t.Errorf("%d are gone", w.departed())
			}
		}, oneAtATime)
	})
}

// TestAnHeirKnowsWhoIsGone has the controller die at every point between a node's going
// and the end of what took it away.
func TestAnHeirKnowsWhoIsGone(t *testing.T) {
	for name, dies := range map[string]func(w *ward) (page []ledger.Entry, objects []*unstructured.Unstructured){
		"before the node went": func(w *ward) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.treats("a")
			w.updates(object, takesAway)
			w.removes("a")
			return nil, []*unstructured.Unstructured{object}
		},
		"before the page, and the remediator was done meanwhile": func(w *ward) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			w.updates(object, succeeds)
			w.rests("a") // for the page
			return nil, []*unstructured.Unstructured{object}
		},
		"before the page, and a finalizer keeps the object": func(w *ward) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			w.updates(object, deleting)
			return nil, []*unstructured.Unstructured{object}
		},
		"after the page": func(w *ward) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			return w.turns(), []*unstructured.Unstructured{object}
		},
		"after the object is deleted": func(w *ward) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			page := w.turns()
			w.updates(object, succeeds)
			w.runs(w.wants("a", deleteRemediation), "a", treat.Made)
			w.loses(object)
			return page, nil
		},
		"after the next page": func(w *ward) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			w.turns()
			w.updates(object, succeeds)
			w.runs(w.wants("a", deleteRemediation), "a", treat.Made)
			w.loses(object)
			w.requestReplacementEntries(time.Now(), w.ledger.ledger.Room()) // as every page does
			return w.ledger.entries(), nil
		},
		"twice": func(w *ward) ([]ledger.Entry, []*unstructured.Unstructured) {
			object := w.takesAwayNode("a")
			page := w.turns()
			heir := w.heir(page, []*unstructured.Unstructured{object}, oneAtATime)
			if heir.turns() != nil {
				w.t.Error("what the page names is named again")
			}
			heir.requestReplacementEntries(time.Now(), w.ledger.ledger.Room())
			return heir.ledger.entries(), []*unstructured.Unstructured{object}
		},
	} {
		t.Run(name, func(t *testing.T) {
			openWard(t, func(w *ward) {
				w.node("b", corev1.ConditionFalse)
				page, objects := dies(w)
				if len(page) > 1 {
					t.Errorf("the page: %+v", page)
				}
				w.passes(time.Minute)
				heir := w.heir(page, objects, oneAtATime)
				if heir.departed() != 1 {
					t.Errorf("%d are gone", heir.departed())
				}
				heir.node("b", corev1.ConditionTrue)
				heir.waits("b")
				if len(heir.ledger.replacements.inLedger) == 0 {
					if page := heir.turns(); len(page) != 1 || page[0].Node != "a" || page[0].UID != "uid-a" || page[0].Gone.IsZero() {
						t.Errorf("the heir's page: %+v", page)
					}
				}
				heir.passes(time.Minute)
				heir.waits("b")
				heir.node("c", corev1.ConditionFalse, isReady)
				heir.wants("b", createRemediation)
			}, oneAtATime)
		})
	}
	t.Run("and does not begin at once what has to wait", func(t *testing.T) {
		openWard(t, func(w *ward) {
			w.node("b", corev1.ConditionFalse)
			object := w.takesAwayNode("a")
			w.node("b", corev1.ConditionTrue)
			heir := w.heir(nil, []*unstructured.Unstructured{object}, oneAtATime)
			heir.waits("b")
			if strings.Contains(heir.log.String(), "remediation begun") {
				t.Error(heir.log.String())
			}
		}, oneAtATime)
	})
	t.Run("on the control plane as well", func(t *testing.T) {
		openWard(t, func(w *ward) {
			w.node("b", corev1.ConditionFalse, inControl)
			w.node("a", corev1.ConditionTrue, inControl)
			object := w.made("a", "quick", takesAway)
			w.finds(object)
			w.removes("a")
			page := w.turns()
			heir := w.heir(page, nil)
			heir.node("b", corev1.ConditionTrue, inControl)
			if heir.rests("b"); heir.finding("b") != triage.ControlPlaneBusy {
				t.Errorf("b is %s", heir.finding("b"))
			}
		})
	})
	t.Run("and who is replaced", func(t *testing.T) {
		openWard(t, func(w *ward) {
			object := w.takesAwayNode("a")
			w.turns()
			w.node("c", corev1.ConditionFalse, isReady)
			page := w.turns()
			if len(page) != 1 || !page[0].Replaced {
				t.Errorf("the page: %+v", page)
			}
			heir := w.heir(page, []*unstructured.Unstructured{object}, oneAtATime)
			if heir.departed() != 0 || heir.turns() != nil {
				t.Errorf("%d are gone", heir.departed())
			}
			heir.updates(object, succeeds)
			heir.runs(heir.wants("a", deleteRemediation), "a", treat.Made)
			heir.loses(object)
			w.updates(object, succeeds)
			w.runs(w.wants("a", deleteRemediation), "a", treat.Made)
			w.loses(object)
			object = w.takesAwayNode("c")
			if page := w.turns(); len(page) != 1 || page[0].Node != "c" {
				t.Errorf("the next page: %+v", page)
			}
			w.loses(object)
			w.node("d", corev1.ConditionFalse, isReady)
			if page := w.turns(); page == nil || len(page) != 0 {
				t.Errorf("the last page: %+v", page)
			}
		}, oneAtATime)
	})
	t.Run("and what is over is over", func(t *testing.T) {
		openWard(t, func(w *ward) {
			w.node("b", corev1.ConditionFalse)
			object := w.takesAwayNode("a") // whose remediator never says that it is done
			w.turns()
			w.passes(triage.ReplacementWait + clockSkew)
			other := w.takesAwayNode("b")
			page := w.turns()
			if len(page) != 2 {
				t.Errorf("the page does not name who went, and whose object is still there: %+v", page)
			}
			if heir := w.heir(page, []*unstructured.Unstructured{object, other}, oneAtATime); heir.departed() != 1 {
				t.Errorf("%d are gone", heir.departed())
			}
		}, oneAtATime)
	})
}

// TestAPageThatNamesWhoIsGone comes before the end of what else tells of it.
func TestAPageThatNamesWhoIsGone(t *testing.T) {
	openWard(t, func(w *ward) {
		object := w.takesAwayNode("a")
		w.updates(object, succeeds)
		w.rests("a")
		entries, _ := w.nextSnapshot(time.Now())
		if len(entries) != 1 {
			t.Fatalf("the page is to name %+v", entries)
		}
		w.ledger.busy = true
		if again, _ := w.nextSnapshot(time.Now()); again != nil {
			t.Error("two pages are written at a time")
		}
		must(t, w.snapshotStored(errBroken))
		w.goesOn()
		w.rests("a")
		if again, due := w.nextSnapshot(time.Now()); again != nil || due.IsZero() {
			t.Errorf("after a failure it is written again at %v", due)
		}
		w.passes(time.Minute)
		if page := w.turns(); len(page) != 1 {
			t.Errorf("the page is to name %+v", page)
		}
		w.wants("a", deleteRemediation)
		if again, due := w.nextSnapshot(time.Now()); again != nil || !due.IsZero() {
			t.Errorf("the same page is written again at %v: %+v", due, again)
		}
	})
	t.Run("is not waited for when the place is free", func(t *testing.T) {
		openWard(t, func(w *ward) {
			object := w.takesAwayNode("a")
			w.updates(object, succeeds)
			w.node("b", corev1.ConditionFalse, isReady)
			w.passes(time.Minute)
			if page, _ := w.nextSnapshot(time.Now()); page != nil { // as every round asks
				t.Errorf("a page is written: %+v", page)
			}
			w.wants("a", deleteRemediation)
		})
	})
}

// TestClocksOfTwoControllers has an heir be told of a node that went at some time by
// another clock.
func TestClocksOfTwoControllers(t *testing.T) {
	for name, test := range map[string]struct{ ago, kept time.Duration }{
		"the same":                           {0, triage.ReplacementWait},
		"a while ago":                        {10 * time.Minute, triage.ReplacementWait - 10*time.Minute + clockSkew},
		"it is ahead":                        {-time.Hour, triage.ReplacementWait},
		"ours is ahead, by less than may be": {triage.ReplacementWait + clockSkew - time.Second, time.Second},
		"long ago":                           {triage.ReplacementWait + clockSkew, 0},
	} {
		t.Run(name, func(t *testing.T) {
			openWard(t, func(w *ward) {
				gone := time.Now().Add(-test.ago)
				heir := w.heir([]ledger.Entry{{Rule: ownership.Rule(checkRule("check")), Node: "a", UID: "uid-a", Gone: gone, Since: gone}}, nil)
				began := time.Now()
				for heir.departed() > 0 {
					heir.passes(time.Second)
				}
				if kept := time.Since(began); kept != test.kept {
					t.Errorf("the place is kept for %s, want %s", kept, test.kept)
				}
			})
		})
	}
}

func TestAPageHasRoomForThoseWhoAreGoneAndThoseWhoAreThere(t *testing.T) {
	openWard(t, func(w *ward) {
		goes := func(from, to int) {
			for i := from; i < to; i++ {
				name := fmt.Sprintf("n%03d", i)
				w.core.Resume(time.Now(), triage.Grant{Rule: checkRule("check"), Node: name, UID: name, Since: time.Now(), Gone: time.Now()})
			}
		}
		goes(0, maxNamed)
		first := w.turns()
		if len(first) != maxAwaitingReplacement {
			t.Fatalf("%d are named", len(first))
		}
		kept := remediationObject{Object: remediation.Object{Owner: ownerOf(checkNamed("check")), Node: fmt.Sprintf("n%03d", maxAwaitingReplacement), DeletesNode: true, Succeeded: true, NodeUID: types.UID(fmt.Sprintf("n%03d", maxAwaitingReplacement))}}
		if !w.isNotInLedger(kept) {
			t.Error("the object of one that is not named may be ended")
		}
		for range maxNamed - maxAwaitingReplacement + 10 {
			w.ledger.nodesWithSlots = append(w.ledger.nodesWithSlots, &nodeState{node: named("x", "7"), named: true, granted: grantedSlot{version: "7", rules: []triage.RuleID{setRule("set")}}})
		}
		w.ledger.nodesWithSlots = w.ledger.nodesWithSlots[:maxNamed-maxAwaitingReplacement]
		w.passes(time.Minute)
		goes(maxNamed, maxNamed+10)
		w.requestReplacementEntries(time.Now(), w.ledger.ledger.Room())
		page := w.ledger.entries()
		if len(page) > maxNamed {
			t.Errorf("%d are named, at most %d may be", len(page), maxNamed)
		}
		for _, e := range first {
			if !w.ledger.replacements.isStored(triage.Grant{Rule: triage.RuleID(e.Rule), Node: e.Node, UID: e.UID}) {
				t.Fatalf("%s has made room for another", e.Node)
			}
		}
		w.ledger.nodesWithSlots = nil
		w.passes(triage.ReplacementWait - time.Minute)
		if page := w.turns(); len(page) != 10 {
			t.Errorf("of ten that are left %d are named", len(page))
		}
	})
}

func TestWhoGoesWhileAnotherControllerIsAtWork(t *testing.T) {
	openWard(t, func(w *ward) {
		w.node("b", corev1.ConditionFalse)
		object := w.treats("a")
		w.updates(object, takesAway)
		must(t, w.checks.medik8s.inbox.Update(held("theirs", "them", time.Now(), 20)))
		w.goesOn()
		w.removes("a")
		if !w.checks.deferring || w.departed() != 0 || w.turns() != nil {
			t.Errorf("back %t, and %d are gone, which is the other's business", w.checks.deferring, w.departed())
		}
		w.passes(time.Hour)
		if w.checks.deferring || w.departed() != 1 {
			t.Errorf("back %t, and %d are gone", w.checks.deferring, w.departed())
		}
		w.node("b", corev1.ConditionTrue)
		w.waits("b")
	}, oneAtATime)
}
