package remediation

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// orphanedRemediations tracks remediation objects, and writes in flight, for
// control-plane nodes that are gone. The core forgets a deleted node and would let the
// next one start. But remediators go by the node's name and may be working on a new node
// of that name.
type orphanedRemediations struct {
	nodes   map[string]bool // nodes that may have such objects
	message string          // what is left, empty for nothing
}

// add tracks a node name while it has objects.
func (r *orphanedRemediations) add(node string) {
	if r.nodes == nil {
		r.nodes = map[string]bool{}
	}
	r.nodes[node] = true
}

// Check blocks treatments of control-plane nodes while something is left. It runs
// before anything is sent.
func (rm *Treatment) Check(now time.Time) {
	var left []string
	if until := rm.host.UnknownUntil(); now.Before(until) {
		left = append(left, "the ledger names a treatment of a control-plane node that this version does not know; other control-plane nodes wait until "+until.UTC().Format(time.RFC3339))
	}
	for _, node := range slices.Sorted(maps.Keys(rm.orphans.nodes)) {
		n, state := rm.nodes[node], rm.host.Node(node)
		isLeft := false
		for _, key := range n.sortedObjects() {
			o := n.objects[key]
			isLeft = isLeft || o.holdsControlPlaneSlot()
			if o.holdsControlPlaneSlot() && !o.isFor(state) {
				left = append(left, key.String()+" still exists, for control-plane node "+node+", which is gone")
			}
		}
		if !isLeft {
			delete(rm.orphans.nodes, node)
		}
	}
	for slot := range rm.host.ControlPlaneSlots() {
		if state := rm.host.Node(slot.Node); state == nil || string(state.Object.UID) != slot.UID {
			left = append(left, slot.Object.String()+" may still be created for control-plane node "+slot.Node+", which is gone")
		}
	}
	if message := strings.Join(left, "; "); message != rm.orphans.message {
		rm.orphans.message = message
		rm.host.ReobserveControlPlane(now)
	}
}

// holdsControlPlaneSlot reports whether other control-plane nodes must wait for the
// object.
func (t remediationObject) holdsControlPlaneSlot() bool {
	return t.ControlPlane && t.Owner != remediation.Owner{}
}

// isFor reports whether the object is for this existing node.
func (t remediationObject) isFor(state *engine.Node) bool {
	return state != nil && t.IsOf(state.Object)
}
