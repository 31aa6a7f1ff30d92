package remediation

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// clusterFixture is a test in a cluster with a remediator.
type clusterFixture struct {
	*testing.T
	api client.WithWatch
	// onCreate runs before an object is created, and onAnswer replaces the answer.
	onCreate, onAnswer func(client.Object) error
	loop               *enginetest.Fixture
	remediations       *Treatment
	name               string // of the node, or of the ledger's namespace
}

func TestTasksInACluster(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	api, err := client.NewWithWatch(cluster.AdminConfig(), client.Options{})
	testkit.Must(t, err)
	t.Run("a missing kind", func(t *testing.T) { (&clusterFixture{T: t, api: api}).watchesMissingKind(cluster) })
	testkit.Must(t, remediator.Install(t.Context(), cluster))
	run := func(name string, test func(*clusterFixture)) {
		t.Run(name, func(t *testing.T) {
			s := &clusterFixture{T: t, api: api, name: strings.ReplaceAll(strings.ToLower(name), " ", "-")}
			s.loop = enginetest.New(t, func(cfg *engine.Config) { cfg.Client = interceptor.NewClient(api, interceptor.Funcs{Create: s.create}) })
			s.remediations = New(s.loop, nil, &watch.Kinds{})
			test(s)
		})
	}
	run("the namespace of the Leases is missing", (*clusterFixture).beginsWithoutLease)
	testkit.Must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: nodelease.Namespace}}))
	for name, test := range map[string]func(*clusterFixture){
		"a treatment begins with a Lease":      (*clusterFixture).begins,
		"a changed node is read again":         (*clusterFixture).nodeChanged,
		"the treatment of a changed node":      (*clusterFixture).nodeChangedSince,
		"a deleted node is not treated":        (*clusterFixture).nodeDeleted,
		"another holder takes the Lease first": (*clusterFixture).leaseTaken,
		"the response to a creation is lost":   (*clusterFixture).answerLost,
		"the treatment of an existing node":    (*clusterFixture).nodeExists,
		"a node created again":                 (*clusterFixture).nodeRecreated,
		"another client deletes the Lease":     (*clusterFixture).leaseDeleted,
		"a refused start leaves no object":     (*clusterFixture).refused,
		"a closed gate leaves no object":       (*clusterFixture).gateClosed,
	} {
		run(name, test)
	}
	for name, test := range map[string]func(*clusterFixture){
		"the ledger names a treatment with a slot before it starts": (*clusterFixture).requestsSnapshot,
		"a snapshot that fails is written again":                    (*clusterFixture).snapshotFails,
		"a snapshot that is too large is reported":                  (*clusterFixture).snapshotIsTooLarge,
		"a successor waits for the writes in the ledger":            (*clusterFixture).inherits,
		"a successor finds the writes in the ledger":                (*clusterFixture).inheritsArrived,
		"a successor gets no finished writes":                       (*clusterFixture).inheritsNothingFinished,
	} {
		t.Run(name, func(t *testing.T) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ledger-"}}
			testkit.Must(t, api.Create(t.Context(), ns))
			test(&clusterFixture{T: t, api: api, name: ns.Name})
		})
	}
	t.Run("an existing kind", func(t *testing.T) { (&clusterFixture{T: t, api: api}).watchesExistingKind() })
}

func (s *clusterFixture) create(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
	if s.onCreate != nil {
		if err := s.onCreate(object); err != nil {
			return err
		}
	}
	if err := c.Create(ctx, object, options...); err != nil || s.onAnswer == nil {
		return err
	}
	return s.onAnswer(object)
}

// node creates the fixture's node.
func (s *clusterFixture) node() *corev1.Node {
	s.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	testkit.Must(s.T, s.api.Create(s.Context(), node))
	s.Cleanup(func() { _ = s.api.Delete(context.WithoutCancel(s.Context()), node) })
	return nodewatch.Trim(node)
}

// newTask returns the task that starts a treatment.
func (s *clusterFixture) newTask(node *corev1.Node) *engine.Task {
	s.Helper()
	template := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"strategy": "x"}}}}}
	template.SetGroupVersionKind(remediator.TemplateKind)
	template.SetNamespace(metav1.NamespaceDefault)
	template.SetName("quick")
	object, err := remediation.Make(template, node, ownerOf(checkNamed("check")))
	testkit.Must(s.T, err)
	task := s.remediations.task(CreateRemediation, node, checkRule("check"), triage.Reason{}, Work{
		Create: object, Lease: nodelease.Take(nil, node, nodelease.HolderOf("check"), leaseDuration, time.Now()),
	})
	task.Begins = true
	return task
}

// runs runs a task and checks its result.
func (s *clusterFixture) runs(e *engine.Task, want treat.Outcome) remediationResult {
	s.Helper()
	r := s.loop.RunTask(s.Context(), s.name, e)
	if r.Outcome != want {
		s.Fatalf("the outcome is %s (%v), want %s", r.Outcome, r.Err, want)
	}
	return remediationResult{r, remediationWork(e)}
}

// object returns the remediation object of the node, nil for none.
func (s *clusterFixture) object() *unstructured.Unstructured {
	s.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(remediator.Kind)
	err := s.api.Get(s.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: s.name}, u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	testkit.Must(s.T, err)
	return u
}

func (s *clusterFixture) begins() {
	r := s.runs(s.newTask(s.node()), treat.Made)
	if r.Existed || r.Current == nil || !r.LeaseKnown || r.Current.GetUID() != s.object().GetUID() {
		s.Errorf("existed %t, Lease known %t", r.Existed, r.LeaseKnown)
	}
	by, _, held := nodelease.Held(r.NewLease, time.Now())
	if !held || by != "NodeHealthCheck-check" {
		s.Errorf("the Lease is %+v", r.NewLease.Spec)
	}
}

func (s *clusterFixture) beginsWithoutLease() {
	r := s.runs(s.newTask(s.node()), treat.Made)
	if r.Existed || r.Current == nil || r.LeaseKnown || s.object() == nil {
		s.Errorf("existed %t, Lease known %t", r.Existed, r.LeaseKnown)
	}
	r = s.runs(s.remediations.task(TakeLease, r.Task.Node, triage.RuleID{}, triage.Reason{}, Work{Lease: r.Lease}), treat.Stale)
	if r.Err == nil || r.LeaseKnown {
		s.Errorf("Lease known %t: %v", r.LeaseKnown, r.Err)
	}
}

func (s *clusterFixture) nodeChanged() {
	node := s.node()
	e := s.newTask(node)
	fresh := &corev1.Node{}
	testkit.Must(s.T, s.api.Get(s.Context(), client.ObjectKey{Name: s.name}, fresh))
	fresh.Labels = map[string]string{remediation.ExcludeLabel: "true"}
	testkit.Must(s.T, s.api.Update(s.Context(), fresh))
	r := s.runs(e, treat.Stale)
	if r.Fresh == nil || r.Fresh.ResourceVersion != fresh.ResourceVersion || !r.LeaseKnown || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

// nodeChangedSince checks that a replica that knows the remediation and the Lease of the new leader, and an
// older version of the node, deletes neither.
func (s *clusterFixture) nodeChangedSince() {
	node := s.node()
	r := s.runs(s.newTask(node), treat.Made)
	e := s.remediations.task(DeleteRemediation, node, triage.RuleID{}, triage.Reason{}, Work{Object: remediation.Read(r.Current)})
	fresh := &corev1.Node{}
	testkit.Must(s.T, s.api.Get(s.Context(), client.ObjectKey{Name: s.name}, fresh))
	fresh.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: corev1.ConditionTrue}}
	testkit.Must(s.T, s.api.Status().Update(s.Context(), fresh))
	if r := s.runs(e, treat.Stale); r.Fresh == nil || s.object() == nil {
		s.Errorf("the report: %+v", r)
	}
	release := s.remediations.task(ReleaseLease, node, triage.RuleID{}, triage.Reason{}, Work{Lease: r.NewLease})
	if r := s.runs(release, treat.Stale); r.Fresh == nil {
		s.Errorf("the report: %+v", r)
	}
	testkit.Must(s.T, s.api.Get(s.Context(), client.ObjectKeyFromObject(r.NewLease), &coordinationv1.Lease{}))
}

// gateClosed checks that the task asks the loop after it took the Lease and read the
// node, and that it respects the answer.
func (s *clusterFixture) gateClosed() {
	asked := make(chan *coordinationv1.Lease, 1)
	s.loop.AnswerStart(func(node string) bool {
		lease := &coordinationv1.Lease{}
		_ = s.api.Get(s.Context(), client.ObjectKey{Namespace: nodelease.Namespace, Name: nodelease.NameOf(node)}, lease)
		asked <- lease
		return false
	})
	r := s.runs(s.newTask(s.node()), treat.Stale)
	if lease := <-asked; lease.UID == "" {
		s.Error("the loop was asked before the node was locked")
	}
	if !r.Learned || r.Err != nil || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

func (s *clusterFixture) nodeDeleted() {
	node := s.node()
	testkit.Must(s.T, s.api.Delete(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	if r := s.runs(s.newTask(node), treat.Stale); !r.Missing || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

func (s *clusterFixture) leaseTaken() {
	node := s.node()
	theirs := nodelease.Take(nil, node, "other", time.Hour, time.Now())
	testkit.Must(s.T, s.api.Create(s.Context(), theirs))
	r := s.runs(s.newTask(node), treat.Stale)
	if r.Err != nil || !r.LeaseKnown || r.NewLease.UID != theirs.UID || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

func (s *clusterFixture) answerLost() {
	e := s.newTask(s.node())
	s.onAnswer = func(object client.Object) error {
		if _, isLease := object.(*coordinationv1.Lease); isLease {
			return nil
		}
		return enginetest.ErrBroken
	}
	s.runs(e, treat.Unknown)
	s.onAnswer = nil
	remediationWork(e).Lease.ResourceVersion = "" // the Lease is taken, which the loop does not know
	r := s.runs(e, treat.Stale)
	if !r.LeaseKnown {
		s.Errorf("the Lease is not known: %+v", r)
	}
	remediationWork(e).Lease = nodelease.Take(r.NewLease, e.Node, nodelease.HolderOf("check"), leaseDuration, time.Now())
	r = s.runs(e, treat.Made)
	if !r.Existed || r.Current == nil || r.Current.GetUID() != s.object().GetUID() {
		s.Errorf("existed %t, found %v", r.Existed, r.Current)
	}
}

func (s *clusterFixture) nodeExists() {
	node := s.node()
	r := s.runs(s.newTask(node), treat.Made)
	e := s.remediations.task(DeleteRemediation, nil, triage.RuleID{}, triage.Reason{Code: triage.NodeGone}, Work{Object: remediation.Read(r.Current)})
	if r := s.runs(e, treat.Stale); r.Fresh == nil || s.object() == nil {
		s.Error("a treatment of an existing node was ended: the watch of nodes was behind")
	}
	note := s.remediations.task(AnnotateRemediation, nil, triage.RuleID{}, triage.Reason{Code: triage.NodeGone},
		Work{Object: remediation.Read(r.Current), Annotations: map[string]*string{remediation.TimedOutAnnotation: new(remediation.Stamp(time.Now()))}})
	if r := s.runs(note, treat.Stale); r.Fresh == nil || remediation.Read(s.object()).TimedOut {
		s.Error("the remediator of an existing node was told to stop")
	}
	testkit.Must(s.T, s.api.Delete(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	if s.runs(e, treat.Made); s.object() != nil {
		s.Error("the object still exists")
	}
}

func (s *clusterFixture) nodeRecreated() {
	r := s.runs(s.newTask(s.node()), treat.Made)
	testkit.Must(s.T, s.api.Delete(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	testkit.Must(s.T, s.api.Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	e := s.remediations.task(DeleteRemediation, nil, triage.RuleID{}, triage.Reason{Code: triage.NodeGone}, Work{Object: remediation.Read(r.Current)})
	if s.runs(e, treat.Made); s.object() != nil {
		s.Error("the object still exists")
	}
}

func (s *clusterFixture) leaseDeleted() {
	r := s.runs(s.newTask(s.node()), treat.Made)
	testkit.Must(s.T, s.api.Delete(s.Context(), r.NewLease.DeepCopy()))
	renewed := nodelease.Take(r.NewLease, r.Task.Node, nodelease.HolderOf("check"), leaseDuration, time.Now())
	r = s.runs(s.remediations.task(TakeLease, r.Task.Node, triage.RuleID{}, triage.Reason{}, Work{Lease: renewed}), treat.Stale)
	if r.Err != nil || !r.LeaseKnown || r.NewLease != nil {
		s.Errorf("the report: %+v", r)
	}
}

func (s *clusterFixture) refused() {
	s.onCreate = func(object client.Object) error {
		if _, isLease := object.(*coordinationv1.Lease); isLease {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: "exampleremediations"}, s.name, errors.New("for a test"))
	}
	if r := s.runs(s.newTask(s.node()), treat.Refused); !r.LeaseKnown || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

// said waits until the inbox has this availability.
func said(t *testing.T, signal <-chan struct{}, q *watch.Optional[*unstructured.Unstructured], want watch.Availability) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		if is, _ := q.Availability(); is == want {
			return
		}
		select {
		case <-signal:
		case <-limit:
			is, err := q.Availability()
			t.Fatalf("the answer is %d (%v), want %d", is, err, want)
		}
	}
}

// inquires watches the kinds of the remediator until the test ends.
func inquires(t *testing.T, api client.WithWatch) (q *watch.Optional[*unstructured.Unstructured], signal chan struct{}) {
	t.Helper()
	signal = make(chan struct{}, 1)
	sample := &unstructured.Unstructured{}
	sample.SetGroupVersionKind(remediator.Kind)
	q = watch.NewOptional(signal, sample, watch.UnstructuredSource(api, remediator.Kind))
	if is, _ := q.Availability(); is != watch.NotAnswered {
		t.Errorf("before the first request the answer is %d", is)
	}
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var log strings.Builder
	ctx = logr.NewContextWithSlogLogger(ctx, slog.New(slog.NewTextHandler(&log, nil)))
	go func() { defer close(ended); q.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		testkit.Check(t, log.Len() == 0, "every try is reported:\n%s", &log)
	})
	return q, signal
}

func (s *clusterFixture) watchesMissingKind(cluster *testbed.Cluster) {
	t, api := s.T, s.api
	q, signal := inquires(t, api)
	said(t, signal, q, watch.NotServed)
	testkit.Must(t, remediator.Install(t.Context(), cluster))
	said(t, signal, q, watch.Available)
	testkit.Check(t, q.HasSynced(), "it is there, and was not listed")
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	object.SetGroupVersionKind(remediator.Kind)
	object.SetNamespace(metav1.NamespaceDefault)
	object.SetName("x")
	testkit.Must(t, api.Create(t.Context(), object))
	for q.Take().Changes["x"].Object == nil {
		<-signal
	}
	_, err := cluster.Kubectl(t.Context(), "delete", "crd", "exampleremediations."+remediator.GroupVersion.Group)
	testkit.Must(t, err)
	said(t, signal, q, watch.NotServed)
	if batch := q.Take(); batch.ListVersion == "" && !batch.Changes["x"].Gone || q.HasSynced() {
		t.Errorf("what there was of it is believed to be there: %+v", batch)
	}
}

func (s *clusterFixture) watchesExistingKind() {
	t, api := s.T, s.api
	var fault atomic.Pointer[error]
	fails := func() error {
		if err := fault.Load(); err != nil {
			return *err
		}
		return nil
	}
	forbidden := error(apierrors.NewForbidden(schema.GroupResource{Resource: "exampleremediations"}, "", errors.New("for a test")))
	fault.Store(&forbidden)
	q, signal := inquires(t, interceptor.NewClient(api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := fails(); err != nil {
				return err
			}
			return c.List(ctx, list, options...)
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (apiwatch.Interface, error) {
			if err := fails(); err != nil {
				return nil, err
			}
			return c.Watch(ctx, list, options...)
		},
	}))
	said(t, signal, q, watch.AccessDenied)
	if _, err := q.Availability(); !apierrors.IsForbidden(err) {
		t.Errorf("the reason is %v", err)
	}
	fault.Store(&enginetest.ErrBroken)
	said(t, signal, q, watch.Failing)
	fault.Store(nil)
	said(t, signal, q, watch.Available)
	if batch := q.Take(); batch.ListVersion == "" {
		t.Error("it is there, and no list has come")
	}
}

// newLeader returns a fixture that has claimed the ledger in the namespace and has not loaded
// anything.
func newLeader(t *testing.T, api client.WithWatch, namespace, identity string) *healthCheckFixture {
	t.Helper()
	c := enginetest.New(t, func(cfg *engine.Config) { cfg.Client, cfg.Namespace, cfg.Identity = api, namespace, identity })
	testkit.Must(t, c.Claim(t.Context()))
	return newHealthCheckFixture(c)
}

// firstLeader returns a leader that wants a slot for a treatment of control-plane node a, and
// its task.
func firstLeader(t *testing.T, api client.WithWatch, namespace string) (*healthCheckFixture, *engine.Task) {
	t.Helper()
	w := newLeader(t, api, namespace, "first")
	w.loads(nil)
	w.node("a", corev1.ConditionTrue, inControl)
	e := w.WantTask("a", CreateRemediation)
	if startable := w.Startable(); len(startable) > 0 || !w.AwaitsLedger("a") {
		t.Fatalf("it does not wait for the ledger: %+v", startable)
	}
	return w, e
}

// writesSnapshot writes the next snapshot to the real ledger.
func (w *healthCheckFixture) writesSnapshot() {
	w.T.Helper()
	_, err := w.WriteSnapshot(w.T.Context(), time.Now())
	testkit.Must(w.T, err)
}

func (s *clusterFixture) requestsSnapshot() {
	t, api, namespace := s.T, s.api, s.name
	w, e := firstLeader(t, api, namespace)
	w.writesSnapshot()
	if w.FindNodeTasks("a").Slot() != e.Slot || !w.IsQueued("a") || !slices.Equal(w.Entries(), []ledger.Entry{e.Slot}) {
		t.Errorf("afterwards: %+v, %+v", w.FindNodeTasks("a"), w.Entries())
	}
	_, named, err := ledger.Claim(t.Context(), api, namespace, "second")
	testkit.Must(t, err)
	if !slices.Equal(named, []ledger.Entry{e.Slot}) {
		t.Errorf("the ledger names %+v", named)
	}
	w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(w.made("a", "quick")))
	w.node("b", corev1.ConditionTrue, inControl)
	w.WantNoTask("b") // one at a time
	w.node("a", corev1.ConditionFalse, inControl)
	w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
	w.loses(w.made("a", "quick"))
	w.runs(w.WantTask("a", ReleaseLease), "a", treat.Made)
	if w.Startable(); !w.AwaitsLedger("b") {
		t.Fatalf("the next one does not ask: %+v", w.FindNodeTasks("b"))
	}
	if _, err := w.WriteSnapshot(t.Context(), time.Now()); !errors.Is(err, ledger.ErrDeposed) {
		t.Errorf("another replica owns the ledger, and what is reported is %v", err)
	}
	testkit.Check(t, !slices.Contains(w.Entries(), ledger.Entry(e.Slot)), "what has arrived is named still")
}

func (s *clusterFixture) snapshotFails() {
	t, api, namespace := s.T, s.api, s.name
	var isBroken atomic.Bool
	w, e := firstLeader(t, interceptor.NewClient(api, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			if isBroken.Load() {
				return enginetest.ErrBroken
			}
			return c.Update(ctx, object, options...)
		},
	}), namespace)
	isBroken.Store(true)
	w.writesSnapshot()
	if !w.AwaitsLedger("a") || w.FindNodeTasks("a").HasSlot() || len(w.Entries()) > 0 {
		t.Errorf("after a failure: %+v", w.FindNodeTasks("a"))
	}
	if message := w.status().UnhealthyNodes[0].Message; !strings.Contains(message, "not written yet: ") {
		t.Errorf("the row says %q", message)
	}
	due, err := w.WriteSnapshot(t.Context(), time.Now())
	testkit.Check(t, err == nil && !due.IsZero() && !w.FindNodeTasks("a").HasSlot(), "it is written again at %v: %v", due, err)
	isBroken.Store(false)
	_, err = w.WriteSnapshot(t.Context(), due)
	testkit.Must(t, err)
	if w.FindNodeTasks("a").Slot() != e.Slot {
		t.Errorf("afterwards: %+v", w.FindNodeTasks("a"))
	}
	w.node("a", corev1.ConditionFalse, inControl) // nothing has been sent
	if nodeTasks := w.FindNodeTasks("a"); nodeTasks != nil {
		t.Errorf("its treatments still exist: %+v", nodeTasks)
	}
}

// The ConfigMap is so full that the API server rejects every snapshot with an entry.
func (s *clusterFixture) snapshotIsTooLarge() {
	t, api, namespace := s.T, s.api, s.name
	w, _ := firstLeader(t, api, namespace)
	ledgerMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ledger.Name}}
	testkit.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(ledgerMap), ledgerMap))
	ledgerMap.Data["other"] = strings.Repeat("x", 1<<20-len(ledgerMap.Data["ledger"])-10)
	testkit.Must(t, api.Update(t.Context(), ledgerMap))
	w.writesSnapshot()
	if message := w.status().UnhealthyNodes[0].Message; !strings.Contains(message, "not written yet: writing the ledger") || !strings.Contains(message, "Too long") {
		t.Errorf("the row says %q", message)
	}
	if err := testutil.CollectAndCompare(w.Metrics, strings.NewReader(`
# HELP autohealer_writes_total Writes to the API server by outcome: made, stale (the object had changed), busy, refused, unknown (no answer arrived).
# TYPE autohealer_writes_total counter
autohealer_writes_total{outcome="refused",resource="ledger"} 1
`), "autohealer_writes_total"); err != nil {
		t.Error(err)
	}
}

// The previous leader has stored an entry for node a and ended.
func (s *clusterFixture) inherits() {
	t, api, namespace := s.T, s.api, s.name
	w, e := firstLeader(t, api, namespace)
	w.writesSnapshot()

	successor := newLeader(t, api, namespace, "second")
	successor.node("a", corev1.ConditionFalse, inControl)
	successor.loads(nil)
	due := successor.WantNoTask("a")
	if wait := time.Until(due); wait < engine.MaxInFlight-time.Minute || wait > engine.MaxInFlight {
		t.Errorf("what the one before has sent is waited for for %s", wait)
	}
	successor.node("b", corev1.ConditionTrue, inControl)
	if successor.WantNoTask("b"); successor.finding("b") != triage.ControlPlaneBusy {
		t.Errorf("b is %s", successor.finding("b"))
	}
	if successor.FindNodeTasks("a").Slot() != e.Slot || !slices.Contains(successor.Entries(), ledger.Entry(e.Slot)) {
		t.Errorf("the next snapshot would not name it: %+v", successor.FindNodeTasks("a"))
	}
	object := successor.made("a", "quick")
	successor.finds(object) // the write arrives
	successor.WantTask("a", DeleteRemediation)
	if nodeTasks := successor.FindNodeTasks("a"); nodeTasks.HasSlot() || nodeTasks.WasSent() {
		t.Errorf("it has arrived, and is waited for: %+v", nodeTasks)
	}
}

func (s *clusterFixture) inheritsArrived() {
	t, api, namespace := s.T, s.api, s.name
	w, _ := firstLeader(t, api, namespace)
	w.writesSnapshot()

	successor := newLeader(t, api, namespace, "second")
	successor.node("a", corev1.ConditionTrue, inControl)
	successor.loads([]*unstructured.Unstructured{w.made("a", "quick")})
	if nodeTasks := successor.FindNodeTasks("a"); nodeTasks.HasSlot() || len(successor.Entries()) > 0 {
		t.Errorf("it is waited for: %+v", nodeTasks)
	}
	again := newLeader(t, api, namespace, "third")
	again.node("a", corev1.ConditionTrue, inControl, madeAnew)
	again.loads(nil)
	testkit.Check(t, len(again.Entries()) == 1, "what may still be made for an earlier node of that name is not waited for")
}

// The previous leader has finished the treatment of node a and ended.
func (s *clusterFixture) inheritsNothingFinished() {
	t, api, namespace := s.T, s.api, s.name
	w, e := firstLeader(t, api, namespace)
	w.writesSnapshot()
	object := w.made("a", "quick")
	w.runs(w.WantTask("a", CreateRemediation), "a", treat.Made, w.makes(object))
	w.writesSnapshot()
	testkit.Require(t, !slices.Contains(w.Entries(), ledger.Entry(e.Slot)), "the ledger names still what has arrived")
	w.node("a", corev1.ConditionFalse, inControl)
	w.runs(w.WantTask("a", DeleteRemediation), "a", treat.Made)
	w.loses(object)

	successor := newLeader(t, api, namespace, "second")
	successor.node("a", corev1.ConditionFalse, inControl)
	successor.node("b", corev1.ConditionTrue, inControl)
	successor.loads(nil)
	successor.WantTask("b", CreateRemediation)
}
