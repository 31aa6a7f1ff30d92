package repair

import (
	"context"
	"fmt"
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
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	treatment "github.com/resourcestack/autohealer/internal/treatment/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// nodePoolFixture is a loop with NodePools. A test changes the API objects, decides when watches
// deliver, and runs tasks, which change the API objects in turn.
type nodePoolFixture struct {
	*enginetest.Fixture
	repairs      *Policy
	policies     *watch.Optional[*v1alpha1.RepairPolicy]
	claims       *watch.Optional[*karpenter.NodeClaim]
	leases       *watch.Optional[*coordinationv1.Lease]
	kinds        *watch.Kinds
	remediations *treatment.Treatment
	api          *fakeAPI
	pools        *poolBox
	delivered    map[string]int // events, by watch
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

// poolBox is a PoolSource that a test fills.
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

// nothing is the kind of no task.
const nothing = ""

// broken is the unhealthy condition. It is tolerated for ten minutes.
const broken = "Broken"

var brokenStates = []dialect.RepairStatement{{Type: broken, Status: "True", Toleration: "10m"}}

// statementBox is a StatementSource.
type statementBox struct{ latest *dialect.Statements }

func (b *statementBox) Latest() (*dialect.Statements, <-chan struct{}) { return b.latest, nil }

// withNodePools runs a test with a fixture without nodes.
func withNodePools(t *testing.T, test func(*nodePoolFixture), changes ...func(*Config)) {
	t.Helper()
	enginetest.Run(t, func(c *enginetest.Fixture) { test(newNodePoolFixture(c.T, changes...)) })
}

// newNodePoolFixture returns a fixture without nodes. It must run in a synctest bubble.
func newNodePoolFixture(t *testing.T, changes ...func(*Config)) *nodePoolFixture {
	t.Helper()
	h := nodePoolFixtureIn(t, &fakeAPI{nodes: map[string]*corev1.Node{}, claims: map[string]*karpenter.NodeClaim{}, version: 100}, changes...)
	h.load()
	return h
}

// nodePoolFixtureIn returns a fixture that has not loaded anything.
func nodePoolFixtureIn(t *testing.T, w *fakeAPI, changes ...func(*Config)) *nodePoolFixture {
	t.Helper()
	cfg := Config{Statements: &statementBox{&dialect.Statements{Pools: brokenStates, Static: brokenStates}}}
	for _, change := range changes {
		change(&cfg)
	}
	h := &nodePoolFixture{
		Fixture: enginetest.New(t), policies: enginetest.Empty(t, &v1alpha1.RepairPolicy{}), claims: enginetest.Empty(t, &karpenter.NodeClaim{}),
		leases: enginetest.Empty(t, &coordinationv1.Lease{}), kinds: &watch.Kinds{Start: func(func(context.Context)) context.CancelFunc { return func() {} }},
		api: w, pools: &poolBox{changed: map[string]*repairblock.Pool{}}, delivered: map[string]int{},
	}
	claims := nodeclaim.New(h, h.claims)
	h.remediations = treatment.New(h, h.leases, h.kinds)
	h.repairs = New(h, cfg, Dependencies{Inbox: h.policies, Pools: h.pools, Machines: claims, Remediations: h.remediations, Metrics: NewMetrics()})
	claims.Serve(h.repairs)
	h.remediations.Serve(h.repairs)
	h.AddPolicies(h.repairs)
	h.AddTreatments(claims, h.remediations)
	return h
}

// load loads all API objects and restores the ledger.
func (h *nodePoolFixture) load() {
	h.T.Helper()
	h.Restore(h.api.page)
	for _, name := range slices.Sorted(maps.Keys(h.api.nodes)) {
		testkit.Must(h.T, h.NodeInbox().Update(h.api.nodes[name].DeepCopy()))
	}
	for _, name := range slices.Sorted(maps.Keys(h.api.claims)) {
		testkit.Must(h.T, h.claims.Update(h.api.claims[name].DeepCopy()))
	}
	h.delivered["nodes"], h.delivered["claims"] = len(h.api.news), len(h.api.news)
	h.runRound()
}

// successor returns the fixture of the next leader.
func (h *nodePoolFixture) successor(changes ...func(*Config)) *nodePoolFixture {
	h.T.Helper()
	successor := nodePoolFixtureIn(h.T, h.api, changes...)
	maps.Copy(successor.pools.changed, h.repairs.pools)
	for _, pol := range h.repairs.policies {
		testkit.Must(h.T, successor.policies.Update(pol.object))
	}
	successor.load()
	return successor
}

// runRound runs a round, and leaves the tasks to the test. It returns when the next round
// is due.
func (h *nodePoolFixture) runRound() (due time.Time) {
	h.T.Helper()
	return h.Round(h.T.Context())
}

// advance lets time pass and runs a round.
func (h *nodePoolFixture) advance(d time.Duration) {
	h.T.Helper()
	enginetest.Pass(d)
	h.runRound()
}

// deliver delivers the pending events of the watches "nodes", "claims", or both.
func (h *nodePoolFixture) deliver(watches ...string) {
	h.T.Helper()
	if len(watches) == 0 {
		watches = []string{"claims", "nodes"}
	}
	for _, watch := range watches {
		for _, is := range h.api.news[h.delivered[watch]:] {
			switch {
			case watch == "nodes" && is.node != nil && is.gone:
				testkit.Must(h.T, h.NodeInbox().Delete(is.node.DeepCopy()))
			case watch == "nodes" && is.node != nil:
				testkit.Must(h.T, h.NodeInbox().Update(is.node.DeepCopy()))
			case watch == "claims" && is.claim != nil && is.gone:
				testkit.Must(h.T, h.claims.Delete(is.claim.DeepCopy()))
			case watch == "claims" && is.claim != nil:
				testkit.Must(h.T, h.claims.Update(is.claim.DeepCopy()))
			}
		}
		h.delivered[watch] = len(h.api.news)
	}
	h.runRound()
}

func (w *fakeAPI) next() string {
	w.version++
	return strconv.Itoa(w.version)
}

// pool creates or changes a NodePool.
func (h *nodePoolFixture) pool(name string, block *v1alpha1.RepairSpec, changes ...func(*repairblock.Pool)) {
	h.T.Helper()
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
	h.T.Helper()
	h.pools.changed[name] = nil
	h.runRound()
}

func budgets(of ...karpenter.Budget) func(*repairblock.Pool) {
	return func(p *repairblock.Pool) { p.Spec.Disruption.Budgets = of }
}

// ofAtMost returns a repair block with this bound, and without a threshold.
func ofAtMost(n string) *v1alpha1.RepairSpec {
	return &v1alpha1.RepairSpec{MaxConcurrent: new(intstr.Parse(n)), UnhealthyThreshold: new(intstr.FromString("100%"))}
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
	n := enginetest.Named(name, "")
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

// unready makes a launched node not Ready yet.
func unready(n *corev1.Node, c *karpenter.NodeClaim) {
	delete(n.Labels, karpenter.InitializedLabel)
	n.Status.Conditions[0].Status = corev1.ConditionFalse
	c.Status.Conditions = nil
}

// launches launches nodes and delivers them.
func (h *nodePoolFixture) launches(pool string, names ...string) {
	h.T.Helper()
	for _, name := range names {
		h.api.launch(name, pool)
	}
	h.deliver()
}

// breaks sets the condition Broken of nodes.
func (h *nodePoolFixture) breaks(status corev1.ConditionStatus, names ...string) {
	h.T.Helper()
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
	plan, _ := h.Core().Plan(node)
	for _, is := range plan.Findings {
		if is.Rule.Kind == kind {
			return is
		}
	}
	return triage.Reason{}
}

// writeSnapshot writes the next snapshot, if one is due.
func (h *nodePoolFixture) writeSnapshot() {
	h.T.Helper()
	h.Startable()
	entries, _ := h.Snapshot()
	if entries == nil {
		return
	}
	h.api.page = entries
	testkit.Must(h.T, h.Stored(nil))
	h.runRound()
}

// how is the results of a task's two writes.
type how struct {
	first, second treat.Outcome
	unanswered    bool // a write with result Unknown has succeeded
}

// isMade reports whether a write takes effect, whatever its answer.
func (h how) isMade(result treat.Outcome) bool {
	return result == treat.Made || result == treat.Unknown && h.unanswered
}

// claimResult is the result of a task for a NodeClaim.
type claimResult struct {
	*engine.TaskResult
	*nodeclaim.Work
}

// claimWork returns what a task does with a NodeClaim.
func claimWork(t *engine.Task) *nodeclaim.Work { return t.Work.(*nodeclaim.Work) }

// begins starts the queued task of a node.
func (h *nodePoolFixture) begins(node string) *engine.TaskResult {
	h.T.Helper()
	r := h.Begin(node)
	if r == nil {
		next, _ := h.Next(node)
		h.T.Fatalf("nothing may be done about %s: next is %+v, ledger %+v; the log:\n%s", node, next, h.api.page, &h.Log)
	}
	return r
}

// runs executes the task of a node against the API objects, and handles its result.
func (h *nodePoolFixture) runs(node string, goes how) {
	h.T.Helper()
	r := h.begins(node)
	h.api.carryOut(r, goes)
	h.Finish(r)
	h.deliver()
}

// carryOut applies a task to the API objects, as far as its writes succeed.
func (w *fakeAPI) carryOut(result *engine.TaskResult, goes how) {
	r := claimResult{result, claimWork(result.Task)}
	fails := func(result treat.Outcome) {
		r.Outcome, r.Err = result, fmt.Errorf("for a test: %w", enginetest.ErrBroken)
	}
	stale := func() { // as fetchClaim does
		r.Outcome, r.Current = treat.Stale, w.claims[r.Claim.Name].DeepCopy()
		r.Gone = r.Current == nil
	}
	if n := w.nodes[r.NodeTasks.Node]; r.Does == nodeclaim.TerminateClaim && (n == nil || n.UID != r.Task.Node.UID || n.ResourceVersion != r.Task.Node.ResourceVersion) {
		r.Outcome, r.Missing, r.Fresh = treat.Stale, n == nil, n.DeepCopy()
		return
	}
	version := r.Claim.ResourceVersion
	annotates := func(change func(*karpenter.NodeClaim)) (isMade bool) {
		if !goes.isMade(goes.first) {
			fails(goes.first)
			return false
		}
		c := w.claims[r.Claim.Name]
		if c == nil || c.UID != r.Claim.UID || c.ResourceVersion != version {
			stale()
			return false
		}
		w.changeClaim(c.Name, change)
		if goes.first == treat.Unknown {
			fails(goes.first)
			return false
		}
		r.Current = w.claims[c.Name].DeepCopy()
		version = r.Current.ResourceVersion
		return true
	}
	switch {
	case r.Does == nodeclaim.CancelTermination:
		annotates(func(c *karpenter.NodeClaim) {
			delete(c.Annotations, ownership.MarkAnnotation)
			delete(c.Annotations, karpenter.TerminationTimestampAnnotation)
		})
		return
	case r.Does == nodeclaim.ForceTermination:
		annotates(func(c *karpenter.NodeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, karpenter.TerminationTimestampAnnotation, r.Deadline)
		})
		return
	case !r.IsMarked():
		if !annotates(func(c *karpenter.NodeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, ownership.MarkAnnotation, r.Mark.Encode())
			if r.Mark.Deadline != "" {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, karpenter.TerminationTimestampAnnotation, r.Mark.Deadline)
			}
		}) {
			return
		}
	}
	r.DeletionSent = true
	if !goes.isMade(goes.second) {
		fails(goes.second)
		return
	}
	c := w.claims[r.Claim.Name]
	if c == nil || c.UID != r.Claim.UID || c.ResourceVersion != version {
		stale()
		return
	}
	w.changeClaim(c.Name, func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
	w.deleted = append(w.deleted, r.NodeTasks.Node)
	if goes.second == treat.Unknown {
		fails(goes.second)
		return
	}
	r.Deleted = true
}

// terminates terminates a node, from the ledger to the deletion of its claim.
func (h *nodePoolFixture) terminates(node string) {
	h.T.Helper()
	h.WantTask(node, nodeclaim.TerminateClaim)
	h.writeSnapshot()
	h.runs(node, how{})
	if c := h.api.claims["claim-"+node]; c.DeletionTimestamp == nil {
		h.T.Fatalf("the claim of %s is not deleted", node)
	}
	h.WantNoTask(node)
}

// goes removes a node and its claim, as Karpenter does at the end.
func (h *nodePoolFixture) goes(node string) {
	h.T.Helper()
	h.api.removeNode(node)
	h.api.removeClaim("claim-" + node)
	h.deliver()
}

// taken returns how many slots the pool's rules have taken.
func (h *nodePoolFixture) taken(pool string) int {
	counts, _ := h.Core().Population(poolRuleID(pool))
	return counts.Pooled
}
