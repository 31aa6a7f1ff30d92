package controller

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/remediation"
)

// orphanedRemediations are what may be left of treatments of control-plane nodes that are gone:
// remediation objects, and those that may still be made. The core forgets a node that
// goes, and would let the next one have its turn; but remediators go by the name of a
// node, and may be at work on the one that has it now.
type orphanedRemediations struct {
	nodes   map[string]bool // that have, or had, something of a control-plane node
	message string          // what is left, empty for nothing
	// keptUntil is until when something may be made that the ledger names and this
	// version does not know.
	keptUntil time.Time
}

// add has a bed looked at for as long as there is something in it.
func (r *orphanedRemediations) add(node string) {
	if r.nodes == nil {
		r.nodes = map[string]bool{}
	}
	r.nodes[node] = true
}

// checkOrphans has the nodes of the control plane wait for what is left. It comes
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

// reobserveControlPlane looks at every node of the control plane.
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

// holdsControlPlaneSlot says whether other nodes of the control plane wait for the object.
func (t remediationObject) holdsControlPlaneSlot() bool {
	return t.ControlPlane && t.Owner != remediation.Owner{}
}

// isOf says whether the object is about a node that is there.
func (t remediationObject) isOf(p *nodeState) bool { return p != nil && t.IsOf(p.node) }

// hasSlotFor says whether what the ledger names is for a node that is there.
func (b *nodeTreatments) hasSlotFor(p *nodeState) bool {
	return p != nil && string(p.node.UID) == b.granted.UID
}

// awaitOrphans returns until when something may still be made for a node that is gone,
// and gives its place back once it cannot be.
func (l *loop) awaitOrphans(now time.Time, b *nodeTreatments, p *nodeState) (due time.Time) {
	if b.granted.Object == "" || b.hasSlotFor(p) {
		return time.Time{}
	}
	if _, isClaim := claimNamed(b.granted.Object); isClaim { // the node went with it, and the page is to say so
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
