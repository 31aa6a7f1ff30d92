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

// fleet is what is known of the machines behind nodes: NodeClaims and NodePools, and
// the policies by which they are replaced.
type fleet struct {
	claims   map[types.UID]*machine
	byID     map[string][]*machine // by provider ID
	nodes    map[string]string     // names, by provider ID
	pools    map[string]*pool
	policies map[string]*repairPolicy
	inOrder  []*repairPolicy   // by precedence
	heads    map[string]*count // how many nodes each rule is about
	places   []*inRepair
	arrivals []poolArrival
	unsaid   *block // what holds where nobody says anything
}

func newFleet(cfg Repairs) fleet {
	return fleet{
		unsaid: readBlock(nil, cfg.Machines),
		claims: map[types.UID]*machine{}, byID: map[string][]*machine{}, nodes: map[string]string{},
		pools: map[string]*pool{}, policies: map[string]*repairPolicy{}, heads: map[string]*count{},
	}
}

// machine is a NodeClaim and what has happened to it.
type machine struct {
	claim
	markedByUs bool
	undone     string    // the deadline that stood there before the mark,
	came       string    // and the one that came with it
	going      time.Time // since when it is taken out of service by anybody
	told       bool      // that its end is wrong
	counted    [2]bool   // in the total of its pool's budgets: as one in service, and as one of all
}

// The two ways to count a pool for its budgets.
const (
	inService = iota // what Karpenter counts: nodes that were ready for work once
	allClaims        // for those that never were
)

// pool is a NodePool.
type pool struct {
	name   string
	object *unstructured.Unstructured // nil while there is none
	block  *block                     // the last one that could be followed, nil for none
	// isGarbled says that a block stands there, and none could ever be followed.
	isGarbled bool
	totals    [2]count

	budgets []allowance
	before  []allowance // what they were before the last edit
	edited  time.Time

	template string    // a hash of what its nodes are made from, empty if that is unknown
	remade   time.Time // when that changed last
	tries    tries
}

// makes says whether a claim was made from the pool's present template. What becomes of
// any other claim tells nothing about the nodes to come.
func (of *pool) makes(c *claim) bool {
	return c.template == "" || of.template == "" || c.template == of.template
}

// tries are the nodes that were replaced since one became ready, of those that were made
// from the pool's present template.
type tries struct {
	failed int
	last   time.Time
}

// count is a number, and what it was.
type count struct {
	is   int
	past []pastBound
}

func (c *count) add(by int, now, horizon time.Time) {
	c.past = slices.DeleteFunc(c.past, func(p pastBound) bool { return p.until.Before(horizon) })
	c.past = append(c.past, pastBound{c.is, now})
	c.is += by
}

// recent are the numbers that somebody may have known last.
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

	// What is followed of it: the last version that could be. While there was none, the
	// first two say whom it may mean.
	pool            string
	selector        labels.Selector // nil if it names a pool
	machines, plain *block          // nil while nothing is
	template        templateName    // for nodes without a machine, empty for none
}

// inRepair is a node in repair.
type inRepair struct {
	pool   string
	node   types.UID
	claim  types.UID
	marked time.Time
	gone   time.Time // zero while the node is there
}

// poolArrival is a node of a pool that has become ready.
type poolArrival struct {
	pool string
	came time.Time
}

// governance is by which rule a node may be replaced, and what that asks for.
type governance struct {
	rule      string // with its kind
	pool      string // empty for a node without a machine
	block     *block
	isTimeout bool
}

// upkeep is how things have gone between a node and the rules by which it may be
// replaced.
type upkeep struct {
	counted []string // the rules that count it
	// readySince is since when it is ready for work, and wasReady says that it was
	// for long enough for everybody to know, or that Karpenter says so.
	readySince time.Time
	wasReady   bool
	lawful     map[string][]lawfulness // by rule
}

// lawfulness is until when a rule asked for a node's end in one version, or let it go
// on once it was begun.
type lawfulness struct {
	block       *block
	begin, stay time.Time
}

// ---- who governs

// governor returns by which rule a node that has fallen sick may be replaced: by what
// stands on its NodePool, then by the policy that names the pool, then by one that
// selects the node; of two of those by the older.
func (r *replay) governor(n *node) (g governance, is bool) {
	name := n.labels[poolLabel]
	of := r.fleet.pools[name]
	isThere := of != nil && of.object != nil
	if isThere && of.block != nil {
		return governance{rule: repairKind + "NodePool/" + name, pool: name, block: of.block}, true
	}
	for _, p := range r.fleet.inOrder {
		switch {
		case p.machines == nil:
		case p.selector == nil && p.pool == name && name != "":
			return governance{rule: repairKind + "RepairPolicy/" + p.name, pool: name, block: p.machines}, isThere
		case p.selector == nil || !p.selector.Matches(labels.Set(n.labels)):
		case isThere:
			return governance{rule: repairKind + "RepairPolicy/" + p.name + "/" + name, pool: name, block: p.machines}, true
		default:
			return governance{rule: repairKind + "RepairPolicy/" + p.name, block: p.plain}, true
		}
	}
	if isThere && r.cfg.Repairs.WithoutPolicy && !r.isGarbled(n, of) {
		return governance{rule: repairKind + "NodePool/" + name, pool: name, block: r.fleet.unsaid}, true
	}
	return governance{}, false
}

// timer returns by which rule a node may be replaced that does not become ready.
func (r *replay) timer(n *node) (g governance, is bool) {
	name := n.labels[poolLabel]
	of := r.fleet.pools[name]
	if of == nil || of.object == nil || r.cfg.Repairs.ReadyTimeout == 0 {
		return governance{}, false
	}
	timing := r.timing(of)
	if timing == r.fleet.unsaid && r.isGarbled(n, of) {
		return governance{}, false
	}
	return governance{rule: timeoutKind + name, pool: name, block: timing, isTimeout: true}, true
}

// isGarbled says whether somebody has written something about a node of which nothing
// could ever be followed. No default may take its place.
func (r *replay) isGarbled(n *node, of *pool) bool {
	return of.isGarbled || slices.ContainsFunc(r.fleet.inOrder, func(p *repairPolicy) bool {
		return p.machines == nil && (p.selector == nil && p.pool == of.name || p.selector != nil && p.selector.Matches(labels.Set(n.labels)))
	})
}

// timing is what is said of a pool's nodes that do not become ready.
func (r *replay) timing(of *pool) *block {
	if of.block != nil {
		return of.block
	}
	at := slices.IndexFunc(r.fleet.inOrder, func(p *repairPolicy) bool { return p.machines != nil && p.selector == nil && p.pool == of.name })
	if at >= 0 {
		return r.fleet.inOrder[at].machines
	}
	return r.fleet.unsaid
}

// timeoutOf is how long a node of a pool may take to become ready.
func (r *replay) timeoutOf(b *block) time.Duration {
	if b.timeout > 0 {
		return b.timeout
	}
	return r.cfg.Repairs.ReadyTimeout
}

// rulesOf returns the rules by which a node may be replaced.
func (r *replay) rulesOf(n *node) (rules []governance) {
	if len(r.fleet.pools)+len(r.fleet.policies) == 0 {
		return nil
	}
	if g, is := r.governor(n); is {
		rules = append(rules, g)
	}
	if g, is := r.timer(n); is {
		rules = append(rules, g)
	}
	return rules
}

func (r *replay) rule(n *node, name string) (governance, bool) {
	rules := r.rulesOf(n)
	at := slices.IndexFunc(rules, func(g governance) bool { return g.rule == name })
	if at < 0 {
		return governance{}, false
	}
	return rules[at], true
}

// ---- nodes

// beforeRepair notes what could be decided about a node until now. It comes before
// anything changes that bears on it.
func (r *replay) beforeRepair(n *node) {
	for _, g := range r.rulesOf(n) {
		if _, why := r.noRepair(n, g, true); why != "" {
			continue
		}
		now := lawfulness{block: g.block, stay: r.at.Time}
		known := slices.DeleteFunc(n.lawful[g.rule], func(l lawfulness) bool {
			if l.block == g.block {
				now.begin = l.begin
			}
			return l.block == g.block || !r.recent(l.stay)
		})
		if _, why := r.noRepair(n, g, false); why == "" {
			now.begin = r.at.Time
		}
		n.lawful[g.rule] = append(known, now)
	}
}

func (r *replay) beforeRepairs() {
	for _, n := range r.nodes {
		r.beforeRepair(n)
	}
}

// attendMachine brings up to date who counts a node, and whether it was ever ready for
// work.
func (r *replay) attendMachine(n *node) {
	governed := r.rulesOf(n)
	rules := make([]string, len(governed))
	for i, g := range governed {
		rules[i] = g.rule
	}
	r.countNode(n, rules)
	was, of := n.wasReady, r.fleet.pools[n.labels[poolLabel]]
	isTry := of != nil
	if id := n.providerID(); id != "" {
		r.fleet.nodes[id] = n.name
		for _, m := range r.fleet.byID[id] {
			n.wasReady = n.wasReady || m.initialized
			isTry = isTry && of.makes(&m.claim)
			r.weigh(m)
		}
	}
	isReady := n.isReady() && !r.isStarting(n)
	n.wasReady = n.wasReady || n.labels[initializedLabel] == "true" || !isReady && settled(n.readySince, r.horizon())
	if isTry && (isReady && n.readySince.IsZero() || n.wasReady && !was) {
		of.tries = tries{}
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

// isStarting says whether a node has taints that it begins with and is to lose.
func (r *replay) isStarting(n *node) bool {
	return slices.ContainsFunc(n.taints, func(t taint) bool {
		return t.key == unregisteredTaint && t.effect == noExecute ||
			slices.ContainsFunc(r.fleet.byID[n.providerID()], func(m *machine) bool { return slices.Contains(m.startup, spot{t.key, t.effect}) })
	})
}

func (r *replay) countNode(n *node, rules []string) {
	for _, rule := range without(n.counted, rules) {
		r.head(rule).add(-1, r.at.Time, r.horizon())
	}
	for _, rule := range without(rules, n.counted) {
		r.head(rule).add(1, r.at.Time, r.horizon())
	}
	n.counted = rules
}

func (r *replay) head(rule string) *count {
	c := r.fleet.heads[rule]
	if c == nil {
		c = &count{}
		r.fleet.heads[rule] = c
	}
	return c
}

// heedPoolArrival takes in that a node becomes ready.
func (r *replay) heedPoolArrival(n *node, after facts) {
	if name := after.labels[poolLabel]; name != "" && !n.isReady() && after.isReady() {
		r.fleet.arrivals = append(r.fleet.arrivals, poolArrival{name, n.came})
	}
}

// loseNode takes a node that is gone out of all numbers.
func (r *replay) loseNode(n *node) {
	r.countNode(n, nil)
	for _, p := range r.fleet.places {
		if p.node == n.uid && p.gone.IsZero() {
			p.gone = r.at.Time
		}
	}
	if id := n.providerID(); r.fleet.nodes[id] == n.name {
		delete(r.fleet.nodes, id)
		for _, m := range r.fleet.byID[id] {
			r.weigh(m)
		}
	}
}

// ---- claims

func (r *replay) claimChanged(change testbed.Change) {
	before := r.fleet.claims[change.UID]
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
	for _, n := range r.nodesOf(before, &after) {
		r.beforeRepair(n)
	}
	switch {
	case before == nil:
		if ours {
			r.tellAbout(ForeignTouched, "", &after, "we created the claim")
		}
		before = &machine{claim: after}
		r.fleet.claims[after.uid] = before
	case isDeleted(change):
		switch {
		case ours && before.deleting:
			r.tellAbout(DoneTwice, "", &before.claim, "we deleted the claim again")
		case ours:
			r.judgeTermination(before)
		}
		r.dismissClaim(before)
		return
	default:
		if ours {
			r.judgeClaimWrite(before, &after)
		}
		if after.deleting && !before.deleting && ours {
			r.judgeTermination(before)
		}
		r.heedMark(before, &after, ours)
		r.untie(before)
		before.claim = after
	}
	since(&before.going, before.disrupted != "", r.at.Time)
	if before.providerID != "" {
		r.fleet.byID[before.providerID] = append(r.fleet.byID[before.providerID], before)
	}
	r.weigh(before)
	for _, n := range r.nodesOf(before) {
		r.attendMachine(n)
	}
}

// looksLikeOurEnd says whether somebody unknown did what we do.
func looksLikeOurEnd(before *machine, after *claim, change testbed.Change) bool {
	if before.mark.text != after.mark.text {
		return true
	}
	return before.mark.text != "" && !before.deleting && (after.deleting || isDeleted(change))
}

// nodesOf returns the nodes that claims are behind.
func (r *replay) nodesOf(before *machine, claims ...*claim) (nodes []*node) {
	if before != nil {
		claims = append(claims, &before.claim)
	}
	for _, c := range claims {
		if n := r.nodes[r.fleet.nodes[c.providerID]]; c.providerID != "" && n != nil && !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// heedMark takes in that a claim is marked, or no longer.
func (r *replay) heedMark(before *machine, after *claim, ours bool) {
	switch {
	case before.mark.text == after.mark.text:
	case after.mark.text == "":
		before.markedByUs = false
		r.fleet.places = slices.DeleteFunc(r.fleet.places, func(p *inRepair) bool { return p.claim == after.uid && p.gone.IsZero() && !after.deleting })
	default:
		before.markedByUs = ours
	}
}

func (r *replay) untie(m *machine) {
	r.fleet.byID[m.providerID] = slices.DeleteFunc(r.fleet.byID[m.providerID], func(other *machine) bool { return other == m })
}

func (r *replay) dismissClaim(m *machine) {
	r.untie(m)
	r.weighAs(m, [2]bool{})
	delete(r.fleet.claims, m.uid)
	for _, n := range r.nodesOf(m) {
		r.attendMachine(n)
	}
}

// weigh counts a claim as Karpenter does for its budgets: those with a node that once
// was ready for work, and without those whose machine is going already.
func (r *replay) weigh(m *machine) {
	n := r.nodes[r.fleet.nodes[m.providerID]]
	isInService := n != nil && m.providerID != "" && n.labels[initializedLabel] == "true"
	r.weighAs(m, [2]bool{inService: isInService && !m.ending, allClaims: !m.ending})
}

func (r *replay) weighAs(m *machine, is [2]bool) {
	for way := range is {
		if by := one(is[way]) - one(m.counted[way]); by != 0 {
			r.poolNamed(m.pool).totals[way].add(by, r.at.Time, r.horizon())
		}
	}
	m.counted = is
}

func (r *replay) poolNamed(name string) *pool {
	of := r.fleet.pools[name]
	if of == nil {
		of = &pool{name: name}
		r.fleet.pools[name] = of
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
			of.tries, of.remade = tries{}, r.at.Time
		}
		of.template = is
	}
	if of.object != nil && !isDeleted(change) && reflect.DeepEqual(of.object.Object["spec"], change.Object.Object["spec"]) &&
		vetoIn(of.object.GetAnnotations()) == vetoIn(change.Object.GetAnnotations()) {
		of.object = change.Object
		return
	}
	r.beforeRepairs()
	of.before, of.edited = of.budgets, r.at.Time
	of.object, of.budgets = change.Object, readBudgets(change.Object)
	switch spec, given, _ := unstructured.NestedFieldNoCopy(change.Object.Object, "spec", "repair"); {
	case isDeleted(change):
		of.object, of.block = nil, nil
	case given:
		if b := readBlock(spec, r.cfg.Repairs.Machines); b.follows() {
			of.block = b
		}
	case !r.cfg.Repairs.SchemaLost:
		of.block = nil
	}
	_, stands, _ := unstructured.NestedFieldNoCopy(change.Object.Object, "spec", "repair")
	of.isGarbled = stands && of.block == nil
	r.attendMachines()
}

func (r *replay) attendMachines() {
	for _, n := range r.nodes {
		r.attendMachine(n)
	}
}

func (r *replay) policyChanged(change testbed.Change) {
	p := r.fleet.policies[change.Name]
	if p == nil {
		p = &repairPolicy{name: change.Name}
		r.fleet.policies[change.Name] = p
	}
	if ours, proved := r.authorOf(change, p.object); ours && proved {
		r.judgePolicyWrite(p, change)
	}
	isSame := p.object != nil && p.object.GetUID() == change.UID
	if isSame && change.Type == watch.Modified && reflect.DeepEqual(p.object.Object["spec"], change.Object.Object["spec"]) {
		p.object = change.Object
		return
	}
	r.beforeRepairs()
	if isDeleted(change) {
		delete(r.fleet.policies, change.Name)
	} else {
		p.object = change.Object
		p.read(r.cfg.Repairs)
	}
	r.sortPolicies()
	r.attendMachines()
}

// read takes over a version that can be followed. Of one that cannot, and is the first,
// it takes over whom it may mean: any node, if that is not clear.
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
	if !given || !machines.follows() {
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
	r.fleet.inOrder = nil
	for _, p := range r.fleet.policies {
		r.fleet.inOrder = append(r.fleet.inOrder, p)
	}
	slices.SortFunc(r.fleet.inOrder, func(a, b *repairPolicy) int {
		return cmp.Or(
			cmp.Compare(one(a.selector != nil), one(b.selector != nil)),
			a.object.GetCreationTimestamp().Compare(b.object.GetCreationTimestamp().Time),
			cmp.Compare(a.name, b.name),
		)
	})
}
