package engine

import (
	"context"
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
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// nodePoolFixture is a loop with NodePools. A test changes the API objects, decides when watches
// deliver, and runs tasks, which change the API objects in turn.
type nodePoolFixture struct {
	*loopFixture
	api   *fakeAPI
	pools *poolBox
	heard map[string]int // delivered events, by watch
}

// fakeAPI holds the API objects of nodes and claims, and their watch events.
type fakeAPI struct {
	version int
	nodes   map[string]*corev1.Node
	claims  map[string]*karpenter.NodeClaim
	page    []ledger.Entry
	news    []news // in order
	deleted []string
}

// news is a watch event.
type news struct {
	node  *corev1.Node
	claim *karpenter.NodeClaim
	gone  bool
}

// poolBox is a poolSource that a test fills.
type poolBox struct {
	changed map[string]*repairblock.Pool
	all     bool
}

func (b *poolBox) Run(context.Context) {}

func (b *poolBox) Listed() (known, isThere bool, err error) { return true, true, nil }

func (b *poolBox) Take() (changed map[string]*repairblock.Pool, all bool) {
	changed, all = b.changed, b.all
	b.changed, b.all = map[string]*repairblock.Pool{}, false
	return changed, all
}

// broken is the unhealthy condition. It is tolerated for ten minutes.
const broken = "Broken"

var brokenStates = []dialect.RepairStatement{{Type: broken, Status: "True", Toleration: "10m"}}

// withNodePools runs a test with a fixture without nodes.
func withNodePools(t *testing.T, test func(*nodePoolFixture), changes ...func(*RepairConfig)) {
	t.Helper()
	open(t, func(c *loopFixture) { test(newNodePoolFixture(c.t, changes...)) })
}

// newNodePoolFixture returns a fixture without nodes. It must run in a synctest bubble.
func newNodePoolFixture(t *testing.T, changes ...func(*RepairConfig)) *nodePoolFixture {
	t.Helper()
	c := &loopFixture{t: t}
	c.Engine = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(event treat.Event) { c.events = append(c.events, event) })
	h := nodePoolFixtureIn(t, c, &fakeAPI{nodes: map[string]*corev1.Node{}, claims: map[string]*karpenter.NodeClaim{}, version: 100}, changes...)
	h.load()
	return h
}

// nodePoolFixtureIn adds NodePools to a fixture that has not loaded anything.
func nodePoolFixtureIn(t *testing.T, c *loopFixture, w *fakeAPI, changes ...func(*RepairConfig)) *nodePoolFixture {
	t.Helper()
	cfg := RepairConfig{Karpenter: brokenStates, Static: brokenStates}
	for _, change := range changes {
		change(&cfg)
	}
	h := &nodePoolFixture{loopFixture: c, api: w, pools: &poolBox{changed: map[string]*repairblock.Pool{}}, heard: map[string]int{}}
	h.repairs = newRepairs(cfg, NewRepairMetrics(), there(t, &v1alpha1.RepairPolicy{}), h.pools)
	h.nodeClaims = newNodeClaims(there(t, &karpenter.NodeClaim{}))
	h.remediations = newRemediations(there(t, &coordinationv1.Lease{}), watch.Kinds{Start: func(func(context.Context)) context.CancelFunc { return func() {} }})
	h.link()
	return h
}

// load loads all API objects and restores the ledger.
func (h *nodePoolFixture) load() {
	h.t.Helper()
	h.ledger.restored = h.api.page
	for _, name := range slices.Sorted(maps.Keys(h.api.nodes)) {
		must(h.t, h.nodeInbox.Update(h.api.nodes[name].DeepCopy()))
	}
	for _, name := range slices.Sorted(maps.Keys(h.api.claims)) {
		must(h.t, h.nodeClaims.inbox.Update(h.api.claims[name].DeepCopy()))
	}
	h.heard["nodes"], h.heard["claims"] = len(h.api.news), len(h.api.news)
	h.runRound()
}

// successor returns the fixture of the next leader.
func (h *nodePoolFixture) successor(changes ...func(*RepairConfig)) *nodePoolFixture {
	h.t.Helper()
	c := &loopFixture{t: h.t}
	c.Engine = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(event treat.Event) { c.events = append(c.events, event) })
	successor := nodePoolFixtureIn(h.t, c, h.api, changes...)
	maps.Copy(successor.pools.changed, h.repairs.pools)
	for _, pol := range h.repairs.policies {
		must(h.t, successor.repairs.inbox.Update(pol.object))
	}
	successor.load()
	return successor
}

// runRound runs a round, and leaves the tasks to the test. It returns when the next round
// is due.
func (h *nodePoolFixture) runRound() (due time.Time) {
	h.t.Helper()
	now := time.Now()
	h.repairs.Take(now)
	h.takeNodes(now)
	h.nodeClaims.Take(now)
	h.remediations.Take(now)
	h.repairs.SetRules(h.t.Context(), now)
	if !h.loaded {
		h.ledger.restore(now)
		h.repairs.UpdateAllowances(now)
		h.loaded = true
		h.remediations.Check(now)
		h.core.Loaded(now)
		for _, node := range slices.Sorted(maps.Keys(h.tasks.lanes)) {
			h.tasks.reconcile(now, node)
		}
	}
	h.remediations.Check(now)
	h.core.Advance(now)
	h.ReconcileWoken(now)
	due = h.tasks.runDue(now)
	h.ReconcileWoken(now)
	due = times.Earliest(due, h.repairs.UpdateAllowances(now))
	h.ledger.hasReplacements(now) // as every round does before it writes a snapshot
	h.statuses.Schedule(now)
	h.writeStatuses(h.t.Context(), now)
	if at, ok := h.core.Deadline(); ok {
		due = times.Earliest(due, at)
	}
	return times.Earliest(due, h.tasks.nextDue)
}

// advance lets time pass and runs a round.
func (h *nodePoolFixture) advance(d time.Duration) {
	h.t.Helper()
	pass(d)
	h.runRound()
}

// deliver delivers the pending events of the watches "nodes", "claims", or both.
func (h *nodePoolFixture) deliver(watches ...string) {
	h.t.Helper()
	if len(watches) == 0 {
		watches = []string{"claims", "nodes"}
	}
	for _, watch := range watches {
		for _, is := range h.api.news[h.heard[watch]:] {
			switch {
			case watch == "nodes" && is.node != nil && is.gone:
				must(h.t, h.nodeInbox.Delete(is.node.DeepCopy()))
			case watch == "nodes" && is.node != nil:
				must(h.t, h.nodeInbox.Update(is.node.DeepCopy()))
			case watch == "claims" && is.claim != nil && is.gone:
				must(h.t, h.nodeClaims.inbox.Delete(is.claim.DeepCopy()))
			case watch == "claims" && is.claim != nil:
				must(h.t, h.nodeClaims.inbox.Update(is.claim.DeepCopy()))
			}
		}
		h.heard[watch] = len(h.api.news)
	}
	h.runRound()
}

func (w *fakeAPI) next() string {
	w.version++
	return strconv.Itoa(w.version)
}

// pool creates or changes a NodePool.
func (h *nodePoolFixture) pool(name string, block *v1alpha1.RepairSpec, changes ...func(*repairblock.Pool)) {
	h.t.Helper()
	is := &repairblock.Pool{Block: block, NodePool: &karpenter.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("pool-" + name), ResourceVersion: h.api.next()},
		Spec:       karpenter.NodePoolSpec{Repair: block, Disruption: karpenter.Disruption{Budgets: []karpenter.Budget{}}},
	}}
	for _, change := range changes {
		change(is)
	}
	h.pools.changed[name] = is
	h.runRound()
}

// noPool deletes a NodePool.
func (h *nodePoolFixture) noPool(name string) {
	h.t.Helper()
	h.pools.changed[name] = nil
	h.runRound()
}

func budgets(of ...karpenter.Budget) func(*repairblock.Pool) {
	return func(p *repairblock.Pool) { p.Spec.Disruption.Budgets = of }
}

// ofAtMost returns a repair block with this bound.
func ofAtMost(n string) *v1alpha1.RepairSpec {
	return &v1alpha1.RepairSpec{MaxUnhealthy: new(intstr.Parse(n))}
}

// storeClaim stores a new version of a claim.
func (w *fakeAPI) storeClaim(c *karpenter.NodeClaim) {
	c.ResourceVersion = w.next()
	w.claims[c.Name] = c
	w.news = append(w.news, news{claim: c})
}

func (w *fakeAPI) storeNode(n *corev1.Node) {
	n.ResourceVersion = w.next()
	w.nodes[n.Name] = n
	w.news = append(w.news, news{node: n})
}

// changeClaim changes an existing claim.
func (w *fakeAPI) changeClaim(name string, change func(*karpenter.NodeClaim)) {
	c := w.claims[name].DeepCopy()
	change(c)
	w.storeClaim(c)
}

func (w *fakeAPI) changeNode(name string, change func(*corev1.Node)) {
	n := w.nodes[name].DeepCopy()
	change(n)
	w.storeNode(n)
}

func (w *fakeAPI) removeClaim(name string) {
	c := w.claims[name].DeepCopy()
	c.ResourceVersion = w.next()
	delete(w.claims, name)
	w.news = append(w.news, news{claim: c, gone: true})
}

func (w *fakeAPI) removeNode(name string) {
	n := w.nodes[name].DeepCopy()
	n.ResourceVersion = w.next()
	delete(w.nodes, name)
	w.news = append(w.news, news{node: n, gone: true})
}

// launch creates a NodeClaim and its node as Karpenter leaves them when all is well. Node
// "a" has claim "claim-a".
func (w *fakeAPI) launch(name, pool string, changes ...func(*corev1.Node, *karpenter.NodeClaim)) {
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

// unready makes a launched node one that has not become Ready.
func unready(n *corev1.Node, c *karpenter.NodeClaim) {
	delete(n.Labels, karpenter.InitializedLabel)
	n.Status.Conditions[0].Status = corev1.ConditionFalse
	c.Status.Conditions = nil
}

// launches launches nodes and delivers them.
func (h *nodePoolFixture) launches(pool string, names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.api.launch(name, pool)
	}
	h.deliver()
}

// breaks sets the condition Broken of nodes.
func (h *nodePoolFixture) breaks(status corev1.ConditionStatus, names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.api.changeNode(name, func(n *corev1.Node) {
			n.Status.Conditions[1].Status, n.Status.Conditions[1].LastTransitionTime = status, metav1.Now()
		})
	}
	h.deliver()
}

// sets sets a condition of a claim.
func sets(kind, reason string, status metav1.ConditionStatus) func(*karpenter.NodeClaim) {
	return func(c *karpenter.NodeClaim) {
		c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(row metav1.Condition) bool { return row.Type == kind })
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))})
	}
}

// finding returns the finding of a kind of rule for a node.
func (h *nodePoolFixture) finding(kind triage.Kind, node string) triage.Reason {
	plan, _ := h.core.Plan(node)
	for _, is := range plan.Findings {
		if is.Rule.Kind == kind {
			return is
		}
	}
	return triage.Reason{}
}

// wantTask checks the kind of the node's next task and returns the task, which may have to
// wait for the ledger.
func (h *nodePoolFixture) wantTask(node string, want string) *Task {
	h.t.Helper()
	var e *Task
	if treatments := h.tasks.lanes[node]; treatments != nil {
		e, _ = h.tasks.next(time.Now(), treatments)
	}
	if e == nil {
		h.t.Fatalf("nothing is to be done about %s, want %s: %v; the log:\n%s", node, want, h.nodeStates[node].findings, &h.log)
	}
	if e.Kind != want {
		h.t.Fatalf("%s is to be done about %s, want %s", e.Kind, node, want)
	}
	return e
}

// wantNoTask checks that the node has no task.
func (h *nodePoolFixture) wantNoTask(node string) {
	h.t.Helper()
	if treatments := h.tasks.lanes[node]; treatments != nil {
		if e, _ := h.tasks.next(time.Now(), treatments); e != nil {
			h.t.Fatalf("%s is to be done about %s, want nothing", e.Kind, node)
		}
	}
}

// sends returns the tasks that may start now, by node, without those that wait for the
// ledger.
func (h *nodePoolFixture) sends() map[string]*Task {
	sent := map[string]*Task{}
	for range h.tasks.queue.len() {
		treatments := h.tasks.queue.pop()
		if e := h.tasks.nextStartable(time.Now(), treatments); e != nil {
			treatments.stage = queued
			h.tasks.queue.push(treatments)
			sent[treatments.Node] = e
		}
	}
	h.ReconcileWoken(time.Now())
	h.repairs.UpdateAllowances(time.Now())
	return sent
}

// writeSnapshot writes the next snapshot, if one is due.
func (h *nodePoolFixture) writeSnapshot() {
	h.t.Helper()
	h.sends()
	entries, _ := h.ledger.nextSnapshot(time.Now())
	if entries == nil {
		return
	}
	h.ledger.isWriting = true
	h.api.page = entries
	must(h.t, h.ledger.handleResult(nil))
	h.runRound()
}

// how is the results of a task's two writes.
type how struct {
	first, second treat.Result
	unanswered    bool // a write with result Unknown has succeeded
}

// isMade reports whether a write takes effect, whatever its answer.
func (h how) isMade(result treat.Result) bool {
	return result == treat.Made || result == treat.Unknown && h.unanswered
}

// claimResult is the result of a task for a NodeClaim.
type claimResult struct {
	*Result
	*claimTask
}

// claimWork returns what a task does with a NodeClaim.
func claimWork(t *Task) *claimTask { return t.Work.(*claimTask) }

// begins starts the queued task of a node.
func (h *nodePoolFixture) begins(node string) *Result {
	h.t.Helper()
	treatments := h.tasks.lanes[node]
	for range h.tasks.queue.len() {
		if other := h.tasks.queue.pop(); other != treatments {
			h.tasks.queue.push(other)
			continue
		}
		e := h.tasks.nextStartable(time.Now(), treatments)
		if e == nil {
			h.t.Fatalf("nothing may be done about %s: stage %d, ledger %+v; the log:\n%s", node, treatments.stage, h.api.page, &h.log)
		}
		return h.tasks.startTask(time.Now(), treatments, e)
	}
	h.t.Fatalf("nothing is queued about %s: %v; the log:\n%s", node, h.nodeStates[node].findings, &h.log)
	return nil
}

// runs executes the task of a node against the API objects, and handles its result.
func (h *nodePoolFixture) runs(node string, goes how) {
	h.t.Helper()
	r := h.begins(node)
	h.api.carryOut(r, goes)
	h.tasks.handleResult(r)
	h.deliver()
}

// carryOut applies a task to the API objects, as far as its writes succeed.
func (w *fakeAPI) carryOut(result *Result, goes how) {
	r := claimResult{result, claimWork(result.Task)}
	fails := func(result treat.Result) {
		r.Outcome, r.Err = result, fmt.Errorf("for a test: %w", errBroken)
	}
	stale := func() { // as fetchClaim does
		r.Outcome, r.current = treat.Stale, w.claims[r.claim.Name].DeepCopy()
		r.gone = r.current == nil
	}
	if n := w.nodes[r.Lane.Node]; r.does == terminateClaim && (n == nil || n.UID != r.Task.Node.UID || n.ResourceVersion != r.Task.Node.ResourceVersion) {
		r.Outcome, r.Missing, r.Fresh = treat.Stale, n == nil, n.DeepCopy()
		return
	}
	version := r.claim.ResourceVersion
	annotates := func(change func(*karpenter.NodeClaim)) (isMade bool) {
		if !goes.isMade(goes.first) {
			fails(goes.first)
			return false
		}
		c := w.claims[r.claim.Name]
		if c == nil || c.UID != r.claim.UID || c.ResourceVersion != version {
			stale()
			return false
		}
		w.changeClaim(c.Name, change)
		if goes.first == treat.Unknown {
			fails(goes.first)
			return false
		}
		r.current = w.claims[c.Name].DeepCopy()
		version = r.current.ResourceVersion
		return true
	}
	switch {
	case r.does == cancelTermination:
		annotates(func(c *karpenter.NodeClaim) { delete(c.Annotations, ownership.MarkAnnotation) })
		return
	case !r.isMarked():
		if !annotates(func(c *karpenter.NodeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, ownership.MarkAnnotation, r.mark.Encode())
		}) {
			return
		}
	}
	if !goes.isMade(goes.second) {
		fails(goes.second)
		return
	}
	c := w.claims[r.claim.Name]
	if c == nil || c.UID != r.claim.UID || c.ResourceVersion != version {
		stale()
		return
	}
	w.changeClaim(c.Name, func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
	w.deleted = append(w.deleted, r.Lane.Node)
	if goes.second == treat.Unknown {
		fails(goes.second)
		return
	}
	r.deleted = true
}

// terminates terminates a node, from the ledger to the deletion of its claim.
func (h *nodePoolFixture) terminates(node string) {
	h.t.Helper()
	h.wantTask(node, terminateClaim)
	h.writeSnapshot()
	h.runs(node, how{})
	if c := h.api.claims["claim-"+node]; c.DeletionTimestamp == nil {
		h.t.Fatalf("the claim of %s is not deleted", node)
	}
	h.wantNoTask(node)
}

// goes removes a node and its claim, as Karpenter does at the end.
func (h *nodePoolFixture) goes(node string) {
	h.t.Helper()
	h.api.removeNode(node)
	h.api.removeClaim("claim-" + node)
	h.deliver()
}

func poolRuleID(pool string) triage.RuleID {
	return triage.RuleID{Kind: policykind.Repair, Name: poolRule(pool)}
}

// taken returns how many slots the pool's rules have taken.
func (h *nodePoolFixture) taken(pool string) int {
	counts, _ := h.core.Population(poolRuleID(pool))
	return counts.Pooled
}
