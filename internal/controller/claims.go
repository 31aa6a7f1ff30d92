package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// nodeClaim is a NodeClaim: the instance behind a node, which Karpenter replaces when the
// claim is deleted.
type nodeClaim struct {
	*karpenter.NodeClaim
	mark    *ownership.Mark // nil if there is none of ours, or it cannot be read
	unknown int             // fields of the mark that this version does not know
	ended   bool            // this controller has deleted it; the watch may be behind
	counts  claimCounts     // what it adds to the counts of its pool
}

// isEnding reports whether the claim is being deleted.
func (c *nodeClaim) isEnding() bool { return c.ended || c.DeletionTimestamp != nil }

// isMarkedBy reports whether the rule has marked the claim for this node.
func (c *nodeClaim) isMarkedBy(rule triage.RuleID, node *corev1.Node) bool {
	return c.mark != nil && triage.RuleID(c.mark.Rule) == rule && c.mark.NodeUID == node.UID
}

func (c *nodeClaim) pool() string { return c.Labels[karpenter.NodePoolLabel] }

// nodeClaims holds the NodeClaims and links them to nodes.
type nodeClaims struct {
	mail   *optionalInbox[*karpenter.NodeClaim]
	byName map[string]*nodeClaim
	byID   map[string][]*nodeClaim // by provider ID: one, or two if something is wrong
	nodes  map[string][]string     // node names, by provider ID
	// dirty holds nodes whose facts have changed because a claim or another node has.
	dirty map[string]bool
}

func newNodeClaims(mail *optionalInbox[*karpenter.NodeClaim]) nodeClaims {
	return nodeClaims{
		mail: mail, byName: map[string]*nodeClaim{}, byID: map[string][]*nodeClaim{}, nodes: map[string][]string{}, dirty: map[string]bool{},
	}
}

// claimOf returns the claim of a node, nil if it has none or the claim is ambiguous;
// words says why. Two nodes with one provider ID mean that the node was renamed: the old
// Node object must not cause the deletion of the new one's claim.
func (m *nodeClaims) claimOf(node *corev1.Node) (found *nodeClaim, words string) {
	id := node.Spec.ProviderID
	claims, nodes := m.byID[id], m.nodes[id]
	switch {
	case id == "" || len(claims) == 0:
		return nil, ""
	case len(claims) > 1:
		names := make([]string, len(claims))
		for i, c := range claims {
			names[i] = c.Name
		}
		return nil, countsKey("NodeClaims", names, id)
	case len(nodes) > 1:
		return nil, countsKey("nodes", nodes, id)
	default:
		return claims[0], ""
	}
}

func countsKey(what string, names []string, id string) string {
	return fmt.Sprintf("%s %s have one provider ID, %s", what, strings.Join(slices.Sorted(slices.Values(names)), " and "), id)
}

// nodesOf returns the names of the claim's nodes, usually one.
func (m *nodeClaims) nodesOf(c *nodeClaim) []string {
	if c.Status.ProviderID == "" {
		return nil
	}
	return m.nodes[c.Status.ProviderID]
}

// link records the provider ID of a node.
func (m *nodeClaims) link(before, node *corev1.Node) {
	if before != nil && before.Spec.ProviderID != node.Spec.ProviderID {
		m.unlink(before)
	}
	if id := node.Spec.ProviderID; id != "" && !slices.Contains(m.nodes[id], node.Name) {
		m.markDirty(id)
		m.nodes[id] = append(m.nodes[id], node.Name)
	}
}

func (m *nodeClaims) unlink(node *corev1.Node) {
	id := node.Spec.ProviderID
	m.nodes[id] = slices.DeleteFunc(m.nodes[id], func(name string) bool { return name == node.Name })
	if len(m.nodes[id]) == 0 {
		delete(m.nodes, id)
	}
	m.markDirty(id)
}

func (m *nodeClaims) markDirty(id string) {
	for _, name := range m.nodes[id] {
		m.dirty[name] = true
	}
}

// reobserveDirty reobserves the nodes in dirty.
func (l *loop) reobserveDirty(now time.Time) {
	if len(l.nodeClaims.dirty) > 0 {
		names := slices.Sorted(maps.Keys(l.nodeClaims.dirty))
		clear(l.nodeClaims.dirty)
		l.reobserve(now, names...)
	}
}

// takeClaims takes in changed claims.
func (l *loop) takeClaims(now time.Time) {
	letter := l.nodeClaims.mail.take()
	if letter.listVersion != "" {
		for name, c := range l.nodeClaims.byName {
			if _, there := letter.changes[name]; !there && (letter.listVersion == notServedVersion || !olderVersion(letter.listVersion, c.ResourceVersion)) {
				l.claimDeleted(now, c)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(letter.changes)) {
		a := letter.changes[name]
		known := l.nodeClaims.byName[name]
		switch {
		case !a.gone:
			l.upsertClaim(now, a.object)
		case known != nil && known.UID == a.object.UID:
			l.claimDeleted(now, known)
		}
	}
	l.reobserveDirty(now)
}

// upsertClaim stores a claim unless a newer version is known.
func (l *loop) upsertClaim(now time.Time, object *karpenter.NodeClaim) {
	c := l.nodeClaims.byName[object.Name]
	switch {
	case c == nil:
		c = &nodeClaim{}
	case c.UID != object.UID:
		l.claimDeleted(now, c)
		c = &nodeClaim{}
	case olderVersion(object.ResourceVersion, c.ResourceVersion):
		return
	default:
		if c.pool() != object.Labels[karpenter.NodePoolLabel] {
			l.forgetPoolCounts(c)
		}
		l.removeFromCounts(c) // its provider ID may have changed
	}
	was := c.mark
	c.NodeClaim, c.mark = object, l.readMark(c, object)
	l.addToCounts(c)
	l.rememberMark(c, was)
	l.countLaunchFailure(now, c, was)
	l.recountDirty(c)
}

// readMark returns the mark of a claim. It logs an unreadable mark once.
func (l *loop) readMark(before *nodeClaim, object *karpenter.NodeClaim) *ownership.Mark {
	mark, err := ownership.ReadMark(object.Annotations)
	if err != nil && (before.NodeClaim == nil || before.Annotations[ownership.MarkAnnotation] != object.Annotations[ownership.MarkAnnotation]) {
		l.cfg.Logger.Error("mark unreadable", "nodeClaim", object.Name, "err", err)
	}
	unknown := 0
	switch {
	case err != nil:
		unknown = 1
	case mark != nil:
		unknown = mark.Unknown.Len()
	}
	l.cfg.Metrics.addUnknownEntries("mark", unknown-before.unknown)
	before.unknown = unknown
	return mark
}

// rememberMark frees the slot of a node whose termination was cancelled.
func (l *loop) rememberMark(c *nodeClaim, was *ownership.Mark) {
	if was == nil || c.mark != nil {
		return
	}
	if b := l.treatments[was.Node]; b != nil && b.granted.Object == claimKey(c.Name) {
		b.releaseSlot()
	}
}

// addToCounts indexes a claim by name and provider ID.
func (l *loop) addToCounts(c *nodeClaim) {
	m := &l.nodeClaims
	m.byName[c.Name] = c
	if id := c.Status.ProviderID; id != "" {
		m.byID[id] = append(m.byID[id], c)
		m.markDirty(id)
	}
}

func (l *loop) removeFromCounts(c *nodeClaim) {
	m := &l.nodeClaims
	delete(m.byName, c.Name)
	if id := c.Status.ProviderID; id != "" {
		m.byID[id] = slices.DeleteFunc(m.byID[id], func(other *nodeClaim) bool { return other == c })
		if len(m.byID[id]) == 0 {
			delete(m.byID, id)
		}
		m.markDirty(id)
	}
}

// claimDeleted handles the deletion of a claim. If the claim had a mark, its node goes
// too and stays in treatment until then, because the watch of claims may be ahead. A
// write in flight may have marked and deleted the claim before the watch reported the
// mark.
func (l *loop) claimDeleted(now time.Time, c *nodeClaim) {
	if c.mark != nil {
		l.noteOutlived(now, *c.mark)
	}
	for _, node := range l.nodeClaims.nodesOf(c) {
		if b := l.treatments[node]; b != nil && b.granted.Object == claimKey(c.Name) && !b.sent.IsZero() {
			l.noteOutlived(now, markOf(b.granted))
		}
	}
	l.cfg.Metrics.addUnknownEntries("mark", -c.unknown)
	l.forgetPoolCounts(c)
	l.removeFromCounts(c)
}

// markOf returns the mark for the claim that a ledger entry names.
func markOf(e ledger.Entry) ownership.Mark {
	return ownership.Mark{Rule: e.Rule, Node: e.Node, NodeUID: types.UID(e.UID), Since: e.Since}
}

// noteOutlived records that the claim of a node is gone and the node is not yet.
func (l *loop) noteOutlived(now time.Time, mark ownership.Mark) {
	if p := l.nodeStates[mark.Node]; p != nil && p.node.UID == mark.NodeUID {
		p.outlivedClaim = &outlivedClaim{mark: mark, until: now.Add(triage.ReplacementWait)}
		l.treatmentsOf(mark.Node)
		l.nodeClaims.dirty[mark.Node] = true
	}
}

// outlivedClaim is the deleted claim of a node that still exists. The node should go
// soon. After until its slot is free, because the reason for its existence is unknown.
type outlivedClaim struct {
	mark  ownership.Mark
	until time.Time
}

// isOutlivingClaim reports whether the node should soon follow its deleted claim.
func (p *nodeState) isOutlivingClaim(now time.Time) bool {
	return p.outlivedClaim != nil && p.outlivedClaim.mark.NodeUID == p.node.UID && now.Before(p.outlivedClaim.until)
}

// claimKey returns the ledger's key for a claim.
func claimKey(name string) string { return claimKind + " /" + name }

const claimKind = "NodeClaim.karpenter.sh"

// claimNamed returns the claim name from a ledger key.
func claimNamed(key string) (name string, is bool) { return strings.CutPrefix(key, claimKind+" /") }

// addClaimFacts adds the facts that come from the claim: the assigned policies, whether
// the node has started, whether it is being terminated, and vetoes against termination.
func (l *loop) addClaimFacts(now time.Time, p *nodeState, facts *triage.Node) {
	l.assignPolicies(p)
	p.assigned.label(facts)
	p.rulesSeen = ""
	if p.node.DeletionTimestamp != nil {
		p.rulesSeen = "the node is being deleted"
		l.vetoTreatments(facts, p.rulesSeen)
	}
	c, words := l.nodeClaims.claimOf(p.node)
	l.addStartFacts(p, c, facts)
	if p.assigned == (assignedPolicies{}) && len(l.nodeClaims.byName) == 0 {
		return
	}
	veto := func(words string) {
		p.rulesSeen = words
		for _, kind := range [...]triage.Kind{triage.Repair, triage.ReadyTimeout} {
			facts.Vetoes = append(facts.Vetoes, triage.Veto{Kind: kind, Reason: words})
		}
	}
	if by, is := karpenter.DoNotRepair(p.node.Annotations); is {
		veto("the node is annotated " + by)
	}
	poolName := p.node.Labels[karpenter.NodePoolLabel]
	if of := l.repairs.pools[poolName]; of != nil {
		if by, is := karpenter.DoNotRepair(of.Annotations); is {
			veto("NodePool " + poolName + " is annotated " + by)
		}
	}
	if b := l.treatments[p.node.Name]; b != nil {
		if by, until, held := nodelease.Held(b.lease, now); held && !nodelease.IsHealthCheck(by) {
			veto(fmt.Sprintf("%s holds the node's Lease until %s", by, until.UTC().Format(time.RFC3339)))
		}
	}
	switch {
	case words != "":
		veto(words)
	case c == nil && l.repairs.pools[poolName] != nil: // otherwise no NodePool made it, whatever the label says
		veto("no NodeClaim has its provider ID, so there is nothing to delete")
	case c == nil:
		if r := l.repairs.followed[p.assigned.repair()]; r != nil && len(r.ladder) == 0 {
			veto("it has no NodeClaim that could be deleted, and the policy names no remediationTemplate")
		}
	default:
		l.addOwnClaimFacts(p, c, facts, veto)
	}
	l.addMarkFacts(now, p, facts)
}

// addStartFacts adds whether the node is ready for work. The claim names the startup
// taints that must go first. "Ready once" is permanent, so while a node of a pool has no
// known claim it counts as starting. This holds even if the pool is unknown, because the
// watch of nodes may be ahead of both. If NodeClaims are not served, the pool label means
// nothing.
func (l *loop) addStartFacts(p *nodeState, c *nodeClaim, facts *triage.Node) {
	var of *karpenter.NodeClaim
	if c != nil {
		of = c.NodeClaim
		facts.Initialized = facts.Initialized || c.Is(karpenter.Initialized)
	}
	taints := karpenter.StartupTaints(p.node, of)
	facts.Starting = len(taints) > 0 || c == nil && l.awaitsClaim(p.node)
	if len(taints) > 0 {
		facts.Conditions = append(facts.Conditions, triage.Condition{
			Type: triage.StartupTaints, Status: triage.True, Reason: taints[0].Key, Transition: facts.Created,
		})
	}
}

// awaitsClaim reports whether a node without a known claim should have one.
func (l *loop) awaitsClaim(node *corev1.Node) bool {
	pool := node.Labels[karpenter.NodePoolLabel]
	return pool != "" && (l.repairs.pools[pool] != nil || l.nodeClaims.mail.hasSynced())
}

// addMarkFacts adds the running termination of a node.
func (l *loop) addMarkFacts(now time.Time, p *nodeState, facts *triage.Node) {
	add := func(mark ownership.Mark, isFinal bool) {
		rule := triage.RuleID(mark.Rule)
		// A termination that cannot be cancelled counts under the node's current rule if
		// its own rule is gone. The bound of the pool is the same.
		if isFinal && l.repairs.followed[rule] == nil && p.assigned.repairedBy != "" {
			rule = p.assigned.repair()
		}
		facts.Treatments = append(facts.Treatments, triage.Treatment{Rule: rule, Since: mark.Since, Deletes: true})
	}
	for _, c := range l.nodeClaims.byID[p.node.Spec.ProviderID] {
		if c.mark != nil && c.mark.NodeUID == p.node.UID {
			add(*c.mark, c.isEnding())
			return
		}
	}
	if p.isOutlivingClaim(now) {
		add(p.outlivedClaim.mark, true)
	}
}

// recordsStart reports whether to record on the node that it was ready for work: a ready
// timeout applies and Karpenter has not recorded it.
func (l *loop) recordsStart(p *nodeState) bool {
	if p.assigned.timedBy == "" || p.node.Labels[karpenter.InitializedLabel] == "true" {
		return false
	}
	c, _ := l.nodeClaims.claimOf(p.node)
	return c != nil && !c.isEnding() && !c.Is(karpenter.Initialized)
}

// vetoTreatments blocks all treatments of a node.
func (*loop) vetoTreatments(facts *triage.Node, words string) {
	facts.Vetoes = append(facts.Vetoes, triage.Veto{Reason: words})
}

// addOwnClaimFacts adds the facts of the node's claim.
func (l *loop) addOwnClaimFacts(p *nodeState, c *nodeClaim, facts *triage.Node, veto func(words string)) {
	if by, is := karpenter.DoNotRepair(c.Annotations); is {
		veto("NodeClaim " + c.Name + " is annotated " + by)
	}
	if _, is := c.Annotations[ownership.MarkAnnotation]; is && c.mark == nil { // a newer version may have written it
		veto("NodeClaim " + c.Name + " has annotation " + ownership.MarkAnnotation + ", which this version cannot read; remove it to have the node repaired")
	}
	how, is := c.Disrupted()
	switch {
	case !is:
	case c.mark == nil || c.mark.NodeUID != p.node.UID:
		l.vetoTreatments(facts, "NodeClaim "+c.Name+" "+how)
	case !c.isEnding(): // another component has started to disrupt it as well
		p.rulesSeen = "NodeClaim " + c.Name + " " + how
	}
}
