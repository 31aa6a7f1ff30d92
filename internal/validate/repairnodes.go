package validate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// otherPolicy is another policy or repair block that may select the same nodes.
type otherPolicy struct {
	name string // for messages
	who  triage.Selector
	// first says that the rival takes precedence.
	first bool
	// same says that the rival names the same NodePool, even if the pool has no nodes.
	same bool
}

// findOtherPolicies returns all policies and blocks that may select the same nodes, those with
// precedence first.
func (s *repairAnalysis) findOtherPolicies() (list []otherPolicy) {
	for _, pool := range s.Pools {
		if pool == nil || pool.Spec.Repair == nil || s.policy == nil { // of two pools, each has its own nodes
			continue
		}
		if who, err := observe.PoolNodes(pool.Name); err == nil {
			list = append(list, otherPolicy{"the repair block of NodePool " + truncate(pool.Name), who, true, s.policy.Spec.NodePool == pool.Name})
		}
	}
	for _, other := range s.Policies {
		if other == nil || other.DeletionTimestamp != nil || s.policy != nil && other.Name == s.policy.Name {
			continue
		}
		_, wrong := observe.Repair(other.Name, "", &other.Spec.Repair, s.Statements.All(), other.Spec.RemediationTemplate)
		who, err := observe.RepairNodes(other)
		if wrong != nil || err != nil {
			continue // the controller does not apply it
		}
		list = append(list, otherPolicy{"RepairPolicy " + truncate(other.Name), who, s.policy != nil && RepairsBefore(other, s.policy), s.hasPool && other.Spec.NodePool == s.pool()})
	}
	slices.SortStableFunc(list, func(a, b otherPolicy) int {
		switch {
		case a.first == b.first:
			return 0
		case a.first:
			return -1
		}
		return 1
	})
	return list
}

// pool returns the name of the NodePool whose nodes are selected; "" if labels select
// them.
func (s *repairAnalysis) pool() string {
	if s.policy != nil {
		return s.policy.Spec.NodePool
	}
	return s.name
}

// conflicts warns of nodes that several policies select; only one governs each node.
func conflicts(s *repairAnalysis) (_, warnings []Problem) {
	var stronger, weaker []string
	for i, r := range s.otherPolicies {
		var told string
		switch {
		case s.found != nil && s.found.Shared[i].Nodes > 0:
			told = fmt.Sprintf("%s (%d, the first is %s)", r.name, s.found.Shared[i].Nodes, truncate(s.found.Shared[i].First))
		case r.same:
			told = r.name
		default:
			continue
		}
		if r.first {
			stronger = append(stronger, told)
		} else {
			weaker = append(weaker, told)
		}
	}
	if len(stronger) > 0 {
		warnings = append(warnings, warning(s.poolField, "of these nodes some are governed by others, which go before this policy: %s; it reports Conflict, and has no say in them", listFirst(stronger)))
	}
	if len(weaker) > 0 {
		warnings = append(warnings, warning(s.poolField, "others ask for some of these nodes too: %s; this goes before them, and they report Conflict", listFirst(weaker)))
	}
	return nil, warnings
}

// listFirst lists the first of the given texts.
func listFirst(told []string) string {
	if more := len(told) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(told[:maxNames], ", "), more)
	}
	return joinAnd(told)
}

// poolExists warns of a NodePool that does not exist yet.
func poolExists(s *repairAnalysis) (_, warnings []Problem) {
	if s.policy == nil || !s.hasPool || s.Pools == nil || slices.ContainsFunc(s.Pools, func(p *karpenter.NodePool) bool { return p != nil && p.Name == s.pool() }) {
		return nil, nil
	}
	var names []string
	for _, pool := range s.Pools {
		if pool != nil {
			names = append(names, pool.Name)
		}
	}
	slices.Sort(names)
	there := "there are none now"
	switch {
	case len(names) == 1:
		there = "there is " + shortList(names)
	case len(names) > 1:
		there = "there are " + shortList(names)
	}
	return nil, []Problem{warning("spec.nodePool", "there is no NodePool %s; %s. Nothing is repaired until it is there", truncate(s.pool()), there)}
}

// nodesWithoutClaim warns of nodes without a NodeClaim, which cannot be replaced, and of a
// template that cannot be used.
func nodesWithoutClaim(s *repairAnalysis) (_, warnings []Problem) {
	if s.policy == nil || s.hasPool {
		return nil, nil
	}
	if s.template != nil {
		return nil, s.unusableTemplate()
	}
	plain, err := triage.NewSelector(append(s.rule.Selector.Requirements(), triage.Requirement{Key: karpenter.NodePoolLabel, Op: triage.Absent})...)
	if s.Survey == nil || err != nil {
		return nil, nil
	}
	rule := s.rule
	rule.Selector = plain
	found, err := s.Survey(rule)
	if err != nil || found.Selected == 0 {
		return nil, nil
	}
	verb := "belong"
	if found.Selected == 1 {
		verb = "belongs"
	}
	without := "the controller does not repair nodes without a NodePool unless the policy has a remediationTemplate, or deleteStandaloneNodeClaims for nodes with a NodeClaim"
	if s.policy.Spec.DeleteStandaloneNodeClaims {
		without = "the controller deletes their NodeClaims, and nothing replaces them; it does not repair nodes without a NodeClaim unless the policy has a remediationTemplate"
	}
	return nil, []Problem{warning("spec.remediationTemplate", "%d of %s %s to no NodePool: %s", found.Selected, nodes(s.found.Selected), verb, without)}
}

func (s *repairAnalysis) unusableTemplate() []Problem {
	template, err := remediation.TemplateOf(*s.template)
	if err != nil || s.fetch == nil { // another check rejects the template
		return nil
	}
	one := namedTemplate{field: "spec.remediationTemplate", Template: template}
	one.object, err = s.fetch(template)
	if why := one.unusable(err); why != "" {
		return []Problem{warning(one.field, "%s", why)}
	}
	return nil
}

// repairSelectorNodes warns of a selector that selects no node, or control-plane nodes and workers.
func repairSelectorNodes(s *repairAnalysis) (_, warnings []Problem) {
	switch {
	case s.found == nil || s.hasPool:
		return nil, nil
	case s.found.Selected == 0 && !s.rule.Selector.Everything():
		return nil, []Problem{warning("spec.selector", "no node has these labels now (%s)", truncate(s.rule.Selector.String()))}
	case 0 < s.found.ControlPlane && s.found.ControlPlane < s.found.Selected:
		return nil, []Problem{warning("spec.selector", "%d of %s are of the control plane, and one limit counts them and the workers together; want one policy for those with the label node-role.kubernetes.io/control-plane, and others for those without", s.found.ControlPlane, nodes(s.found.Selected))}
	}
	return nil, nil
}

// impactLine says in one line what a block will do, unless a problem already says it. Many
// unhealthy nodes are no reason to reject it: the engine enforces the bound.
func (s *repairAnalysis) impactLine(v Verdict) string {
	if s.governed == nil || s.governed.Matching == 0 || slices.ContainsFunc(v.Problems, func(p Problem) bool { return p.Reason == HealthyStatus }) {
		return ""
	}
	hits := surveyMatches(s.governed)
	if s.governed.Selected < s.found.Selected {
		hits = surveyMatchesOf(s.governed, "the "+nodes(s.governed.Selected)+" to which no other policy applies")
	}
	if switchesOff(s.spec) {
		return hits + ": nothing is repaired while enabled is false"
	}
	most := s.rule.Bound.Gate.Of(s.governed.Selected)
	switch {
	case s.rule.Bound.Cap.Of(s.governed.Selected) == 0 || most == 0:
		return "" // unusualRepairBound warns of it
	case len(s.poolSizes) < 2 && s.governed.Matching > most:
		return fmt.Sprintf("%s, and unhealthyThreshold allows %d: nothing is repaired until no more than that are unhealthy", hits, most)
	}
	verb := "will"
	if len(v.Problems) > 0 {
		verb = "would"
	}
	what := "policy"
	if s.policy == nil {
		what = "block"
	}
	return fmt.Sprintf("%s: the %s %s repair %s%s, when the condition has lasted for %s", hits, what, verb, pronoun(s.governed.Matching), s.rateNote(), waitRange(s.rule))
}

// removesBlock warns of a pool that is no longer repaired.
func removesBlock(c NodePoolCase) []Problem {
	if c.Stored == nil || c.Stored.Spec.Repair == nil {
		return nil
	}
	for _, policy := range c.Policies {
		if policy != nil && policy.Spec.NodePool == c.Pool.Name {
			return []Problem{warning(block, "without it RepairPolicy %s governs the nodes of this pool", truncate(policy.Name))}
		}
	}
	if slices.ContainsFunc(c.Policies, func(p *v1alpha1.RepairPolicy) bool { return p != nil && p.Spec.Selector != nil }) {
		return []Problem{warning(block, "without it only those nodes of this pool are repaired that a RepairPolicy selects")}
	}
	return []Problem{warning(block, "without it no node of this pool is repaired, unless the controller has --repair-without-policy")}
}
