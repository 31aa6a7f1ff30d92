package nodeclaim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Treatment terminates nodes by the deletion of their NodeClaims. It holds the NodeClaims
// and links them to nodes. It implements [engine.Treatment] and [machine.Provider].
type Treatment struct {
	host   engine.TreatmentHost
	policy terminators
	inbox  *watch.Optional[*karpenter.NodeClaim]
	byName map[string]*nodeClaim
	byID   map[string][]*nodeClaim // by provider ID: one, or two if something is wrong
	nodes  map[string][]string     // node names, by provider ID
	// outlived holds the deleted claims of nodes that still exist, by node name.
	outlived map[string]*outlivedClaim
	// dirty holds nodes whose facts have changed because a claim or another node has.
	dirty map[string]bool
	// listedAt is when the claims were first listed.
	listedAt time.Time
}

// NewInbox returns an inbox that reads NodeClaims from the API server. arePoolsMissing
// reports whether NodePools are known not to be served: then NodeClaims are not either.
func NewInbox(c client.WithWatch, signal chan<- struct{}, arePoolsMissing func() bool) *watch.Optional[*karpenter.NodeClaim] {
	return watch.NewOptional(signal, &karpenter.NodeClaim{}, &watch.DependentSource{
		Source:         watch.Source(c, func() client.ObjectList { return &karpenter.NodeClaimList{} }),
		IsOtherMissing: arePoolsMissing,
	})
}

// New returns the treatment without claims.
func New(host engine.TreatmentHost, inbox *watch.Optional[*karpenter.NodeClaim]) *Treatment {
	return &Treatment{
		host: host, inbox: inbox, byName: map[string]*nodeClaim{}, byID: map[string][]*nodeClaim{}, nodes: map[string][]string{}, outlived: map[string]*outlivedClaim{}, dirty: map[string]bool{},
	}
}

// Serve tells which policies terminate nodes.
func (nc *Treatment) Serve(policies ...Terminator) { nc.policy = policies }

// claimOf returns the claim of a node, nil if it has none or the claim is ambiguous;
// message says why. Two nodes with one provider ID mean that the node was renamed: the old
// Node object must not cause the deletion of the new node's claim.
func (nc *Treatment) claimOf(node *corev1.Node) (found *nodeClaim, message string) {
	id := node.Spec.ProviderID
	claims, nodes := nc.byID[id], nc.nodes[id]
	switch {
	case id == "" || len(claims) == 0:
		return nil, ""
	case len(claims) > 1:
		names := make([]string, len(claims))
		for i, c := range claims {
			names[i] = c.Name
		}
		return nil, sharedProviderIDMessage("NodeClaims", names, id)
	case len(nodes) > 1:
		return nil, sharedProviderIDMessage("nodes", nodes, id)
	default:
		return claims[0], ""
	}
}

func sharedProviderIDMessage(what string, names []string, id string) string {
	return fmt.Sprintf("%s %s have one provider ID, %s", what, strings.Join(slices.Sorted(slices.Values(names)), " and "), id)
}

// nodesOf returns the names of the claim's nodes, usually a single name.
func (nc *Treatment) nodesOf(c *nodeClaim) []string {
	if c.ProviderID() == "" {
		return nil
	}
	return nc.nodes[c.ProviderID()]
}

// NodeChanged records the provider ID of a node.
func (nc *Treatment) NodeChanged(before, node *corev1.Node) {
	if before != nil && (node == nil || before.Spec.ProviderID != node.Spec.ProviderID) {
		nc.unlink(before)
	}
	if node == nil {
		delete(nc.outlived, before.Name)
		return
	}
	if id := node.Spec.ProviderID; id != "" && !slices.Contains(nc.nodes[id], node.Name) {
		nc.markDirty(id)
		nc.nodes[id] = append(nc.nodes[id], node.Name)
	}
}

func (nc *Treatment) unlink(node *corev1.Node) {
	id := node.Spec.ProviderID
	nc.nodes[id] = slices.DeleteFunc(nc.nodes[id], func(name string) bool { return name == node.Name })
	if len(nc.nodes[id]) == 0 {
		delete(nc.nodes, id)
	}
	nc.markDirty(id)
}

func (nc *Treatment) markDirty(id string) {
	for _, name := range nc.nodes[id] {
		nc.dirty[name] = true
	}
}

// reobserveDirty reobserves the nodes in dirty.
func (nc *Treatment) reobserveDirty(now time.Time) {
	if len(nc.dirty) > 0 {
		names := slices.Sorted(maps.Keys(nc.dirty))
		clear(nc.dirty)
		nc.host.Reobserve(now, names...)
	}
}

// takeClaims takes in changed claims.
func (nc *Treatment) takeClaims(now time.Time) {
	batch := nc.inbox.Take()
	if batch.ListVersion != "" {
		if nc.listedAt.IsZero() {
			nc.listedAt = now
		}
		for name, c := range nc.byName {
			if _, there := batch.Changes[name]; !there && (batch.ListVersion == watch.NotServedVersion || !engine.OlderVersion(batch.ListVersion, c.ResourceVersion)) {
				nc.claimDeleted(now, c)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(batch.Changes)) {
		change := batch.Changes[name]
		known := nc.byName[name]
		switch {
		case !change.Gone:
			nc.upsert(now, change.Object)
		case known != nil && known.UID == change.Object.UID:
			nc.claimDeleted(now, known)
		}
	}
	nc.reobserveDirty(now)
}

// upsert stores a claim unless a newer version is known.
func (nc *Treatment) upsert(now time.Time, object *karpenter.NodeClaim) {
	c := nc.byName[object.Name]
	switch {
	case c == nil:
		c = &nodeClaim{}
	case c.UID != object.UID:
		nc.claimDeleted(now, c)
		c = &nodeClaim{}
	case engine.OlderVersion(object.ResourceVersion, c.ResourceVersion):
		return
	default:
		if c.Pool() != object.Labels[karpenter.NodePoolLabel] {
			nc.policy.MachineRemoved(c)
		}
		nc.unindex(c) // its provider ID may have changed
	}
	was := c.mark
	c.NodeClaim, c.mark = object, nc.readMark(c, object)
	nc.index(c)
	if c.mark == nil && c.IsEnding() {
		for _, node := range nc.nodesOf(c) {
			nc.host.NodeTasks(node) // its drain may have to be ended
		}
	}
	nc.releaseCancelledSlot(c, was)
	nc.policy.MachineChanged(now, c, was)
}

// readMark returns the mark of a claim. It logs an unreadable mark once.
func (nc *Treatment) readMark(before *nodeClaim, object *karpenter.NodeClaim) *ownership.Mark {
	mark, err := ownership.ReadMark(object.Annotations)
	if err != nil && (before.NodeClaim == nil || before.Annotations[ownership.MarkAnnotation] != object.Annotations[ownership.MarkAnnotation]) {
		nc.host.Logger().Error("mark unreadable", "nodeClaim", object.Name, "err", err)
	}
	unknown := 0
	switch {
	case err != nil:
		unknown = 1
	case mark != nil:
		unknown = mark.Unknown.Len()
	}
	nc.host.CountUnknown("mark", unknown-before.unknownFields)
	before.unknownFields = unknown
	return mark
}

// releaseCancelledSlot frees the slot of a node whose termination was cancelled.
func (nc *Treatment) releaseCancelledSlot(c *nodeClaim, was *ownership.Mark) {
	if was == nil || c.mark != nil {
		return
	}
	if nodeTasks := nc.host.FindNodeTasks(was.Node); nodeTasks != nil && nodeTasks.Slot().Object == claimRef(c.Name) {
		nodeTasks.Release()
	}
}

// index indexes a claim by name and provider ID.
func (nc *Treatment) index(c *nodeClaim) {
	nc.byName[c.Name] = c
	if id := c.ProviderID(); id != "" {
		nc.byID[id] = append(nc.byID[id], c)
		nc.markDirty(id)
	}
}

func (nc *Treatment) unindex(c *nodeClaim) {
	delete(nc.byName, c.Name)
	if id := c.ProviderID(); id != "" {
		nc.byID[id] = slices.DeleteFunc(nc.byID[id], func(other *nodeClaim) bool { return other == c })
		if len(nc.byID[id]) == 0 {
			delete(nc.byID, id)
		}
		nc.markDirty(id)
	}
}

// claimDeleted handles the deletion of a claim. If the claim had a mark, its node goes
// too and stays in treatment until then, because the watch of claims may be ahead. A
// write in flight may have marked and deleted the claim before the watch reported the
// mark.
func (nc *Treatment) claimDeleted(now time.Time, c *nodeClaim) {
	if c.mark != nil {
		nc.noteOutlived(now, *c.mark)
		nc.dirty[c.mark.Node] = true // the node may be gone already
	}
	for _, node := range nc.nodesOf(c) {
		if nodeTasks := nc.host.FindNodeTasks(node); nodeTasks != nil && nodeTasks.Slot().Object == claimRef(c.Name) && nodeTasks.WasSent() {
			nc.noteOutlived(now, markOf(nodeTasks.Slot()))
		}
	}
	nc.host.CountUnknown("mark", -c.unknownFields)
	nc.policy.MachineRemoved(c)
	nc.unindex(c)
}

// markOf returns the mark for the claim that a ledger entry names.
func markOf(e ledger.ObjectWrite) ownership.Mark {
	return ownership.Mark{Rule: e.Rule, Node: e.Node, NodeUID: types.UID(e.UID), Since: e.Since}
}

// noteOutlived records that the claim of a node is gone and the node is not yet.
func (nc *Treatment) noteOutlived(now time.Time, mark ownership.Mark) {
	if state := nc.host.Node(mark.Node); state != nil && state.Object.UID == mark.NodeUID {
		nc.outlived[mark.Node] = &outlivedClaim{mark: mark, until: now.Add(triage.ReplacementWait)}
		nc.host.NodeTasks(mark.Node)
		nc.dirty[mark.Node] = true
	}
}

// outlivedClaim is the deleted claim of a node that still exists. The node should go
// soon. After until its slot is free, because the reason for its existence is unknown.
type outlivedClaim struct {
	mark  ownership.Mark
	until time.Time
}

// outlivedBy returns the deleted claim that the node should soon follow, nil for none.
func (nc *Treatment) outlivedBy(now time.Time, n *engine.Node) *outlivedClaim {
	if claim := nc.outlived[n.Object.Name]; claim != nil && claim.mark.NodeUID == n.Object.UID && now.Before(claim.until) {
		return claim
	}
	return nil
}

var claimKind = schema.GroupKind{Group: "karpenter.sh", Kind: "NodeClaim"}

// claimRef returns the reference of a claim.
func claimRef(name string) ledger.ObjectRef {
	return ledger.ObjectRef{GroupKind: claimKind, Name: name}
}

// isClaim reports whether a reference is of a claim.
func isClaim(ref ledger.ObjectRef) bool { return ref.GroupKind == claimKind }

// AddFacts adds the facts that come from the claim: whether the node has started, and
// whether it is being terminated.
func (nc *Treatment) AddFacts(now time.Time, state *engine.Node, facts *triage.Node) {
	c, _ := nc.claimOf(state.Object)
	nc.addStartFacts(state, c, facts)
	if c != nil {
		if how, is := c.Disrupted(); is && (c.mark == nil || c.mark.NodeUID != state.Object.UID) {
			nc.addDisruptionVeto(facts, "NodeClaim "+c.Name+" "+how)
		}
	}
	nc.addMarkFacts(now, state, facts)
}

// addDisruptionVeto adds that another client disrupts the claim. Without respect for that, only
// terminations do not start: they would delete the claim a second time.
func (nc *Treatment) addDisruptionVeto(facts *triage.Node, message string) {
	veto := triage.Veto{Action: triage.Terminate, Reason: message}
	if respect := nc.host.Respect(); respect == nil || respect.DeletingMachines {
		veto.Action, veto.Respected = 0, respect != nil
	}
	if veto.Respected {
		veto.Reason = dialect.HeldByRespect("deletingMachines", message, "the NodeClaim is gone or no longer disrupted")
	}
	facts.Vetoes = append(facts.Vetoes, veto)
}

// addStartFacts adds whether the node is ready for work. The claim names the startup
// taints that must go first. "Ready once" is permanent, so while a node of a pool has no
// known claim it counts as starting. This holds even if the pool is unknown, because the
// watch of nodes may be ahead of both. If NodeClaims are not served, the pool label means
// nothing.
func (nc *Treatment) addStartFacts(state *engine.Node, c *nodeClaim, facts *triage.Node) {
	var of *karpenter.NodeClaim
	if c != nil {
		of = c.NodeClaim
		facts.Initialized = facts.Initialized || c.Is(karpenter.Initialized)
	}
	taints := karpenter.StartupTaints(state.Object, of)
	facts.Starting = len(taints) > 0 || c == nil && nc.awaitsClaim(state.Object)
	if len(taints) > 0 {
		facts.Conditions = append(facts.Conditions, triage.Condition{
			Type: triage.StartupTaints, Status: triage.True, Reason: taints[0].Key, Transition: facts.Created,
		})
	}
}

// awaitsClaim reports whether a node without a known claim should have a claim.
func (nc *Treatment) awaitsClaim(node *corev1.Node) bool {
	pool := node.Labels[karpenter.NodePoolLabel]
	return pool != "" && (nc.policy.HasPool(pool) || nc.inbox.HasSynced())
}

// addMarkFacts adds the running termination of a node.
func (nc *Treatment) addMarkFacts(now time.Time, state *engine.Node, facts *triage.Node) {
	add := func(mark ownership.Mark, isFinal bool) {
		rule := triage.RuleID(mark.Rule)
		if isFinal {
			rule = nc.policy.CountsUnder(state, rule)
		}
		facts.Treatments = append(facts.Treatments, triage.Treatment{Rule: rule, Since: mark.Since, Deletes: true})
	}
	for _, c := range nc.byID[state.Object.Spec.ProviderID] {
		if c.mark != nil && c.mark.NodeUID == state.Object.UID {
			add(*c.mark, c.IsEnding())
			return
		}
	}
	if claim := nc.outlivedBy(now, state); claim != nil {
		add(claim.mark, true)
	}
}
