package controller

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
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// site is a cluster with a remediator, and a test in it.
type site struct {
	*testing.T
	api client.WithWatch
	// onCreate is what happens before an object is made, and onAnswer instead of the
	// answer.
	onCreate, onAnswer func(client.Object) error
	loop               *loop
	name               string // of the node, or of the namespace for the ledger
}

func TestInACluster(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	api, err := client.NewWithWatch(cluster.AdminConfig(), client.Options{})
	must(t, err)
	t.Run("a kind that is not there", func(t *testing.T) { (&site{T: t, api: api}).asksForAKindThatIsNotThere(cluster) })
	must(t, remediator.Install(t.Context(), cluster))
	run := func(name string, test func(*site)) {
		t.Run(name, func(t *testing.T) {
			s := &site{T: t, api: api, name: strings.ReplaceAll(strings.ToLower(name), " ", "-")}
			s.loop = &loop{write: treat.NewWriter(interceptor.NewClient(api, interceptor.Funcs{Create: s.create}))}
			test(s)
		})
	}
	run("a place where nobody can lock", (*site).beginsUnlocked)
	must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: nodelease.Namespace}}))
	for name, test := range map[string]func(*site){
		"a treatment begins with a lock":                (*site).begins,
		"a node that has changed is looked at":          (*site).nodeChanged,
		"a node that is gone is not treated":            (*site).nodeGone,
		"somebody was faster with the lock":             (*site).lockTaken,
		"an answer is lost":                             (*site).answerLost,
		"the treatment of a node that is there":         (*site).nodeIsThere,
		"a node made again":                             (*site).nodeMadeAgain,
		"a lock that somebody took away":                (*site).lockGone,
		"a begin that is refused leaves no object":      (*site).refused,
		"a gate that has closed since leaves no object": (*site).gateClosed,
	} {
		run(name, test)
	}
	for name, test := range map[string]func(*site){
		"a treatment that takes a place is named first": (*site).asksForAPage,
		"a page that fails is written again":            (*site).pageFails,
		"a page that is too large is told of":           (*site).pageIsTooLarge,
		"who takes over waits for what was named":       (*site).inherits,
		"who takes over finds what was named":           (*site).inheritsWhatArrived,
		"who takes over is not told of what has ended":  (*site).inheritsNothingEnded,
	} {
		t.Run(name, func(t *testing.T) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ledger-"}}
			must(t, api.Create(t.Context(), ns))
			test(&site{T: t, api: api, name: ns.Name})
		})
	}
	t.Run("a kind that is there", func(t *testing.T) { (&site{T: t, api: api}).asksForAKindThatIsThere() })
}

func (s *site) create(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
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

// node makes the node of the site.
func (s *site) node() *corev1.Node {
	s.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	must(s.T, s.api.Create(s.Context(), node))
	s.Cleanup(func() { _ = s.api.Delete(context.WithoutCancel(s.Context()), node) })
	return nodewatch.Trim(node)
}

// errand is to begin a treatment of a node.
func (s *site) errand(node *corev1.Node) *task {
	s.Helper()
	template := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"strategy": "x"}}}}}
	template.SetGroupVersionKind(remediator.TemplateKind)
	template.SetNamespace(metav1.NamespaceDefault)
	template.SetName("quick")
	object, err := remediation.Make(template, node, ownerOf(checkNamed("check")))
	must(s.T, err)
	return &task{
		kind: createRemediation, rule: checkRule("check"), node: node, create: object,
		lease: nodelease.Take(nil, node, nodelease.HolderOf("check"), leaseDuration, time.Now()),
	}
}

// runs runs an errand, and says that it has that fate.
func (s *site) runs(e *task, want treat.Result) *taskResult {
	s.Helper()
	l := s.loop
	l.taskResults = make(chan *taskResult, 1)
	l.runTaskInBackground(s.Context(), time.Now(), &nodeTreatments{node: s.name}, e)
	r := <-l.taskResults
	if r.result != want {
		s.Fatalf("the fate is %s (%v), want %s", resultNames[r.result], r.err, resultNames[want])
	}
	return r
}

// object returns what there is for the node, nil for nothing.
func (s *site) object() *unstructured.Unstructured {
	s.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(remediator.Kind)
	err := s.api.Get(s.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: s.name}, u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(s.T, err)
	return u
}

func (s *site) begins() {
	r := s.runs(s.errand(s.node()), treat.Made)
	if !r.isCreated || !r.isLeased || r.object.GetUID() != s.object().GetUID() {
		s.Errorf("created %t, locked %t", r.isCreated, r.isLeased)
	}
	by, _, held := nodelease.Held(r.lease, time.Now())
	if !held || by != "NodeHealthCheck-check" {
		s.Errorf("the lock is %+v", r.lease.Spec)
	}
}

func (s *site) beginsUnlocked() {
	r := s.runs(s.errand(s.node()), treat.Made)
	if !r.isCreated || r.isLeased || s.object() == nil {
		s.Errorf("created %t, locked %t", r.isCreated, r.isLeased)
	}
	r = s.runs(&task{kind: takeLease, node: r.task.node, lease: r.task.lease}, treat.Stale)
	if r.err == nil || r.isLeased {
		s.Errorf("locked %t: %v", r.isLeased, r.err)
	}
}

func (s *site) nodeChanged() {
	node := s.node()
	e := s.errand(node)
	fresh := &corev1.Node{}
	must(s.T, s.api.Get(s.Context(), client.ObjectKey{Name: s.name}, fresh))
	fresh.Labels = map[string]string{remediation.ExcludeLabel: "true"}
	must(s.T, s.api.Update(s.Context(), fresh))
	r := s.runs(e, treat.Stale)
	if r.fresh == nil || r.fresh.ResourceVersion != fresh.ResourceVersion || !r.isLeased || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

// gateClosed says that the loop is asked after the node was locked and looked at, and that
// its answer counts.
func (s *site) gateClosed() {
	s.loop.startRequests = make(chan startRequest)
	asked := make(chan *coordinationv1.Lease, 1)
	go func() {
		q := <-s.loop.startRequests
		lease := &coordinationv1.Lease{}
		_ = s.api.Get(s.Context(), client.ObjectKey{Namespace: nodelease.Namespace, Name: nodelease.NameOf(q.node)}, lease)
		asked <- lease
		q.answer <- false
	}()
	r := s.runs(s.errand(s.node()), treat.Stale)
	if lease := <-asked; lease.UID == "" {
		s.Error("the loop was asked before the node was locked")
	}
	if !r.calledOff || r.err != nil || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

func (s *site) nodeGone() {
	node := s.node()
	must(s.T, s.api.Delete(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	if r := s.runs(s.errand(node), treat.Stale); !r.missing || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

func (s *site) lockTaken() {
	node := s.node()
	theirs := nodelease.Take(nil, node, "somebody", time.Hour, time.Now())
	must(s.T, s.api.Create(s.Context(), theirs))
	r := s.runs(s.errand(node), treat.Stale)
	if r.err != nil || !r.isLeased || r.lease.UID != theirs.UID || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

func (s *site) answerLost() {
	e := s.errand(s.node())
	s.onAnswer = func(object client.Object) error {
		if _, isLease := object.(*coordinationv1.Lease); isLease {
			return nil
		}
		return errBroken
	}
	s.runs(e, treat.Unknown)
	s.onAnswer = nil
	e.lease.ResourceVersion = "" // it was taken, which nobody knows
	r := s.runs(e, treat.Stale)
	if !r.isLeased {
		s.Errorf("the lock is not known: %+v", r)
	}
	e.lease = nodelease.Take(r.lease, e.node, nodelease.HolderOf("check"), leaseDuration, time.Now())
	r = s.runs(e, treat.Made)
	if r.isCreated || r.object == nil || r.object.GetUID() != s.object().GetUID() {
		s.Errorf("created %t, found %v", r.isCreated, r.object)
	}
}

func (s *site) nodeIsThere() {
	node := s.node()
	r := s.runs(s.errand(node), treat.Made)
	e := &task{kind: deleteRemediation, object: remediation.Read(r.object), reason: triage.Reason{Code: triage.NodeGone}}
	if r := s.runs(e, treat.Stale); r.fresh == nil || s.object() == nil {
		s.Error("a treatment was ended whose node is there: the watch of nodes was behind")
	}
	must(s.T, s.api.Delete(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	if s.runs(e, treat.Made); s.object() != nil {
		s.Error("it is there still")
	}
}

func (s *site) nodeMadeAgain() {
	r := s.runs(s.errand(s.node()), treat.Made)
	must(s.T, s.api.Delete(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	must(s.T, s.api.Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	e := &task{kind: deleteRemediation, object: remediation.Read(r.object), reason: triage.Reason{Code: triage.NodeGone}}
	if s.runs(e, treat.Made); s.object() != nil {
		s.Error("it is there still")
	}
}

func (s *site) lockGone() {
	r := s.runs(s.errand(s.node()), treat.Made)
	must(s.T, s.api.Delete(s.Context(), r.lease.DeepCopy()))
	renewed := nodelease.Take(r.lease, r.task.node, nodelease.HolderOf("check"), leaseDuration, time.Now())
	r = s.runs(&task{kind: takeLease, node: r.task.node, lease: renewed}, treat.Stale)
	if r.err != nil || !r.isLeased || r.lease != nil {
		s.Errorf("the report: %+v", r)
	}
}

func (s *site) refused() {
	s.onCreate = func(object client.Object) error {
		if _, isLease := object.(*coordinationv1.Lease); isLease {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: "exampleremediations"}, s.name, errors.New("for a test"))
	}
	if r := s.runs(s.errand(s.node()), treat.Refused); !r.isLeased || s.object() != nil {
		s.Errorf("the report: %+v", r)
	}
}

// reigns returns a ward whose ledger is kept in a namespace, and what it names.
func reigns(t *testing.T, api client.WithWatch, namespace, identity string) *ward {
	t.Helper()
	c := &clinic{t: t}
	c.loop = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(word treat.Event) { c.events = append(c.events, word) })
	book, inherited, err := ledger.Claim(t.Context(), api, namespace, identity)
	must(t, err)
	c.ledger = ledgerWriter{ledger: book, restored: inherited, done: make(chan error, 1)}
	t.Cleanup(c.requests.Wait)
	return wardIn(t, c)
}

// asks has a treatment of control-plane node a ask for a place.
func (w *ward) asks() *task {
	w.t.Helper()
	w.node("a", corev1.ConditionTrue, inControl)
	e := w.wants("a", createRemediation)
	w.startTasks(w.t.Context(), time.Now())
	if b := w.treatments["a"]; b.stage != awaitingLedger || w.tasksRunning > 0 || len(w.ledger.queuedTreatments) != 1 {
		w.t.Fatalf("it does not wait for the ledger: %+v", b)
	}
	return e
}

func (s *site) asksForAPage() {
	t, api, namespace := s.T, s.api, s.name
	w := reigns(t, api, namespace, "first")
	e := w.asks()
	w.writeLedger(t.Context(), time.Now())
	must(t, w.snapshotStored(<-w.ledger.done))
	b := w.treatments["a"]
	if b.granted != e.ledgerEntry() || b.asks.Object != "" || b.stage != queued || !slices.Equal(w.ledger.treatmentsWithSlots, []*nodeTreatments{b}) {
		t.Errorf("afterwards: %+v", b)
	}
	_, named, err := ledger.Claim(t.Context(), api, namespace, "second")
	must(t, err)
	if !slices.Equal(named, []ledger.Entry{e.ledgerEntry()}) {
		t.Errorf("the page names %+v", named)
	}
	w.runs(w.wants("a", createRemediation), "a", treat.Made, w.makes(w.made("a", "quick")))
	w.node("b", corev1.ConditionTrue, inControl)
	w.rests("b") // one at a time
	w.node("a", corev1.ConditionFalse, inControl)
	w.runs(w.wants("a", deleteRemediation), "a", treat.Made)
	w.loses(w.made("a", "quick"))
	w.runs(w.wants("a", releaseLease), "a", treat.Made)
	w.startTasks(t.Context(), time.Now())
	if w.treatments["b"].stage != awaitingLedger {
		t.Fatalf("the next one does not ask: %+v", w.treatments["b"])
	}
	w.writeLedger(t.Context(), time.Now())
	if err := w.snapshotStored(<-w.ledger.done); !errors.Is(err, ledger.ErrDeposed) {
		t.Errorf("the page is another's, and what is told is %v", err)
	}
	if slices.Contains(w.ledger.treatmentsWithSlots, b) {
		t.Error("what has arrived is named still")
	}
}

func (s *site) pageFails() {
	t, api, namespace := s.T, s.api, s.name
	var isBroken atomic.Bool
	w := reigns(t, interceptor.NewClient(api, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			if isBroken.Load() {
				return errBroken
			}
			return c.Update(ctx, object, options...)
		},
	}), namespace, "first")
	e := w.asks()
	isBroken.Store(true)
	w.writeLedger(t.Context(), time.Now())
	must(t, w.snapshotStored(<-w.ledger.done))
	b := w.treatments["a"]
	if b.stage != awaitingLedger || b.granted.Object != "" || b.asks.Object != "" || !slices.Equal(w.ledger.queuedTreatments, []*nodeTreatments{b}) {
		t.Errorf("after a failure: %+v", b)
	}
	if message := w.status().UnhealthyNodes[0].Message; !strings.Contains(message, "not written yet: ") {
		t.Errorf("the row says %q", message)
	}
	if due := w.writeLedger(t.Context(), time.Now()); due.IsZero() || w.ledger.busy {
		t.Errorf("it is written again at %v", due)
	}
	isBroken.Store(false)
	w.writeLedger(t.Context(), w.ledger.notBefore)
	must(t, w.snapshotStored(<-w.ledger.done))
	if b.granted != e.ledgerEntry() {
		t.Errorf("afterwards: %+v", b)
	}
	w.treatments["a"].stage = idle
	w.node("a", corev1.ConditionFalse, inControl) // nobody has sent anything
	if b := w.treatments["a"]; b != nil {
		t.Errorf("its bed is still there: %+v", b)
	}
}

// Somebody has filled the ConfigMap, so that the API server takes no page that names
// anything.
func (s *site) pageIsTooLarge() {
	t, api, namespace := s.T, s.api, s.name
	w := reigns(t, api, namespace, "first")
	page := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ledger.Name}}
	must(t, api.Get(t.Context(), client.ObjectKeyFromObject(page), page))
	page.Data["other"] = strings.Repeat("x", 1<<20-len(page.Data["ledger"])-10)
	must(t, api.Update(t.Context(), page))
	w.asks()
	w.writeLedger(t.Context(), time.Now())
	must(t, w.snapshotStored(<-w.ledger.done))
	if message := w.status().UnhealthyNodes[0].Message; !strings.Contains(message, "not written yet: writing the ledger") || !strings.Contains(message, "Too long") {
		t.Errorf("the row says %q", message)
	}
	if got := testutil.ToFloat64(w.cfg.Metrics.writes.WithLabelValues("ledger", "refused")); got != 1 {
		t.Errorf("%v pages are counted as refused", got)
	}
}

// The one before has named a treatment of node a, and died.
func (s *site) inherits() {
	t, api, namespace := s.T, s.api, s.name
	w := reigns(t, api, namespace, "first")
	e := w.asks()
	w.writeLedger(t.Context(), time.Now())
	must(t, w.snapshotStored(<-w.ledger.done))

	heir := reigns(t, api, namespace, "second")
	heir.node("a", corev1.ConditionFalse, inControl)
	heir.restore(time.Now())
	heir.goesOn()
	due := heir.rests("a")
	if wait := time.Until(due); wait < maxInFlight-time.Minute || wait > maxInFlight {
		t.Errorf("what the one before has sent is waited for for %s", wait)
	}
	heir.node("b", corev1.ConditionTrue, inControl)
	if heir.rests("b"); heir.finding("b") != triage.ControlPlaneBusy {
		t.Errorf("b is %s", heir.finding("b"))
	}
	if heir.treatments["a"].granted != e.ledgerEntry() || !slices.Contains(heir.ledger.treatmentsWithSlots, heir.treatments["a"]) {
		t.Errorf("the next page would not name it: %+v", heir.treatments["a"])
	}
	object := heir.made("a", "quick")
	heir.finds(object) // it arrives
	heir.wants("a", deleteRemediation)
	if b := heir.treatments["a"]; b.granted.Object != "" || !b.sent.IsZero() {
		t.Errorf("it has arrived, and is waited for: %+v", b)
	}
}

func (s *site) inheritsWhatArrived() {
	t, api, namespace := s.T, s.api, s.name
	w := reigns(t, api, namespace, "first")
	w.asks()
	w.writeLedger(t.Context(), time.Now())
	must(t, w.snapshotStored(<-w.ledger.done))

	heir := reigns(t, api, namespace, "second")
	heir.node("a", corev1.ConditionTrue, inControl)
	heir.finds(heir.made("a", "quick"))
	heir.restore(time.Now())
	if b := heir.treatments["a"]; b.granted.Object != "" || len(heir.ledger.treatmentsWithSlots) > 0 {
		t.Errorf("it is waited for: %+v", b)
	}
	again := reigns(t, api, namespace, "third")
	again.node("a", corev1.ConditionTrue, inControl, madeAnew)
	again.restore(time.Now())
	if len(again.ledger.treatmentsWithSlots) != 1 {
		t.Error("what may still be made for an earlier node of that name is not waited for")
	}
}

// The one before has treated node a to the end, and died.
func (s *site) inheritsNothingEnded() {
	t, api, namespace := s.T, s.api, s.name
	w := reigns(t, api, namespace, "first")
	w.asks()
	w.writeLedger(t.Context(), time.Now())
	must(t, w.snapshotStored(<-w.ledger.done))
	object := w.made("a", "quick")
	w.runs(w.wants("a", createRemediation), "a", treat.Made, w.makes(object))
	if w.writeLedger(t.Context(), time.Now()); !w.ledger.busy {
		t.Fatal("the page names still what has arrived")
	}
	must(t, w.snapshotStored(<-w.ledger.done))
	w.node("a", corev1.ConditionFalse, inControl)
	w.runs(w.wants("a", deleteRemediation), "a", treat.Made)
	w.loses(object)

	heir := reigns(t, api, namespace, "second")
	heir.node("a", corev1.ConditionFalse, inControl)
	heir.restore(time.Now())
	heir.node("b", corev1.ConditionTrue, inControl)
	heir.wants("b", createRemediation)
}

// said waits until an inquiry is answered like that.
func said(t *testing.T, signal <-chan struct{}, q *optionalInbox[*unstructured.Unstructured], want availability) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		if is, _ := q.availability(); is == want {
			return
		}
		select {
		case <-signal:
		case <-limit:
			is, err := q.availability()
			t.Fatalf("the answer is %d (%v), want %d", is, err, want)
		}
	}
}

// inquires asks for the kinds of the remediator until the test ends.
func inquires(t *testing.T, api client.WithWatch) (q *optionalInbox[*unstructured.Unstructured], signal chan struct{}) {
	t.Helper()
	signal = make(chan struct{}, 1)
	sample := &unstructured.Unstructured{}
	sample.SetGroupVersionKind(remediator.Kind)
	q = newOptionalInbox(signal, sample, unstructuredSource(api, remediator.Kind))
	if is, _ := q.availability(); is != notAnswered {
		t.Errorf("before anybody asked the answer is %d", is)
	}
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var log strings.Builder
	ctx = logr.NewContextWithSlogLogger(ctx, slog.New(slog.NewTextHandler(&log, nil)))
	go func() { defer close(ended); q.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if log.Len() > 0 {
			t.Errorf("every try is told:\n%s", &log)
		}
	})
	return q, signal
}

func (s *site) asksForAKindThatIsNotThere(cluster *testbed.Cluster) {
	t, api := s.T, s.api
	q, signal := inquires(t, api)
	said(t, signal, q, notServed)
	must(t, remediator.Install(t.Context(), cluster))
	said(t, signal, q, available)
	if !q.hasSynced() {
		t.Error("it is there, and was not listed")
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	object.SetGroupVersionKind(remediator.Kind)
	object.SetNamespace(metav1.NamespaceDefault)
	object.SetName("x")
	must(t, api.Create(t.Context(), object))
	for q.take().changes["x"].object == nil {
		<-signal
	}
	_, err := cluster.Kubectl(t.Context(), "delete", "crd", "exampleremediations."+remediator.GroupVersion.Group)
	must(t, err)
	said(t, signal, q, notServed)
	if letter := q.take(); letter.listVersion == "" && !letter.changes["x"].gone || q.hasSynced() {
		t.Errorf("what there was of it is believed to be there: %+v", letter)
	}
}

func (s *site) asksForAKindThatIsThere() {
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
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			if err := fails(); err != nil {
				return nil, err
			}
			return c.Watch(ctx, list, options...)
		},
	}))
	said(t, signal, q, accessDenied)
	if _, err := q.availability(); !apierrors.IsForbidden(err) {
		t.Errorf("the reason is %v", err)
	}
	fault.Store(&errBroken)
	said(t, signal, q, failing)
	fault.Store(nil)
	said(t, signal, q, available)
	if letter := q.take(); letter.listVersion == "" {
		t.Error("it is there, and no list has come")
	}
}
