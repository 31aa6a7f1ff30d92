package engine

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// orphanedRemediations tracks remediation objects, and writes in flight, for
// control-plane nodes that are gone. The core forgets a deleted node and would let the
// next one start. But remediators go by the node's name and may be working on a new node
// of that name.
type orphanedRemediations struct {
	nodes   map[string]bool // nodes that may have such objects
	message string          // what is left, empty for nothing
	// unknownUntil is until when writes may arrive for ledger entries that this version does
	// not know.
	unknownUntil time.Time
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
func (rm *remediations) checkOrphans(now time.Time) {
	var left []string
	if now.Before(rm.orphans.unknownUntil) {
		left = append(left, "the ledger names a treatment of a control-plane node that this version does not know; other control-plane nodes wait until "+rm.orphans.unknownUntil.UTC().Format(time.RFC3339))
	}
	for _, node := range slices.Sorted(maps.Keys(rm.orphans.nodes)) {
		treatments := rm.engine.tasks.treatments[node]
		if treatments == nil || !treatments.granted.ControlPlane && !slices.ContainsFunc(slices.Collect(maps.Values(treatments.objects)), remediationObject.holdsControlPlaneSlot) {
			delete(rm.orphans.nodes, node)
			continue
		}
		state := rm.engine.nodeStates[node]
		for _, key := range treatments.sortedObjects() {
			if o := treatments.objects[key]; o.holdsControlPlaneSlot() && !o.isFor(state) {
				left = append(left, key.String()+" is still there, for control-plane node "+node+", which is gone")
			}
		}
		if treatments.granted.ControlPlane && !treatments.hasSlotFor(state) {
			left = append(left, treatments.granted.Object.String()+" may still be created for control-plane node "+node+", which is gone")
		}
	}
	if message := strings.Join(left, "; "); message != rm.orphans.message {
		rm.orphans.message = message
		rm.engine.reobserveControlPlane(now)
	}
}

// reobserveControlPlane reobserves all control-plane nodes.
func (l *Engine) reobserveControlPlane(now time.Time) {
	var plane []string
	for name, state := range l.nodeStates {
		if remediation.IsControlPlane(state.Object) {
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

// isFor reports whether the object is for this existing node.
func (t remediationObject) isFor(state *Node) bool { return state != nil && t.IsOf(state.Object) }

// hasSlotFor reports whether the ledger entry is for this existing node.
func (treatments *nodeTreatments) hasSlotFor(state *Node) bool {
	return state != nil && string(state.Object.UID) == treatments.granted.UID
}

// awaitOrphans returns until when a write for a deleted node may still succeed, and frees
// the slot afterwards.
func (rm *remediations) awaitOrphans(now time.Time, treatments *nodeTreatments, state *Node) (due time.Time) {
	if !treatments.hasSlot() || treatments.hasSlotFor(state) {
		return time.Time{}
	}
	if isClaim(treatments.granted.Object) { // the node went with its claim, and the ledger must name it first
		if slot := treatments.granted.Slot; !rm.engine.ledger.lacks(slot.Node, func(kept ledger.Slot) bool { return kept == slot }) {
			treatments.releaseSlot()
		}
		return time.Time{}
	}
	if arrives := treatments.sentAt.Add(maxInFlight); !treatments.sentAt.IsZero() && now.Before(arrives) {
		return arrives
	}
	treatments.releaseSlot()
	return time.Time{}
}
