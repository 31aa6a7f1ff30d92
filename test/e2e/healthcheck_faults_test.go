package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// remediations are the resources of the remediator.
var remediations = []schema.GroupVersionResource{
	remediator.GroupVersion.WithResource("exampleremediations"),
	remediator.GroupVersion.WithResource("exampleremediationtemplates"),
}

// newHealthCheckScope starts a cluster that records everything the checker needs for health
// checks. It records Leases of medik8s' own controller in these namespaces.
func newHealthCheckScope(t *testing.T, medik8sNamespaces ...string) *fixture {
	t.Helper()
	w := newFixture(t, withManager, func(cfg *testbed.Config) {
		cfg.Record = history.Resources(remediations...)
		cfg.RecordIn = history.Namespaces(medik8sNamespaces...)
	})
	testkit.Must(t, remediator.Install(t.Context(), w.Cluster))
	return w
}

// judgeRemediations checks the recorded history of the scope for violations of health
// checks.
func (w *scope) judgeRemediations(cfg history.Config, atLeast history.Counts) history.Report {
	w.t.Helper()
	cfg.Remediation = remediations
	report := w.judge(cfg, atLeast)
	w.t.Logf("scope %s: %d remediations, %d later steps, %d deleted, %d annotated, %d writes to Leases, %d statuses", w.name,
		report.Remediations, report.Escalations, report.Releases, report.Notes, report.Leases, report.CheckStatuses)
	return report
}

// TestHealthCheckFaultsInFlight injects faults while decisions of health checks are in
// flight, and checks the recorded history for violations. All parts share one cluster. Each
// has its own controllers and scope. One scope lasts for all parts and controllers.
func TestHealthCheckFaultsInFlight(t *testing.T) {
	t.Parallel() // the test mostly waits
	w := newHealthCheckScope(t)
	silence := w.scope(t, "silence")
	beginSilence(silence)
	w.runHealthCheckFaults(t, []part{
		{"the controller is killed before and after every kind of write", "killed", testHealthCheckKilled},
		{"other control-plane nodes wait for a node in flight under the successor", "successor", testControlPlaneSuccessor},
		{"other control-plane nodes wait for a node in flight under the second successor", "second", testControlPlaneSecondSuccessor},
		{"the successor treats a control-plane node in flight", "still", testControlPlaneStillUnhealthy},
		{"other control-plane nodes wait for a node in flight under its owner", "owner", testControlPlaneOwnerDeleted},
		{"a control-plane node in flight is deleted, and the successor waits", "gone", testControlPlaneNodeGoneSuccessor},
		{"a control-plane node in flight is deleted, and its owner waits", "left", testControlPlaneNodeGoneOwnerDeleted},
		{"a control-plane node in flight is created again with the same name", "plane", testControlPlaneNodeRecreated},
		{"a control-plane node is deleted, and its remediation hangs", "remains", testControlPlaneOrphan},
		{"other control-plane nodes wait for a hanging remediation", "hangs", testControlPlaneOrphanHangs},
		{"the closed gate cancels a remediation in flight", "called", testCalledOff},
		{"a removed node counts for every successor", "departed", testAwaitingReplacementKilled},
	})
	t.Run("a remediator never responds", func(t *testing.T) { endSilence(w.scope(t, silence.name)) })
}

// TestHealthCheckFaultsAround does the same with external faults: the API server, the
// network, another leader, missing rights. It has its own cluster, so that it runs in
// parallel.
func TestHealthCheckFaultsAround(t *testing.T) {
	t.Parallel()
	newHealthCheckScope(t).runHealthCheckFaults(t, []part{
		{"the leader is killed", "leader", testHealthCheckLeaderKilled},
		{"the leader is paused past its lease", "paused", testHealthCheckLeaderPaused},
		{"two controllers run without leader election", "deposed", testHealthCheckDeposed},
		{"requests and responses are lost and refused", "random-faults", testHealthCheckRandomFaults},
		{"the API server is killed and restarted", "outage", testHealthCheckOutage},
		{"the right to create remediations is withdrawn", "forbidden", testHealthCheckForbidden},
		{"the right to see remediations is withdrawn", "blind", testHealthCheckNoWatch},
		{"the right to lock nodes is withdrawn", "locks", testHealthCheckNoLeases},
		{"one remediation is refused, and the others are not", "refused", testHealthCheckRefused},
	})
}

// TestHealthCheckChangesAround does the same with changes of nodes and of other clients,
// and with wrong clocks.
func TestHealthCheckChangesAround(t *testing.T) {
	t.Parallel()
	newHealthCheckScope(t).runHealthCheckFaults(t, []part{
		{"another client changes and deletes the same objects and Leases", "other", testHealthCheckOtherController},
		{"another client deletes every remediation", "deleter", testEagerDeleter},
		{"an edit that would interrupt a remediation waits, also after a restart", "edit", testInterruptingEdit},
		{"conditions flap", "flapping", testHealthCheckFlapping},
		{"nodes are created again with the same names", "recreated", testHealthCheckRecreated},
		{"nodes join and leave", "joining", testHealthCheckJoining},
		{"a wait survives the deletion of a Lease", "pending", testPendingWait},
		{"the clocks of nodes are wrong", "skew", testSkew},
		{"the clocks of nodes are wrong, and the controller is killed", "lapse", testSkewKilled},
	})
}

// runHealthCheckFaults injects the faults one after the other.
func (w *fixture) runHealthCheckFaults(t *testing.T, faults []part) {
	t.Helper()
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			subscope := w.scope(t, fault.subscope)
			defer subscope.deleteCheck() // otherwise control-plane leftovers would block the next part
			fault.test(subscope)
		})
	}
}

// ---- the kinds of writes for health checks

// sends matches the writes to a resource of the scope.
func (w *scope) sends(method, resource string) func(*heldRequest) bool {
	is := about(method, resource)
	return func(l *heldRequest) bool {
		return is(l) && (strings.Contains(l.Path, w.name+"-") || bytes.Contains(l.Body, []byte(w.name+"-")))
	}
}

func (w *scope) makes() func(*heldRequest) bool {
	return w.sends(http.MethodPost, "exampleremediations")
}

// makesForWorker ignores creations for control-plane nodes: if they are lost, the next
// control-plane node waits for minutes.
func (w *scope) makesForWorker() func(*heldRequest) bool {
	makes := w.makes()
	return func(l *heldRequest) bool { return makes(l) && !bytes.Contains(l.Body, []byte("isControlPlaneNode")) }
}

func (w *scope) namesInLedger() func(*heldRequest) bool {
	return func(l *heldRequest) bool { return names(l) && bytes.Contains(l.Body, []byte(w.name+"-")) }
}

// ---- the controller is killed

// testHealthCheckKilled runs one long storm. Each controller continues where the previous
// one was killed, has something of every kind to write, and is killed during a write.
func testHealthCheckKilled(w *scope) {
	const count, unhealthy, news = 12, 6, 3
	p := w.newProxy(w.name)
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: count, Labels: map[string]string{"pool": "workers"}})
	plane := w.createNodes(testbed.Nodes{Count: 3, First: count + 1, Labels: map[string]string{"pool": "plane", controlPlaneLabel: ""}})
	of := func(pool string) checkOption {
		return func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.Selector.MatchLabels["pool"] = pool }
	}
	w.check("workers", of("workers"), atMost("8"), func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.HealthyDelay = "1s" })
	w.check("plane", of("plane"), atMost("100%"))
	w.releaseLeadership()
	w.makeUnhealthy(append(nodes[:unhealthy:unhealthy], plane[:2]...))
	// turnOver makes the nodes recover that have been unhealthy longest, and makes other
	// nodes unhealthy, so that every kind of write is due.
	turnOver := func() {
		w.recover(nodes[:news])
		w.makeUnhealthy(nodes[unhealthy : unhealthy+news])
		nodes = append(nodes[news:], nodes[:news]...)
		// If a node recovered that the ledger names and that has no object yet, other nodes
		// would wait for minutes.
		if there, err := w.objects(w.t.Context(), plane[0]); err == nil && len(there) > 0 {
			w.recover(plane[:1])
			w.makeUnhealthy(plane[2:])
			plane = append(plane[1:], plane[0])
		}
	}
	points := []killPoint{
		{"names a node in the ledger", w.namesInLedger(), everyDelivery},
		{"acquires a Lease", w.sends(http.MethodPost, "leases"), everyDelivery},
		{"creates an object", w.makesForWorker(), everyDelivery},
		{"records a recovery", w.sends(http.MethodPatch, "exampleremediations"), everyDelivery},
		{"deletes an object", w.sends(http.MethodDelete, "exampleremediations"), everyDelivery},
		{"releases a Lease", w.sends(http.MethodDelete, "leases"), everyDelivery},
		{"writes a status", w.sends(http.MethodPatch, "nodehealthchecks"), []delivery{after, late}},
		{"writes an Event", w.sends(http.MethodPost, "events"), []delivery{after, late}},
	}
	launch, slow := w.killDuring(p, points, turnOver, func(holding heldRequests) {
		for range wait.Looks(w.t.Context()) {
			if len(holding.All()) > 0 {
				break
			}
			turnOver()
		}
	})
	w.deliver(slow, 0)
	w.releaseLeadership() // nothing is in flight, so the next controller need not wait for the ledger entries
	launch()
	w.hasCheckStatus("workers", counted(count, count-unhealthy, unhealthy))
	w.hasCheckStatus("plane", counted(3, 1, 1))
	// How many objects come and go during the storm depends on the speed of the machine. The
	// kills and the recovery of all nodes guarantee the numbers below.
	w.recover(append(nodes[:unhealthy:unhealthy], plane[:2]...))
	w.hasCheckStatus("workers", counted(count, count, 0))
	w.hasCheckStatus("plane", counted(3, 3, 0))
	w.judgeRemediations(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Remediations: 9, Releases: 9, Notes: 7, Leases: 18})
}

// ---- the control plane

// controlPlaneInFlight creates three control-plane nodes. The remediation of the first is
// in flight when it returns.
func controlPlaneInFlight(w *scope) (controller *install.Controller, kept []*heldRequest) {
	w.t.Helper()
	p := w.newProxy(w.name)
	w.checked(testbed.Nodes{Count: 3, Labels: map[string]string{controlPlaneLabel: ""}}, atMost("100%"))
	w.releaseLeadership()
	holding := p.hold(w.makes(), 1)
	controller = w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	return controller, holding.wait(w, 1)
}

// queues checks that the second node waits for the first, and has no object.
func (w *scope) queues() {
	w.t.Helper()
	w.hasCheckStatus("check", row(w.node(2), "ControlPlaneBusy", w.node(1)))
	testkit.Must(w.t, w.triesNow(w.node(2)))
}

// letsGo delivers the writes in flight. The controller deletes the object, and treats the
// second node next.
func (w *scope) letsGo(kept []*heldRequest) {
	w.t.Helper()
	w.deliver(kept, http.StatusCreated)
	w.tries(w.node(2), "quick")
	testkit.Must(w.t, w.triesNow(w.node(1)))
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionFalse)
	w.tries(w.node(2))
	w.judgeRemediations(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Remediations: 2, Releases: 2})
}

func testControlPlaneSuccessor(w *scope) {
	first, kept := controlPlaneInFlight(w)
	w.kill(first)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.start(install.Options{Args: []string{alone}})
	w.queues()
	w.letsGo(kept)
}

// The first successor learns of the write in flight and is killed. The second must learn of
// it, too.
func testControlPlaneSecondSuccessor(w *scope) {
	first, kept := controlPlaneInFlight(w)
	w.kill(first)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	successor := w.start(install.Options{Args: []string{alone}})
	w.queues()
	w.kill(successor)
	w.setCondition(w.node(3), "Unhealthy", corev1.ConditionTrue)
	w.restart(successor.Part)
	w.hasCheckStatus("check", row(w.node(3), "ControlPlaneBusy", w.node(1)))
	w.queues()
	w.setCondition(w.node(3), "Unhealthy", corev1.ConditionFalse)
	w.letsGo(kept)
}

func testControlPlaneStillUnhealthy(w *scope) {
	first, kept := controlPlaneInFlight(w)
	w.kill(first)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.start(install.Options{Args: []string{alone}})
	w.tries(w.node(1), "quick")
	w.queues()
	w.deliver(kept, http.StatusConflict)
	w.queues()
	testkit.Must(w.t, w.triesNow(w.node(1), "quick"))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.tries(w.node(2), "quick")
	testkit.Must(w.t, w.triesNow(w.node(1)))
	w.judgeRemediations(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Remediations: 2, Releases: 1})
}

func testControlPlaneOwnerDeleted(w *scope) {
	_, kept := controlPlaneInFlight(w)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.queues()
	kept[0].Drop() // the controller gets no response
	w.setCondition(w.node(3), "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(w.node(3), "ControlPlaneBusy", w.node(1)))
	w.queues()
	w.setCondition(w.node(3), "Unhealthy", corev1.ConditionFalse)
	w.letsGo(kept)
}

// removeNode deletes a node.
func (w *scope) removeNode(name string) {
	w.t.Helper()
	testkit.Must(w.t, w.api.Delete(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
}

// orphansOf checks that the second node waits for remediations of the first node, which is
// deleted.
func (w *scope) orphansOf() {
	w.t.Helper()
	w.hasCheckStatus("check", row(w.node(2), "Vetoed", w.node(1)))
	testkit.Must(w.t, w.triesNow(w.node(2)))
}

func testControlPlaneNodeGoneSuccessor(w *scope) {
	first, kept := controlPlaneInFlight(w)
	w.kill(first)
	w.removeNode(w.node(1))
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.start(install.Options{Args: []string{alone}})
	w.orphansOf()
	w.letsGo(kept)
}

func testControlPlaneNodeGoneOwnerDeleted(w *scope) {
	_, kept := controlPlaneInFlight(w)
	w.removeNode(w.node(1))
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.orphansOf()
	kept[0].Drop()
	w.orphansOf()
	w.letsGo(kept)
}

func testControlPlaneNodeRecreated(w *scope) {
	first, kept := controlPlaneInFlight(w)
	w.kill(first)
	w.removeNode(w.node(1))
	w.createNodes(testbed.Nodes{Count: 1, Labels: map[string]string{controlPlaneLabel: ""}})
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.start(install.Options{Args: []string{alone}})
	w.orphansOf()
	w.letsGo(kept)
}

// hold sets or removes the remediator's finalizer on its object.
func (w *scope) hold(object *unstructured.Unstructured, finalizers string) {
	w.t.Helper()
	testkit.Must(w.t, w.api.Patch(w.t.Context(), object.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":`+finalizers+`}}`))))
}

// controlPlaneUnderTreatment creates three control-plane nodes. The remediator of the first
// node keeps its object with a finalizer.
func controlPlaneUnderTreatment(w *scope) (controller *install.Controller, object *unstructured.Unstructured) {
	w.t.Helper()
	w.checked(testbed.Nodes{Count: 3, Labels: map[string]string{controlPlaneLabel: ""}}, atMost("100%"))
	w.releaseLeadership()
	controller = w.start(install.Options{Args: []string{alone}})
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	object = w.tries(w.node(1), "quick")
	w.hold(object, `["example.com/hangs"]`)
	return controller, object
}

func testControlPlaneOrphan(w *scope) {
	controller, object := controlPlaneUnderTreatment(w)
	w.removeNode(w.node(1))
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.orphansOf()
	w.kill(controller)
	w.restart(controller.Part)
	w.setCondition(w.node(3), "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(w.node(3), "Vetoed", w.node(1)))
	w.orphansOf()
	w.toldToStop(w.node(1))
	w.hold(object, "null")
	w.tries(w.node(2), "quick")
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 2, Releases: 1})
}

func testControlPlaneOrphanHangs(w *scope) {
	controller, object := controlPlaneUnderTreatment(w)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.queues()
	w.kill(controller)
	w.restart(controller.Part)
	w.setCondition(w.node(3), "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(w.node(3), "ControlPlaneBusy", w.node(1)))
	w.queues()
	w.hold(object, "null")
	w.tries(w.node(2), "quick")
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 2, Releases: 1})
}

// testCalledOff closes the gate after a remediation was decided, and before it was created.
// A request that was already sent arrives, and is not sent again.
func testCalledOff(w *scope) {
	p := w.newProxy(w.name)
	nodes := w.checked(testbed.Nodes{Count: 6}, atMost("1"))
	takes := p.hold(w.sends(http.MethodPost, "leases"), 1)
	made := p.count(w.makes())
	w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	takes.wait(w, 1)
	w.makeUnhealthy(nodes[1:4])
	w.hasCheckStatus("check", row(nodes[1], "GateClosed", "4 of 6"))
	takes.All()[0].Drop() // the object was not created
	w.hasCheckStatus("check", row(nodes[0], "GateClosed"), counted(6, 2, 0))
	if got := made.Load(); got > 0 {
		w.t.Errorf("%d creations were sent after the gate had closed", got)
	}
	w.recover(nodes[1:4])
	w.tries(nodes[0], "quick")
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 1})
}

// ---- several controllers

func testHealthCheckLeaderKilled(w *scope) {
	const count = 20
	p := w.newProxy(w.name)
	w.checked(unhealthyFromStart(count), atMost("100%"))
	holding := p.hold(duringStorm(w.makes(), 8), 0)
	w.releaseLeadership()
	leader := w.start(install.Options{Args: p.Args(install.Elected()...)})
	kept := holding.wait(w, 10)
	w.start(install.Options{Args: install.Elected()})
	w.deliver(kept[:5], http.StatusCreated)
	w.kill(leader)
	w.expireLease()
	holding.Close()
	w.hasCheckStatus("check", counted(count, 0, count))
	w.deliver(kept[5:], http.StatusConflict)
	w.judgeRemediations(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Remediations: count})
}

// testHealthCheckLeaderPaused lets another replica become leader while the old leader is
// paused. When the old leader resumes, it continues with its decisions, although the edited
// health check selects other nodes now.
func testHealthCheckLeaderPaused(w *scope) {
	const count = 12
	p := w.newProxy(w.name)
	w.template("quick")
	w.createNodes(unhealthyFromStart(count))
	w.createNodes(testbed.Nodes{Count: count, First: count + 1, Conditions: []corev1.NodeCondition{{Type: "Worse", Status: corev1.ConditionTrue}}})
	w.check("check", atMost("100%"))
	holding := p.hold(w.makes(), 0)
	w.releaseLeadership()
	leader := w.start(install.Options{Args: p.Args(install.Elected()...)})
	kept := holding.wait(w, 10)
	testkit.Must(w.t, leader.Pause())
	w.expireLease()
	w.change("check", func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.UnhealthyConditions[0].Type = "Worse" })
	w.start(install.Options{Args: install.Elected()})
	w.hasCheckStatus("check", counted(2*count, count, count))
	w.deliver(kept[:5], http.StatusCreated)
	holding.Release()
	leader.Expect()
	testkit.Must(w.t, leader.Resume())
	w.waitForExit(leader)
	w.hasCheckStatus("check", counted(2*count, count, count))
	for number := 1; number <= count; number++ {
		w.tries(w.node(number))
		w.locked(w.node(number), "")
	}
	w.judgeRemediations(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Remediations: count + 5, Releases: 5})
}

// testInterruptingEdit edits the selector during a remediation. There is no webhook that refuses it.
func testInterruptingEdit(w *scope) {
	controller := w.start(install.Options{Args: []string{alone}})
	nodes, first := w.treating(4)
	w.change("check", func(s *remediationv1alpha1.NodeHealthCheckSpec) {
		s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "none", Operator: metav1.LabelSelectorOpExists}}
	})
	isHeld := func(treated int, remediations string) {
		w.hasCheckStatus("check", counted(4, 4-treated, treated), phase(remediationv1alpha1.PhaseRemediating, "the last accepted version stays in force"),
			condition(remediationv1alpha1.Ready, metav1.ConditionFalse, "Remediating: ", "spec.selector: "+remediations, "Wait until all nodes are healthy again"))
	}
	isHeld(1, "a remediation of node "+nodes[0]+" is under way")
	w.restart(controller.Part)
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[1], "quick") // by the accepted version
	isHeld(2, "remediations of 2 nodes are under way")
	testkit.Same(w.t, w.tries(nodes[0], "quick").GetUID(), first.GetUID(), "the first remediation")
	w.recover(nodes[:2])
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(0, 0, 0), condition(remediationv1alpha1.Ready, metav1.ConditionTrue))
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 2, Releases: 2})
}

// testHealthCheckDeposed runs two controllers that do not know of each other. Only one
// control-plane node can be treated: the controller that writes the ledger learns of the
// other.
func testHealthCheckDeposed(w *scope) {
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 20})
	plane := w.createNodes(testbed.Nodes{Count: 3, First: 21, Labels: map[string]string{controlPlaneLabel: ""}})
	w.check("check", atMost("100%"))
	w.releaseLeadership()
	first := w.start(install.Options{Args: []string{alone}})
	w.makeUnhealthy(nodes[:5])
	w.hasCheckStatus("check", counted(23, 18, 5))
	holder := w.holder()
	first.Expect()
	w.start(install.Options{Args: []string{alone}})
	w.hasAnotherHolder(holder)
	w.makeUnhealthy(nodes[5:10])
	w.makeUnhealthy(plane)
	w.waitForExit(first)
	w.hasCheckStatus("check", counted(23, 10, 11))
	w.recover(nodes[:3])
	w.hasCheckStatus("check", counted(23, 13, 8))
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 11, Releases: 3})
}

// pause waits while the rest of the system continues.
func pause(ctx context.Context, lasts time.Duration) {
	select {
	case <-time.After(lasts):
	case <-ctx.Done():
	}
}

// ---- random faults

func testHealthCheckRandomFaults(w *scope) {
	const count = 40
	w.releaseLeadership()
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	var rules []*testbed.Rule
	for _, storm := range []struct {
		match  func(testbed.Request) bool
		faults []testbed.Fault
		among  int64
	}{
		{testbed.On("create", "exampleremediations"), []testbed.Fault{testbed.TooManyRequests(0), testbed.InternalError(), testbed.CutRequest(), testbed.CutResponse()}, 11},
		{testbed.On("delete", "exampleremediations"), []testbed.Fault{testbed.Conflict(), testbed.CutResponse(), testbed.InternalError(), testbed.CutRequest()}, 11},
		{testbed.On("patch", "exampleremediations"), []testbed.Fault{testbed.CutResponse(), testbed.Conflict(), testbed.CutRequest()}, 8},
		{testbed.On("create", "leases"), []testbed.Fault{testbed.CutResponse(), testbed.TooManyRequests(0), testbed.InternalError()}, 9},
		{testbed.On("delete", "leases"), []testbed.Fault{testbed.CutResponse(), testbed.Conflict(), testbed.InternalError()}, 9},
		{testbed.On("update", "configmaps"), []testbed.Fault{testbed.CutResponse(), testbed.InternalError()}, 4},
		{testbed.On("get", "nodes"), []testbed.Fault{testbed.InternalError(), testbed.CutResponse()}, 6},
		{testbed.On("patch", "nodehealthchecks/status"), []testbed.Fault{testbed.CutResponse()}, 2},
	} {
		for i, fault := range storm.faults {
			rules = append(rules, proxy.Inject(everyNth(int64(i), storm.among, storm.match), fault, 0))
		}
	}
	w.template("quick")
	nodes := w.createNodes(unhealthyFromStart(count))
	plane := w.createNodes(testbed.Nodes{Count: 4, First: count + 1, Labels: map[string]string{controlPlaneLabel: ""}})
	w.check("check", atMost("100%"), func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.HealthyDelay = "1s" })
	w.start(install.Options{Through: proxy, Args: []string{alone}})
	w.makeUnhealthy(plane)
	for _, many := range []int{5, 20, 35} {
		w.eventually(fmt.Sprintf("%d remediations", many), func() error {
			if got := w.treated(); got < many {
				return fmt.Errorf("there are %d", got)
			}
			return nil
		})
		w.dropWatches(proxy)
	}
	w.hasCheckStatus("check", counted(count+4, 0, count+1))
	w.recover(append(nodes[:count/2:count/2], plane...))
	w.hasCheckStatus("check", counted(count+4, count/2+4, count/2))
	for i, rule := range rules {
		if rule.Hits() == 0 {
			w.t.Errorf("fault %d has hit no request", i)
		}
	}
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: count + 1, Releases: count/2 + 1, Notes: count / 2})
}

// treated counts the nodes of the scope that have a remediation.
func (w *scope) treated() int {
	w.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(remediator.Kind)
	testkit.Must(w.t, w.api.List(w.t.Context(), list))
	seen := map[string]bool{}
	for _, o := range list.Items {
		if node := o.GetAnnotations()[nodeNameAnnotation]; strings.HasPrefix(node, w.name+"-") {
			seen[node] = true
		}
	}
	return len(seen)
}

func testHealthCheckOutage(w *scope) {
	const count = 40
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	nodes := w.checked(unhealthyFromStart(count), atMost("100%"))
	w.outages(proxy, testbed.On("create", "exampleremediations"), 8, 5)
	w.hasCheckStatus("check", counted(count, 0, count))
	w.recover(nodes[:10])
	w.hasCheckStatus("check", counted(count, 10, count-10))
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: count, Releases: 10})
}

// ---- conditions and nodes

func testHealthCheckFlapping(w *scope) {
	const count = 30
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	nodes := w.checked(testbed.Nodes{Count: count}, atMost("60%"), func(s *remediationv1alpha1.NodeHealthCheckSpec) {
		s.HealthyDelay = "1s"
		s.UnhealthyConditions = append(s.UnhealthyConditions, remediationv1alpha1.UnhealthyCondition{Type: "Tired", Status: corev1.ConditionUnknown, Duration: "1s"})
	})
	w.start(install.Options{Through: proxy, Args: []string{alone}})
	w.flap(proxy, nodes, 300*time.Millisecond)
	for _, node := range nodes {
		w.setCondition(node, "Tired", corev1.ConditionFalse)
	}
	// How many remediations begin in between depends on the speed of the machine. These ones begin
	// on every machine.
	for _, unhealthy := range [][]string{nodes[20:], nodes[:10]} {
		w.recover(nodes)
		w.hasCheckStatus("check", counted(count, count, 0))
		w.makeUnhealthy(unhealthy)
		w.hasCheckStatus("check", counted(count, count-10, 10))
	}
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 20, Releases: 10})
}

func testHealthCheckRecreated(w *scope) {
	const count = 20
	p := w.newProxy(w.name)
	w.checked(unhealthyFromStart(count), atMost("100%"))
	makes, held := w.makes(), map[string]bool{}
	holding := p.hold(func(l *heldRequest) bool { // also the retries, if a slow machine needs longer than a request may take
		var object unstructured.Unstructured
		if !makes(l) || object.UnmarshalJSON(l.Body) != nil || len(held) == 10 && !held[object.GetName()] {
			return false
		}
		held[object.GetName()] = true
		return true
	}, 0)
	w.start(install.Options{Args: p.Args(alone)})
	// Nodes whose remediation is in flight are deleted, and some are created again: some
	// unhealthy, some healthy.
	var kept []*heldRequest // the first for each node
	var names []string
	w.eventually("creations for 10 nodes", func() error {
		kept, names = nil, nil
		for _, l := range holding.All() {
			var object unstructured.Unstructured
			testkit.Must(w.t, object.UnmarshalJSON(l.Body))
			if !slices.Contains(names, object.GetName()) {
				kept, names = append(kept, l), append(names, object.GetName())
			}
		}
		if len(names) < 10 {
			return fmt.Errorf("for %d nodes", len(names))
		}
		return nil
	})
	for i, name := range names {
		w.removeNode(name)
		var number int
		testkit.Value(fmt.Sscanf(name, w.name+"-%d", &number)).Must(w.t)
		again := unhealthyFromStart(1)
		if i%2 == 0 {
			again = testbed.Nodes{Count: 1}
		}
		again.First = number
		if i%5 != 0 { // the others are not created again
			w.createNodes(again)
		}
	}
	w.deliver(kept[:5], http.StatusCreated) // the sender does not get the response
	holding.Release()
	w.hasCheckStatus("check", counted(18, 4, 14)) // 2 are gone, 4 are healthy
	w.eventually("remediations of existing nodes only", func() error {
		nodes, err := w.all(w.t.Context())
		if err != nil {
			return err
		}
		for i := range nodes {
			there, err := w.objects(w.t.Context(), nodes[i].Name)
			if err != nil {
				return err
			}
			for _, o := range there {
				if o.GetAnnotations()["autohealer.resourcestack.com/node-uid"] != string(nodes[i].UID) {
					return fmt.Errorf("the remediation of %s is for another node", nodes[i].Name)
				}
			}
		}
		return nil
	})
	// 10 are not held, 5 arrive late, and 4 nodes are unhealthy again. The others arrive if their
	// senders still wait.
	w.judgeRemediations(history.Config{AnyTurn: true, Lag: longLag}, history.Counts{Remediations: count - 1, Releases: 5})
}

func testHealthCheckJoining(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 10}, atMost("49%"))
	w.start(install.Options{Args: []string{alone}})
	fallen := w.meanwhile(func() error { return w.turn(nodes, corev1.ConditionTrue) })
	w.createNodes(testbed.Nodes{Count: 20, First: 11})
	fallen()
	w.hasCheckStatus("check", counted(30, 20, 10)) // of 30, 15 are allowed
	for number := 11; number <= 30; number++ {
		w.removeNode(w.node(number))
	}
	more := w.createNodes(testbed.Nodes{Count: 2, First: 31})
	w.makeUnhealthy(more)
	w.hasCheckStatus("check", counted(12, 0, 10), row(more[0], "GateClosed", "12 of 12")) // running remediations stay
	w.recover(nodes[:8])
	w.hasCheckStatus("check", counted(12, 8, 4))
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 12, Releases: 8})
}

// testPendingWait deletes the Lease of a locked node while the node is not unhealthy for
// long enough. The controller must remediate the node exactly when the duration has passed,
// without another event.
func testPendingWait(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("100%"), func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.UnhealthyConditions[0].Duration = "6s" })
	w.start(install.Options{Args: []string{alone}})
	w.hasCheckStatus("check", counted(4, 4, 0))
	w.lock(nodes[0], "maintenance", time.Hour)
	w.lock(nodes[1], "NodeHealthCheck-"+w.name+"-check", time.Hour) // of an earlier treatment
	w.lock(nodes[2], "maintenance", 2*time.Second)
	w.makeUnhealthy(nodes)
	fell := time.Now()
	w.hasCheckStatus("check", row(nodes[0], "Pending"))
	for _, node := range nodes[:2] {
		testkit.Must(w.t, client.IgnoreNotFound(w.api.Delete(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "node-" + node}})))
	}
	for _, node := range nodes {
		w.tries(node, "quick")
	}
	if took := time.Since(fell); took < 5*time.Second || took > 20*time.Second {
		w.t.Errorf("it took %s", took)
	}
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 4})
}

// made counts the remediation objects that were ever created for a node.
func (w *scope) made(node string) int {
	w.t.Helper()
	count := 0
	for _, change := range w.recording() {
		if change.GVR.GroupResource() == remediations[0].GroupResource() && change.Type == watch.Added && change.Object.GetAnnotations()[nodeNameAnnotation] == node {
			count++
		}
	}
	return count
}

// ---- a remediator that never responds

// beginSilence makes a node unhealthy whose remediator never responds, and starts the first
// of two templates of one kind.
func beginSilence(w *scope) {
	w.t.Helper()
	w.template("first", several)
	w.template("second", several)
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	w.check("check", w.steps("first", "second"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	controller := w.start(install.Options{Args: []string{alone}})
	w.tries(nodes[0], "first")
	w.kill(controller)
}

// endSilence checks that each step had its time, regardless of the kills, and that the
// steps ended.
func endSilence(w *scope) {
	w.start(install.Options{Args: []string{alone}})
	w.tries(w.node(1), "first", "second")
	var due time.Time
	objects := testkit.Value(w.objects(w.t.Context(), w.node(1))).Must(w.t)
	for _, o := range objects {
		due = o.GetCreationTimestamp().Add(time.Minute)
	}
	pause(w.t.Context(), time.Until(due)) // a step has at least a minute
	w.hasCheckStatus("check", row(w.node(1), "Exhausted", "nothing is left to try"))
	w.hasEvent("NodeHealthCheck", w.name+"-check", "NoTemplateLeft", w.node(1))
	w.locked(w.node(1), "")
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 2, Escalations: 1, Notes: 2})
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.tries(w.node(1))
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Releases: 2})
}
