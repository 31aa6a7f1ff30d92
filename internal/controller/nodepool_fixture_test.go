package controller

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// hall is a clinic with NodePools. A test changes what the API server has, says when the
// watches tell, and runs the errands, which change what the API server has in turn.
type hall struct {
	*clinic
	world *world
	pools *poolBox
	heard map[string]int // how much of each watch has been told, and to whom
}

// world is what the API server has of nodes and claims, and how it came to be so.
type world struct {
	version int
	nodes   map[string]*corev1.Node
	claims  map[string]*karpenter.NodeClaim
	page    []ledger.Entry
	news    []news // of nodes and claims, in order
	deleted []string
}

// news is what a watch tells.
type news struct {
	node  *corev1.Node
	claim *karpenter.NodeClaim
	gone  bool
}

// poolBox hands over the pools that a test puts there.
type poolBox struct {
	changed map[string]*repairblock.Pool
	all     bool
}

func (b *poolBox) Listed() (known, isThere bool, err error) { return true, true, nil }

func (b *poolBox) Take() (changed map[string]*repairblock.Pool, all bool) {
	changed, all = b.changed, b.all
	b.changed, b.all = map[string]*repairblock.Pool{}, false
	return changed, all
}

// broken is the condition that is called sick here. It is tolerated for ten minutes.
const broken = "Broken"

var brokenStates = []dialect.RepairStatement{{Type: broken, Status: "True", Toleration: "10m"}}

// openHall runs a test in a hall, in which no node is.
func openHall(t *testing.T, test func(*hall), changes ...func(*RepairConfig)) {
	t.Helper()
	open(t, func(c *clinic) { test(newHall(c.t, changes...)) })
}

// newHall returns a hall in which no node is, for whoever is in a bubble.
func newHall(t *testing.T, changes ...func(*RepairConfig)) *hall {
	t.Helper()
	c := &clinic{t: t}
	c.loop = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(word treat.Event) { c.events = append(c.events, word) })
	h := hallIn(t, c, &world{nodes: map[string]*corev1.Node{}, claims: map[string]*karpenter.NodeClaim{}, version: 100}, changes...)
	h.load()
	return h
}

// hallIn makes a hall of a clinic, which knows nothing yet of a world.
func hallIn(t *testing.T, c *clinic, w *world, changes ...func(*RepairConfig)) *hall {
	t.Helper()
	cfg := RepairConfig{Karpenter: brokenStates, Static: brokenStates}
	for _, change := range changes {
		change(&cfg)
	}
	h := &hall{clinic: c, world: w, pools: &poolBox{changed: map[string]*repairblock.Pool{}}, heard: map[string]int{}}
	h.checks.medik8s.leases = map[string]observedLease{}
	h.repairs = newRepairs(cfg, there(t, &v1alpha1.RepairPolicy{}), h.pools)
	h.nodeClaims = newNodeClaims(there(t, &karpenter.NodeClaim{}))
	h.leaseInbox, h.treatments, h.treatmentsByObject = there(t, &coordinationv1.Lease{}), map[string]*nodeTreatments{}, map[string]*nodeTreatments{}
	h.statusWritesRunning = statusWriters // a test looks at what would be written
	return h
}

// load has the hall know all that there is, and take over what the page says.
func (h *hall) load() {
	h.t.Helper()
	h.ledger.restored = h.world.page
	for _, name := range slices.Sorted(maps.Keys(h.world.nodes)) {
		must(h.t, h.nodeInbox.Update(h.world.nodes[name].DeepCopy()))
	}
	for _, name := range slices.Sorted(maps.Keys(h.world.claims)) {
		must(h.t, h.nodeClaims.mail.Update(h.world.claims[name].DeepCopy()))
	}
	h.heard["nodes"], h.heard["claims"] = len(h.world.news), len(h.world.news)
	h.goesOn()
}

// heir returns a hall that takes over from this one, which is no more.
func (h *hall) heir(changes ...func(*RepairConfig)) *hall {
	h.t.Helper()
	c := &clinic{t: h.t}
	c.loop = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(word treat.Event) { c.events = append(c.events, word) })
	heir := hallIn(h.t, c, h.world, changes...)
	maps.Copy(heir.pools.changed, h.repairs.pools)
	for _, pol := range h.repairs.policies {
		must(h.t, heir.repairs.inbox.Update(pol.object))
	}
	heir.load()
	return heir
}

// goesOn does what a round does, and leaves the errands to the test. It returns when the
// next round is due by what repairs have to say.
func (h *hall) goesOn() (due time.Time) {
	h.t.Helper()
	now := time.Now()
	h.takeRepairs(now)
	h.takeClaims(now)
	h.updateAllowances(now)
	h.takeNodes(now)
	h.takeObjects(now)
	h.followRepairs(now)
	if !h.loaded {
		h.restore(now)
		h.updateAllowances(now)
		h.loaded = true
		h.checkOrphans(now)
		h.core.Loaded(now)
		for _, node := range slices.Sorted(maps.Keys(h.treatments)) {
			h.reconcileTreatments(now, node)
		}
	}
	h.checkOrphans(now)
	h.core.Advance(now)
	h.reconcileWoken(now)
	due = h.runDueTreatments(now)
	h.reconcileWoken(now)
	due = earliest(due, h.updateAllowances(now))
	h.hasReplacements(now) // as every round asks before it writes a page
	h.lookAtStatuses(now)
	h.writeStatuses(h.t.Context(), now)
	if at, ok := h.core.Deadline(); ok {
		due = earliest(due, at)
	}
	return earliest(due, h.nextTreatmentDue)
}

// passes lets time pass, with a round at its end.
func (h *hall) passes(d time.Duration) {
	h.t.Helper()
	pass(d)
	h.goesOn()
}

// hears has a watch tell all that it has not told yet: "nodes", "claims", or both.
func (h *hall) hears(watches ...string) {
	h.t.Helper()
	if len(watches) == 0 {
		watches = []string{"claims", "nodes"}
	}
	for _, watch := range watches {
		for _, is := range h.world.news[h.heard[watch]:] {
			switch {
			case watch == "nodes" && is.node != nil && is.gone:
				must(h.t, h.nodeInbox.Delete(is.node.DeepCopy()))
			case watch == "nodes" && is.node != nil:
				must(h.t, h.nodeInbox.Update(is.node.DeepCopy()))
			case watch == "claims" && is.claim != nil && is.gone:
				must(h.t, h.nodeClaims.mail.Delete(is.claim.DeepCopy()))
			case watch == "claims" && is.claim != nil:
				must(h.t, h.nodeClaims.mail.Update(is.claim.DeepCopy()))
			}
		}
		h.heard[watch] = len(h.world.news)
	}
	h.goesOn()
}

func (w *world) next() string {
	w.version++
	return strconv.Itoa(w.version)
}

// pool puts a NodePool there, or changes it.
func (h *hall) pool(name string, block *v1alpha1.RepairSpec, changes ...func(*repairblock.Pool)) {
	h.t.Helper()
	is := &repairblock.Pool{Block: block, NodePool: &karpenter.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("pool-" + name), ResourceVersion: h.world.next()},
		Spec:       karpenter.NodePoolSpec{Repair: block, Disruption: karpenter.Disruption{Budgets: []karpenter.Budget{}}},
	}}
	for _, change := range changes {
		change(is)
	}
	h.pools.changed[name] = is
	h.goesOn()
}

// noPool takes a NodePool away.
func (h *hall) noPool(name string) {
	h.t.Helper()
	h.pools.changed[name] = nil
	h.goesOn()
}

func budgets(of ...karpenter.Budget) func(*repairblock.Pool) {
	return func(p *repairblock.Pool) { p.Spec.Disruption.Budgets = of }
}

// ofAtMost is a block that lets so many nodes be in repair.
func ofAtMost(n string) *v1alpha1.RepairSpec {
	return &v1alpha1.RepairSpec{MaxUnhealthy: new(intstr.Parse(n))}
}

// stores puts a version of a claim or a node there.
func (w *world) storeClaim(c *karpenter.NodeClaim) {
	c.ResourceVersion = w.next()
	w.claims[c.Name] = c
	w.news = append(w.news, news{claim: c})
}

func (w *world) storeNode(n *corev1.Node) {
	n.ResourceVersion = w.next()
	w.nodes[n.Name] = n
	w.news = append(w.news, news{node: n})
}

// changeClaim changes a claim that is there, and changeNode a node.
func (w *world) changeClaim(name string, change func(*karpenter.NodeClaim)) {
	c := w.claims[name].DeepCopy()
	change(c)
	w.storeClaim(c)
}

func (w *world) changeNode(name string, change func(*corev1.Node)) {
	n := w.nodes[name].DeepCopy()
	change(n)
	w.storeNode(n)
}

func (w *world) removeClaim(name string) {
	c := w.claims[name].DeepCopy()
	c.ResourceVersion = w.next()
	delete(w.claims, name)
	w.news = append(w.news, news{claim: c, gone: true})
}

func (w *world) removeNode(name string) {
	n := w.nodes[name].DeepCopy()
	n.ResourceVersion = w.next()
	delete(w.nodes, name)
	w.news = append(w.news, news{node: n, gone: true})
}

// launch puts the claim and the node of a machine there. Both are as Karpenter leaves
// them when all is well, and "a" has claim "claim-a".
func (w *world) launch(name, pool string, changes ...func(*corev1.Node, *karpenter.NodeClaim)) {
	labels := map[string]string{karpenter.NodePoolLabel: pool, karpenter.CapacityTypeLabel: "spot"}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	c := &karpenter.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim-" + name, UID: types.UID("uid-of-claim-" + name), Labels: labels, CreationTimestamp: now},
		Status: karpenter.NodeClaimStatus{ProviderID: "kwok://" + name, NodeName: name, Conditions: []metav1.Condition{
			{Type: karpenter.Initialized, Status: metav1.ConditionTrue, LastTransitionTime: now},
		}},
	}
	n := named(name, "")
	n.UID, n.CreationTimestamp, n.Spec.ProviderID = types.UID("uid-of-"+name), now, "kwok://"+name
	n.Labels = maps.Clone(labels)
	n.Labels[karpenter.InitializedLabel] = "true"
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: broken, Status: corev1.ConditionFalse, LastTransitionTime: now},
	}
	for _, change := range changes {
		change(n, c)
	}
	w.storeClaim(c)
	w.storeNode(n)
}

// unready is how a machine is launched that has not become ready.
func unready(n *corev1.Node, c *karpenter.NodeClaim) {
	delete(n.Labels, karpenter.InitializedLabel)
	n.Status.Conditions[0].Status = corev1.ConditionFalse
	c.Status.Conditions = nil
}

// launches has machines launched, and told of.
func (h *hall) launches(pool string, names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.world.launch(name, pool)
	}
	h.hears()
}

// breaks has nodes be sick, or well again.
func (h *hall) breaks(status corev1.ConditionStatus, names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.world.changeNode(name, func(n *corev1.Node) {
			n.Status.Conditions[1].Status, n.Status.Conditions[1].LastTransitionTime = status, metav1.Now()
		})
	}
	h.hears()
}

// sets sets a condition of a claim.
func sets(kind, reason string, status metav1.ConditionStatus) func(*karpenter.NodeClaim) {
	return func(c *karpenter.NodeClaim) {
		c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(row metav1.Condition) bool { return row.Type == kind })
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))})
	}
}

// finding returns what a rule has to say about a node.
func (h *hall) finding(kind triage.Kind, node string) triage.Reason {
	plan, _ := h.core.Plan(node)
	for _, is := range plan.Findings {
		if is.Rule.Kind == kind {
			return is
		}
	}
	return triage.Reason{}
}

// wants says what is to be done about a node, which may be done at once or has to wait
// for the page.
func (h *hall) wants(node string, want taskKind) *task {
	h.t.Helper()
	var e *task
	if b := h.treatments[node]; b != nil {
		e, _ = h.nextTask(time.Now(), b)
	}
	if e == nil {
		h.t.Fatalf("nothing is to be done about %s, want %s: %v; the log:\n%s", node, want, h.nodeStates[node].findings, &h.log)
	}
	if e.kind != want {
		h.t.Fatalf("%s is to be done about %s, want %s", e.kind, node, want)
	}
	return e
}

// rests says that nothing is to be done about a node.
func (h *hall) rests(node string) {
	h.t.Helper()
	if b := h.treatments[node]; b != nil {
		if e, _ := h.nextTask(time.Now(), b); e != nil {
			h.t.Fatalf("%s is to be done about %s, want nothing", e.kind, node)
		}
	}
}

// sends returns the errands that may be run now, and by nodes. Those that wait for the
// page are not among them.
func (h *hall) sends() map[string]*task {
	sent := map[string]*task{}
	for range h.taskQueue.len() {
		b := h.taskQueue.pop()
		if e := h.nextStartable(time.Now(), b); e != nil {
			b.stage = queued
			h.taskQueue.push(b)
			sent[b.node] = e
		}
	}
	h.reconcileWoken(time.Now())
	h.updateAllowances(time.Now())
	return sent
}

// turns has the next page written, if one is to be.
func (h *hall) turns() {
	h.t.Helper()
	h.sends()
	entries, _ := h.nextSnapshot(time.Now())
	if entries == nil {
		return
	}
	h.ledger.busy = true
	h.world.page = entries
	must(h.t, h.snapshotStored(nil))
	h.goesOn()
}

// how an errand goes: what becomes of each of its two writes.
type how struct {
	first, second treat.Result
	unanswered    bool // an Unsure one has been made
}

// isMade says whether a write takes effect, whatever is heard of it.
func (h how) isMade(fate treat.Result) bool {
	return fate == treat.Made || fate == treat.Unknown && h.unanswered
}

// begins takes an errand up as sent.
func (h *hall) begins(node string) *taskResult {
	h.t.Helper()
	b := h.treatments[node]
	for range h.taskQueue.len() {
		if other := h.taskQueue.pop(); other != b {
			h.taskQueue.push(other)
			continue
		}
		e := h.nextStartable(time.Now(), b)
		if e == nil {
			h.t.Fatalf("nothing may be done about %s: stage %d, page %+v; the log:\n%s", node, b.stage, h.world.page, &h.log)
		}
		return h.startTask(time.Now(), b, e)
	}
	h.t.Fatalf("nothing is queued about %s: %v; the log:\n%s", node, h.nodeStates[node].findings, &h.log)
	return nil
}

// runs has the errand of a node run, in the way that runErrand does, and reported.
func (h *hall) runs(node string, goes how) {
	h.t.Helper()
	r := h.begins(node)
	h.world.carryOut(r, goes)
	h.handleTaskResult(r)
	h.hears()
}

// carryOut does what an errand asks for, as far as its writes are let through.
func (w *world) carryOut(r *taskResult, goes how) {
	e := r.task
	fails := func(fate treat.Result) {
		r.result, r.err = fate, fmt.Errorf("for a test: %w", errBroken)
	}
	stale := func() { // as lookAtClaim does
		r.result, r.claim = treat.Stale, w.claims[e.claim.Name].DeepCopy()
		r.isGone = r.claim == nil
	}
	if n := w.nodes[r.treatments.node]; e.kind == terminateClaim && (n == nil || n.UID != e.node.UID || n.ResourceVersion != e.node.ResourceVersion) {
		r.result, r.missing, r.fresh = treat.Stale, n == nil, n.DeepCopy()
		return
	}
	version := e.claim.ResourceVersion
	annotates := func(change func(*karpenter.NodeClaim)) (isMade bool) {
		if !goes.isMade(goes.first) {
			fails(goes.first)
			return false
		}
		c := w.claims[e.claim.Name]
		if c == nil || c.UID != e.claim.UID || c.ResourceVersion != version {
			stale()
			return false
		}
		w.changeClaim(c.Name, change)
		if goes.first == treat.Unknown {
			fails(goes.first)
			return false
		}
		r.claim = w.claims[c.Name].DeepCopy()
		version = r.claim.ResourceVersion
		return true
	}
	switch {
	case e.kind == cancelTermination:
		annotates(func(c *karpenter.NodeClaim) { delete(c.Annotations, ownership.MarkAnnotation) })
		return
	case !e.isMarked():
		if !annotates(func(c *karpenter.NodeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, ownership.MarkAnnotation, e.mark.Encode())
		}) {
			return
		}
	}
	if !goes.isMade(goes.second) {
		fails(goes.second)
		return
	}
	c := w.claims[e.claim.Name]
	if c == nil || c.UID != e.claim.UID || c.ResourceVersion != version {
		stale()
		return
	}
	w.changeClaim(c.Name, func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
	w.deleted = append(w.deleted, r.treatments.node)
	if goes.second == treat.Unknown {
		fails(goes.second)
		return
	}
	r.isDeleted = true
}

// terminates has a node given up, from the page to the deletion of its claim.
func (h *hall) terminates(node string) {
	h.t.Helper()
	h.wants(node, terminateClaim)
	h.turns()
	h.runs(node, how{})
	if c := h.world.claims["claim-"+node]; c.DeletionTimestamp == nil {
		h.t.Fatalf("the claim of %s is not deleted", node)
	}
	h.rests(node)
}

// goes has Karpenter be done with a node.
func (h *hall) goes(node string) {
	h.t.Helper()
	h.world.removeNode(node)
	h.world.removeClaim("claim-" + node)
	h.hears()
}

func poolRuleID(pool string) triage.RuleID {
	return triage.RuleID{Kind: triage.Repair, Name: poolRule(pool)}
}

// taken is how many places a pool's rules have taken.
func (h *hall) taken(pool string) int {
	counts, _ := h.core.Population(poolRuleID(pool))
	return counts.Pooled
}
