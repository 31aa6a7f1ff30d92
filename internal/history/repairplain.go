package history

import (
	"fmt"
	"time"
)

// judgeRepairObject judges an object that we made for a node without a machine, because
// a RepairPolicy asks for it. It comes before the object is counted.
func (r *replay) judgeRepairObject(o *remedy) {
	p := r.fleet.policies[o.policy]
	wrong := r.aboutObject(o, "made")
	n := r.patientOf(o)
	if n == nil {
		wrong(Unlawful, "for a node that is not there")
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
		wrong(Unlawful, "and the policy names no template")
		return
	}
	as := &healthCheck{name: o.policy, object: p.object}
	r.judgeForm(o, n, as, p.template)
	r.judgeLock(o, as, policyHolder(o.policy))
	r.judgeOnlyOne(n, wrong)
	taken := 1
	for _, other := range r.ward.remedies {
		taken += one(other.policy == o.policy)
	}
	largest := 0
	for _, b := range asked {
		for _, nodes := range r.head(rule).recent(r.horizon()) {
			largest = max(largest, b.bound(nodes))
		}
	}
	if taken > largest {
		wrong(CapExceeded, "and %d nodes are in repair: at most %d may be", taken, largest)
	}
}

// policyHolder is what a policy is called on the Lease of a node, where health checks
// have their names.
func policyHolder(policy string) string { return "RepairPolicy/" + policy }

// judgeRepairObjectEnd says whether there was a reason to delete such an object.
func (r *replay) judgeRepairObjectEnd(o *remedy) {
	n := r.nodes[o.node]
	if n == nil || !o.isOf(n) {
		return
	}
	g, is := r.rule(n, repairKind+"RepairPolicy/"+o.policy)
	if !is || r.vetoOn(n, g) != "" {
		return
	}
	if settled(n.ailsSince(g.block), r.horizon()) {
		r.aboutObject(o, "deleted")(Unlawful, "but the node is sick")
	}
}

func (r *replay) aboutObject(o *remedy, did string) func(Kind, string, ...any) {
	return func(kind Kind, format string, args ...any) {
		r.tellOf(kind, o.node, "", fmt.Sprintf("we %s %s, %s", did, o, fmt.Sprintf(format, args...)))
		r.report.Violations[len(r.report.Violations)-1].Policy = o.policy
	}
}

// ailsSince is since when a sign of sickness stands on a node, zero if none does.
func (n *node) ailsSince(b *block) (since time.Time) {
	for name, c := range n.conditions {
		if _, isSick := b.tolerates(name, string(c.status), c.reason); !isSick || b.bad(name).of(c, true) != holds {
			continue
		}
		if began := n.signs[name][b.bad(name)].since; since.IsZero() || began.Before(since) {
			since = began
		}
	}
	return since
}
