package history

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// replacedWithin is how long a health check counts a deleted node without a
	// replacement.
	replacedWithin = 15 * time.Minute
	// handedOver is the additional time after a change of the leader.
	handedOver = 5 * time.Minute
)

// removedNode is a node that was deleted while a remediation object for its permanent
// removal existed.
type removedNode struct {
	check      string
	checkUID   types.UID
	object     types.UID
	began      time.Time // when the object was created
	meant      time.Time // since when the object asks for the removal of the node
	gone       time.Time
	objectGone time.Time // when the object was deleted, zero if it still exists
	// unsure is true if the controller may or may not have counted the node: it may not
	// have known in time that the node was to be removed, the health check did not select
	// the node, or another controller was active.
	unsure bool
}

// readyNode is a node that has become Ready.
type readyNode struct{ came, ready time.Time }

// noteDeletesNode stores when an object starts to ask for the removal of its node. If the
// node is already gone, the controller may have learned it too late.
func (r *replay) noteDeletesNode(o *remediationObject) {
	was := !o.deletesNodeSince.IsZero()
	since(&o.deletesNodeSince, o.deletesNode, r.at.Time)
	if n := r.nodes[o.node]; o.deletesNode && !was && o.check != "" && (n == nil || !o.isOf(n)) {
		r.health.removed = append(r.health.removed, &removedNode{
			check: o.check, checkUID: o.checkUID, object: o.uid, began: o.seen, meant: r.at.Time, gone: r.at.Time, unsure: true,
		})
	}
}

// addRemovedNode stores a deleted node before it is removed from the counts.
func (r *replay) addRemovedNode(n *node) {
	seen := map[string]bool{}
	for _, o := range r.health.onNode[n.name] {
		if o.check == "" || !o.deletesNode || !o.isOf(n) || seen[o.check] {
			continue
		}
		seen[o.check] = true
		h := r.check(o.check)
		r.health.removed = append(r.health.removed, &removedNode{
			check: o.check, checkUID: o.checkUID, object: o.uid, began: o.seen, meant: o.deletesNodeSince, gone: r.at.Time,
			unsure: r.mayBeMedik8sActive() || !n.check(o.check).selected || !h.spec.isValid(),
		})
	}
}

// noteRemovedObject stores that an object was deleted.
func (r *replay) noteRemovedObject(o *remediationObject) {
	for _, l := range r.health.removed {
		if l.object == o.uid {
			l.objectGone = r.at.Time
			l.unsure = l.unsure || r.at.Time.Sub(l.meant) < r.cfg.Lag
		}
	}
}

// noteReady stores that a node becomes Ready.
func (r *replay) noteReady(n *node, after facts) {
	const ready = "Ready"
	if n.conditions[ready].status != "True" && after.conditions[ready].status == "True" {
		r.health.readyNodes = append(r.health.readyNodes, readyNode{n.came, r.at.Time})
	}
}

// surelyGone counts the deleted nodes that a health check must still count. It assumes that
// every later node replaces a deleted node, if it can.
func (r *replay) surelyGone(h *healthCheck) (gone int) {
	replaces := map[int]*removedNode{} // by index in readyNodes
	for _, l := range r.health.removed {
		isKept := r.at.Time.Before(l.gone.Add(replacedWithin - r.cfg.Lag))
		if l.check != h.name || l.unsure || !isKept || !settled(l.gone, r.horizon()) || h.object == nil || h.object.GetUID() != l.checkUID {
			continue
		}
		gone += one(!r.findReplacement(l, replaces, map[int]bool{}))
	}
	return gone
}

// findReplacement assigns a replacement to a deleted node. If necessary, it assigns another
// replacement to the node that had it before.
func (r *replay) findReplacement(l *removedNode, replaces map[int]*removedNode, tried map[int]bool) bool {
	for i, a := range r.health.readyNodes {
		if tried[i] || !a.came.After(l.began.Add(-r.cfg.Lag)) || !a.ready.After(l.meant.Add(-r.cfg.Lag)) {
			continue
		}
		tried[i] = true
		if other := replaces[i]; other == nil || r.findReplacement(other, replaces, tried) {
			replaces[i] = l
			return true
		}
	}
	return false
}

// maybeGone counts the deleted nodes that a health check may still count.
func (r *replay) maybeGone(h *healthCheck) (gone int) {
	for _, l := range r.health.removed {
		gone += one(l.check == h.name && r.isMaybeKept(l, 0))
	}
	return gone
}

// wasMaybeGone reports whether maybeGone may have been above zero within this time.
func (r *replay) wasMaybeGone(h *healthCheck, within time.Duration) bool {
	return slices.ContainsFunc(r.health.removed, func(l *removedNode) bool { return l.check == h.name && r.isMaybeKept(l, within) })
}

// isMaybeKept reports whether the health check may count a deleted node now, or may have
// counted it within this time. While the object exists, a new leader may find it.
func (r *replay) isMaybeKept(l *removedNode, within time.Duration) bool {
	until := last(l.gone, l.objectGone).Add(replacedWithin + handedOver + within + r.cfg.Lag)
	return l.objectGone.IsZero() || r.at.Time.Before(until)
}

// countedNodes describes the nodes that the gate counts.
func countedNodes(gone int) string {
	if gone > 0 {
		return "unhealthy, in treatment or not replaced yet"
	}
	return "unhealthy or in treatment"
}
