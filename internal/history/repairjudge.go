package history

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/naive"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// addClaimViolation adds a violation about a claim.
func (r *replay) addClaimViolation(kind Kind, node string, c *claim, text string) {
	r.addCheckViolation(kind, node, "", text)
	violation := &r.report.Violations[len(r.report.Violations)-1]
	violation.Claim, violation.Pool = c.name, c.pool
}

// noRepair returns the reason against replacing a node by a rule in the current state, and
// the kind of violation. A started repair may continue while the node's condition is
// Unknown, and after its policy is switched off.
func (r *replay) noRepair(n *node, g repairRule, isUnderWay bool) (Kind, string) {
	if why := r.vetoOn(n, g); why != "" {
		return Unjustified, why
	}
	return r.noCause(n, g, isUnderWay)
}

// noCause does the same without vetoes.
func (r *replay) noCause(n *node, g repairRule, isUnderWay bool) (Kind, string) {
	if g.block.off && !isUnderWay {
		return Unjustified, "the policy is switched off"
	}
	if g.off != "" && !isUnderWay {
		return Unjustified, g.off
	}
	if !isUnderWay && r.areClosed(g.block.windows) && (g.isTimeout || !g.block.isUrgent(n)) {
		return Unjustified, "the windows of the policy are closed"
	}
	if g.isTimeout {
		return r.noTimeout(n, g, isUnderWay)
	}
	switch f := n.find(g.block.when); {
	case f.verdict == not:
		return Unjustified, "the node has no unhealthy condition"
	case isUnderWay:
	case f.verdict == unclear:
		return Unjustified, "a condition is Unknown, which the policy does not name: nothing may start"
	case !f.maybe(r.at.Time, r.cfg.Lag):
		return TooSoon, "the condition is tolerated until " + f.earliest.UTC().Format(time.TimeOnly)
	}
	return "", ""
}

// noTimeout returns the reason against replacing a node that does not become ready.
func (r *replay) noTimeout(n *node, g repairRule, isUnderWay bool) (Kind, string) {
	due := n.object.GetCreationTimestamp().Add(r.timeoutOf(g.block))
	switch {
	case n.isReady() && !r.isStarting(n):
		return Unjustified, "the node is ready for work"
	case n.wasReady:
		return Unjustified, "the node was ready for work once"
	case !isUnderWay && due.After(r.at.Time.Add(r.cfg.Lag)):
		return TooSoon, "the node may become ready until " + due.UTC().Format(time.TimeOnly)
	}
	return "", ""
}

// vetoOn returns the reason why a node must not be replaced in any state.
func (r *replay) vetoOn(n *node, g repairRule) string {
	if n.object.GetDeletionTimestamp() != nil {
		return "the node is being deleted"
	}
	claims := r.repairs.byID[n.providerID()]
	if len(claims) == 1 && claims[0].disrupted != "" {
		return claims[0].String() + " " + claims[0].disrupted
	}
	switch {
	case n.providerID() == "" || len(claims) == 0:
		if g.pool != "" {
			return "no claim has its provider ID"
		}
		return r.protectedBy(n, nil)
	case len(claims) > 1:
		return fmt.Sprintf("%s and %s have one provider ID", &claims[0].claim, &claims[1].claim)
	}
	return r.protectedBy(n, &claims[0].claim)
}

// protectedBy returns which annotation or Lease forbids the replacement of a node.
func (r *replay) protectedBy(n *node, c *claim) string {
	if by := vetoIn(n.object.GetAnnotations()); by != "" {
		return "the node is annotated " + by
	}
	if of := r.repairs.pools[n.labels[poolLabel]]; of != nil && of.object != nil {
		if by := vetoIn(of.object.GetAnnotations()); by != "" {
			return "its NodePool is annotated " + by
		}
	}
	if l := r.health.leases[n.name]; l != nil && !l.ofCheck() && l.held(r.at.Time) && l.held(r.horizon()) {
		return fmt.Sprintf("the node's Lease is held by %q", l.holder)
	}
	if c != nil {
		if by := vetoIn(c.object.GetAnnotations()); by != "" {
			return c.String() + " is annotated " + by
		}
	}
	return ""
}

// ---- our writes to claims

// judgeClaimWrite judges a write of ours to a claim. We own the mark, and the deadline that
// is set and removed with it. Deletions are judged separately.
func (r *replay) judgeClaimWrite(before *claimState, after *claim) {
	isEnding := after.deleting && !before.deleting
	hasMarked := before.mark.text != after.mark.text
	isForcing := before.deleting && !hasMarked && before.deadline() != after.deadline()
	parts := differences(before.object, after.object, func(object map[string]any) map[string]any {
		parts := partsOf(object)
		annotations := copied(parts["annotations"])
		if hasMarked {
			delete(annotations, markAnnotation)
		}
		if hasMarked || isForcing {
			delete(annotations, deadlineAnnotation)
		}
		parts["annotations"] = annotations
		metadata := copied(parts["metadata"])
		if isEnding {
			delete(metadata, "deletionTimestamp")
			delete(metadata, "deletionGracePeriodSeconds")
		}
		parts["metadata"] = metadata
		return parts
	})
	for _, part := range parts {
		r.addClaimViolation(ForeignTouched, before.mark.Node, after, "we changed the "+part+" of the claim")
	}
	switch {
	case isForcing:
		r.judgeForcing(before, after)
	case !hasMarked && !isEnding && len(parts) == 0:
		r.addClaimViolation(DoneTwice, before.mark.Node, after, "we wrote to the claim and changed nothing")
	case !hasMarked:
	case after.mark.text == "":
		r.judgeUnmark(before, after)
	case before.mark.text != "":
		r.addClaimViolation(Malformed, after.mark.Node, after, "we wrote another mark on the claim")
	default:
		r.judgeMark(before, after)
	}
}

// judgeForcing judges the end of a drain: we set the deadline of a claim that is being deleted. Its
// policy must ask for it by now.
func (r *replay) judgeForcing(before *claimState, after *claim) {
	wrong := func(kind Kind, format string, args ...any) {
		r.addClaimViolation(kind, after.mark.Node, after, "we ended the drain of the claim, "+fmt.Sprintf(format, args...))
	}
	if after.mark.text == "" {
		r.judgeForcingOthers(before, after, wrong)
		return
	}
	n := r.nodes[after.mark.Node]
	if n == nil || n.uid != after.mark.NodeUID {
		return // the node has just gone
	}
	// Whether the claim may be deleted was judged before. Here only the policy of now, or of a moment
	// ago, matters.
	asked := r.judgeCause(n, after.mark.Rule, true, func(Kind, string, ...any) {})
	if g, is := r.rule(n, after.mark.Rule); is {
		asked = append(asked, g.block)
	}
	if len(asked) == 0 {
		wrong(Unjustified, "by %s, which does not exist", after.mark.Rule)
		return
	}
	r.judgeDeadline(before, after, asked, wrong)
	r.judgeWindows(n, after.mark.Rule, asked, wrong)
	r.judgeStep(n, railStep{stage: repairs, what: "ended the drain of " + after.String(), acts: true, forces: true, hadStep: true})
}

// judgeForcingOthers judges that we ended the drain of a claim that another client deletes. A rule
// must ask for the replacement of its node now.
func (r *replay) judgeForcingOthers(before *claimState, after *claim, wrong func(Kind, string, ...any)) {
	r.report.Forced++
	for _, n := range r.nodes {
		if n.providerID() != after.providerID {
			continue
		}
		if by := r.protectedBy(n, &before.claim); by != "" {
			wrong(Unjustified, "but %s", by)
			return
		}
		var asked []*block
		var rule string
		kind, why := Unjustified, ""
		for _, g := range r.rulesOf(n) {
			switch not, problem := r.noCause(n, g, false); {
			case problem == "":
				asked, rule = append(asked, g.block), g.rule
			case why == "":
				kind, why = not, problem
			}
		}
		if len(asked) == 0 {
			wrong(kind, "but %s", cmp.Or(why, "no rule may replace the node"))
			return
		}
		r.judgeDeadline(before, after, asked, wrong)
		r.judgeStep(n, railStep{stage: repairs, what: "ended the drain of " + after.String(), acts: true, forces: true})
		before.forced = true
		if !strings.HasPrefix(rule, timeoutKind) {
			r.judgeThreshold(n, rule, asked, wrong)
		}
		r.judgeRepairBound(after.pool, rule, asked, wrong)
		return
	}
}

// judgeMark judges the start of a replacement: we mark the claim.
func (r *replay) judgeMark(before *claimState, after *claim) {
	r.report.Marks++
	before.reported, before.deadlineBefore, before.deadlineOfMark = true, before.deadline(), after.deadline()
	wrong := func(kind Kind, format string, args ...any) {
		r.addClaimViolation(kind, after.mark.Node, after, "we marked the claim, "+fmt.Sprintf(format, args...))
	}
	if after.mark.problem != nil {
		wrong(Malformed, "and the mark cannot be read: %v", after.mark.problem)
		return
	}
	n := r.nodes[after.mark.Node]
	if n == nil || n.uid != after.mark.NodeUID {
		if n = r.health.deleted[after.mark.NodeUID]; n == nil || n.name != after.mark.Node {
			wrong(Malformed, "for node %s (%s), which does not exist", after.mark.Node, after.mark.NodeUID)
			return
		}
	}
	if n.providerID() != after.providerID {
		wrong(Malformed, "for node %s, which has another provider ID", n.name)
		return
	}
	asked := r.judgeCause(n, after.mark.Rule, false, wrong)
	if asked == nil {
		return
	}
	before.reported = false
	r.judgeDeadline(before, after, asked, wrong)
	r.judgeEntry(before, n, after, wrong)
	r.judgeOnlyOne(n, wrong)
	r.judgeLaunchFailures(after, asked, wrong)
	if !strings.HasPrefix(after.mark.Rule, timeoutKind) {
		r.judgeThreshold(n, after.mark.Rule, asked, wrong)
	}
	r.takePlace(n, after, asked, wrong)
}

// judgeCause judges whether a rule allows the replacement of the node, or did a moment ago.
// It returns the settings of every version that the writer may have known.
func (r *replay) judgeCause(n *node, rule string, isUnderWay bool, wrong func(Kind, string, ...any)) []*block {
	var asked []*block
	kind, why := Unjustified, "the node is gone"
	if r.nodes[n.name] == n {
		g, is := r.rule(n, rule)
		why = "no rule with that name may replace the node"
		if is {
			kind, why = r.noRepair(n, g, isUnderWay)
		}
		if why == "" {
			asked = append(asked, g.block)
		}
	}
	for _, l := range n.permitted[rule] {
		until := l.begin
		if isUnderWay {
			until = l.stay
		}
		if r.recent(until) && !slices.Contains(asked, l.block) {
			asked = append(asked, l.block)
		}
	}
	if len(asked) == 0 {
		wrong(kind, "by %s, but %s", rule, why)
	}
	return asked
}

// judgeDeadline compares the deadline on the claim with the policy. If the policy sets no
// limit, we set none. Otherwise the deadline must not be too late. A deadline of another
// writer may be earlier.
func (r *replay) judgeDeadline(before *claimState, after *claim, asked []*block, wrong func(Kind, string, ...any)) {
	was, is := before.deadline(), after.deadline()
	var why string
	for _, b := range asked {
		if why = r.noDeadline(was, is, b); why == "" {
			return
		}
	}
	wrong(Malformed, "with the deadline %q, but %s", is, why)
}

func (r *replay) noDeadline(was, is string, b *block) string {
	if b.graceful && b.period == nil {
		if was != is {
			return "the policy is graceful and sets none"
		}
		return ""
	}
	due := r.at.Time
	if b.graceful {
		due = due.Add(*b.period)
	}
	at := moment(is)
	switch {
	case at.IsZero():
		return "the policy wants one"
	case at.After(due.Add(r.cfg.Lag)):
		return "the policy wants it at " + due.UTC().Format(time.TimeOnly)
	case b.graceful && was != is && at.Before(due.Add(-r.cfg.Lag-time.Second)): // whole seconds
		return "the policy wants it not before " + due.UTC().Format(time.TimeOnly)
	}
	return ""
}

// judgeEntry reports a write that the ledger did not name before.
func (r *replay) judgeEntry(before *claimState, n *node, after *claim, wrong func(Kind, string, ...any)) {
	if r.cfg.Ledger.Name == "" {
		return
	}
	entry := grant{after.mark.Rule, n.name, string(n.uid), before.object.GetResourceVersion(), claimInLedger + after.name}
	if !slices.Contains(r.ledger.Grants, entry) {
		wrong(Unrecorded, "and the ledger does not name it in version %s", entry.ResourceVersion)
	}
}

// judgeOnlyOne reports a mark on a node that is already under treatment.
func (r *replay) judgeOnlyOne(n *node, wrong func(Kind, string, ...any)) {
	for _, o := range r.health.onNode[n.name] {
		if (o.check != "" || o.policy != "") && o.isOf(n) && (o.ours || settled(o.seen, r.horizon())) {
			wrong(TreatedTwice, "while the node is under treatment by %s", o)
		}
	}
}

// judgeLaunchFailures reports a replacement in a pool that must pause because its nodes do
// not become ready.
func (r *replay) judgeLaunchFailures(c *claim, asked []*block, wrong func(Kind, string, ...any)) {
	pool, isTimeout := strings.CutPrefix(c.mark.Rule, timeoutKind)
	if !isTimeout {
		return
	}
	of := r.poolNamed(pool)
	t := &of.tries
	if over := t.failed - failuresInARow; over >= 0 {
		wait := r.cfg.Repairs.HeldFor
		if wait == 0 {
			wait = r.timeoutOf(asked[0])
		}
		wait = min(wait<<min(over, 20), longestHeld)
		if next := t.last.Add(wait); next.After(r.at.Time.Add(r.cfg.Lag)) {
			wrong(TooSoon, "although %d nodes of the pool in a row have not become ready: the next may be tried at %s", t.failed, next.UTC().Format(time.TimeOnly))
		}
	}
	if of.makes(c) && !r.recent(of.templateChanged) { // the controller may not know the new template yet
		*t = launchFailures{t.failed + 1, r.at.Time}
	}
}

const (
	// failuresInARow is how many nodes in a row may fail to become ready before the pool
	// pauses.
	failuresInARow = 3
	// longestHeld is the maximal pause.
	longestHeld = 6 * time.Hour
)

// takePlace counts a node that is now in repair, and judges whether the bound had room for
// it.
func (r *replay) takePlace(n *node, c *claim, asked []*block, wrong func(Kind, string, ...any)) {
	p := &inRepair{pool: c.pool, rule: c.mark.Rule, node: n.uid, claim: c.uid, marked: r.at.Time}
	if r.nodes[n.name] != n {
		p.gone = r.at.Time
	}
	r.repairs.inRepair = append(r.repairs.inRepair, p)
	r.judgeRepairBound(c.pool, c.mark.Rule, asked, wrong)
}

// judgeRepairBound judges whether the bound of a rule has room for the nodes in repair, and for the drains
// of other clients that we ended.
func (r *replay) judgeRepairBound(pool, rule string, asked []*block, wrong func(Kind, string, ...any)) {
	taken, gone := r.taken(pool)
	r.report.Peak["NodePool/"+pool] = max(r.report.Peak["NodePool/"+pool], taken)
	for _, c := range r.repairs.claims {
		if c.forced && c.pool == pool {
			taken++
		}
	}
	largest, beside := 0, r.beside(pool)
	for _, b := range asked {
		for _, nodes := range r.nodeCount(rule).recent(r.horizon()) {
			largest = max(largest, b.bound(nodes+gone-beside))
		}
	}
	if taken > largest {
		wrong(CapExceeded, "and %d nodes of the pool are in repair: at most %d may be", taken, largest)
	}
}

// judgeThreshold judges whether too many nodes of a rule were unhealthy when a repair started.
// It counts the nodes that the writer must have known to be unhealthy.
func (r *replay) judgeThreshold(n *node, rule string, asked []*block, wrong func(Kind, string, ...any)) {
	gone, maybeGone := 0, 0
	for _, p := range r.repairs.inRepair {
		if p.rule == rule && !p.gone.IsZero() {
			maybeGone++
			gone += one(r.at.Time.Before(p.gone.Add(replacedWithin-r.cfg.Lag)) && !r.findSuccessor(p, map[int]*inRepair{}, map[int]bool{}))
		}
	}
	known, largest := 0, 0
	for _, b := range asked {
		known, largest = gone+r.knownUnhealthy(n, rule, b), 0
		for _, nodes := range r.nodeCount(rule).recent(r.horizon()) {
			for total := nodes; total <= nodes+maybeGone; total++ { // of few nodes, fewer may allow more
				largest = max(largest, naive.Allows(&b.threshold, total))
			}
		}
		if known <= largest {
			return
		}
	}
	wrong(GateIgnored, "and %d nodes of the rule are unhealthy or not replaced yet: unhealthyThreshold allows %d", known, largest)
}

// knownUnhealthy counts the unhealthy nodes that the writer must have known when it started the
// repair of this node. One watch delivers all nodes in the order of their changes.
func (r *replay) knownUnhealthy(n *node, rule string, b *block) (known int) {
	began := n.unhealthySince(b)
	for _, other := range r.nodes {
		since := other.unhealthySince(b)
		isStarted := r.cfg.Repairs.ReadyTimeout == 0 || other.wasReady // no policy counts other nodes
		isKnown := settled(since, r.horizon()) || !since.IsZero() && !since.After(began)
		known += one(slices.Contains(other.counted, rule) && isStarted && settled(other.countedSince, r.horizon()) && isKnown)
	}
	return known
}

// taken counts the nodes of a pool that are certainly in repair, and how many of them are
// gone. A place becomes free when its node is gone and a node that is younger than the mark
// has become ready, or after a while.
func (r *replay) taken(pool string) (taken, gone int) {
	replaces := map[int]*inRepair{}
	for _, p := range r.repairs.inRepair {
		switch {
		case p.pool != pool:
		case p.gone.IsZero():
			taken++
		case r.at.Time.Before(p.gone.Add(replacedWithin-r.cfg.Lag)) && !r.findSuccessor(p, replaces, map[int]bool{}):
			taken++
			gone++
		}
	}
	return taken, gone
}

// beside counts the ready nodes of a pool without the nodes that they replace. The pool has
// no more replacements than the nodes it had when the first of those began to go.
func (r *replay) beside(pool string) int {
	var first time.Time
	there, gone := 0, 0
	for _, p := range r.repairs.inRepair {
		if p.pool == pool && p.gone.IsZero() && (first.IsZero() || p.marked.Before(first)) {
			first = p.marked
		}
	}
	if first.IsZero() {
		return 0
	}
	for _, n := range r.nodes {
		if n.labels[poolLabel] == pool && n.isReady() && n.came.After(first.Add(r.cfg.Lag+time.Second)) {
			there++
		}
	}
	for _, p := range r.repairs.inRepair {
		if p.pool == pool && !p.gone.IsZero() && p.gone.After(first.Add(-r.cfg.Lag)) {
			gone++
		}
	}
	return max(0, there-gone)
}

// findSuccessor assigns a successor to a deleted node. If necessary, it assigns another
// successor to the node that had it before.
func (r *replay) findSuccessor(p *inRepair, replaces map[int]*inRepair, tried map[int]bool) bool {
	for i, a := range r.repairs.readyNodes {
		if tried[i] || a.pool != p.pool || !a.came.After(p.marked.Add(-r.cfg.Lag-time.Second)) {
			continue
		}
		tried[i] = true
		if other := replaces[i]; other == nil || r.findSuccessor(other, replaces, tried) {
			replaces[i] = p
			return true
		}
	}
	return false
}

// judgeUnmark judges that we cancelled a replacement: nothing of ours may remain on the
// claim.
func (r *replay) judgeUnmark(before *claimState, after *claim) {
	r.report.Unmarks++
	left := before.deadlineBefore
	if before.deadline() != before.deadlineOfMark { // another writer has set a deadline since
		left = before.deadline()
	}
	switch {
	case before.deleting:
		r.addClaimViolation(Unjustified, before.mark.Node, after, "we removed the mark from the claim, which is being deleted")
	case !before.markedByUs:
		r.addClaimViolation(ForeignTouched, before.mark.Node, after, "we removed a mark from the claim that was not ours")
	case after.deadline() != left:
		r.addClaimViolation(Malformed, before.mark.Node, after, fmt.Sprintf("we removed the mark from the claim and left the deadline %q, where %q should be", after.deadline(), left))
	}
}

// judgeTermination judges that we deleted a claim, by the claim's state just before.
func (r *replay) judgeTermination(m *claimState) {
	r.report.Terminations++
	wrong := func(kind Kind, format string, args ...any) {
		r.addClaimViolation(kind, m.mark.Node, &m.claim, "we deleted the claim, "+fmt.Sprintf(format, args...))
	}
	if m.mark.text == "" || !m.markedByUs {
		wrong(Unrecorded, "which has no mark of ours")
		return
	}
	if m.reported {
		return // the mark was reported already
	}
	n := r.nodes[m.mark.Node]
	if n == nil || n.uid != m.mark.NodeUID {
		return // the node of the claim is gone
	}
	asked := r.judgeCause(n, m.mark.Rule, true, wrong)
	if asked == nil {
		return
	}
	r.judgeBudget(m, wrong)
	r.judgeWindows(n, m.mark.Rule, asked, wrong)
	r.judgeStep(n, railStep{stage: repairs, what: "deleted " + m.String(), acts: true, hadStep: len(r.health.onNode[n.name]) > 0})
}

// judgeBudget judges whether the pool's budgets allowed a deletion.
func (r *replay) judgeBudget(m *claimState, wrong func(Kind, string, ...any)) {
	way := inService
	if strings.HasPrefix(m.mark.Rule, timeoutKind) {
		way = allClaims
	}
	of := r.repairs.pools[m.pool]
	if of == nil || of.object == nil || !m.counted[way] {
		return // the budgets do not count it
	}
	budgets := [][]allowance{of.budgets}
	if r.recent(of.edited) {
		budgets = append(budgets, of.previous)
	}
	allowed := 0
	for _, each := range budgets {
		for _, total := range of.totals[way].recent(r.horizon()) {
			for _, at := range []time.Time{r.at.Time, r.horizon(), r.at.Time.Add(r.cfg.Lag)} {
				allowed = max(allowed, allowedBy(each, total, at))
			}
		}
	}
	going := 1
	for _, other := range r.repairs.claims {
		isKnown := other.markedByUs || settled(other.going, r.horizon())
		going += one(other != m && other.pool == m.pool && other.counted[way] && isKnown)
	}
	if going > allowed {
		wrong(GateIgnored, "and %d of %d nodes are taken out of service: the disruption budgets of the pool allow %d", going, of.totals[way].is, allowed)
	}
}

// ---- our writes to pools and policies

// judgePoolWrite judges a write of ours to a NodePool. We own nothing of it, but may
// restore a lost block if the configuration allows it.
func (r *replay) judgePoolWrite(of *pool, change testbed.Change) {
	tell := func(kind Kind, text string) {
		r.addCheckViolation(kind, "", "", text)
		r.report.Violations[len(r.report.Violations)-1].Pool = of.name
	}
	switch {
	case isDeleted(change):
		tell(ForeignTouched, "we deleted the pool")
		return
	case of.object == nil:
		tell(ForeignTouched, "we created the pool")
		return
	}
	was, had, _ := unstructured.NestedFieldNoCopy(of.object.Object, "spec", "repair")
	is, has, _ := unstructured.NestedFieldNoCopy(change.Object.Object, "spec", "repair")
	isRestored := r.cfg.Repairs.MayRestore && !had && has
	parts := differences(of.object, change.Object, func(object map[string]any) map[string]any {
		parts := partsOf(object)
		if isRestored {
			spec := copied(parts["spec"])
			delete(spec, "repair")
			parts["spec"] = spec
		}
		return parts
	})
	for _, part := range parts {
		tell(ForeignTouched, "we changed the "+part+" of the pool")
	}
	switch {
	case isRestored:
		r.report.Restores++
	case len(parts) == 0 && reflect.DeepEqual(was, is):
		tell(DoneTwice, "we wrote to the pool and changed nothing")
	}
}

// judgePolicyWrite judges a write of ours to a RepairPolicy.
func (r *replay) judgePolicyWrite(p *repairPolicy, change testbed.Change) {
	r.report.PolicyStatuses++
	judgeStatusWrite("policy", p.object, change, func(kind Kind, text string) {
		r.addCheckViolation(kind, "", "", text)
		r.report.Violations[len(r.report.Violations)-1].Policy = p.name
	})
}

// judgeRepairEnd reports marks that were left on claims.
func (r *replay) judgeRepairEnd() {
	for _, m := range r.claimsInOrder() {
		if m.mark.text != "" && !m.deleting {
			r.addClaimViolation(WrongEnd, m.mark.Node, &m.claim, "the claim has a mark, and is not being deleted")
		}
	}
}

func (r *replay) claimsInOrder() []*claimState {
	return slices.SortedFunc(maps.Values(r.repairs.claims), func(a, b *claimState) int { return strings.Compare(a.name, b.name) })
}
