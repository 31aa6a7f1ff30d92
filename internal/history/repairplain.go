package history

import (
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/naive"
)

// judgeRepairObject judges an object that we created for a node without a NodeClaim because
// of a RepairPolicy. It runs before the object is counted.
func (r *replay) judgeRepairObject(o *remediationObject) {
	p := r.repairs.policies[o.policy]
	wrong := r.aboutObject(o, "made")
	n := r.nodeOf(o)
	if n == nil {
		wrong(Unjustified, "for a node that does not exist")
		return
	}
	rule := repairKind + "RepairPolicy/" + o.policy
	asked := r.judgeCause(n, rule, false, wrong)
	switch {
	case asked == nil:
		return
	case p == nil: // until a moment ago
		return
	case p.template.name == "":
		wrong(Unjustified, "and the policy names no template")
		return
	}
	as := &healthCheck{name: o.policy, object: p.object}
	r.judgeForm(o, n, as, p.template)
	r.judgeLock(o, as, policyHolder(o.policy))
	r.judgeOnlyOne(n, wrong)
	r.judgeThreshold(n, rule, asked, wrong)
	taken := 1
	for _, other := range r.health.objects {
		taken += one(other.policy == o.policy)
	}
	largest := 0
	for _, b := range asked {
		for _, nodes := range r.nodeCount(rule).recent(r.horizon()) {
			largest = max(largest, b.bound(nodes))
		}
	}
	if taken > largest {
		wrong(CapExceeded, "and %d nodes are in repair: at most %d may be", taken, largest)
	}
}

// policyHolder returns the name of a policy on the Lease of a node. It differs from the
// names of health checks.
func policyHolder(policy string) string { return "RepairPolicy/" + policy }

// judgeRepairObjectEnd judges whether there was a reason to delete an object of a
// RepairPolicy.
func (r *replay) judgeRepairObjectEnd(o *remediationObject) {
	n := r.nodes[o.node]
	if n == nil || !o.isOf(n) {
		return
	}
	g, is := r.rule(n, repairKind+"RepairPolicy/"+o.policy)
	if !is || r.vetoOn(n, g) != "" {
		return
	}
	if settled(n.unhealthySince(g.block), r.horizon()) {
		r.aboutObject(o, "deleted")(Unjustified, "but the node is unhealthy")
	}
}

func (r *replay) aboutObject(o *remediationObject, did string) func(Kind, string, ...any) {
	return func(kind Kind, format string, args ...any) {
		r.addCheckViolation(kind, o.node, "", fmt.Sprintf("we %s %s, %s", did, o, fmt.Sprintf(format, args...)))
		r.report.Violations[len(r.report.Violations)-1].Policy = o.policy
	}
}

// unhealthySince returns since when the node has an unhealthy condition, zero if it has
// none.
func (n *node) unhealthySince(b *block) (since time.Time) {
	for _, condition := range naive.Groups(b.when) {
		signals := naive.SignalsOf(b.when, condition)
		if v, _ := naive.Group(signals, n.row(condition)); v != holds {
			continue
		}
		if began := n.clocks[condition][statusesOf(signals)].since; since.IsZero() || began.Before(since) {
			since = began
		}
	}
	return since
}
