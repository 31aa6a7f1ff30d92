package repair

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// assignedPolicies names the rules that may terminate a node, by kind; empty for
// none.
type assignedPolicies struct{ repairedBy, timedBy string }

func (g assignedPolicies) repair() triage.RuleID {
	return triage.RuleID{Kind: policykind.Repair, Name: g.repairedBy}
}

// addTo tells the core which rules are assigned to a node. Termination rules select assigned nodes
// only, so a node has one policy, and a policy counts no node of another.
func (g assignedPolicies) addTo(facts *triage.Node) {
	if g.repairedBy != "" {
		facts.Assigned = append(facts.Assigned, g.repair())
	}
	if g.timedBy != "" {
		facts.Assigned = append(facts.Assigned, timeoutRule(g.timedBy))
	}
}

// assignPolicies determines the policies of a node, and the policies that another policy
// shadows.
func (r *Policy) assignPolicies(state *engine.Node) {
	is, shadowed := r.assignedTo(state.Object)
	// While a node was never ready for work, the ready timeout alone applies, if there is
	// one. Otherwise repair rules would empty a pool whose replacement is paused.
	if is.timedBy != "" && !r.hasStarted(state) {
		is.repairedBy = ""
	}
	known := r.nodeOf(state)
	if known.assigned == is && slices.Equal(known.shadowed, shadowed) {
		return
	}
	for _, name := range known.shadowed {
		r.noteShadowed(name, state.Object.Name, false)
	}
	for _, name := range shadowed {
		r.noteShadowed(name, state.Object.Name, true)
	}
	known.assigned, known.shadowed = is, shadowed
}

// hasStarted reports whether a node is or ever was ready for work. The machine names the
// startup taints that must go first, so without a known machine the answer is no.
func (r *Policy) hasStarted(state *engine.Node) bool {
	known := r.nodeOf(state)
	if known.started {
		return true
	}
	note, _ := ownership.Read(state.Object.Annotations) // an unreadable record counts as empty
	m, _ := r.machines.MachineOf(state.Object)
	known.started = note.Initialized || r.machines.IsInitialized(state.Object) || m != nil && m.HasStarted(state.Object)
	if known.started { // two machines may share the provider ID, and the other one may have changed
		r.recountNode(state.Object)
	}
	return known.started
}

// assignedTo returns the rules that may terminate a node. The repair block of its
// NodePool comes first, then the policy that names the pool, then a policy that selects
// the node. Of two selecting policies the older wins. A disabled policy still wins: no
// other policy takes its place. Defaults do not replace an invalid policy, because it may
// have been written to disable them.
func (r *Policy) assignedTo(node *corev1.Node) (is assignedPolicies, shadowed []string) {
	name := node.Labels[karpenter.NodePoolLabel]
	pool := r.pools[name]
	var winner *repairPolicy
	byPool := pool != nil && pool.Block != nil
	for _, pol := range r.byPrecedence {
		switch {
		case !pol.selects(node):
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
			name = "" // the label is wrong: no such NodePool exists
		}
		is.repairedBy = winner.ruleFor(name)
	}
	if pool != nil {
		if timing, _ := r.readyTimeoutSpec(name); timing != nil || !r.neverValid(node, pool) {
			is.timedBy = name
		}
	}
	switch by := r.followed[is.repair()]; {
	case by == nil:
		is.repairedBy = ""
	case !isEnabled(by.spec):
		is.timedBy = "" // one switch disables both
	}
	if r.followed[timeoutRule(is.timedBy)] == nil {
		is.timedBy = ""
	}
	return is, shadowed
}

// neverValid reports whether a block or policy applies to the node that never had a valid
// version.
func (r *Policy) neverValid(node *corev1.Node, pool *repairblock.Pool) bool {
	return pool.NeverValid() || slices.ContainsFunc(r.invalidPolicies, func(pol *repairPolicy) bool { return pol.selects(node) })
}

// noteShadowed records whether another policy wins for a node that this policy selects.
func (r *Policy) noteShadowed(policy, node string, is bool) {
	pol := r.policies[policy]
	switch {
	case pol == nil:
	case is:
		pol.shadowed[node] = true
		pol.status.Stale = true
	default:
		delete(pol.shadowed, node)
		pol.status.Stale = true
	}
}

// sortPolicies sorts the followed policies by precedence, and collects the invalid ones.
func (r *Policy) sortPolicies() {
	r.byPrecedence, r.invalidPolicies = nil, nil
	for _, pol := range r.policies {
		if pol.inForce == nil {
			r.invalidPolicies = append(r.invalidPolicies, pol)
			continue
		}
		r.byPrecedence = append(r.byPrecedence, pol)
	}
	slices.SortFunc(r.byPrecedence, func(a, b *repairPolicy) int {
		if validate.RepairsBefore(a.inForce, b.inForce) {
			return -1
		}
		return 1
	})
}

// assignAllPolicies assigns all nodes again after a change of policies, and reobserves
// the nodes that are affected.
func (r *Policy) assignAllPolicies(now time.Time, isAffected func(*engine.Node) bool) {
	var affected []string
	for name, state := range r.host.Nodes() {
		before := r.nodeOf(state).assigned
		if r.assignPolicies(state); r.nodeOf(state).assigned != before || isAffected(state) {
			affected = append(affected, name)
		}
	}
	slices.Sort(affected)
	r.host.Reobserve(now, affected...)
}

// poolRule returns the rule name of a NodePool's repair block.
func poolRule(pool string) string { return "NodePool/" + pool }

func policyRule(policy string) string { return "RepairPolicy/" + policy }

// poolRuleID and policyRuleID are the rules whose counters go with a NodePool or a policy.
func poolRuleID(pool string) triage.RuleID {
	return triage.RuleID{Kind: policykind.Repair, Name: poolRule(pool)}
}

func policyRuleID(policy string) triage.RuleID {
	return triage.RuleID{Kind: policykind.Repair, Name: policyRule(policy)}
}

func timeoutRule(pool string) triage.RuleID {
	return triage.RuleID{Kind: policykind.ReadyTimeout, Name: pool}
}
