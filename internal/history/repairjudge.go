package history

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// tellAbout tells of something that was done about a claim.
func (r *replay) tellAbout(kind Kind, node string, c *claim, text string) {
	r.tellOf(kind, node, "", text)
	told := &r.report.Violations[len(r.report.Violations)-1]
	told.Claim, told.Pool = c.name, c.pool
}

// noRepair says what speaks against replacing a node by a rule, as everything stands,
// and what it is if it is done all the same. What is under way may go on while nobody
// knows how the node is, and when its policy is switched off.
func (r *replay) noRepair(n *node, g governance, isUnderWay bool) (Kind, string) {
	if why := r.vetoOn(n, g); why != "" {
		return Unlawful, why
	}
	if g.block.off && !isUnderWay {
		return Unlawful, "the policy is switched off"
	}
	if g.isTimeout {
		return r.noTimeout(n, g, isUnderWay)
	}
	switch f := n.ails(g.block); {
	case f.verdict == not:
		return Unlawful, "no sign of sickness stands on the node"
	case isUnderWay:
	case f.verdict == unclear:
		return Unlawful, "a condition is Unknown, which the policy does not name: nothing may start"
	case !f.maybe(r.at.Time, r.cfg.Lag):
		return TooSoon, "the sickness is tolerated until " + f.earliest.UTC().Format(time.TimeOnly)
	}
	return "", ""
}

// noTimeout says what speaks against replacing a node because it does not become ready.
func (r *replay) noTimeout(n *node, g governance, isUnderWay bool) (Kind, string) {
	due := n.object.GetCreationTimestamp().Add(r.timeoutOf(g.block))
	switch {
	case n.isReady() && !r.isStarting(n):
		return Unlawful, "the node is ready for work"
	case n.wasReady:
		return Unlawful, "the node was ready for work once"
	case !isUnderWay && due.After(r.at.Time.Add(r.cfg.Lag)):
		return TooSoon, "the node may become ready until " + due.UTC().Format(time.TimeOnly)
	}
	return "", ""
}

// vetoOn says why a node must be left alone whatever its state.
func (r *replay) vetoOn(n *node, g governance) string {
	if n.object.GetDeletionTimestamp() != nil {
		return "the node is being deleted"
	}
	if by := vetoIn(n.object.GetAnnotations()); by != "" {
		return "the node is annotated " + by
	}
	if of := r.fleet.pools[n.labels[poolLabel]]; of != nil && of.object != nil {
		if by := vetoIn(of.object.GetAnnotations()); by != "" {
			return "its NodePool is annotated " + by
		}
	}
	if l := r.ward.locks[n.name]; l != nil && !l.ofCheck() && l.held(r.at.Time) && l.held(r.horizon()) {
		return fmt.Sprintf("the node's Lease is held by %q", l.holder)
	}
	claims := r.fleet.byID[n.providerID()]
	switch {
	case n.providerID() == "" || len(claims) == 0:
		if g.pool != "" {
			return "no claim has its provider ID"
		}
		return ""
	case len(claims) > 1:
		return fmt.Sprintf("%s and %s have one provider ID", &claims[0].claim, &claims[1].claim)
	case claims[0].disrupted != "":
		return claims[0].String() + " " + claims[0].disrupted
	}
	if by := vetoIn(claims[0].object.GetAnnotations()); by != "" {
		return claims[0].String() + " is annotated " + by
	}
	return ""
}

// ---- what we write to claims

// judgeClaimWrite looks at a write of ours to a claim: ours are the mark, and the
// deadline that comes and goes with it. A deletion is judged as such.
func (r *replay) judgeClaimWrite(before *machine, after *claim) {
	isEnding := after.deleting && !before.deleting
	hasMarked := before.mark.text != after.mark.text
	parts := differences(before.object, after.object, func(object map[string]any) map[string]any {
		parts := partsOf(object)
		annotations := copied(parts["annotations"])
		if hasMarked {
			delete(annotations, markAnnotation)
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
		r.tellAbout(ForeignTouched, before.mark.Node, after, "we changed the "+part+" of the claim")
	}
	switch {
	case !hasMarked && !isEnding && len(parts) == 0:
		r.tellAbout(DoneTwice, before.mark.Node, after, "we wrote to the claim and changed nothing")
	case !hasMarked:
	case after.mark.text == "":
		r.judgeSpare(before, after)
	case before.mark.text != "":
		r.tellAbout(Malformed, after.mark.Node, after, "we wrote another mark on the claim")
	default:
		r.judgeMark(before, after)
	}
}

// judgeMark judges that we begin to replace a node: its claim is marked.
func (r *replay) judgeMark(before *machine, after *claim) {
	r.report.Marks++
	before.told, before.undone, before.came = true, before.deadline(), after.deadline()
	wrong := func(kind Kind, format string, args ...any) {
		r.tellAbout(kind, after.mark.Node, after, "we marked the claim, "+fmt.Sprintf(format, args...))
	}
	if after.mark.problem != nil {
		wrong(Malformed, "and the mark cannot be read: %v", after.mark.problem)
		return
	}
	n := r.nodes[after.mark.Node]
	if n == nil || n.uid != after.mark.NodeUID {
		if n = r.ward.departed[after.mark.NodeUID]; n == nil || n.name != after.mark.Node {
			wrong(Malformed, "for node %s (%s), which is not there", after.mark.Node, after.mark.NodeUID)
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
	before.told = false
	r.judgeDeadline(before, after, asked, wrong)
	r.judgeEntry(before, n, after, wrong)
	r.judgeOnlyOne(n, wrong)
	r.judgeTries(after, asked, wrong)
	r.takePlace(n, after, asked, wrong)
}

// judgeCause says whether a rule asks for the node's end, or did a
// moment ago, and returns what it asks for, in every version that may have been known.
func (r *replay) judgeCause(n *node, rule string, isUnderWay bool, wrong func(Kind, string, ...any)) []*block {
	var asked []*block
	kind, why := Unlawful, "the node is gone"
	if r.nodes[n.name] == n {
		g, is := r.rule(n, rule)
		why = "no rule of that name may replace the node"
		if is {
			kind, why = r.noRepair(n, g, isUnderWay)
		}
		if why == "" {
			asked = append(asked, g.block)
		}
	}
	for _, l := range n.lawful[rule] {
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

// judgeDeadline says whether the claim has the deadline that the policy asks for: none
// of ours if the node may take its time, and otherwise one that is not later than it
// should be. One that somebody else has set may be earlier.
func (r *replay) judgeDeadline(before *machine, after *claim, asked []*block, wrong func(Kind, string, ...any)) {
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
	case b.graceful && was != is && at.Before(due.Add(-r.cfg.Lag-time.Second)): // it is whole seconds
		return "the policy wants it not before " + due.UTC().Format(time.TimeOnly)
	}
	return ""
}

// judgeEntry says whether the ledger told of it before.
func (r *replay) judgeEntry(before *machine, n *node, after *claim, wrong func(Kind, string, ...any)) {
	if r.cfg.Ledger.Name == "" {
		return
	}
	entry := grant{after.mark.Rule, n.name, string(n.uid), before.object.GetResourceVersion(), claimInLedger + after.name}
	if !slices.Contains(r.page.Grants, entry) {
		wrong(Unrecorded, "and the ledger does not name it in version %s", entry.ResourceVersion)
	}
}

// judgeOnlyOne says whether something else is under way on the node.
func (r *replay) judgeOnlyOne(n *node, wrong func(Kind, string, ...any)) {
	for _, o := range r.ward.onNode[n.name] {
		if (o.check != "" || o.policy != "") && o.isOf(n) && (o.ours || settled(o.seen, r.horizon())) {
			wrong(TreatedTwice, "while the node is treated by %s", o)
		}
	}
}

// judgeTries says whether a pool whose nodes do not become ready is given time.
func (r *replay) judgeTries(c *claim, asked []*block, wrong func(Kind, string, ...any)) {
	pool, isTimeout := strings.CutPrefix(c.mark.Rule, timeoutKind)
	if !isTimeout {
		return
	}
	of := r.poolNamed(pool)
	t := &of.tries
	if over := t.failed - triesInARow; over >= 0 {
		wait := r.cfg.Repairs.HeldFor
		if wait == 0 {
			wait = r.timeoutOf(asked[0])
		}
		wait = min(wait<<min(over, 20), longestHeld)
		if next := t.last.Add(wait); next.After(r.at.Time.Add(r.cfg.Lag)) {
			wrong(TooSoon, "although %d nodes of the pool in a row have not become ready: the next may be tried at %s", t.failed, next.UTC().Format(time.TimeOnly))
		}
	}
	if of.makes(c) && !r.recent(of.remade) { // the controller may not know the new template yet
		*t = tries{t.failed + 1, r.at.Time}
	}
}

const (
	// triesInARow is how many nodes of a pool are replaced in a row because they do
	// not become ready, before the pool is held.
	triesInARow = 3
	// longestHeld is for how long it is held at most.
	longestHeld = 6 * time.Hour
)

// takePlace counts a node that is in repair from now on, and says whether there was
// room for it.
func (r *replay) takePlace(n *node, c *claim, asked []*block, wrong func(Kind, string, ...any)) {
	p := &inRepair{pool: c.pool, node: n.uid, claim: c.uid, marked: r.at.Time}
	if r.nodes[n.name] != n {
		p.gone = r.at.Time
	}
	r.fleet.places = append(r.fleet.places, p)
	taken, gone := r.taken(c.pool)
	r.report.Peak["NodePool/"+c.pool] = max(r.report.Peak["NodePool/"+c.pool], taken)
	largest, beside := 0, r.beside(c.pool)
	for _, b := range asked {
		for _, nodes := range r.head(c.mark.Rule).recent(r.horizon()) {
			largest = max(largest, b.bound(nodes+gone-beside))
		}
	}
	if taken > largest {
		wrong(CapExceeded, "and %d nodes of the pool are in repair: at most %d may be", taken, largest)
	}
}

// taken counts the nodes of a pool that are in repair for certain, and how many of
// those are gone: a place is free when its node is gone and another one, that is
// younger than the mark, has become ready, or after a while.
func (r *replay) taken(pool string) (taken, gone int) {
	replaces := map[int]*inRepair{}
	for _, p := range r.fleet.places {
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

// beside counts the nodes of a pool that are ready beside those that they are to replace:
// the pool has no more for them than it had when the first of those began to go.
func (r *replay) beside(pool string) int {
	var first time.Time
	there, gone := 0, 0
	for _, p := range r.fleet.places {
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
	for _, p := range r.fleet.places {
		if p.pool == pool && !p.gone.IsZero() && p.gone.After(first.Add(-r.cfg.Lag)) {
			gone++
		}
	}
	return max(0, there-gone)
}

// findSuccessor gives a node that is gone a successor, and the one that had it before
// another, if that can be.
func (r *replay) findSuccessor(p *inRepair, replaces map[int]*inRepair, tried map[int]bool) bool {
	for i, a := range r.fleet.arrivals {
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

// judgeSpare judges that we called it off: nothing of ours may be left on the claim.
func (r *replay) judgeSpare(before *machine, after *claim) {
	r.report.Spares++
	left := before.undone
	if before.deadline() != before.came { // somebody has set another since
		left = before.deadline()
	}
	switch {
	case before.deleting:
		r.tellAbout(Unlawful, before.mark.Node, after, "we took the mark off the claim, which is being deleted")
	case !before.markedByUs:
		r.tellAbout(ForeignTouched, before.mark.Node, after, "we took a mark off the claim that was not ours")
	case after.deadline() != left:
		r.tellAbout(Malformed, before.mark.Node, after, fmt.Sprintf("we took the mark off the claim and left the deadline %q, where %q should be", after.deadline(), left))
	}
}

// judgeTermination judges that we deleted a claim, by the claim as it stood just before.
func (r *replay) judgeTermination(m *machine) {
	r.report.Terminations++
	wrong := func(kind Kind, format string, args ...any) {
		r.tellAbout(kind, m.mark.Node, &m.claim, "we deleted the claim, "+fmt.Sprintf(format, args...))
	}
	if m.mark.text == "" || !m.markedByUs {
		wrong(Unrecorded, "which has no mark of ours")
		return
	}
	if m.told {
		return // that it should never have come to it
	}
	n := r.nodes[m.mark.Node]
	if n == nil || n.uid != m.mark.NodeUID {
		return // and whose claim it was is gone
	}
	if r.judgeCause(n, m.mark.Rule, true, wrong) != nil {
		r.judgeBudget(m, wrong)
	}
}

// judgeBudget says whether the pool's budgets allowed a deletion.
func (r *replay) judgeBudget(m *machine, wrong func(Kind, string, ...any)) {
	way := inService
	if strings.HasPrefix(m.mark.Rule, timeoutKind) {
		way = allClaims
	}
	of := r.fleet.pools[m.pool]
	if of == nil || of.object == nil || !m.counted[way] {
		return // it is not one that is counted
	}
	budgets := [][]allowance{of.budgets}
	if r.recent(of.edited) {
		budgets = append(budgets, of.before)
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
	for _, other := range r.fleet.claims {
		isKnown := other.markedByUs || settled(other.going, r.horizon())
		going += one(other != m && other.pool == m.pool && other.counted[way] && isKnown)
	}
	if going > allowed {
		wrong(GateIgnored, "and %d of %d nodes are taken out of service: the disruption budgets of the pool allow %d", going, of.totals[way].is, allowed)
	}
}

// ---- what we write to pools and policies

// judgePoolWrite looks at a write of ours to a NodePool: nothing of it is ours, but a
// block that was lost may be put back where that is asked for.
func (r *replay) judgePoolWrite(of *pool, change testbed.Change) {
	tell := func(kind Kind, text string) {
		r.tellOf(kind, "", "", text)
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

// judgePolicyWrite looks at a write of ours to a RepairPolicy: the status is all that we
// own of it.
func (r *replay) judgePolicyWrite(p *repairPolicy, change testbed.Change) {
	r.report.PolicyStatuses++
	tell := func(kind Kind, text string) {
		r.tellOf(kind, "", "", text)
		r.report.Violations[len(r.report.Violations)-1].Policy = p.name
	}
	switch {
	case isDeleted(change):
		tell(ForeignTouched, "we deleted the policy")
	case p.object == nil:
		tell(ForeignTouched, "we created the policy")
	default:
		parts := notStatus(p.object, change.Object)
		for _, part := range parts {
			tell(ForeignTouched, "we changed the "+part+" of the policy")
		}
		if len(parts) == 0 && reflect.DeepEqual(p.object.Object["status"], change.Object.Object["status"]) {
			tell(DoneTwice, "we wrote to the policy and changed nothing")
		}
	}
}

// judgeRepairEnd looks for marks that were left on claims.
func (r *replay) judgeRepairEnd() {
	for _, m := range r.claimsInOrder() {
		if m.mark.text != "" && !m.deleting {
			r.tellAbout(WrongEnd, m.mark.Node, &m.claim, "the claim has a mark, and is not being deleted")
		}
	}
}

func (r *replay) claimsInOrder() []*machine {
	return slices.SortedFunc(maps.Values(r.fleet.claims), func(a, b *machine) int { return strings.Compare(a.name, b.name) })
}
