package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/taint"
	"github.com/resourcestack/autohealer/internal/triage"
	objectwatch "github.com/resourcestack/autohealer/internal/watch"
)

// This test adds a kind of policy and a kind of treatment that the engine does not know.
// Both use only what the engine exports. The toy policy asks for a drain of every node with
// condition Toy=True, one node at a time. The toy treatment creates a ConfigMap named like
// the node instead, and deletes it when the node has recovered.

var toyRule = triage.RuleID{Kind: policykind.Register("Toy"), Name: "one-at-a-time"}

// toyPolicy has one rule, which is part of the program.
type toyPolicy struct {
	host  engine.Host
	isSet bool
	nodes map[string]triage.Reason
	stale bool
}

func (p *toyPolicy) Watch(ctx context.Context)                            { <-ctx.Done() }
func (p *toyPolicy) Ready(time.Time) bool                                 { return true }
func (p *toyPolicy) Take(time.Time)                                       {}
func (p *toyPolicy) WriteStatuses(context.Context, time.Time)             {}
func (p *toyPolicy) Size() (name string, objects int)                     { return "toyRules", 1 }
func (p *toyPolicy) About(triage.RuleID, *corev1.Node) (s engine.Subject) { return s }

func (p *toyPolicy) SetRules(_ context.Context, now time.Time) time.Time {
	if p.isSet {
		return time.Time{}
	}
	p.isSet = true
	err := p.host.Core().SetRule(now, triage.Rule{
		ID: toyRule, Precedence: policykind.Precedence(toyRule.Kind), Stage: policykind.StageRemediate,
		When:     triage.When{Signals: []triage.Signal{{Condition: "Toy", Status: triage.True}}},
		Bound:    triage.Bound{Cap: &triage.Limit{Number: 1}},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Drain}}},
	})
	if err != nil {
		panic(err)
	}
	return time.Time{}
}

func (p *toyPolicy) Findings(rule triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	if rule != toyRule {
		return nil, nil
	}
	return p.nodes, &p.stale
}

const toyNamespace = "toys"

func toyRef(node string) ledger.ObjectRef {
	return ledger.ObjectRef{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Namespace: toyNamespace, Name: node}
}

// toyTreatment treats a node with a ConfigMap.
type toyTreatment struct {
	host  engine.TreatmentHost
	api   client.WithWatch
	inbox *objectwatch.Inbox[*corev1.ConfigMap]
	known map[string]*corev1.ConfigMap // by node
	// send replaces the creation of a ConfigMap, nil for none.
	send func(ctx context.Context, node string) error
}

func (t *toyTreatment) Watch(ctx context.Context) {
	source := objectwatch.Source(t.api, func() client.ObjectList { return &corev1.ConfigMapList{} }, client.InNamespace(toyNamespace))
	t.inbox.Fill(ctx, &corev1.ConfigMap{}, source, t.host.Logger())
}

func (t *toyTreatment) Ready(time.Time) bool              { return t.inbox.HasSynced() }
func (t *toyTreatment) NodeChanged(_, _ *corev1.Node)     {}
func (t *toyTreatment) Check(time.Time)                   {}
func (t *toyTreatment) Update(time.Time, string)          {}
func (t *toyTreatment) Problems(string) []string          { return nil }
func (t *toyTreatment) Forget(node string) bool           { return t.known[node] == nil }
func (t *toyTreatment) Owns(ref ledger.ObjectRef) bool    { return ref == toyRef(ref.Name) }
func (t *toyTreatment) MayArrive(ledger.ObjectWrite) bool { return true }

func (t *toyTreatment) Take(now time.Time) {
	batch := t.inbox.Take()
	var touched []string
	for _, change := range batch.Changes {
		node := change.Object.Name
		touched = append(touched, node)
		if nodeTasks := t.host.NodeTasks(node); nodeTasks.Slot().Object == toyRef(node) { // the write has arrived
			nodeTasks.Release()
		}
		if t.known[node] = change.Object; change.Gone {
			delete(t.known, node)
		}
	}
	slices.Sort(touched)
	t.host.Reobserve(now, touched...)
}

func (t *toyTreatment) AddFacts(_ time.Time, n *engine.Node, facts *triage.Node) {
	if toy := t.known[n.Object.Name]; toy != nil {
		facts.Treatments = append(facts.Treatments, triage.Treatment{Rule: toyRule, Since: toy.CreationTimestamp.Time})
	}
}

func (t *toyTreatment) Concerns(_ *engine.Node, plan triage.Plan) bool {
	return plan.Treatment != nil && plan.Treatment.Rule == toyRule ||
		slices.ContainsFunc(plan.Release, func(r triage.Reason) bool { return r.Rule == toyRule })
}

func (t *toyTreatment) Rules(node string) []triage.RuleID {
	if t.known[node] == nil {
		return nil
	}
	return []triage.RuleID{toyRule}
}

func (t *toyTreatment) Tasks(now time.Time, nodeTasks *engine.NodeTasks, n *engine.Node, plan triage.Plan) iter.Seq2[*engine.Task, time.Time] {
	return func(yield func(*engine.Task, time.Time) bool) {
		toy := t.known[nodeTasks.Node]
		if n == nil {
			return
		}
		for _, reason := range slices.Concat(plan.Release, plan.Cancel) {
			switch {
			case reason.Rule != toyRule:
			case toy == nil:
				yield(nil, t.host.ReleaseSlot(now, nodeTasks, toyRule))
				return
			default:
				yield(&engine.Task{Kind: "delete toy", Resource: "toys", Rule: toyRule, Reason: reason, Node: n.Object, Work: &toyTask{treatment: t, remove: toy}}, time.Time{})
				return
			}
		}
		if planned := plan.Treatment; planned != nil && planned.Rule == toyRule && toy == nil {
			yield(&engine.Task{
				Kind: "create toy", Resource: "toys", Failure: "the toy could not be created", FailureEvent: treat.RemediationSkipped,
				Rule: toyRule, Reason: planned.Reason, Node: n.Object, Begins: true,
				Slot: ledger.ObjectWrite{Slot: engine.SlotOf(toyRule, n.Object), Object: toyRef(nodeTasks.Node)},
				Work: &toyTask{treatment: t},
			}, time.Time{})
		}
	}
}

func (t *toyTreatment) Restore(now time.Time, nodeTasks *engine.NodeTasks, n *engine.Node) bool {
	if t.known[nodeTasks.Node] != nil {
		return false
	}
	if slot := nodeTasks.Slot(); nodeTasks.HasSlotFor(n) {
		t.host.Core().Resume(now, triage.Grant{Rule: toyRule, Node: slot.Node, UID: slot.UID, Since: now})
	}
	return true
}

func (t *toyTreatment) FreesSlot(now time.Time, nodeTasks *engine.NodeTasks) (free bool, due time.Time) {
	due = nodeTasks.InFlightUntil(now)
	return due.IsZero(), due
}

// toyTask creates a ConfigMap, or deletes one.
type toyTask struct {
	treatment *toyTreatment
	remove    *corev1.ConfigMap // nil to create one
	made      *corev1.ConfigMap
}

func (w *toyTask) Run(ctx context.Context, r *engine.TaskResult) error {
	t := w.treatment
	if w.remove != nil {
		return t.api.Delete(ctx, w.remove)
	}
	if t.send != nil {
		return t.send(ctx, r.NodeTasks.Node)
	}
	w.made = newToy(r.NodeTasks.Node)
	return t.api.Create(ctx, w.made)
}

func (w *toyTask) Done(_ time.Time, r *engine.TaskResult) {
	if r.Outcome == treat.Made && w.made != nil {
		w.treatment.known[r.NodeTasks.Node] = w.made
		r.NodeTasks.Release()
		r.NodeTasks.MarkStarted()
	}
}

func (*toyTask) Report(time.Time, *engine.TaskResult) {}

func (*toyTask) HasArrived(time.Time) bool { return false }

func newToy(node string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: toyNamespace, Name: node}}
}

// toyFixture is a cluster for engines with the toy policy.
type toyFixture struct {
	*testing.T
	cluster *testbed.Cluster
	api     client.WithWatch
}

// toyEngine is a running engine.
type toyEngine struct {
	engine    *engine.Engine
	policy    *toyPolicy
	treatment *toyTreatment
	log       testkit.Log
}

// claims returns an engine that has claimed the ledger and does not run yet.
func (f *toyFixture) claims(identity string) *toyEngine {
	f.Helper()
	e := &toyEngine{}
	nodes, err := nodewatch.New(f.cluster.AdminConfig())
	testkit.Must(f, err)
	e.engine, err = engine.New(engine.Config{
		Client: f.api, Nodes: nodes, Namespace: metav1.NamespaceDefault, Identity: identity,
		Event: func(treat.Event) {}, Metrics: engine.NewMetrics(), Liveness: &engine.Liveness{}, Logger: e.log.Logger(),
	})
	testkit.Must(f, err)
	e.policy = &toyPolicy{host: e.engine, nodes: map[string]triage.Reason{}}
	e.treatment = &toyTreatment{host: e.engine, api: f.api, inbox: objectwatch.NewInbox[*corev1.ConfigMap](e.engine.Signal(), nil), known: map[string]*corev1.ConfigMap{}}
	e.engine.AddPolicies(e.policy)
	e.engine.AddTreatments(e.treatment)
	e.engine.SetNodeWriter(taint.New(e.engine, identity, taint.NewMetrics()))
	testkit.Must(f, e.engine.Claim(f.Context()))
	return e
}

// runs runs an engine until the test calls end. done has the error of the engine.
func (f *toyFixture) runs(e *toyEngine) (end context.CancelFunc, done <-chan error) {
	ctx, cancel := context.WithCancel(f.Context())
	result := make(chan error, 1)
	go func() { result <- e.engine.Run(ctx) }()
	return cancel, result
}

// waits waits until the finding of the toy policy about a node has this code.
func (f *toyFixture) waits(e *toyEngine, node string, why triage.Code) {
	f.Helper()
	testkit.Eventually(f, node+" waits: "+why.String(), func() error {
		found := make(chan triage.Reason, 1)
		e.engine.Post(f.Context(), func(time.Time) { found <- e.policy.nodes[node] })
		if is := <-found; is.Code != why {
			return fmt.Errorf("the finding is %q; the log:\n%s", is, e.log.String())
		}
		return nil
	})
}

// has waits until exactly these nodes have a toy.
func (f *toyFixture) has(want ...string) {
	f.Helper()
	testkit.Eventually(f, fmt.Sprintf("toys for %v", want), func() error {
		var toys corev1.ConfigMapList
		if err := f.api.List(f.Context(), &toys, client.InNamespace(toyNamespace)); err != nil {
			return err
		}
		var got []string
		for i := range toys.Items {
			got = append(got, toys.Items[i].Name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("there are toys for %v", got)
		}
		return nil
	})
}

// hasEmptyLedger waits until the stored ledger has no entry.
func (f *toyFixture) hasEmptyLedger() {
	f.Helper()
	testkit.Eventually(f, "an empty ledger", func() error {
		var stored corev1.ConfigMap
		if err := f.api.Get(f.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: ledger.Name}, &stored); err != nil {
			return err
		}
		if text := fmt.Sprint(stored.Data); !strings.Contains(text, `"grants":[]`) {
			return errors.New(text)
		}
		return nil
	})
}

// reports sets condition Toy of a node.
func (f *toyFixture) reports(node string, status corev1.ConditionStatus) {
	f.Helper()
	testkit.Must(f, f.cluster.SetCondition(f.Context(), node, corev1.NodeCondition{Type: "Toy", Status: status}))
}

// atMostOne checks that no two toys ever existed at the same time.
func (f *toyFixture) atMostOne() {
	f.Helper()
	changes, err := f.cluster.RecordingOf(f.Context(), func(c testbed.Change) bool { return c.Namespace == toyNamespace })
	testkit.Must(f, err)
	toys := map[string]bool{}
	for _, c := range changes {
		if toys[c.Name] = true; c.Type == watch.Deleted {
			delete(toys, c.Name)
		}
		if len(toys) > 1 {
			f.Errorf("there are %d toys at once: %v", len(toys), toys)
		}
	}
	if len(changes) < 5 {
		f.Errorf("only %d changes of toys are recorded", len(changes))
	}
}

func TestAPolicyAndATreatmentOfOtherPackages(t *testing.T) {
	configMaps := corev1.SchemeGroupVersion.WithResource("configmaps")
	cluster := testbed.New(t, testbed.Config{Record: []schema.GroupVersionResource{configMaps}})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, remediationv1alpha1.AddToScheme, karpenter.AddToScheme} {
		testkit.Must(t, add(scheme))
	}
	api, err := client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: scheme})
	testkit.Must(t, err)
	f := &toyFixture{T: t, cluster: cluster, api: api}
	testkit.Must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: toyNamespace}}))
	_, err = cluster.CreateNodes(t.Context(), testbed.Nodes{Count: 3})
	testkit.Must(t, err)
	const a, b, c = "node-0001", "node-0002", "node-0003"

	// Mode Paused: a waits until Guardrails enforce again.
	paused, err := dialect.DefaultRails(dialect.ModePaused)
	testkit.Must(t, err)
	first := f.claims("first")
	testkit.Must(t, first.engine.Core().SetRails(time.Now(), paused.Core))
	end, done := f.runs(first)
	f.reports(a, corev1.ConditionTrue)
	f.waits(first, a, triage.OnHold)
	f.has()
	first.engine.Post(t.Context(), func(now time.Time) { testkit.Must(t, first.engine.Core().SetRails(now, triage.Rails{})) })
	f.has(a)

	// The bound: b waits until a has recovered.
	f.reports(b, corev1.ConditionTrue)
	f.waits(first, b, triage.CapFull)
	f.reports(a, corev1.ConditionFalse)
	f.has(b)
	f.reports(b, corev1.ConditionFalse)
	f.has()

	// The restart: a creation is in flight when the engine ends, and a has recovered before
	// the next engine starts. The slot stays taken, because the creation may still arrive.
	sent := make(chan struct{}, 10)
	first.engine.Post(t.Context(), func(time.Time) {
		first.treatment.send = func(ctx context.Context, _ string) error {
			sent <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
	})
	f.reports(a, corev1.ConditionTrue)
	<-sent
	end()
	testkit.Must(t, <-done)
	f.reports(a, corev1.ConditionFalse)
	f.reports(b, corev1.ConditionTrue)
	second := f.claims("second")
	_, done = f.runs(second)
	f.waits(second, b, triage.CapFull)
	testkit.Must(t, api.Create(t.Context(), newToy(a))) // the creation arrives
	f.has(b)                                            // after the toy of a was deleted

	// The lost leader: another engine claims the ledger, and the second starts nothing more. It
	// ends at its next write of the ledger, so it must not have to remove an entry now.
	f.hasEmptyLedger()
	third := f.claims("third")
	f.reports(b, corev1.ConditionFalse)
	f.has()
	f.reports(c, corev1.ConditionTrue)
	if err := <-done; !errors.Is(err, ledger.ErrDeposed) {
		t.Errorf("the second engine ended with %v", err)
	}
	f.has()
	end, done = f.runs(third)
	f.has(c)
	end()
	testkit.Must(t, <-done)
	f.atMostOne()
}
