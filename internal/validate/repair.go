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

// RepairCase is what a verdict on a RepairPolicy is asked for.
type RepairCase struct {
	Policy *v1alpha1.RepairPolicy // as it is to be
	// Stored is the policy as it is; nil if it is new.
	Stored *v1alpha1.RepairPolicy
	Repairs
	// Template reads a template; nil if nobody can.
	Template func(remediation.Template) (*unstructured.Unstructured, error)
}

// NodePoolCase is what a verdict on the repair block of a NodePool is asked for.
type NodePoolCase struct {
	Pool *karpenter.NodePool // as it is to be
	// Stored is the pool as it is; nil if it is new.
	Stored *karpenter.NodePool
	Repairs
}

// Repairs is what else there is of repairs when a block is judged.
type Repairs struct {
	// Statements are what the providers call sick.
	Statements []dialect.RepairStatement
	// Policies are the RepairPolicies, as far as they are known.
	Policies []*v1alpha1.RepairPolicy
	// Pools are the NodePools; nil if nobody knows them.
	Pools []*karpenter.NodePool
	// Reported are the condition types that nodes report; nil if nobody knows.
	Reported []string
	// Survey answers what a rule would find now, and with which other selectors it
	// shares nodes, as [triage.Core.Survey] does; nil if nobody knows.
	Survey func(rule triage.Rule, others ...triage.Selector) (triage.Survey, error)
}

// block is the path of the repair block, in a NodePool as in a RepairPolicy.
const block = "spec.repair"

// repairStudy is a case, with what several checks want to know of it.
type repairStudy struct {
	Repairs
	name      string
	policy    *v1alpha1.RepairPolicy // nil for the block of a NodePool
	spec      *v1alpha1.RepairSpec
	template  *corev1.ObjectReference
	fetch     func(remediation.Template) (*unstructured.Unstructured, error)
	rule      triage.Rule // of the nodes that are asked for, whoever governs them
	wrong     *triage.FieldError
	found     *triage.Survey // what the rule would find now; nil if nobody knows
	governed  *triage.Survey // what of that is left to it by those that go before; nil if nobody knows
	crowds    []int          // how many of those belong to each NodePool, and how many to none: a bound is one of each
	rivals    []rival        // in the order of what found has in common with each
	hasPool   bool           // the nodes are those of one NodePool
	poolField string         // where the nodes are chosen
}

// repairCheck looks for one kind of mistake in a block that compiles.
type repairCheck func(*repairStudy) (problems []Problem, warnings []string)

// standingRepair are the checks of what a block says by itself. The others ask what is
// there beside it, and that comes and goes.
var standingRepair = []repairCheck{repairsHealthy}

var arrivingRepair = []repairCheck{
	poolIsThere, governs, repairNames, hastyRepair, idleFields, oddRepairBound, plainNodes, choosesRepair,
}

// JudgeRepairPolicy says everything that there is to say of a policy which is being
// written. To switch one off is never refused.
func JudgeRepairPolicy(c RepairCase) Verdict {
	s := studyPolicy(c)
	v := s.judge()
	if c.Stored != nil && switchesOff(&c.Policy.Spec.Repair) {
		now, then := c.Policy.Spec.DeepCopy(), c.Stored.Spec.DeepCopy()
		now.Repair.Enabled, then.Repair.Enabled = nil, nil
		v = tolerated(v, equality.Semantic.DeepEqual(now, then))
	}
	return inLines(v)
}

// JudgeNodePool says everything that there is to say of the repair block of a NodePool
// which is being written. Of the rest of the pool it says nothing, and to take the
// block away or to switch it off is never refused.
func JudgeNodePool(c NodePoolCase) Verdict {
	if c.Pool.Spec.Repair == nil {
		return inLines(Verdict{Warnings: leavesPool(c)})
	}
	s := studyPool(c)
	v := s.judge()
	if c.Stored != nil && c.Stored.Spec.Repair != nil && switchesOff(c.Pool.Spec.Repair) {
		now, then := c.Pool.Spec.Repair.DeepCopy(), c.Stored.Spec.Repair.DeepCopy()
		now.Enabled, then.Enabled = nil, nil
		v = tolerated(v, equality.Semantic.DeepEqual(now, then))
	}
	return inLines(v)
}

// StandingRepairPolicy says what must be true of a policy that is in force already:
// all that JudgeRepairPolicy refuses, and no warnings.
func StandingRepairPolicy(c RepairCase) Verdict { return studyPolicy(c).standing() }

// StandingNodePool is the same for a block that may have come around the webhook.
func StandingNodePool(c NodePoolCase) Verdict {
	if c.Pool.Spec.Repair == nil {
		return Verdict{}
	}
	return studyPool(c).standing()
}

// RepairsBefore says which of two policies governs a node that both ask for: one that
// names the pool goes before one that selects nodes, then the older, then by name. One
// that has no time of creation yet comes after all that have. A NodePool with a block
// goes before all of them.
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

func studyPolicy(c RepairCase) *repairStudy {
	s := &repairStudy{
		Repairs: c.Repairs, name: cmp.Or(c.Policy.Name, c.Policy.GenerateName), policy: c.Policy,
		spec: &c.Policy.Spec.Repair, template: c.Policy.Spec.RemediationTemplate, fetch: c.Template,
		hasPool: c.Policy.Spec.NodePool != "", poolField: "spec.selector",
	}
	if s.hasPool {
		s.poolField = "spec.nodePool"
	}
	s.compile(observe.RepairNodes(c.Policy))
	return s
}

func studyPool(c NodePoolCase) *repairStudy {
	s := &repairStudy{
		Repairs: c.Repairs, name: cmp.Or(c.Pool.Name, c.Pool.GenerateName), spec: c.Pool.Spec.Repair,
		hasPool: true, poolField: block,
	}
	s.compile(observe.PoolNodes(s.name))
	return s
}

// compile makes the rule of the block, for the nodes that are asked for. A spec that
// cannot be read has no nodes either, and says so first.
func (s *repairStudy) compile(who triage.Selector, err error) {
	if s.spec.Unreadable == "" && err != nil {
		s.wrong = fieldError(err)
		return
	}
	// Which pool shares the bound is nothing that a verdict depends on.
	rule, wrong := observe.Repair(s.name, "", s.spec, s.Statements, s.template)
	if s.wrong = fieldError(wrong); s.wrong == nil {
		s.rule, s.rule.Who = rule, who
	}
}

func (s *repairStudy) standing() Verdict {
	if s.wrong != nil {
		return Verdict{Problems: []Problem{invalid(s.wrong)}}
	}
	var v Verdict
	for _, look := range standingRepair {
		problems, _ := look(s)
		v.Problems = append(v.Problems, problems...)
	}
	return v
}

func (s *repairStudy) judge() Verdict {
	if s.wrong != nil {
		return s.standing()
	}
	s.survey()
	v := s.standing()
	for _, look := range arrivingRepair {
		problems, warnings := look(s)
		v.Problems = append(v.Problems, problems...)
		v.Warnings = append(v.Warnings, warnings...)
	}
	if line := s.impactLine(v); line != "" {
		v.Warnings = append([]string{line}, v.Warnings...)
	}
	return v
}

// survey looks at the nodes: at those that are asked for, and, if others go before, at
// those that they leave.
func (s *repairStudy) survey() {
	s.rivals = s.findRivals()
	if s.Survey == nil {
		return
	}
	others := make([]triage.Selector, len(s.rivals))
	for i, r := range s.rivals {
		others[i] = r.who
	}
	pools := s.poolSelectors()
	found, err := s.Survey(s.rule, slices.Concat(others, pools)...)
	if err != nil { // a compiled rule is valid
		return
	}
	inPools := found.Shared[len(others):]
	found.Shared = found.Shared[:len(others)]
	s.found = &found
	s.surveyGoverned(pools, inPools)
}

func switchesOff(spec *v1alpha1.RepairSpec) bool {
	return spec.Unreadable == "" && spec.Enabled != nil && !*spec.Enabled
}

// tolerated makes warnings of problems if nothing is asked for but to stop.
func tolerated(v Verdict, onlyStops bool) Verdict {
	if !onlyStops {
		return v
	}
	return Verdict{Warnings: append(lines(v.Problems), v.Warnings...)}
}

func inLines(v Verdict) Verdict {
	for i, warning := range v.Warnings { // names are as odd as the schema in force lets them be
		v.Warnings[i] = oneLine(warning)
	}
	return v
}

// stated says whether a provider calls a condition sick, in whatever status.
func (s *repairStudy) stated(conditionType string) bool {
	return slices.ContainsFunc(s.Statements, func(one dialect.RepairStatement) bool { return one.Type == conditionType })
}
