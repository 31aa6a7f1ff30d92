package validate

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// RepairCase is the input for the verdict on a RepairPolicy.
type RepairCase struct {
	Policy *v1alpha1.RepairPolicy // the new version
	// Stored is the stored version; nil if the policy is new.
	Stored *v1alpha1.RepairPolicy
	Repairs
	// Template reads a template; nil if the caller cannot read templates.
	Template func(remediation.Template) (*unstructured.Unstructured, error)
}

// NodePoolCase is the input for the verdict on the repair block of a NodePool.
type NodePoolCase struct {
	Pool *karpenter.NodePool // the new version
	// Stored is the stored version; nil if the pool is new.
	Stored *karpenter.NodePool
	Repairs
}

// Repairs is the input that RepairPolicies and repair blocks have in common.
type Repairs struct {
	// Statements are the conditions that the providers call unhealthy.
	Statements dialect.Statements
	// ReadyTimeoutsOff says that the controller does not apply ready timeouts.
	ReadyTimeoutsOff bool
	// Policies are all known RepairPolicies.
	Policies []*v1alpha1.RepairPolicy
	// Pools are the NodePools; nil if they are unknown.
	Pools []*karpenter.NodePool
	// Reported are the condition types that nodes report; nil if they are unknown.
	Reported []string
	// Survey returns what a rule would match now, and how many nodes it shares with other
	// selectors, as [triage.Core.Survey] does; nil if the nodes are unknown.
	Survey func(rule triage.Rule, others ...triage.Selector) (triage.Survey, error)
}

// block is the path of the repair block in both NodePool and RepairPolicy.
const block = "spec.repair"

// repairAnalysis is a case with the data that several checks need.
type repairAnalysis struct {
	Repairs
	name          string
	statements    []dialect.RepairStatement // of the providers whose nodes the block may select
	policy        *v1alpha1.RepairPolicy    // nil for the block of a NodePool
	spec          *v1alpha1.RepairSpec
	template      *corev1.ObjectReference
	fetch         func(remediation.Template) (*unstructured.Unstructured, error)
	rule          triage.Rule // for all selected nodes, including those that another policy governs
	compileErr    *triage.FieldError
	found         *triage.Survey  // what the rule would match now; nil if the nodes are unknown
	governed      *triage.Survey  // the part of found that no policy with precedence governs; nil if unknown
	selected      []selectedNodes // the selected nodes by NodePool; nil if unknown, or if the block is for one pool
	poolSizes     []int           // number of governed nodes per NodePool, then those without one: each has its own bound
	otherPolicies []otherPolicy   // in the order of found.Shared
	hasPool       bool            // the policy is for the nodes of one NodePool
	poolField     string          // the field that selects the nodes
}

// repairCheck looks for one kind of mistake in a block that compiles.
type repairCheck func(*repairAnalysis) (problems, warnings []Problem)

// permanentRepairChecks are the checks that depend only on the block. The other checks depend on
// other objects, which change all the time.
var permanentRepairChecks = []repairCheck{repairsHealthy}

var admissionRepairChecks = []repairCheck{
	poolExists, conflicts, repairConditionNames, shortToleration, oldName, unusedFields, unusualRepairBound, nodesWithoutClaim, repairSelectorNodes,
}

// RepairPolicy returns all problems and warnings of a policy that is being written. A
// change that only disables it is never rejected.
func RepairPolicy(c RepairCase) Verdict {
	s := analyzePolicy(c)
	v := s.allProblems()
	if c.Stored != nil && switchesOff(&c.Policy.Spec.Repair) {
		now, then := c.Policy.Spec.DeepCopy(), c.Stored.Spec.DeepCopy()
		now.Repair.Enabled, then.Repair.Enabled = nil, nil
		v = warnOnly(v, equality.Semantic.DeepEqual(now, then))
	}
	return v
}

// NodePool returns all problems and warnings of the repair block of a NodePool that is
// being written. It ignores the other fields of the pool. A change that only removes or
// disables the block is never rejected.
func NodePool(c NodePoolCase) Verdict {
	if c.Pool.Spec.Repair == nil {
		return Verdict{Warnings: removesBlock(c)}
	}
	s := analyzePool(c)
	v := s.allProblems()
	if c.Stored != nil && c.Stored.Spec.Repair != nil && switchesOff(c.Pool.Spec.Repair) {
		now, then := c.Pool.Spec.Repair.DeepCopy(), c.Stored.Spec.Repair.DeepCopy()
		now.Enabled, then.Enabled = nil, nil
		v = warnOnly(v, equality.Semantic.DeepEqual(now, then))
	}
	return v
}

// StoredRepairPolicy returns the problems of a policy that is in force: all problems that
// RepairPolicy returns. It returns no warnings.
func StoredRepairPolicy(c RepairCase) Verdict { return analyzePolicy(c).permanentProblems() }

// StoredNodePool does the same for a block that the webhook may not have seen.
func StoredNodePool(c NodePoolCase) Verdict {
	if c.Pool.Spec.Repair == nil {
		return Verdict{}
	}
	return analyzePool(c).permanentProblems()
}

// RepairsBefore reports whether policy a takes precedence over b on a node that both
// select. A policy that names the pool wins over one with a selector, then the older, then
// the first by name. A policy without a creation timestamp comes last. A NodePool with
// a repair block wins over all policies.
func RepairsBefore(a, b *v1alpha1.RepairPolicy) bool {
	if named := a.Spec.NodePool != ""; named != (b.Spec.NodePool != "") {
		return named
	}
	one, other := a.CreationTimestamp, b.CreationTimestamp
	if one.IsZero() != other.IsZero() {
		return other.IsZero()
	}
	return cmp.Or(one.Compare(other.Time), cmp.Compare(a.Name, b.Name)) < 0
}

func analyzePolicy(c RepairCase) *repairAnalysis {
	s := &repairAnalysis{
		Repairs: c.Repairs, name: cmp.Or(c.Policy.Name, c.Policy.GenerateName), policy: c.Policy,
		spec: &c.Policy.Spec.Repair, template: c.Policy.Spec.RemediationTemplate, fetch: c.Template,
		hasPool: c.Policy.Spec.NodePool != "", poolField: "spec.selector",
	}
	s.statements = s.Statements.All()
	if s.hasPool {
		s.poolField = "spec.nodePool"
		for _, pool := range s.Pools {
			if pool != nil && pool.Name == c.Policy.Spec.NodePool {
				s.statements = s.statementsOf(pool)
			}
		}
	}
	s.compile(observe.RepairNodes(c.Policy))
	return s
}

func analyzePool(c NodePoolCase) *repairAnalysis {
	s := &repairAnalysis{
		Repairs: c.Repairs, name: cmp.Or(c.Pool.Name, c.Pool.GenerateName), spec: c.Pool.Spec.Repair,
		hasPool: true, poolField: block,
	}
	s.statements = s.statementsOf(c.Pool)
	s.compile(observe.PoolNodes(s.name))
	return s
}

// compile compiles the rule of the block for the selected nodes. An unreadable spec also
// has no readable selector, so its own error is reported first.
func (s *repairAnalysis) compile(who triage.Selector, err error) {
	if s.spec.Unreadable == "" && err != nil {
		s.compileErr = fieldError(err)
		return
	}
	if s.policy != nil {
		if s.compileErr = fieldError(observe.ValidateMode(s.policy.Spec.Mode)); s.compileErr != nil {
			return
		}
	}
	// No verdict depends on which pool shares the bound.
	rule, wrong := observe.Repair(s.name, "", s.spec, s.statements, s.template)
	if s.compileErr = fieldError(wrong); s.compileErr == nil {
		s.rule, s.rule.Selector = rule, who
		s.rule.AssignedOnly = false // no node is assigned before the policy is in force
	}
}

func (s *repairAnalysis) permanentProblems() Verdict {
	if s.compileErr != nil {
		return Verdict{Problems: []Problem{invalid(s.compileErr)}}
	}
	var v Verdict
	for _, look := range permanentRepairChecks {
		problems, _ := look(s)
		v.Problems = append(v.Problems, problems...)
	}
	return v
}

func (s *repairAnalysis) allProblems() Verdict {
	if s.compileErr != nil {
		return s.permanentProblems()
	}
	s.survey()
	v := s.permanentProblems()
	for _, look := range admissionRepairChecks {
		problems, warnings := look(s)
		v.Problems = append(v.Problems, problems...)
		v.Warnings = append(v.Warnings, warnings...)
	}
	if line := s.impactLine(v); line != "" {
		v.Warnings = append([]Problem{{Text: line}}, v.Warnings...)
	}
	return v
}

// survey reads the current nodes: the selected ones, and those that policies with
// precedence leave to this one.
func (s *repairAnalysis) survey() {
	s.otherPolicies = s.findOtherPolicies()
	if s.Survey == nil {
		return
	}
	others := make([]triage.Selector, len(s.otherPolicies))
	for i, r := range s.otherPolicies {
		others[i] = r.who
	}
	pools, selectors := s.selectablePools()
	found, err := s.Survey(s.rule, slices.Concat(others, selectors)...)
	if err != nil { // a compiled rule is valid
		return
	}
	inPools := found.Shared[len(others):]
	found.Shared = found.Shared[:len(others)]
	s.found = &found
	s.noteSelected(pools, inPools)
	s.surveyGoverned(selectors, inPools)
}

func switchesOff(spec *v1alpha1.RepairSpec) bool {
	return spec.Unreadable == "" && spec.Enabled != nil && !*spec.Enabled
}

// warnOnly turns problems into warnings if the change only stops the policy.
func warnOnly(v Verdict, onlyStops bool) Verdict {
	if !onlyStops {
		return v
	}
	return Verdict{Warnings: append(v.Problems, v.Warnings...)}
}

// statementsOf returns what the provider of a NodePool states.
func (s *repairAnalysis) statementsOf(pool *karpenter.NodePool) []dialect.RepairStatement {
	return s.Statements.OfPool(pool.Spec.Template.Spec.NodeClassRef.Group)
}

// stated reports whether a provider calls a condition unhealthy in any status.
func (s *repairAnalysis) stated(conditionType string) bool {
	return states(s.statements, conditionType)
}

func states(statements []dialect.RepairStatement, conditionType string) bool {
	return slices.ContainsFunc(statements, func(one dialect.RepairStatement) bool { return one.Type == conditionType })
}
