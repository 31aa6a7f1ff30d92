package conditionset

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

// maxListedUnclear limits the nodes that a message names.
const maxListedUnclear = 5

// taintID identifies a taint on a node.
type taintID struct {
	key    string
	effect corev1.TaintEffect
}

func (t taintID) String() string { return t.key + ":" + string(t.effect) }

// unowned holds the taints without a record that this controller placed them. Most belong
// to other components; those with the key and effect of a set are reported.
type unowned struct {
	taints   map[string][]taintID        // by node name
	nodes    map[taintID]map[string]bool // node names by taint
	reported map[string]map[taintID]bool // by node name
	stale    bool                        // the taints or the sets have changed
}

// unownedOn returns the taints of a node without a record that they are ours.
func unownedOn(node *corev1.Node) (taints []taintID) {
	if len(node.Spec.Taints) == 0 {
		return nil
	}
	note, _ := ownership.Read(node.Annotations) // an unreadable record proves nothing
	for _, t := range node.Spec.Taints {
		if !note.Owns(t) && !note.Keeps(t) {
			taints = append(taints, taintID{t.Key, t.Effect})
		}
	}
	return taints
}

func newUnowned() unowned {
	return unowned{taints: map[string][]taintID{}, nodes: map[taintID]map[string]bool{}, reported: map[string]map[taintID]bool{}}
}

// update stores the taints of a node, nil for a node that is gone.
func (u *unowned) update(node string, taints []taintID) {
	if slices.Equal(u.taints[node], taints) {
		return
	}
	u.stale = true
	for _, id := range u.taints[node] {
		if delete(u.nodes[id], node); len(u.nodes[id]) == 0 {
			delete(u.nodes, id)
		}
		if !slices.Contains(taints, id) {
			delete(u.reported[node], id)
		}
	}
	if len(taints) == 0 {
		delete(u.taints, node)
		delete(u.reported, node)
		return
	}
	for _, id := range taints {
		if u.nodes[id] == nil {
			u.nodes[id] = map[string]bool{}
		}
		u.nodes[id][node] = true
	}
	u.taints[node] = taints
}

// taintsOf returns the taints that a set may place: NoSchedule replaces NoExecute beyond
// the bound.
func taintsOf(rule triage.Rule) []taintID {
	taint := rule.Response.Taint
	ids := []taintID{{taint.Key, corev1.TaintEffect(taint.Effect.String())}}
	if taint.Effect == triage.NoExecute {
		ids = append(ids, taintID{taint.Key, corev1.TaintEffectNoSchedule})
	}
	return ids
}

// reportUnowned reports every taint that has the key and effect of a followed set and no
// record: once as an Event on the node, and in the set's status while it exists.
func (p *Policy) reportUnowned(now time.Time) {
	if !p.host.IsLoaded() || !p.unowned.stale {
		return
	}
	p.unowned.stale = false
	for _, name := range slices.Sorted(maps.Keys(p.known)) {
		pol := p.known[name]
		unclear := map[string]taintID{}
		if pol.rule.Response.Taint != nil {
			for _, id := range slices.Backward(taintsOf(pol.rule)) { // of two taints on a node, the stronger one is named
				for node := range p.unowned.nodes[id] {
					unclear[node] = id
					p.reportUnclear(p.host.Node(node).Object, pol, id)
				}
			}
		}
		if !maps.Equal(pol.unclearTaints, unclear) {
			pol.unclearTaints, pol.status.Stale = unclear, true
			p.host.Statuses().Schedule(now)
		}
	}
}

func (p *Policy) reportUnclear(node *corev1.Node, pol *conditionSet, id taintID) {
	reported := p.unowned.reported
	if reported[node.Name][id] {
		return
	}
	if reported[node.Name] == nil {
		reported[node.Name] = map[taintID]bool{}
	}
	reported[node.Name][id] = true
	message := fmt.Sprintf("the taint %s has the key and effect of ConditionSet %s, and no record on the node proves that Autohealer placed it. "+
		"Autohealer does not remove it; a NoExecute taint on a selected node counts against the limit of the set. %s", id, pol.set.Name, remedy(node.Name, id))
	p.cfg.Logger.Warn("ownership of a taint is unclear", "node", node.Name, "key", id.key, "effect", string(id.effect), "conditionSet", pol.set.Name)
	p.cfg.Event(treat.Event{Node: node, Policy: treat.AboutSet(pol.set), EventReason: treat.OwnershipUnclear, Message: message})
}

// remedy says what users can do about a taint of unclear ownership.
func remedy(node string, id taintID) string {
	return fmt.Sprintf("To remove it: kubectl taint node %s %s- (if the node is still unhealthy, Autohealer places its own). "+
		"To keep it for another component: give the set another taintKey", node, id)
}

// setOwnershipCondition sets the OwnershipUnclear condition of a set. A set that never had a
// taint of unclear ownership does not get the condition.
func (pol *conditionSet) setOwnershipCondition(status *v1alpha1.ConditionSetStatus) {
	condition := metav1.Condition{
		Type: v1alpha1.OwnershipUnclear, Status: metav1.ConditionFalse, Reason: "AllRecorded",
		Message: "every taint with the key and effect of the set is recorded as Autohealer's", ObservedGeneration: pol.set.Generation,
	}
	names := slices.Sorted(maps.Keys(pol.unclearTaints))
	if len(names) > 0 {
		listed := strings.Join(names[:min(len(names), maxListedUnclear)], ", ")
		if more := len(names) - maxListedUnclear; more > 0 {
			listed += fmt.Sprintf(" and %d more", more)
		}
		condition.Status, condition.Reason = metav1.ConditionTrue, "NoRecord"
		condition.Message = fmt.Sprintf("nodes with a taint of this set's key and effect that no record proves to be Autohealer's: %d (%s). Autohealer does not remove it; a NoExecute taint on a selected node counts against the limit. %s",
			len(names), listed, remedy(names[0], pol.unclearTaints[names[0]]))
	} else if meta.FindStatusCondition(status.Conditions, v1alpha1.OwnershipUnclear) == nil {
		return
	}
	meta.SetStatusCondition(&status.Conditions, condition)
}
