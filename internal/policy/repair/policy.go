package repair

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/mirror"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Config configures the replacement of nodes.
type Config struct {
	// Statements define which conditions are unhealthy.
	Statements StatementSource
	// WithoutPolicy also repairs nodes of pools without a policy, as their provider
	// recommends.
	WithoutPolicy bool
	// ReadyTimeout is how long a node of a pool may take to become Ready, unless the pool
	// sets its own. Zero disables the ready timeout.
	ReadyTimeout time.Duration
	// RestoreSchema restores the schema of repair blocks in the NodePool CRD, and the
	// blocks in the NodePools, after another component removed it. Schema is what to
	// restore.
	RestoreSchema bool
	Schema        []byte
}

// Policy follows RepairPolicies, the repair blocks of NodePools, and ready timeouts. It
// implements [engine.Policy].
type Policy struct {
	host    engine.TreatmentHost
	cfg     Config
	metrics *Metrics
	inbox   *watch.Optional[*v1alpha1.RepairPolicy]
	blocks  PoolSource

	// statements are in force.
	statements *dialect.Statements

	machines     machine.Provider
	remediations Remediations

	policies        map[string]*repairPolicy
	mirrors         poolMirrors
	byPrecedence    []*repairPolicy              // the followed policies, by precedence
	invalidPolicies []*repairPolicy              // policies that never had a valid version
	pools           map[string]*repairblock.Pool // by name
	counts          map[string]*poolCounts       // by pool name
	counted         map[types.UID]machineCounts  // what each machine adds to the counts of its pool
	followed        map[triage.RuleID]*repairRule
	nodes           map[string]*repairedNode
	reported        map[policykind.Policy]bool // with gauges
	changed         bool                       // something that rules depend on has changed
	// dirty holds pools with a change that affects the facts of their nodes.
	dirty map[string]bool
}

// PoolSource knows the NodePools and which repair block of each is in force.
type PoolSource interface {
	Run(ctx context.Context)
	Listed() (known, isThere bool, err error)
	Take() (changed map[string]*repairblock.Pool, all bool)
}

// Remediations knows the remediation objects of nodes without a machine.
type Remediations interface {
	// HasObjects reports whether a rule has a remediation object for a node.
	HasObjects(node string, rule triage.RuleID) bool
	// TemplateProblem returns what is wrong with the templates of a ladder, empty for
	// nothing.
	TemplateProblem(ladder []remediation.Template) (problem, disabled string)
	// ForeignLease says which other component holds the Lease of a node, empty for none.
	ForeignLease(now time.Time, node string) string
	// ReferencesChanged tells that a policy may reference other templates.
	ReferencesChanged()
}

// Dependencies are what the policy reads and calls.
type Dependencies struct {
	// Inbox delivers the RepairPolicies.
	Inbox *watch.Optional[*v1alpha1.RepairPolicy]
	// Pools knows the NodePools.
	Pools        PoolSource
	Machines     machine.Provider
	Remediations Remediations
	Metrics      *Metrics
}

// NewInbox returns an inbox that reads RepairPolicies from the API server.
func NewInbox(c client.WithWatch, signal chan<- struct{}) *watch.Optional[*v1alpha1.RepairPolicy] {
	return watch.NewOptional(signal, &v1alpha1.RepairPolicy{}, watch.Source(c, func() client.ObjectList { return &v1alpha1.RepairPolicyList{} }))
}

// CheckBlock returns why the repair block of a NodePool is invalid.
func (c Config) CheckBlock(pool string, block *v1alpha1.RepairSpec) error {
	latest, _ := c.Statements.Latest()
	return checkBlock(pool, block, latest)
}

func checkBlock(pool string, block *v1alpha1.RepairSpec, statements *dialect.Statements) error {
	named := &karpenter.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: karpenter.NodePoolSpec{Repair: block}}
	return validate.StoredNodePool(validate.NodePoolCase{Pool: named, Repairs: validate.Repairs{Statements: *statements}}).Err()
}

// New returns the policy without objects.
func New(host engine.TreatmentHost, cfg Config, d Dependencies) *Policy {
	statements, _ := cfg.Statements.Latest()
	return &Policy{
		statements: statements,
		host:       host, cfg: cfg, inbox: d.Inbox, blocks: d.Pools, machines: d.Machines, remediations: d.Remediations, metrics: d.Metrics,
		policies: map[string]*repairPolicy{}, pools: map[string]*repairblock.Pool{}, counts: map[string]*poolCounts{}, counted: map[types.UID]machineCounts{},
		followed: map[triage.RuleID]*repairRule{}, nodes: map[string]*repairedNode{}, dirty: map[string]bool{},
		mirrors: newPoolMirrors(host.Writer()),
	}
}

// repairedNode is what repairs know about a node.
type repairedNode struct {
	assigned     assignedPolicies // policies that may terminate the node
	shadowed     []string         // repair policies that select the node without effect
	started      bool             // the node is or was ready for work
	terminatedBy triage.RuleID    // the rule that plans to terminate the node, zero for none
	veto         string           // why the node must not be terminated, empty for nothing
	isStandalone bool             // its machine would not be replaced, and the policy does not ask for its deletion
}

// nodeOf returns what repairs know about a node, created if necessary.
func (r *Policy) nodeOf(n *engine.Node) *repairedNode {
	known := r.nodes[n.Object.Name]
	if known == nil {
		known = &repairedNode{}
		r.nodes[n.Object.Name] = known
	}
	return known
}

// repairPolicy is a RepairPolicy and its state.
type repairPolicy struct {
	object *v1alpha1.RepairPolicy
	// accepted is the last valid version, nil for none. inForce is the same, but disabled if the
	// newest version is invalid and says so: a user can always switch a policy off.
	accepted, inForce *v1alpha1.RepairPolicy

	selector labels.Selector // of the followed version, or of the newest; nil if it names a pool
	problem  string          // why the newest version is not followed, empty if it is
	shadowed map[string]bool // nodes that it selects and that another policy wins
	status   status.Status[v1alpha1.RepairPolicyStatus]
}

// selects reports whether the policy selects a node.
func (p *repairPolicy) selects(node *corev1.Node) bool {
	if p.selector != nil {
		return p.selector.Matches(labels.Set(node.Labels))
	}
	version := p.inForce
	if version == nil {
		version = p.object
	}
	return version.Spec.NodePool == node.Labels[karpenter.NodePoolLabel]
}

// selectorOf returns the node selector of a policy, nil if the policy names a pool. An
// ambiguous policy may mean any node, so it selects all.
func selectorOf(spec *v1alpha1.RepairPolicySpec) labels.Selector {
	if spec.NodePool != "" && spec.Selector == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil || spec.NodePool != "" || spec.Selector == nil {
		return labels.Everything()
	}
	return selector
}

// ruleFor returns the name of the policy's rule for the nodes of a pool, or for nodes
// without a pool. Each pool has a rule because each pool has its own bound.
func (p *repairPolicy) ruleFor(pool string) string {
	if p.selector == nil || pool == "" {
		return policyRule(p.object.Name)
	}
	return policyRule(p.object.Name) + "/" + pool
}

// repairRule is a rule that terminates nodes, with the policy it was compiled from.
type repairRule struct {
	nodes  map[string]triage.Reason // the findings
	stale  bool                     // the status of its policy and its metrics may be outdated
	rule   triage.Rule
	spec   *v1alpha1.RepairSpec
	pool   string                 // the pool of its nodes; empty for nodes without a NodeClaim
	policy *repairPolicy          // nil for a NodePool's own block and for defaults
	ladder []remediation.Template // the template for nodes that cannot be replaced; empty for none
	// deletesStandalone says that the rule deletes machines that nothing replaces.
	deletesStandalone bool
	due               map[string]time.Time // when its unhealthy nodes become eligible, as last set in metrics
}

// termination returns how the rule terminates nodes, empty for the default.
func (r *repairRule) termination() v1alpha1.Termination {
	if r.spec == nil {
		return ""
	}
	return r.spec.Termination
}

// isRepair reports whether a rule terminates nodes.
func isRepair(rule triage.RuleID) bool {
	return rule.Kind == policykind.Repair || rule.Kind == policykind.ReadyTimeout
}

// Watch watches the policies and the NodePools.
func (r *Policy) Watch(ctx context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() { r.inbox.Run(ctx) })
	watches.Go(func() { r.blocks.Run(ctx) })
	watches.Go(func() { r.watchStatements(ctx) })
	watches.Wait()
}

// Ready reports whether policies and NodePools are loaded. A kind that is not installed
// does not block.
func (r *Policy) Ready(now time.Time) bool {
	r.takePolicies(now)
	arePoolsKnown, _, _ := r.blocks.Listed()
	return r.inbox.IsLoaded(now) && arePoolsKnown
}

// Size counts the rules.
func (r *Policy) Size() (name string, objects int) { return "repairRules", len(r.followed) }

// Take takes in changed policies, pools and machines. Allowances must be known before the
// core decides about changed nodes.
func (r *Policy) Take(now time.Time) {
	r.takePolicies(now)
	r.machines.TakeMachines(now)
	r.UpdateAllowances(now)
}

// Findings returns what a repair rule has found.
func (r *Policy) Findings(rule triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	if followed := r.followed[rule]; followed != nil {
		return followed.nodes, &followed.stale
	}
	return nil, nil
}

// NodeChanged counts the machines of a node again. The node may have had another machine.
func (r *Policy) NodeChanged(n *engine.Node, before, after *corev1.Node) {
	switch {
	case after == nil:
		for _, policy := range r.nodeOf(n).shadowed {
			r.noteShadowed(policy, before.Name, false)
		}
		delete(r.nodes, before.Name)
	case before != nil && before.UID != after.UID:
		r.nodeOf(n).started = false
	}
	for _, node := range []*corev1.Node{before, after} {
		if node != nil {
			r.recountNode(node)
		}
	}
}

// AddFacts assigns the node to its policies, and adds what forbids its repair.
func (r *Policy) AddFacts(now time.Time, n *engine.Node, facts *triage.Node) {
	r.assignPolicies(n)
	r.nodeOf(n).assigned.addTo(facts)
	r.addVetoes(now, n, facts)
	if rule := r.nodeOf(n).assigned.repair(); r.remediations.HasObjects(facts.Name, rule) || r.MayRequest(n, rule) {
		facts.Remediates = append(facts.Remediates, rule)
	}
}

// Planned counts a planned termination, and reports why a due repair does not start.
func (r *Policy) Planned(n *engine.Node, plan triage.Plan) {
	r.noteTermination(n, plan)
	for _, is := range plan.Findings {
		if isRepair(is.Rule) {
			r.reportWait(n, is)
		}
	}
}

// takePolicies takes in changed policies and pools.
func (r *Policy) takePolicies(now time.Time) {
	mirror.Apply(r.mirrors.Mirrors, r.inbox.Take(), maps.Keys(r.policies),
		func(name string) {
			r.removePolicy(now, name)
			r.host.Statuses().Schedule(now)
		},
		func(object *v1alpha1.RepairPolicy) { r.upsertPolicy(now, object) },
		func(object *v1alpha1.RepairPolicy) (v1alpha1.RepairPolicySpec, v1alpha1.RepairPolicyStatus) {
			return object.Spec, object.Status
		})
	changed, all := r.blocks.Take()
	if all {
		for name := range r.pools {
			if changed[name] == nil {
				changed[name] = nil
			}
		}
	}
	for name, pool := range changed {
		r.upsertPool(now, name, pool)
	}
	r.takeStatements(now)
}

// upsertPool stores a pool, nil if it is gone.
func (r *Policy) upsertPool(now time.Time, name string, pool *repairblock.Pool) {
	before := r.pools[name]
	if pool != nil {
		r.reportMode(before, pool)
	}
	if pool == nil {
		delete(r.pools, name)
		r.host.Retire(now, timeoutRule(name)) // with all counters of the pool
		r.host.Retire(now, poolRuleID(name))
	} else {
		was := r.templateOf(name)
		r.warnOfReadyTimeout("NodePool "+name, before != nil && hasReadyTimeout(before.Block), pool.Block)
		r.pools[name] = pool
		r.host.Revive(timeoutRule(name))
		r.host.Revive(poolRuleID(name))
		r.checkTemplateChange(name)
		if r.templateOf(name) != was {
			r.recountPool(name)
		}
	}
	r.mirrors.stale[name] = true
	if (before == nil) != (pool == nil) || pool != nil && repairVeto(before) != repairVeto(pool) {
		r.dirty[name] = true
	}
	r.changed = true
	r.countsOf(name).dirty = true
}

func hasReadyTimeout(spec *v1alpha1.RepairSpec) bool { return spec != nil && spec.ReadyTimeout != "" }

// warnOfReadyTimeout logs that a new ready timeout has no effect.
func (r *Policy) warnOfReadyTimeout(policy string, isKnown bool, spec *v1alpha1.RepairSpec) {
	if r.cfg.ReadyTimeout == 0 && hasReadyTimeout(spec) && !isKnown {
		r.host.Logger().Warn("ready timeout without effect", "policy", policy, "field", "spec.repair.readyTimeout", "why", validate.ReadyTimeoutsOffMessage)
	}
}

// repairVeto returns the annotation that forbids repairs in a pool, empty for none.
func repairVeto(pool *repairblock.Pool) string {
	by, _ := karpenter.DoNotRepair(pool.Annotations)
	return by
}

func (r *Policy) upsertPolicy(now time.Time, object *v1alpha1.RepairPolicy) {
	pol := r.policies[object.Name]
	shadowed := map[string]bool{}
	if pol != nil && pol.object.UID != object.UID {
		shadowed = pol.shadowed // shadowed nodes are known by the policy's name
		r.removePolicy(now, object.Name)
		pol = nil
	}
	if pol == nil {
		pol = &repairPolicy{shadowed: shadowed}
		r.policies[object.Name] = pol
		r.host.Revive(policyRuleID(object.Name))
		r.restoreAccepted(pol, object)
	}
	pol.status.Observe(object, object.Status)
	isSame := pol.object != nil && pol.object.Generation == object.Generation
	paused := ""
	if isSame {
		paused = pol.switches().Paused
	}
	r.warnOfReadyTimeout("RepairPolicy "+object.Name, pol.object != nil && hasReadyTimeout(&pol.object.Spec.Repair), &object.Spec.Repair)
	pol.object, pol.status.Stale = object, true
	r.host.Statuses().Schedule(now)
	if isSame { // annotations do not change the generation
		r.changed = r.changed || pol.switches().Paused != paused
		return
	}
	r.changed = true
	r.remediations.ReferencesChanged() // it may reference a kind that is not watched yet
	r.judge(pol)
}

// judge puts the newest version of a policy in force if it is valid.
func (r *Policy) judge(pol *repairPolicy) {
	was := pol.problem
	pol.problem = ""
	if err := validatePolicy(pol.object, r.statements); err != nil {
		pol.problem = err.Error()
	} else {
		pol.accepted = pol.object
	}
	pol.inForce = pol.accepted
	if pol.problem != "" && pol.accepted != nil && !isEnabled(&pol.object.Spec.Repair) {
		pol.inForce = pol.accepted.DeepCopy()
		pol.inForce.Spec.Repair.Enabled = new(false)
	}
	if pol.problem == "" || pol.inForce == nil {
		pol.selector = selectorOf(&pol.object.Spec)
	}
	if pol.problem != was {
		r.reportPolicy(pol)
	}
}

// restoreAccepted puts the version in force that an earlier term accepted. If the newest version
// is valid, it replaces that version.
func (r *Policy) restoreAccepted(pol *repairPolicy, object *v1alpha1.RepairPolicy) {
	if object.Status.AcceptedSpec == "" {
		return
	}
	spec, err := format.DecodeSpec[v1alpha1.RepairPolicySpec](object.Status.AcceptedSpec)
	version := object.DeepCopy()
	version.Spec, version.Generation = spec, 0 // of an unknown generation
	if err == nil {
		err = validatePolicy(version, r.statements)
	}
	if err != nil {
		r.host.Logger().Warn("accepted version unreadable", "repairPolicy", object.Name, "err", err)
		return
	}
	pol.accepted, pol.selector = version, selectorOf(&version.Spec)
}

// validatePolicy returns why a policy is invalid.
func validatePolicy(object *v1alpha1.RepairPolicy, statements *dialect.Statements) error {
	return validate.StoredRepairPolicy(validate.RepairCase{Policy: object, Repairs: validate.Repairs{Statements: *statements}}).Err()
}

func (r *Policy) removePolicy(now time.Time, name string) {
	if r.policies[name] == nil {
		return
	}
	delete(r.policies, name)
	r.host.Retire(now, policyRuleID(name))
	r.changed = true
	r.remediations.ReferencesChanged()
	r.host.Logger().Info("repair policy gone", "repairPolicy", name)
}

// SetRules updates the rules of repairs. Each rule gets its allowance before it gets a
// node: otherwise it could start more terminations than a budget allows.
func (r *Policy) SetRules(_ context.Context, now time.Time) (due time.Time) {
	if !r.changed {
		return time.Time{}
	}
	r.changed = false
	r.sortPolicies()
	wanted := r.rules()
	for id, rule := range r.followed {
		if wanted[id] == nil {
			delete(r.followed, id)
			r.host.Core().RemoveRule(now, id)
			r.metrics.setEligible(id, rule.pool, nil, rule.due)
			r.host.Logger().Info("repair rule gone", "rule", id.String())
		}
	}
	changedRules := map[string]bool{} // rules with a change that affects nodes in repair, or the facts of nodes
	for _, id := range slices.SortedFunc(maps.Keys(wanted), triage.RuleID.Compare) {
		next := wanted[id]
		next.nodes, next.stale = map[string]triage.Reason{}, true
		if before := r.followed[id]; before != nil {
			next.nodes = before.nodes
			if next.due = before.due; before.pool != next.pool {
				r.metrics.setEligible(id, before.pool, nil, before.due)
				next.due = nil
			}
			changedRules[id.Name] = changedRules[id.Name] || len(before.ladder) != len(next.ladder) ||
				before.deletesStandalone != next.deletesStandalone || before.termination() != next.termination()
		}
		r.followed[id] = next
		if err := r.host.Core().SetRule(now, next.rule); err != nil { // it compiled, so it is valid
			r.host.Logger().Error("repair rule not followed", "rule", id.String(), "err", err)
		}
	}
	for _, count := range r.counts {
		count.dirty = true
	}
	r.UpdateAllowances(now)
	r.assignAllPolicies(now, func(state *engine.Node) bool {
		return changedRules[r.nodeOf(state).assigned.repairedBy] || r.dirty[state.Object.Labels[karpenter.NodePoolLabel]]
	})
	clear(r.dirty)
	for _, pol := range r.policies {
		pol.status.Stale = true
	}
	for name := range r.pools {
		r.mirrors.stale[name] = true
	}
	r.host.Statuses().Schedule(now)
	return time.Time{}
}

// rules returns the rules to follow. Each pool has a rule for its own block or for
// the defaults of its provider, and a rule for its ready timeout. Each policy has a rule
// for every pool that it may select, and one for nodes without a pool.
func (r *Policy) rules() map[triage.RuleID]*repairRule {
	wanted := map[triage.RuleID]*repairRule{}
	add := func(next *repairRule, rule triage.Rule, err error) {
		if err != nil { // it was validated before, so it compiles
			return
		}
		r.switchesOf(next).Apply(&rule)
		next.rule = rule
		wanted[rule.ID] = next
	}
	for name, pool := range r.pools {
		spec := pool.Block
		if spec == nil && r.cfg.WithoutPolicy && r.namedBy(name) == nil && !pool.NeverValid() {
			spec = &v1alpha1.RepairSpec{}
		}
		if spec != nil {
			rule, err := observe.Repair(poolRule(name), name, spec, r.statementsOf(pool), nil)
			add(&repairRule{spec: spec, pool: name}, rule, err)
		}
		if r.cfg.ReadyTimeout > 0 {
			timed, pol := r.readyTimeoutSpec(name)
			rule, err := observe.ReadyTimeout(name, timed, r.cfg.ReadyTimeout)
			add(&repairRule{spec: timed, pool: name, policy: pol}, rule, err)
		}
	}
	for _, pol := range r.byPrecedence {
		spec := &pol.inForce.Spec.Repair
		follow := func(pool string, statements []dialect.RepairStatement, template *corev1.ObjectReference) {
			rule, err := observe.Repair(pol.ruleFor(pool), pool, spec, statements, template)
			next := &repairRule{spec: spec, pool: pool, policy: pol, deletesStandalone: pol.inForce.Spec.DeleteStandaloneNodeClaims}
			if template != nil && err == nil {
				t, _ := remediation.TemplateOf(*template) // it compiled before
				next.ladder = []remediation.Template{t}
				if problem, _ := r.remediations.TemplateProblem(next.ladder); problem != "" && rule.Hold == "" {
					rule.Hold = problem
				}
			}
			add(next, rule, err)
		}
		if pol.selector == nil {
			if name := pol.inForce.Spec.NodePool; r.pools[name] != nil {
				follow(name, r.statementsOf(r.pools[name]), nil)
			}
			continue
		}
		follow("", r.statements.Static, pol.inForce.Spec.RemediationTemplate)
		for name, pool := range r.pools {
			follow(name, r.statementsOf(pool), nil)
		}
	}
	return wanted
}

// switchesOf returns whether the policy of a rule acts: a RepairPolicy, or a NodePool for its own block
// and for the defaults.
func (r *Policy) switchesOf(rule *repairRule) observe.Switches {
	if rule.policy != nil {
		return rule.policy.switches()
	}
	return observe.AnnotatedSwitches(r.pools[rule.pool].Annotations)
}

// switches returns whether the policy acts. Its newest version counts, even if that is invalid: a user
// can always switch a policy off.
func (p *repairPolicy) switches() observe.Switches {
	observes := p.object.Spec.Mode == v1alpha1.PolicyObserve || p.inForce != nil && p.inForce.Spec.Mode == v1alpha1.PolicyObserve
	return observe.PolicySwitches(p.object.Annotations, observes)
}

// statementsOf returns what the provider of a pool states.
func (r *Policy) statementsOf(pool *repairblock.Pool) []dialect.RepairStatement {
	return r.statements.OfPool(pool.Spec.Template.Spec.NodeClassRef.Group)
}

// namedBy returns the policy that names a pool and has precedence.
func (r *Policy) namedBy(pool string) *repairPolicy {
	for _, pol := range r.byPrecedence {
		if pol.selector == nil && pol.inForce.Spec.NodePool == pool {
			return pol
		}
	}
	return nil
}

// readyTimeoutSpec returns the spec that holds the ready timeout of a pool, nil for none, and its
// policy.
func (r *Policy) readyTimeoutSpec(pool string) (*v1alpha1.RepairSpec, *repairPolicy) {
	if block := r.pools[pool].Block; block != nil {
		return block, nil
	}
	if pol := r.namedBy(pool); pol != nil {
		return &pol.inForce.Spec.Repair, pol
	}
	return nil, nil
}

func isEnabled(spec *v1alpha1.RepairSpec) bool {
	return spec == nil || spec.Enabled == nil || *spec.Enabled
}
