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
	"github.com/resourcestack/autohealer/internal/record"
	"github.com/resourcestack/autohealer/internal/triage"
)

// claim is a NodeClaim: the machine behind a node, which its provider replaces when
// the claim is deleted.
type claim struct {
	*karpenter.NodeClaim
	mark    *record.Mark // nil if it is not ours, or cannot be read
	unknown int          // what of the mark this version does not know
	ended   bool         // somebody here has deleted it, whatever the watch says
	share   share        // what it adds to the counts of its pool
}

// isEnding says whether the machine is on its way out.
func (c *claim) isEnding() bool { return c.ended || c.DeletionTimestamp != nil }

// isMarkedBy says whether a rule has marked the claim, for this very node.
func (c *claim) isMarkedBy(rule triage.RuleID, node *corev1.Node) bool {
	return c.mark != nil && triage.RuleID(c.mark.Rule) == rule && c.mark.NodeUID == node.UID
}

func (c *claim) pool() string { return c.Labels[karpenter.NodePoolLabel] }

// machines are the NodeClaims, and which node each is behind.
type machines struct {
	mail  *inquiry[*karpenter.NodeClaim]
	known map[string]*claim   // by name
	byID  map[string][]*claim // by provider ID: one, or two where something is wrong
	nodes map[string][]string // names, likewise
	// stirred are nodes of which something else is to be said since another has come
	// or gone.
	stirred map[string]bool
}

func newMachines(mail *inquiry[*karpenter.NodeClaim]) machines {
	return machines{
		mail: mail, known: map[string]*claim{}, byID: map[string][]*claim{}, nodes: map[string][]string{}, stirred: map[string]bool{},
	}
}

// claimOf returns the claim of a node, nil if it has none, or if nobody can tell which
// it is; then the words say why. A machine that two nodes call theirs is one whose node
// has got another name: what is left of the old one must not take the new one away.
func (m *machines) claimOf(node *corev1.Node) (found *claim, words string) {
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
		return nil, shareID("NodeClaims", names, id)
	case len(nodes) > 1:
		return nil, shareID("nodes", nodes, id)
	default:
		return claims[0], ""
	}
}

func shareID(what string, names []string, id string) string {
	return fmt.Sprintf("%s %s have one provider ID, %s", what, strings.Join(slices.Sorted(slices.Values(names)), " and "), id)
}

// nodesOf returns the names of the nodes that a claim is behind: of one, as a rule.
func (m *machines) nodesOf(c *claim) []string {
	if c.Status.ProviderID == "" {
		return nil
	}
	return m.nodes[c.Status.ProviderID]
}

// tie notes which provider ID a node has.
func (m *machines) tie(before, node *corev1.Node) {
	if before != nil && before.Spec.ProviderID != node.Spec.ProviderID {
		m.untie(before)
	}
	if id := node.Spec.ProviderID; id != "" && !slices.Contains(m.nodes[id], node.Name) {
		m.stir(id)
		m.nodes[id] = append(m.nodes[id], node.Name)
	}
}

func (m *machines) untie(node *corev1.Node) {
	id := node.Spec.ProviderID
	m.nodes[id] = slices.DeleteFunc(m.nodes[id], func(name string) bool { return name == node.Name })
	if len(m.nodes[id]) == 0 {
		delete(m.nodes, id)
	}
	m.stir(id)
}

func (m *machines) stir(id string) {
	for _, name := range m.nodes[id] {
		m.stirred[name] = true
	}
}

// attendStirred looks at the nodes of which something else is to be said now.
func (l *loop) attendStirred(now time.Time) {
	if len(l.machines.stirred) > 0 {
		names := slices.Sorted(maps.Keys(l.machines.stirred))
		clear(l.machines.stirred)
		l.attend(now, names...)
	}
}

// takeClaims takes in the claims that have changed.
func (l *loop) takeClaims(now time.Time) {
	letter := l.machines.mail.take()
	if letter.whole != "" {
		for name, c := range l.machines.known {
			if _, there := letter.latest[name]; !there && (letter.whole == noSuchKind || !olderVersion(letter.whole, c.ResourceVersion)) {
				l.loseClaim(now, c)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(letter.latest)) {
		a := letter.latest[name]
		known := l.machines.known[name]
		switch {
		case !a.gone:
			l.findClaim(now, a.object)
		case known != nil && known.UID == a.object.UID:
			l.loseClaim(now, known)
		}
	}
	l.attendStirred(now)
}

// findClaim takes over a claim as it is now, unless it is known better.
func (l *loop) findClaim(now time.Time, object *karpenter.NodeClaim) {
	c := l.machines.known[object.Name]
	switch {
	case c == nil:
		c = &claim{}
	case c.UID != object.UID:
		l.loseClaim(now, c)
		c = &claim{}
	case olderVersion(object.ResourceVersion, c.ResourceVersion):
		return
	default:
		if c.pool() != object.Labels[karpenter.NodePoolLabel] {
			l.unweigh(c)
		}
		l.takeOut(c) // its provider ID may be another
	}
	was := c.mark
	c.NodeClaim, c.mark = object, l.readMark(c, object)
	l.putIn(c)
	l.noteMark(c, was)
	l.countTry(now, c, was)
	l.weigh(c)
}

// readMark returns the mark of a claim. One that cannot be read is told of once.
func (l *loop) readMark(before *claim, object *karpenter.NodeClaim) *record.Mark {
	mark, err := record.ReadMark(object.Annotations)
	if err != nil && (before.NodeClaim == nil || before.Annotations[record.MarkAnnotation] != object.Annotations[record.MarkAnnotation]) {
		l.cfg.Logger.Error("mark unreadable", "nodeClaim", object.Name, "err", err)
	}
	unknown := 0
	switch {
	case err != nil:
		unknown = 1
	case mark != nil:
		unknown = mark.Unknown.Len()
	}
	l.cfg.Metrics.keptMore("mark", unknown-before.unknown)
	before.unknown = unknown
	return mark
}

// noteMark gives back the place of a node whose claim was spared.
func (l *loop) noteMark(c *claim, was *record.Mark) {
	if was == nil || c.mark != nil {
		return
	}
	if b := l.beds[was.Node]; b != nil && b.granted.Object == claimKey(c.Name) {
		b.giveBack()
	}
}

// putIn files a claim under its name and its provider ID, and takeOut takes it out.
func (l *loop) putIn(c *claim) {
	m := &l.machines
	m.known[c.Name] = c
	if id := c.Status.ProviderID; id != "" {
		m.byID[id] = append(m.byID[id], c)
		m.stir(id)
	}
}

func (l *loop) takeOut(c *claim) {
	m := &l.machines
	delete(m.known, c.Name)
	if id := c.Status.ProviderID; id != "" {
		m.byID[id] = slices.DeleteFunc(m.byID[id], func(other *claim) bool { return other == c })
		if len(m.byID[id]) == 0 {
			delete(m.byID, id)
		}
		m.stir(id)
	}
}

// loseClaim notes that a claim is gone. If it had a mark, its node goes too, and until it
// does it is in treatment still: of the two watches, one may be ahead. What has been sent
// may have marked and deleted it before anybody saw that.
func (l *loop) loseClaim(now time.Time, c *claim) {
	if c.mark != nil {
		l.outlive(now, *c.mark)
	}
	for _, node := range l.machines.nodesOf(c) {
		if b := l.beds[node]; b != nil && b.granted.Object == claimKey(c.Name) && !b.sent.IsZero() {
			l.outlive(now, markOf(b.granted))
		}
	}
	l.cfg.Metrics.keptMore("mark", -c.unknown)
	l.unweigh(c)
	l.takeOut(c)
}

// markOf returns the mark that a claim gets which the ledger names.
func markOf(e ledger.Entry) record.Mark {
	return record.Mark{Rule: e.Rule, Node: e.Node, NodeUID: types.UID(e.UID), Since: e.Since}
}

// outlive notes that the claim of a node is gone, and the node is not, yet.
func (l *loop) outlive(now time.Time, mark record.Mark) {
	if p := l.patients[mark.Node]; p != nil && p.node.UID == mark.NodeUID {
		p.outlives = &parting{mark: mark, until: now.Add(triage.ReplacementWait)}
		l.bedOf(mark.Node)
		l.machines.stirred[mark.Node] = true
	}
}

// parting is a node that is there although its claim was deleted and is gone. It goes, or
// nobody knows what it is, and then its place is not kept for ever.
type parting struct {
	mark  record.Mark
	until time.Time
}

// isParting says whether a node is to follow its claim.
func (p *patient) isParting(now time.Time) bool {
	return p.outlives != nil && p.outlives.mark.NodeUID == p.node.UID && now.Before(p.outlives.until)
}

// claimKey names a claim as the ledger does.
func claimKey(name string) string { return claimKind + " /" + name }

const claimKind = "NodeClaim.karpenter.sh"

// claimNamed returns the name of the claim that a key of the ledger names.
func claimNamed(key string) (name string, is bool) { return strings.CutPrefix(key, claimKind+" /") }

// addMachine adds to the facts about a node what its machine tells: who governs its
// repair, whether it has started, whether it is being terminated, and what speaks
// against that.
func (l *loop) addMachine(now time.Time, p *patient, facts *triage.Node) {
	l.govern(p)
	p.governed.label(facts)
	p.spokenFor = ""
	if p.node.DeletionTimestamp != nil {
		p.spokenFor = "the node is being deleted"
		l.vetoAll(facts, p.spokenFor)
	}
	c, words := l.machines.claimOf(p.node)
	l.addStart(p, c, facts)
	if p.governed == (governance{}) && len(l.machines.known) == 0 {
		return
	}
	veto := func(words string) {
		p.spokenFor = words
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
	if b := l.beds[p.node.Name]; b != nil {
		if by, until, held := nodelease.Held(b.lease, now); held && !nodelease.IsHealthCheck(by) {
			veto(fmt.Sprintf("%s holds the node's Lease until %s", by, until.UTC().Format(time.RFC3339)))
		}
	}
	switch {
	case words != "":
		veto(words)
	case c == nil && l.repairs.pools[poolName] != nil: // else no NodePool has made it, whatever its label says
		veto("no NodeClaim has its provider ID, so there is nothing to delete")
	case c == nil:
		if r := l.repairs.followed[p.governed.repair()]; r != nil && len(r.ladder) == 0 {
			veto("it has no NodeClaim that could be deleted, and the policy names no remediationTemplate")
		}
	default:
		l.addClaim(p, c, facts, veto)
	}
	l.addMark(now, p, facts)
}

// addStart adds whether a node is ready for work. What is to go before it is, its claim
// says: while a node of a pool has none that is known, nobody can tell. Who was called
// ready once stays so for good, so the claim is waited for even where the pool is not
// known: the watch of nodes may be ahead of both. Where no NodeClaims are kept, a label
// promises none.
func (l *loop) addStart(p *patient, c *claim, facts *triage.Node) {
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

// awaitsClaim says whether a node that no claim is known of is to have one.
func (l *loop) awaitsClaim(node *corev1.Node) bool {
	pool := node.Labels[karpenter.NodePoolLabel]
	return pool != "" && (l.repairs.pools[pool] != nil || l.machines.mail.hasSynced())
}

// addMark adds the termination of a node that is under way.
func (l *loop) addMark(now time.Time, p *patient, facts *triage.Node) {
	add := func(mark record.Mark, isFinal bool) {
		rule := triage.RuleID(mark.Rule)
		// What nobody can call back any more counts under the rule that governs the node
		// now, if the one that began it is gone: the bound of the pool is the same.
		if isFinal && l.repairs.followed[rule] == nil && p.governed.repairedBy != "" {
			rule = p.governed.repair()
		}
		facts.Treatments = append(facts.Treatments, triage.Treatment{Rule: rule, Since: mark.Since, Deletes: true})
	}
	for _, c := range l.machines.byID[p.node.Spec.ProviderID] {
		if c.mark != nil && c.mark.NodeUID == p.node.UID {
			add(*c.mark, c.isEnding())
			return
		}
	}
	if p.isParting(now) {
		add(p.outlives.mark, true)
	}
}

// notesStart says whether it is to be noted on a node that it was ready for work once:
// where somebody asks for that, and Karpenter has not said so.
func (l *loop) notesStart(p *patient) bool {
	if p.governed.timedBy == "" || p.node.Labels[karpenter.InitializedLabel] == "true" {
		return false
	}
	c, _ := l.machines.claimOf(p.node)
	return c != nil && !c.isEnding() && !c.Is(karpenter.Initialized)
}

// vetoAll has nobody treat a node, whatever the kind of rule.
func (*loop) vetoAll(facts *triage.Node, words string) {
	facts.Vetoes = append(facts.Vetoes, triage.Veto{Reason: words})
}

// addClaim adds what a claim tells.
func (l *loop) addClaim(p *patient, c *claim, facts *triage.Node, veto func(words string)) {
	if by, is := karpenter.DoNotRepair(c.Annotations); is {
		veto("NodeClaim " + c.Name + " is annotated " + by)
	}
	if _, is := c.Annotations[record.MarkAnnotation]; is && c.mark == nil { // it may be a newer version's
		veto("NodeClaim " + c.Name + " has annotation " + record.MarkAnnotation + ", which this version cannot read; remove it to have the node repaired")
	}
	how, is := c.Disrupted()
	switch {
	case !is:
	case c.mark == nil || c.mark.NodeUID != p.node.UID:
		l.vetoAll(facts, "NodeClaim "+c.Name+" "+how)
	case !c.isEnding(): // somebody else has begun, too
		p.spokenFor = "NodeClaim " + c.Name + " " + how
	}
}
