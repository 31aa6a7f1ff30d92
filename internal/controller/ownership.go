package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// mostUnclear is how many nodes a message names whose taint may not be ours.
const mostUnclear = 5

// taintID is what tells the taints of one node apart.
type taintID struct {
	key    string
	effect corev1.TaintEffect
}

func (t taintID) String() string { return t.key + ":" + string(t.effect) }

// unowned are the taints of which no record proves that this system placed them. Most
// are nobody's concern here; those with the key and effect of a set are reported.
type unowned struct {
	nodes map[taintID]map[string]bool // the nodes that have each taint
	stale bool                        // they, or the sets that ask for them, have changed
}

// unownedOn returns the taints of a node of which no record proves that they are ours.
func unownedOn(node *corev1.Node) (taints []taintID) {
	if len(node.Spec.Taints) == 0 {
		return nil
	}
	note, _ := ownership.Read(node.Annotations) // unreadable: it proves nothing
	for _, t := range node.Spec.Taints {
		if !note.Owns(t) && !note.Keeps(t) {
			taints = append(taints, taintID{t.Key, t.Effect})
		}
	}
	return taints
}

// update takes over what is on a node now, nil for a node that is gone.
func (u *unowned) update(p *nodeState, taints []taintID) {
	if slices.Equal(p.unowned, taints) {
		return
	}
	u.stale = true
	for _, id := range p.unowned {
		if delete(u.nodes[id], p.node.Name); len(u.nodes[id]) == 0 {
			delete(u.nodes, id)
		}
		if !slices.Contains(taints, id) {
			delete(p.unclearReported, id)
		}
	}
	if u.nodes == nil {
		u.nodes = map[taintID]map[string]bool{}
	}
	for _, id := range taints {
		if u.nodes[id] == nil {
			u.nodes[id] = map[string]bool{}
		}
		u.nodes[id][p.node.Name] = true
	}
	p.unowned = taints
}

// taintsOf are the taints that a set may place: where NoExecute is bounded, NoSchedule
// stands in for it.
func taintsOf(rule triage.Rule) []taintID {
	taint := rule.Response.Taint
	ids := []taintID{{taint.Key, corev1.TaintEffect(taint.Effect.String())}}
	if taint.Effect == triage.NoExecute {
		ids = append(ids, taintID{taint.Key, corev1.TaintEffectNoSchedule})
	}
	return ids
}

// reportUnowned tells of every taint that has the key and effect of a set that is
// followed, and that no record proves to be ours: once by an Event on the node, and in
// the status of the set for as long as it is there.
func (l *loop) reportUnowned(now time.Time) {
	if !l.loaded || !l.unowned.stale {
		return
	}
	l.unowned.stale = false
	for _, name := range slices.Sorted(maps.Keys(l.sets)) {
		pol := l.sets[name]
		unclear := map[string]taintID{}
		if pol.err == nil && pol.rule.Response.Taint != nil {
			for _, id := range slices.Backward(taintsOf(pol.rule)) { // so that of two the stronger is named
				for node := range l.unowned.nodes[id] {
					unclear[node] = id
					l.reportUnclear(l.nodeStates[node], pol, id)
				}
			}
		}
		if !maps.Equal(pol.unclear, unclear) {
			pol.unclear, pol.stale = unclear, true
			l.lookAtStatuses(now)
		}
	}
}

func (l *loop) reportUnclear(p *nodeState, pol *conditionSet, id taintID) {
	if p.unclearReported[id] {
		return
	}
	if p.unclearReported == nil {
		p.unclearReported = map[taintID]bool{}
	}
	p.unclearReported[id] = true
	words := fmt.Sprintf("the taint %s has the key and effect of ConditionSet %s, and no record on the node proves that Autohealer placed it. "+
		"Autohealer does not remove it; a NoExecute taint on a selected node counts against the bound of the set. %s", id, pol.set.Name, remedy(p.node.Name, id))
	l.cfg.Logger.Warn("ownership of a taint is unclear", "node", p.node.Name, "key", id.key, "effect", string(id.effect), "conditionSet", pol.set.Name)
	l.cfg.Event(treat.Event{Node: p.node, Policy: treat.AboutSet(pol.set), EventReason: treat.OwnershipUnclear, Message: words})
}

// remedy says what people can do about a taint of which nothing proves that it is ours.
func remedy(node string, id taintID) string {
	return fmt.Sprintf("To remove it: kubectl taint node %s %s- (if the node is still unhealthy, Autohealer places its own). "+
		"To keep it for another component: give the set another taintKey", node, id)
}

// judgeOwnership says in the status of a set which taints may not be ours. A set that
// never had such a taint has no word of it.
func (pol *conditionSet) judgeOwnership(status *v1alpha1.ConditionSetStatus) {
	condition := metav1.Condition{
		Type: v1alpha1.OwnershipUnclear, Status: metav1.ConditionFalse, Reason: "AllRecorded",
		Message: "every taint with the key and effect of the set is recorded as Autohealer's", ObservedGeneration: pol.set.Generation,
	}
	names := slices.Sorted(maps.Keys(pol.unclear))
	if len(names) > 0 {
		listed := strings.Join(names[:min(len(names), mostUnclear)], ", ")
		if more := len(names) - mostUnclear; more > 0 {
			listed += fmt.Sprintf(" and %d more", more)
		}
		condition.Status, condition.Reason = metav1.ConditionTrue, "NoRecord"
		condition.Message = fmt.Sprintf("nodes with a taint of this set's key and effect that no record proves to be Autohealer's: %d (%s). Autohealer does not remove it; a NoExecute taint on a selected node counts against the bound. %s",
			len(names), listed, remedy(names[0], pol.unclear[names[0]]))
	} else if meta.FindStatusCondition(status.Conditions, v1alpha1.OwnershipUnclear) == nil {
		return
	}
	meta.SetStatusCondition(&status.Conditions, condition)
}
