package remediation

import (
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/triage"
)

// An object may remove its node for good. The node then keeps its slot until it is replaced.

// hasRemoved reports whether the object removed the node that keeps the slot.
func (t remediationObject) hasRemoved(kept ledger.Slot) bool {
	return triage.RuleID(kept.Rule) == t.rule && kept.Node == t.Node && (t.NodeUID == "" || kept.UID == string(t.NodeUID))
}

// noteReportedTreatments records which objects the core knows to remove this node: the
// core keeps the slot when the node goes.
func (rm *Treatment) noteReportedTreatments(state *engine.Node, facts *triage.Node) {
	n := rm.nodes[state.Object.Name]
	if n == nil {
		return
	}
	for key, o := range n.objects {
		isReported := slices.ContainsFunc(facts.Treatments, func(t triage.Treatment) bool { return t.Rule == o.rule && t.Deletes })
		if o.IsOf(state.Object) && o.reportedToCore != (o.DeletesNode && isReported) {
			o.reportedToCore = !o.reportedToCore
			n.objects[key] = o
		}
	}
}

// Update tells the core about a deleted node whose removal it did not know: the
// object said so while no controller ran, or only after the node was gone. The time of
// deletion is unknown, so it counts from now.
func (rm *Treatment) Update(now time.Time, node string) {
	n, state := rm.nodes[node], rm.host.Node(node)
	for _, key := range n.sortedObjects() {
		o := n.objects[key]
		c := rm.request(o.rule)
		if !rm.isOurs(o) || !o.DeletesNode || o.reportedToCore || o.isFor(state) || c == nil || c.Owner != o.Owner {
			continue
		}
		isKnown := slices.ContainsFunc(slices.Collect(maps.Values(n.objects)), func(other remediationObject) bool {
			return other.reportedToCore && other.Owner == o.Owner && other.NodeUID == o.NodeUID
		})
		o.reportedToCore = true
		n.objects[key] = o
		if isKnown {
			continue
		}
		step, _ := o.Step(c.Ladder)
		rm.host.Core().Resume(now, triage.Grant{
			Rule: o.rule, Node: o.Node, UID: string(o.NodeUID), Step: step, Since: o.Created, Gone: now, ControlPlane: o.ControlPlane,
		})
		rm.host.Logger().Info("deleted node awaits its replacement", "node", node, "rule", o.rule.String(), "object", key.String())
	}
}

// ShowsRemoval reports whether the object that removed the node still exists.
func (rm *Treatment) ShowsRemoval(slot ledger.Slot) bool {
	n := rm.nodes[slot.Node]
	return n != nil && slices.ContainsFunc(slices.Collect(maps.Values(n.objects)), func(o remediationObject) bool { return o.hasRemoved(slot) })
}

// RestoreRemoval records that the ledger tells the core about the removed node.
func (rm *Treatment) RestoreRemoval(slot ledger.Slot) {
	if n := rm.nodes[slot.Node]; n != nil {
		for key, o := range n.objects {
			if o.hasRemoved(slot) {
				o.reportedToCore = true
				n.objects[key] = o
			}
		}
	}
}
