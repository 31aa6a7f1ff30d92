package controller

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/remediation"
)

// orphanedRemediations tracks remediation objects, and writes in flight, for
// control-plane nodes that are gone. The core forgets a deleted node and would let the
// next one start. But remediators go by the node's name and may be working on a new node
// of that name.
type orphanedRemediations struct {
	nodes   map[string]bool // nodes that may have such objects
	message string          // what is left, empty for nothing
	// keptUntil is until when writes may arrive for ledger entries that this version does
	// not know.
	keptUntil time.Time
}

// add tracks a node name while it has objects.
func (r *orphanedRemediations) add(node string) {
	if r.nodes == nil {
		r.nodes = map[string]bool{}
	}
	r.nodes[node] = true
}

// checkOrphans blocks treatments of control-plane nodes while something is left. It runs
// before anything is sent.
func (l *loop) checkOrphans(now time.Time) {
	var left []string
	if now.Before(l.orphans.keptUntil) {
		left = append(left, "the ledger names a treatment of a control-plane node that this version does not know, which is waited for until "+l.orphans.keptUntil.UTC().Format(time.RFC3339))
	}
	for _, node := range slices.Sorted(maps.Keys(l.orphans.nodes)) {
		b := l.treatments[node]
		if b == nil || !b.granted.ControlPlane && !slices.ContainsFunc(slices.Collect(maps.Values(b.objects)), remediationObject.holdsControlPlaneSlot) {
			delete(l.orphans.nodes, node)
			continue
		}
		p := l.nodeStates[node]
		for _, key := range slices.Sorted(maps.Keys(b.objects)) {
			if o := b.objects[key]; o.holdsControlPlaneSlot() && !o.isOf(p) {
				left = append(left, key+" is still there, for control-plane node "+node+", which is gone")
			}
		}
		if b.granted.ControlPlane && !b.hasSlotFor(p) {
			left = append(left, b.granted.Object+" may still be made, for control-plane node "+node+", which is gone")
		}
	}
	if words := strings.Join(left, "; "); words != l.orphans.message {
		l.orphans.message = words
		l.reobserveControlPlane(now)
	}
}

// reobserveControlPlane reobserves all control-plane nodes.
func (l *loop) reobserveControlPlane(now time.Time) {
	var plane []string
	for name, p := range l.nodeStates {
		if remediation.IsControlPlane(p.node) {
			plane = append(plane, name)
		}
	}
	slices.Sort(plane)
	l.reobserve(now, plane...)
}

// holdsControlPlaneSlot reports whether other control-plane nodes must wait for the
// object.
func (t remediationObject) holdsControlPlaneSlot() bool {
	return t.ControlPlane && t.Owner != remediation.Owner{}
}

// isOf reports whether the object is for this existing node.
func (t remediationObject) isOf(p *nodeState) bool { return p != nil && t.IsOf(p.node) }

// hasSlotFor reports whether the ledger entry is for this existing node.
func (b *nodeTreatments) hasSlotFor(p *nodeState) bool {
	return p != nil && string(p.node.UID) == b.granted.UID
}

// awaitOrphans returns until when a write for a deleted node may still succeed, and frees
// the slot afterwards.
func (l *loop) awaitOrphans(now time.Time, b *nodeTreatments, p *nodeState) (due time.Time) {
	if b.granted.Object == "" || b.hasSlotFor(p) {
		return time.Time{}
	}
	if _, isClaim := claimNamed(b.granted.Object); isClaim { // the node went with its claim, and the ledger must name it first
		if !l.isSlotNotInLedger(b.granted) {
			b.releaseSlot()
		}
		return time.Time{}
	}
	if arrives := b.sent.Add(maxInFlight); !b.sent.IsZero() && now.Before(arrives) {
		return arrives
	}
	b.releaseSlot()
	return time.Time{}
}
