package engine_test

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/taint"
	"github.com/resourcestack/autohealer/internal/triage"
	objectwatch "github.com/resourcestack/autohealer/internal/watch"
)

// A node has two decisions: a NoExecute taint and a treatment. Before either is written, a limit is
// lowered or another node fails. Whichever write is next, all decisions that exceed the limits are
// called off together, and not decided again.
func TestTwoDecisionsOfOneNodeAboveTheRails(t *testing.T) {
	set := triage.RuleID{Kind: policykind.ConditionSet, Name: "set"}
	none := &triage.Limit{Number: 0}
	for name, of := range map[string]struct {
		rails     triage.Rails
		lastNode  bool // no other node stays ready
		treatment bool // the treatment stays decided
		reason    triage.Code
	}{
		"maxInTreatment":   {triage.Rails{InTreatment: none, KeepLast: true}, false, false, triage.MaxInTreatment},
		"topology":         {triage.Rails{Topology: []triage.Share{{Label: "zone", Limit: *none}}, KeepLast: true}, false, false, triage.MaxInTopology},
		"maxUnschedulable": {triage.Rails{Unschedulable: none}, false, true, triage.MaxUnschedulable},
		"the last node":    {triage.Rails{KeepLast: true}, true, false, triage.LastNode},
	} {
		for _, first := range []string{"treatment", "taint"} {
			t.Run(name+", the "+first+" is next", func(t *testing.T) {
				enginetest.Run(t, func(f *enginetest.Fixture) {
					c := newCallOffFixture(t, f, set)
					testkit.Must(t, f.Core().SetRails(time.Now(), triage.Rails{KeepLast: true}))
					c.deliver("a", "1", "x", corev1.ConditionTrue, corev1.ConditionTrue)
					c.deliver("b", "1", "y", corev1.ConditionFalse, corev1.ConditionTrue)
					f.Round(t.Context())
					testkit.Same(t, len(f.Core().Grants()), 2, "decisions at first")

					testkit.Must(t, f.Core().SetRails(time.Now(), of.rails))
					if of.lastNode {
						c.deliver("b", "2", "y", corev1.ConditionFalse, corev1.ConditionFalse)
					}
					f.Round(t.Context())
					for range 2 {
						if first == "taint" {
							c.taints.Start(t.Context(), time.Now())
							f.Startable()
						} else {
							f.Startable()
							c.taints.Start(t.Context(), time.Now())
						}
						f.ReconcileWoken(time.Now())
					}
					var rules []triage.RuleID
					for _, grant := range f.Core().Grants() {
						rules = append(rules, grant.Rule)
					}
					var want []triage.RuleID
					if of.treatment {
						want = []triage.RuleID{toyRule}
					}
					plan, _ := f.Core().Plan("a")
					testkit.Same(t, rules, want, "decisions that are left")
					testkit.Same(t, plan.Treatment != nil, of.treatment, "a treatment is planned")
					reason := triage.Code(0)
					for _, finding := range plan.Findings {
						if finding.Rule == set {
							reason = finding.Code
						}
						testkit.Check(t, of.treatment || finding.Rule != toyRule || finding.Code == of.reason, "the treatment waits for %s", finding)
					}
					wantTaint := of.reason == triage.MaxInTreatment || of.reason == triage.MaxInTopology // NoSchedule instead
					testkit.Same(t, len(plan.Taints) == 1 && plan.Taints[0].Effect == triage.NoSchedule, wantTaint, "NoSchedule is planned")
					testkit.Check(t, wantTaint || reason == of.reason, "the taint waits for %s", reason)
				})
			})
		}
	}
}

// A treatment that may still arrive keeps the place of its node. The taint of the same node may be
// written although the limit is lower now.
func TestATaintBesideATreatmentThatMayArrive(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		c := newCallOffFixture(t, f, triage.RuleID{Kind: policykind.ConditionSet, Name: "set"})
		c.begin()
		testkit.Must(t, f.Core().SetRails(time.Now(), nothing))
		testkit.Check(t, !f.CallOff(time.Now(), "a"), "the taint is called off")
		testkit.Same(t, len(f.Core().Grants()), 2, "decisions")
	})
}

// nothing allows no treatment.
var nothing = triage.Rails{InTreatment: &triage.Limit{Number: 0}}

// A limit is lowered, or the only other node that is ready fails, while a task prepares its write. The
// last check says no, and the decisions of the node are called off.
func TestTheLastCheckKnowsTheLimits(t *testing.T) {
	for name, change := range map[string]func(*callOffFixture){
		"maxInTreatment": func(c *callOffFixture) { testkit.Must(c.T, c.Core().SetRails(time.Now(), nothing)) },
		"the last node":  func(c *callOffFixture) { c.deliver("b", "2", "y", corev1.ConditionFalse, corev1.ConditionFalse) },
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(f *enginetest.Fixture) {
				c := newCallOffFixture(t, f, triage.RuleID{Kind: policykind.ConditionSet, Name: "set"})
				testkit.Must(t, f.Core().SetRails(time.Now(), triage.Rails{KeepLast: true}))
				r := c.begin()
				testkit.Check(t, f.MayStart(t.Context(), r.Task), "the treatment may not begin")
				change(c)
				testkit.Check(t, !f.MayStart(t.Context(), r.Task), "the treatment may begin")
				r.Outcome, r.Learned = treat.Stale, true
				f.Finish(r)
				f.Startable()
				testkit.Same(t, len(f.Core().Grants()), 0, "decisions")
			})
		})
	}
}

// A treatment is called off while the snapshot with its slot is being written. It has no slot then.
func TestACallOffWhileTheLedgerIsWritten(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		c := newCallOffFixture(t, f, triage.RuleID{Kind: policykind.ConditionSet, Name: "set"})
		c.requestSlot()
		testkit.Must(t, f.Core().SetRails(time.Now(), nothing))
		testkit.Check(t, f.CallOff(time.Now(), "a"), "nothing is called off")
		testkit.Must(t, f.Stored(nil))
		f.Startable()
		testkit.Same(t, f.Entries(), []ledger.Entry{}, "entries of the ledger")
	})
}

// A treatment above the limits does not begin because a taint of its node may still arrive: the taint
// may never arrive.
func TestATreatmentBesideATaintThatMayArrive(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		c := newCallOffFixture(t, f, triage.RuleID{Kind: policykind.ConditionSet, Name: "set"})
		c.requestSlot()
		testkit.Must(t, f.Stored(nil))
		taints := &unansweredTaint{c.taints, true}
		f.SetNodeWriter(taints)
		testkit.Must(t, f.Core().SetRails(time.Now(), nothing))
		testkit.Same(t, len(f.Startable()), 0, "treatments that begin")
		testkit.Same(t, len(f.Core().Grants()), 2, "decisions while the taint may arrive")
		taints.mayArrive = false
		enginetest.Pass(engine.WriteTimeout)
		f.Round(t.Context())
		f.Startable()
		testkit.Same(t, len(f.Core().Grants()), 0, "decisions")
	})
}

// unansweredTaint is a writer of taints whose last write got no answer.
type unansweredTaint struct {
	*taint.Writer
	mayArrive bool
}

func (w *unansweredTaint) MayTakeSlot(*engine.Node) bool { return w.mayArrive }

// A treatment that is called off before anything was written gives its place in the pace back. It keeps
// its place if a write may have been sent.
func TestACalledOffTreatmentInThePace(t *testing.T) {
	for name, of := range map[string]struct {
		end   func(*engine.TaskResult)
		keeps bool
	}{
		"the last check says no": {func(r *engine.TaskResult) { r.Outcome, r.Learned = treat.Stale, true }, false},
		"refused":                {func(r *engine.TaskResult) { r.Outcome, r.Err = treat.Refused, enginetest.ErrBroken }, false},
		"too many requests":      {func(r *engine.TaskResult) { r.Outcome, r.Err = treat.Busy, enginetest.ErrBroken }, false},
		"no answer":              {func(r *engine.TaskResult) { r.Outcome, r.Err = treat.Unknown, enginetest.ErrBroken }, true},
		"half written": {func(r *engine.TaskResult) {
			r.Outcome, r.Err, r.Task.Work = treat.Busy, enginetest.ErrBroken, halfWritten{r.Task.Work}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(f *enginetest.Fixture) {
				c := newCallOffFixture(t, f, triage.RuleID{Kind: policykind.ConditionSet, Name: "set"})
				testkit.Must(t, f.Core().SetRails(time.Now(), triage.Rails{Pace: &triage.Pace{Limit: triage.Limit{Number: 5}, Period: time.Hour}}))
				r := c.begin()
				of.end(r)
				f.Finish(r)
				c.deliver("a", "2", "x", corev1.ConditionFalse, corev1.ConditionTrue)
				f.Round(t.Context())
				enginetest.Pass(engine.MaxInFlight)
				f.Round(t.Context())
				isDecided := slices.ContainsFunc(f.Core().Grants(), func(g triage.Grant) bool { return g.Rule == toyRule })
				testkit.Check(t, !isDecided, "the treatment is not called off")
				testkit.Same(t, len(f.Core().Starts()) == 1, of.keeps, "its place in the pace is kept")
			})
		})
	}
}

// halfWritten is work whose first write has succeeded.
type halfWritten struct{ engine.Work }

func (w halfWritten) Done(now time.Time, r *engine.TaskResult) {
	w.Work.Done(now, r)
	r.Begun = true
}

// callOffFixture is an engine with the toy treatment and a writer of taints.
type callOffFixture struct {
	*enginetest.Fixture
	taints *taint.Writer
}

// newCallOffFixture returns an engine in which each node with Toy=True gets a toy and a NoExecute
// taint of the given rule.
func newCallOffFixture(t *testing.T, f *enginetest.Fixture, set triage.RuleID) *callOffFixture {
	t.Helper()
	toys := &toyTreatment{host: f, inbox: objectwatch.NewInbox[*corev1.ConfigMap](nil, nil), known: map[string]*corev1.ConfigMap{}}
	testkit.Must(t, toys.inbox.Replace(nil, "1"))
	c := &callOffFixture{f, taint.New(f, "test", taint.NewMetrics())}
	f.AddPolicies(&toyPolicy{host: f, nodes: map[string]triage.Reason{}})
	f.AddTreatments(toys)
	f.SetNodeWriter(c.taints)
	testkit.Must(t, f.Core().SetRule(time.Now(), triage.Rule{
		ID: set, Stage: policykind.StageTaint, When: triage.When{Signals: []triage.Signal{{Condition: "Toy", Status: triage.True}}},
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "toy", Effect: triage.NoExecute}},
	}))
	return c
}

// deliver delivers a node.
func (c *callOffFixture) deliver(name, version, zone string, toy, ready corev1.ConditionStatus) {
	node := enginetest.Named(name, version)
	node.UID, node.Labels = "u", map[string]string{"zone": zone}
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: "Toy", Status: toy, LastTransitionTime: metav1.Now()}, {Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.Now()},
	}
	testkit.Must(c.T, c.NodeInbox().Update(node))
}

// requestSlot delivers two nodes, and begins a snapshot with the slot for the treatment of node a.
func (c *callOffFixture) requestSlot() {
	c.T.Helper()
	c.deliver("a", "1", "x", corev1.ConditionTrue, corev1.ConditionTrue)
	c.deliver("b", "1", "y", corev1.ConditionFalse, corev1.ConditionTrue)
	c.Round(c.T.Context())
	c.Startable()
	entries, _ := c.Snapshot()
	testkit.Check(c.T, len(entries) > 0, "the ledger has nothing to store")
}

// begin begins the treatment of node a.
func (c *callOffFixture) begin() *engine.TaskResult {
	c.T.Helper()
	c.requestSlot()
	testkit.Must(c.T, c.Stored(nil))
	r := c.Begin("a")
	testkit.Require(c.T, r != nil, "the treatment does not begin")
	return r
}

var _ engine.NodeWriter = (*taint.Writer)(nil)

// A request that got no answer before the first write of a treatment leaves nothing in flight.
func TestAFailureBeforeTheFirstWrite(t *testing.T) {
	for name, of := range map[string]struct {
		err  error
		want treat.Outcome
	}{
		"no answer": {context.DeadlineExceeded, treat.Busy},
		"too many":  {apierrors.NewTooManyRequestsError("later"), treat.Busy},
		"forbidden": {apierrors.NewForbidden(schema.GroupResource{}, "a", nil), treat.Refused},
	} {
		r := &engine.TaskResult{}
		testkit.Same(t, r.NotWritten(of.err), of.err, "%s: the error", name)
		testkit.Same(t, r.Outcome, of.want, "%s: the outcome", name)
	}
}
