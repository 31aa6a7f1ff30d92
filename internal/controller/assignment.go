package controller

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// assignedPolicies is which rules may terminate a node: the names of one of each kind, empty
// for none.
type assignedPolicies struct{ repairedBy, timedBy string }

func (g assignedPolicies) repair() triage.RuleID {
	return triage.RuleID{Kind: triage.Repair, Name: g.repairedBy}
}

// label tells the core who governs a node. Rules of terminations select by nothing else,
// so that a node has one policy, and a policy counts no node of another.
func (g assignedPolicies) label(facts *triage.Node) {
	if g == (assignedPolicies{}) {
		return
	}
	told := make(map[string]string, len(facts.Labels)+2)
	maps.Copy(told, facts.Labels)
	if g.repairedBy != "" {
		told[observe.RepairedBy] = g.repairedBy
	}
	if g.timedBy != "" {
		told[observe.TimedBy] = g.timedBy
	}
	facts.Labels = told
}

// assignPolicies finds out who governs a node, and which policies would if there was nobody
// else.
func (l *loop) assignPolicies(p *nodeState) {
	is, shadowed := l.repairs.assignedTo(p.node)
	// A node that was never ready for work is the business of the ready timeout alone,
	// where there is one: else a pool that is held would be emptied all the same.
	if is.timedBy != "" && !l.hasStarted(p) {
		is.repairedBy = ""
	}
	if p.assigned == is && slices.Equal(p.shadowed, shadowed) {
		return
	}
	for _, name := range p.shadowed {
		l.repairs.noteShadowed(name, p.node.Name, false)
	}
	for _, name := range shadowed {
		l.repairs.noteShadowed(name, p.node.Name, true)
	}
	p.assigned, p.shadowed = is, shadowed
}

// hasStarted says whether a node is, or ever was, ready for work. What is to go before it
// is, its claim says: without one that is known nobody can tell.
func (l *loop) hasStarted(p *nodeState) bool {
	if p.started {
		return true
	}
	note, _ := ownership.Read(p.node.Annotations) // unreadable: it says nothing
	c, _ := l.nodeClaims.claimOf(p.node)
	p.started = note.Initialized || p.node.Labels[karpenter.InitializedLabel] == "true" || c != nil && karpenter.IsInitialized(p.node, c.NodeClaim)
	if p.started { // of two claims with one provider ID, the other may be the one that has changed
		l.recountNode(p.node)
	}
	return p.started
}

// assignedTo says by which rules a node may be terminated: by what stands on its NodePool,
// then by the policy that names the pool, then by one that selects the node; of two of
// those by the older. A policy that is switched off governs all the same, and nobody else
// takes its place. Nor do defaults take the place of what somebody has written and nobody
// can follow: it may have been to switch them off.
func (r *repairs) assignedTo(node *corev1.Node) (is assignedPolicies, shadowed []string) {
	name := node.Labels[karpenter.NodePoolLabel]
	pool := r.pools[name]
	var winner *repairPolicy
	byPool := pool != nil && pool.Block != nil
	for _, pol := range r.inOrder {
		switch {
		case !pol.asksFor(node):
		case winner == nil && !byPool:
			winner = pol
		default:
			shadowed = append(shadowed, pol.object.Name)
		}
	}
	switch {
	case byPool || winner == nil && pool != nil && r.cfg.WithoutPolicy && !r.neverValid(node, pool):
		is.repairedBy = poolRule(name)
	case winner != nil:
		if pool == nil {
			name = "" // whatever the label says, no NodePool has made it
		}
		is.repairedBy = winner.ruleFor(name)
	}
	if pool != nil {
		if timing, _ := r.timingOf(name); timing != nil || !r.neverValid(node, pool) {
			is.timedBy = name
		}
	}
	switch by := r.followed[is.repair()]; {
	case by == nil:
		is.repairedBy = ""
	case !isEnabled(by.spec):
		is.timedBy = "" // the switch is one for both
	}
	if r.followed[timeoutRule(is.timedBy)] == nil {
		is.timedBy = ""
	}
	return is, shadowed
}

// neverValid says whether somebody has written something about a node of a pool of which
// no version can be followed.
func (r *repairs) neverValid(node *corev1.Node, pool *repairblock.Pool) bool {
	return pool.NeverValid() || slices.ContainsFunc(r.invalidPools, func(pol *repairPolicy) bool { return pol.asksFor(node) })
}

// noteShadowed notes whether another policy governs a node that this one asks for.
func (r *repairs) noteShadowed(policy, node string, is bool) {
	pol := r.policies[policy]
	switch {
	case pol == nil:
	case is:
		pol.shadowed[node] = true
		pol.stale = true
	default:
		delete(pol.shadowed, node)
		pol.stale = true
	}
}

// sortPolicies puts the policies that are followed in the order of precedence, and those
// aside that cannot be.
func (r *repairs) sortPolicies() {
	r.inOrder, r.invalidPools = nil, nil
	for _, pol := range r.policies {
		if pol.inForce == nil {
			r.invalidPools = append(r.invalidPools, pol)
			continue
		}
		r.inOrder = append(r.inOrder, pol)
	}
	slices.SortFunc(r.inOrder, func(a, b *repairPolicy) int {
		if validate.RepairsBefore(a.inForce, b.inForce) {
			return -1
		}
		return 1
	})
}

// assignAllPolicies has all nodes governed anew, after the policies have changed, and looks at
// those that it makes a difference to.
func (l *loop) assignAllPolicies(now time.Time, isStirred func(*nodeState) bool) {
	var concerned []string
	for _, name := range slices.Sorted(maps.Keys(l.nodeStates)) {
		p := l.nodeStates[name]
		before := p.assigned
		if l.assignPolicies(p); p.assigned != before || isStirred(p) {
			concerned = append(concerned, name)
		}
	}
	l.reobserve(now, concerned...)
}

// poolRule and timeoutRule name the rules of a NodePool, and policyRule that of a policy.
func poolRule(pool string) string { return "NodePool/" + pool }

func policyRule(policy string) string { return "RepairPolicy/" + policy }

func timeoutRule(pool string) triage.RuleID {
	return triage.RuleID{Kind: triage.ReadyTimeout, Name: pool}
}
