package history

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// repairState holds the replayed NodeClaims and NodePools, and the policies by which nodes
// are replaced.
type repairState struct {
	claims       map[types.UID]*claimState
	byID         map[string][]*claimState // by provider ID
	nodes        map[string]string        // node names by provider ID
	pools        map[string]*pool
	policies     map[string]*repairPolicy
	inOrder      []*repairPolicy   // by precedence
	nodeCounts   map[string]*count // the number of nodes under each rule
	inRepair     []*inRepair
	edited       time.Time // when a pool or a policy last changed
	readyNodes   []readyPoolNode
	defaultBlock *block // the block without any policy
}

func newRepairState(cfg Repairs) repairState {
	return repairState{
		defaultBlock: readBlock(nil, cfg.Machines),
		claims:       map[types.UID]*claimState{}, byID: map[string][]*claimState{}, nodes: map[string]string{},
		pools: map[string]*pool{}, policies: map[string]*repairPolicy{}, nodeCounts: map[string]*count{},
	}
}

// claimState is a NodeClaim with its history.
type claimState struct {
	claim
	markedByUs     bool
	deadlineBefore string    // the deadline before the mark,
	deadlineOfMark string    // and the deadline that was set with the mark
	forced         bool      // another client deletes it, and we ended the drain
	going          time.Time // since when the node is being taken out of service, by any client
	reported       bool      // its deletion was already reported as a violation
	counted        [2]bool   // in the totals of its pool's budgets: in service, and all claims
}

// The two ways to count a pool for its budgets.
const (
	inService = iota // what Karpenter counts: nodes that once were ready for work
	allClaims        // for nodes that never were
)

// pool is a NodePool.
type pool struct {
	name   string
	object *unstructured.Unstructured // nil if it does not exist
	block  *block                     // the last valid block, nil if there is none
	// neverValid is true if the pool has a block, and no version of it was valid.
	neverValid bool
	totals     [2]count

	budgets  []allowance
	previous []allowance // the budgets before the last edit
	edited   time.Time

	template        string    // a hash of the node template, empty if it is unknown
	templateChanged time.Time // when the template last changed
	tries           launchFailures
}

// makes reports whether a claim was created from the pool's current template. Other claims
// do not predict whether new nodes become ready.
func (of *pool) makes(c *claim) bool {
	return c.template == "" || of.template == "" || c.template == of.template
}

// launchFailures counts the replaced nodes since the last node that became ready, among the
// nodes of the pool's current template.
type launchFailures struct {
	failed int
	last   time.Time
}

// count is a number with its recent values.
type count struct {
	is   int
	past []pastBound
}

func (c *count) add(by int, now, horizon time.Time) {
	c.past = slices.DeleteFunc(c.past, func(p pastBound) bool { return p.until.Before(horizon) })
	c.past = append(c.past, pastBound{c.is, now})
	c.is += by
}

// recent returns the numbers that may be in a writer's cache.
func (c *count) recent(horizon time.Time) []int {
	numbers := []int{c.is}
	for _, p := range c.past {
		if !p.until.Before(horizon) {
			numbers = append(numbers, p.bound)
		}
	}
	return numbers
}

// repairPolicy is a RepairPolicy.
type repairPolicy struct {
	name   string
	object *unstructured.Unstructured

	// These are of the last valid version. Without a valid version, the first two fields
	// say which nodes the policy may select.
	pool            string
	selector        labels.Selector // nil if the policy names a pool
	machines, plain *block          // nil if there is none
	template        templateName    // for nodes without a NodeClaim, empty for none
}

// inRepair is a node in repair.
type inRepair struct {
	pool   string
	rule   string
	node   types.UID
	claim  types.UID
	marked time.Time
	gone   time.Time // zero while the node exists
}

// readyPoolNode is a node of a pool that has become ready.
type readyPoolNode struct {
	pool string
	came time.Time
}

// repairRule is the rule by which a node may be replaced, with its settings.
type repairRule struct {
	rule      string // with its kind
	pool      string // empty for a node without a NodeClaim
	block     *block
	isTimeout bool
	off       string // why its policy starts nothing; empty if it may
}

// nodeRepair is the history of a node under the rules by which it may be replaced.
type nodeRepair struct {
	counted      []string // the rules that count it
	countedSince time.Time
	// readySince is when the node became ready for work. wasReady is true if it was ready
	// for so long that every client knows, or if Karpenter says so.
	readySince time.Time
	wasReady   bool
	permitted  map[string][]permission // by rule
}

// permission is the time until which a version of a rule allowed the replacement of a node
// to start, or to continue.
type permission struct {
	block       *block
	begin, stay time.Time
}

// ---- which rule applies

// policyFor returns the rule by which an unhealthy node may be replaced. The order is: the
// block of its NodePool, the policy that names the pool, a policy that selects the node.
// The older policy wins.
func (r *replay) policyFor(n *node) (g repairRule, is bool) {
	name := n.labels[poolLabel]
	of := r.repairs.pools[name]
	isThere := of != nil && of.object != nil
	if isThere && of.block != nil {
		return repairRule{rule: repairKind + "NodePool/" + name, pool: name, block: of.block, off: switchedOff(of.object)}, true
	}
	for _, p := range r.repairs.inOrder {
		switch {
		case p.machines == nil:
		case p.selector == nil && p.pool == name && name != "":
			return repairRule{rule: repairKind + "RepairPolicy/" + p.name, pool: name, block: p.machines, off: switchedOff(p.object)}, isThere
		case p.selector == nil || !p.selector.Matches(labels.Set(n.labels)):
		case isThere:
			return repairRule{rule: repairKind + "RepairPolicy/" + p.name + "/" + name, pool: name, block: p.machines, off: switchedOff(p.object)}, true
		default:
			return repairRule{rule: repairKind + "RepairPolicy/" + p.name, block: p.plain, off: switchedOff(p.object)}, true
		}
	}
	if isThere && r.cfg.Repairs.WithoutPolicy && !r.neverValid(n, of) {
		return repairRule{rule: repairKind + "NodePool/" + name, pool: name, block: r.repairs.defaultBlock, off: switchedOff(of.object)}, true
	}
	return repairRule{}, false
}

// switchedOff says why a RepairPolicy, or the NodePool of a block, starts nothing; empty if it may.
func switchedOff(policy *unstructured.Unstructured) string {
	mode, _, _ := unstructured.NestedString(policy.Object, "spec", "mode") // NodePools have none
	annotated := policy.GetAnnotations()[modeAnnotation]
	switch {
	case mode == "Observe", policy.GetKind() == "NodePool" && annotated != "" && annotated != "Enforce":
		return "the policy observes"
	case isPaused(policy):
		return "the policy is paused"
	}
	return ""
}

const modeAnnotation = "autohealer.resourcestack.com/mode"

// readyRuleFor returns the rule by which a node may be replaced that does not become ready.
func (r *replay) readyRuleFor(n *node) (g repairRule, is bool) {
	name := n.labels[poolLabel]
	of := r.repairs.pools[name]
	if of == nil || of.object == nil || r.cfg.Repairs.ReadyTimeout == 0 {
		return repairRule{}, false
	}
	timing, by := r.timing(of)
	if timing == r.repairs.defaultBlock && r.neverValid(n, of) {
		return repairRule{}, false
	}
	return repairRule{rule: timeoutKind + name, pool: name, block: timing, isTimeout: true, off: switchedOff(by)}, true
}

// neverValid reports whether a rule for the node exists of which no version was valid. Then
// no default applies.
func (r *replay) neverValid(n *node, of *pool) bool {
	return of.neverValid || slices.ContainsFunc(r.repairs.inOrder, func(p *repairPolicy) bool {
		return p.machines == nil && (p.selector == nil && p.pool == of.name || p.selector != nil && p.selector.Matches(labels.Set(n.labels)))
	})
}

// timing returns the block that sets the ready timeout of a pool, and its object.
func (r *replay) timing(of *pool) (*block, *unstructured.Unstructured) {
	if of.block != nil {
		return of.block, of.object
	}
	at := slices.IndexFunc(r.repairs.inOrder, func(p *repairPolicy) bool { return p.machines != nil && p.selector == nil && p.pool == of.name })
	if at >= 0 {
		return r.repairs.inOrder[at].machines, r.repairs.inOrder[at].object
	}
	return r.repairs.defaultBlock, of.object
}

// timeoutOf returns how long a node of a pool may take to become ready.
func (r *replay) timeoutOf(b *block) time.Duration {
	if b.timeout > 0 {
		return b.timeout
	}
	return r.cfg.Repairs.ReadyTimeout
}

// rulesOf returns the rules by which a node may be replaced.
func (r *replay) rulesOf(n *node) (rules []repairRule) {
	if len(r.repairs.pools)+len(r.repairs.policies) == 0 {
		return nil
	}
	if g, is := r.policyFor(n); is {
		rules = append(rules, g)
	}
	if g, is := r.readyRuleFor(n); is {
		rules = append(rules, g)
	}
	return rules
}

func (r *replay) rule(n *node, name string) (repairRule, bool) {
	rules := r.rulesOf(n)
	at := slices.IndexFunc(rules, func(g repairRule) bool { return g.rule == name })
	if at < 0 {
		return repairRule{}, false
	}
	return rules[at], true
}

// ---- nodes

// beforeRepair stores which repairs of a node were allowed until now. Callers run it before
// every change that affects the node.
func (r *replay) beforeRepair(n *node) {
	for _, g := range r.rulesOf(n) {
		if _, why := r.noRepair(n, g, true); why != "" {
			continue
		}
		now := permission{block: g.block, stay: r.at.Time}
		known := slices.DeleteFunc(n.permitted[g.rule], func(l permission) bool {
			if l.block == g.block {
				now.begin = l.begin
			}
			return l.block == g.block || !r.recent(l.stay)
		})
		if _, why := r.noRepair(n, g, false); why == "" {
			now.begin = r.at.Time
		}
		n.permitted[g.rule] = append(known, now)
	}
}

func (r *replay) beforeRepairs() {
	r.repairs.edited = r.at.Time
	for _, n := range r.nodes {
		r.beforeRepair(n)
	}
}

// updateRepair updates which rules count a node, and whether it was ever ready for work.
func (r *replay) updateRepair(n *node) {
	governed := r.rulesOf(n)
	rules := make([]string, len(governed))
	for i, g := range governed {
		rules[i] = g.rule
	}
	r.countNode(n, rules)
	was, of := n.wasReady, r.repairs.pools[n.labels[poolLabel]]
	isTry := of != nil
	if id := n.providerID(); id != "" {
		r.repairs.nodes[id] = n.name
		for _, m := range r.repairs.byID[id] {
			n.wasReady = n.wasReady || m.initialized
			isTry = isTry && of.makes(&m.claim)
			r.countClaim(m)
		}
	}
	isReady := n.isReady() && !r.isStarting(n)
	n.wasReady = n.wasReady || n.labels[initializedLabel] == "true" || !isReady && settled(n.readySince, r.horizon())
	if isTry && (isReady && n.readySince.IsZero() || n.wasReady && !was) {
		of.tries = launchFailures{}
	}
	since(&n.readySince, isReady, r.at.Time)
}

func (n *node) providerID() string {
	if n.object == nil {
		return ""
	}
	id, _, _ := unstructured.NestedString(n.object.Object, "spec", "providerID")
	return id
}

// isStarting reports whether a node still has startup taints.
func (r *replay) isStarting(n *node) bool {
	return slices.ContainsFunc(n.taints, func(t taint) bool {
		return t.key == unregisteredTaint && t.effect == noExecute ||
			slices.ContainsFunc(r.repairs.byID[n.providerID()], func(m *claimState) bool { return slices.Contains(m.startup, taintID{t.key, t.effect}) })
	})
}

func (r *replay) countNode(n *node, rules []string) {
	for _, rule := range without(n.counted, rules) {
		r.nodeCount(rule).add(-1, r.at.Time, r.horizon())
	}
	for _, rule := range without(rules, n.counted) {
		r.nodeCount(rule).add(1, r.at.Time, r.horizon())
	}
	if !slices.Equal(n.counted, rules) {
		n.counted, n.countedSince = rules, r.at.Time
	}
}

func (r *replay) nodeCount(rule string) *count {
	c := r.repairs.nodeCounts[rule]
	if c == nil {
		c = &count{}
		r.repairs.nodeCounts[rule] = c
	}
	return c
}

// notePoolReady stores that a node becomes ready.
func (r *replay) notePoolReady(n *node, after facts) {
	if name := after.labels[poolLabel]; name != "" && !n.isReady() && after.isReady() {
		r.repairs.readyNodes = append(r.repairs.readyNodes, readyPoolNode{name, n.came})
	}
}

// removeFromRepair removes a deleted node from all counts.
func (r *replay) removeFromRepair(n *node) {
	r.countNode(n, nil)
	for _, p := range r.repairs.inRepair {
		if p.node == n.uid && p.gone.IsZero() {
			p.gone = r.at.Time
		}
	}
	if id := n.providerID(); r.repairs.nodes[id] == n.name {
		delete(r.repairs.nodes, id)
		for _, m := range r.repairs.byID[id] {
			r.countClaim(m)
		}
	}
}

// ---- claims

func (r *replay) claimChanged(change testbed.Change) {
	before := r.repairs.claims[change.UID]
	var was *unstructured.Unstructured
	if before != nil {
		was = before.object
	}
	ours, proved := r.authorOf(change, was)
	after := readClaim(change.Object)
	if !proved && before != nil && looksLikeOurEnd(before, &after, change) {
		ours, r.suspects = true, change.Author.String()
	}
	defer func() { r.suspects = "" }()
	marked := ours && before != nil && before.mark.text == "" && after.mark.text != ""
	wasTreated, hadStep := false, false
	for _, n := range r.nodesOf(before, &after) {
		r.beforeRepair(n)
		r.beforeRails(n)
		wasTreated, hadStep = wasTreated || r.isTreated(n), hadStep || r.hadStep(n)
	}
	switch {
	case before == nil:
		if ours {
			r.addClaimViolation(ForeignTouched, "", &after, "we created the claim")
		}
		before = &claimState{claim: after}
		r.repairs.claims[after.uid] = before
	case isDeleted(change):
		switch {
		case ours && before.deleting:
			r.addClaimViolation(DoneTwice, "", &before.claim, "we deleted the claim again")
		case ours:
			r.judgeTermination(before)
		}
		r.removeClaim(before)
		return
	default:
		if ours {
			r.judgeClaimWrite(before, &after)
		}
		if after.deleting && !before.deleting && ours {
			r.judgeTermination(before)
		}
		r.handleMark(before, &after, ours)
		r.untie(before)
		before.claim = after
	}
	since(&before.going, before.disrupted != "", r.at.Time)
	if before.providerID != "" {
		r.repairs.byID[before.providerID] = append(r.repairs.byID[before.providerID], before)
	}
	r.countClaim(before)
	for _, n := range r.nodesOf(before) {
		r.updateRepair(n)
		if marked {
			r.judgeStep(n, railStep{stage: repairs, what: "marked " + before.String(), treats: true, enters: !wasTreated, acts: true, hadStep: hadStep})
		}
	}
}

// looksLikeOurEnd reports whether an unknown author made a change that only we make.
func looksLikeOurEnd(before *claimState, after *claim, change testbed.Change) bool {
	if before.mark.text != after.mark.text {
		return true
	}
	return before.mark.text != "" && !before.deleting && (after.deleting || isDeleted(change))
}

// nodesOf returns the nodes of claims.
func (r *replay) nodesOf(before *claimState, claims ...*claim) (nodes []*node) {
	if before != nil {
		claims = append(claims, &before.claim)
	}
	for _, c := range claims {
		if n := r.nodes[r.repairs.nodes[c.providerID]]; c.providerID != "" && n != nil && !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// handleMark handles a mark that was set on a claim or removed from it.
func (r *replay) handleMark(before *claimState, after *claim, ours bool) {
	switch {
	case before.mark.text == after.mark.text:
	case after.mark.text == "":
		before.markedByUs = false
		r.repairs.inRepair = slices.DeleteFunc(r.repairs.inRepair, func(p *inRepair) bool { return p.claim == after.uid && p.gone.IsZero() && !after.deleting })
	default:
		before.markedByUs = ours
	}
}

func (r *replay) untie(m *claimState) {
	r.repairs.byID[m.providerID] = slices.DeleteFunc(r.repairs.byID[m.providerID], func(other *claimState) bool { return other == m })
}

func (r *replay) removeClaim(m *claimState) {
	r.untie(m)
	r.countClaimAs(m, [2]bool{})
	delete(r.repairs.claims, m.uid)
	for _, n := range r.nodesOf(m) {
		r.updateRepair(n)
	}
}

// countClaim counts a claim for the budgets as Karpenter does: claims whose node once was
// ready for work, without claims that are already being terminated.
func (r *replay) countClaim(m *claimState) {
	n := r.nodes[r.repairs.nodes[m.providerID]]
	isInService := n != nil && m.providerID != "" && n.labels[initializedLabel] == "true"
	r.countClaimAs(m, [2]bool{inService: isInService && !m.ending, allClaims: !m.ending})
}

func (r *replay) countClaimAs(m *claimState, is [2]bool) {
	for way := range is {
		if by := one(is[way]) - one(m.counted[way]); by != 0 {
			r.poolNamed(m.pool).totals[way].add(by, r.at.Time, r.horizon())
		}
	}
	m.counted = is
}

func (r *replay) poolNamed(name string) *pool {
	of := r.repairs.pools[name]
	if of == nil {
		of = &pool{name: name}
		r.repairs.pools[name] = of
	}
	return of
}

// ---- pools and policies

func (r *replay) poolChanged(change testbed.Change) {
	of := r.poolNamed(change.Name)
	if ours, proved := r.authorOf(change, of.object); ours && proved {
		r.judgePoolWrite(of, change)
	}
	if is := change.Object.GetAnnotations()[templateAnnotation]; is != "" && is != of.template && !isDeleted(change) {
		if of.template != "" {
			of.tries, of.templateChanged = launchFailures{}, r.at.Time
		}
		of.template = is
	}
	if of.object != nil && !isDeleted(change) && reflect.DeepEqual(of.object.Object["spec"], change.Object.Object["spec"]) &&
		vetoIn(of.object.GetAnnotations()) == vetoIn(change.Object.GetAnnotations()) && switchedOff(of.object) == switchedOff(change.Object) {
		of.object = change.Object
		return
	}
	r.beforeRepairs()
	of.previous, of.edited = of.budgets, r.at.Time
	of.object, of.budgets = change.Object, readBudgets(change.Object)
	switch spec, given, _ := unstructured.NestedFieldNoCopy(change.Object.Object, "spec", "repair"); {
	case isDeleted(change):
		of.object, of.block = nil, nil
	case given:
		if b := readBlock(spec, r.cfg.Repairs.Machines); b.isValid() {
			of.block = b
		}
	case !r.cfg.Repairs.SchemaLost:
		of.block = nil
	}
	_, stands, _ := unstructured.NestedFieldNoCopy(change.Object.Object, "spec", "repair")
	of.neverValid = stands && of.block == nil
	r.updateRepairs()
}

func (r *replay) updateRepairs() {
	for _, n := range r.nodes {
		r.updateRepair(n)
	}
}

func (r *replay) policyChanged(change testbed.Change) {
	p := r.repairs.policies[change.Name]
	if p == nil {
		p = &repairPolicy{name: change.Name}
		r.repairs.policies[change.Name] = p
	}
	if ours, proved := r.authorOf(change, p.object); ours && proved {
		r.judgePolicyWrite(p, change)
	}
	isSame := p.object != nil && p.object.GetUID() == change.UID
	if isSame && change.Type == watch.Modified && reflect.DeepEqual(p.object.Object["spec"], change.Object.Object["spec"]) && switchedOff(p.object) == switchedOff(change.Object) {
		p.object = change.Object
		return
	}
	r.beforeRepairs()
	if isDeleted(change) {
		delete(r.repairs.policies, change.Name)
	} else {
		p.object = change.Object
		p.read(r.cfg.Repairs)
	}
	r.sortPolicies()
	r.updateRepairs()
}

// read stores a valid version. If the first version is invalid, it stores which nodes the
// policy may select: any node, if that is unclear.
func (p *repairPolicy) read(cfg Repairs) {
	var spec v1alpha1.RepairPolicySpec
	if p.machines == nil {
		p.pool, p.selector = "", labels.Everything()
	}
	text, err := json.Marshal(p.object.Object["spec"])
	if err != nil || json.Unmarshal(text, &spec) != nil {
		return
	}
	block, given, _ := unstructured.NestedFieldNoCopy(p.object.Object, "spec", "repair")
	machines := readBlock(block, cfg.Machines)
	if (spec.NodePool == "") == (spec.Selector == nil) {
		return
	}
	var selector labels.Selector
	if spec.NodePool == "" {
		if selector, err = metav1.LabelSelectorAsSelector(spec.Selector); err != nil {
			return
		}
	}
	if !given || !machines.isValid() {
		if p.machines == nil {
			p.pool, p.selector = spec.NodePool, selector
		}
		return
	}
	p.pool, p.selector, p.machines, p.plain = spec.NodePool, selector, machines, readBlock(block, cfg.Plain)
	p.template = templateName{}
	if ref := spec.RemediationTemplate; ref != nil {
		p.template = templateName{GroupKind: ref.GroupVersionKind().GroupKind(), namespace: ref.Namespace, name: ref.Name}
	}
}

func (r *replay) sortPolicies() {
	r.repairs.inOrder = nil
	for _, p := range r.repairs.policies {
		r.repairs.inOrder = append(r.repairs.inOrder, p)
	}
	slices.SortFunc(r.repairs.inOrder, func(a, b *repairPolicy) int {
		return cmp.Or(
			cmp.Compare(one(a.selector != nil), one(b.selector != nil)),
			a.object.GetCreationTimestamp().Compare(b.object.GetCreationTimestamp().Time),
			cmp.Compare(a.name, b.name),
		)
	})
}
