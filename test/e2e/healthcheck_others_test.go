package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// ---- rights

// withdrawRemediationRights withdraws rights on remediations, and returns a function that
// restores them.
func (w *scope) withdrawRemediationRights(verbs ...string) (giveBack func()) {
	w.t.Helper()
	role := &rbacv1.ClusterRole{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: remediator.GroupVersion.Group + "-ext-remediation"}, role))
	return w.withdrawEach(role, &role.Rules, authorizationv1.ResourceAttributes{
		Group: remediator.GroupVersion.Group, Resource: "exampleremediations", Namespace: metav1.NamespaceDefault,
	}, verbs)
}

// withdrawLeaseRights withdraws rights on the Leases of nodes.
func (w *scope) withdrawLeaseRights(verbs ...string) (giveBack func()) {
	w.t.Helper()
	role := &rbacv1.Role{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: leaseNamespace, Name: install.Account}, role))
	return w.withdrawEach(role, &role.Rules, authorizationv1.ResourceAttributes{
		Group: coordinationv1.GroupName, Resource: "leases", Namespace: leaseNamespace,
	}, verbs)
}

func (w *scope) withdrawEach(role client.Object, rules *[]rbacv1.PolicyRule, right authorizationv1.ResourceAttributes, verbs []string) (giveBack func()) {
	w.t.Helper()
	giveBack = func() {}
	for _, verb := range verbs {
		right.Verb = verb
		restore, before := w.withdraw(role, rules, right), giveBack
		giveBack = func() {
			restore()
			before()
		}
	}
	return giveBack
}

func testHealthCheckForbidden(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("100%"))
	w.start(install.Options{Args: []string{alone}})
	w.hasCheckStatus("check", counted(4, 4, 0))
	giveBack := w.withdrawRemediationRights("create")
	w.makeUnhealthy(nodes[:2])
	for _, node := range nodes[:2] {
		w.hasEvent("Node", node, "RemediationSkipped", "could not be begun", "forbidden")
		w.hasCheckStatus("check", row(node, "Retrying", "forbidden"), counted(4, 2, 0))
	}
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionFalse)
	w.hasCheckStatus("check", counted(4, 3, 0))
	w.locked(nodes[1], "") // the Lease that was taken for it
	giveBack()
	w.tries(nodes[0], "quick")

	giveBack = w.withdrawRemediationRights("delete")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.hasCheckStatus("check", row(nodes[0], "Recovered", "forbidden"), counted(4, 3, 1))
	w.hasEvent("Node", nodes[0], "RemediationSkipped", "could not be ended", "forbidden")
	w.setCondition(nodes[2], "Unhealthy", corev1.ConditionTrue) // other nodes do not wait
	w.tries(nodes[2], "quick")
	giveBack()
	w.tries(nodes[0])
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 2, Releases: 1})
}

// Objects that cannot be listed may exist. Nothing new starts meanwhile, and known
// remediations continue.
func testHealthCheckNoWatch(w *scope) {
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	nodes := w.checked(testbed.Nodes{Count: 6}, atMost("100%"))
	w.start(install.Options{Through: proxy, Args: []string{alone}})
	w.makeUnhealthy(nodes[:2])
	w.hasCheckStatus("check", counted(6, 4, 2))
	giveBack := w.withdrawRemediationRights("list", "watch")
	w.eventually("a kind that the controller may not read", func() error {
		proxy.DropWatches()
		check := &remediationv1alpha1.NodeHealthCheck{}
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: w.name + "-check"}, check); err != nil {
			return err
		}
		return phase(remediationv1alpha1.PhaseDisabled, "may not be read", "aggregate-to-ext-remediation")(check.Status)
	})
	w.setCondition(nodes[2], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(nodes[2], "OnHold", "may not be read"), counted(6, 3, 2))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.tries(nodes[0])
	testkit.Must(w.t, w.triesNow(nodes[2]))
	giveBack()
	w.tries(nodes[2], "quick")
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseRemediating), counted(6, 4, 2))
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 3, Releases: 1})
}

func testHealthCheckNoLeases(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("100%"))
	w.start(install.Options{Args: []string{alone}})
	w.hasCheckStatus("check", counted(4, 4, 0))
	giveBack := w.withdrawLeaseRights("create")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.hasEvent("Node", nodes[0], "RemediationSkipped", "could not be begun", "leases", "forbidden")
	w.hasCheckStatus("check", row(nodes[0], "Retrying", "forbidden"), counted(4, 3, 0))
	testkit.Must(w.t, w.triesNow(nodes[0]))
	giveBack()
	w.tries(nodes[0], "quick")
	giveBack = w.withdrawLeaseRights("delete")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.tries(nodes[0])
	w.hasEvent("Node", nodes[0], "RemediationSkipped", "Lease could not be written", "forbidden")
	giveBack()
	w.locked(nodes[0], "")
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 1, Releases: 1, Leases: 2})
}

// testHealthCheckRefused has an admission policy refuse the remediation of one node. The
// other nodes do not wait for it, and the controller does not retry it too often.
func testHealthCheckRefused(w *scope) {
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 6})
	p := w.newProxy(w.name)
	meta := metav1.ObjectMeta{Name: w.name + "-spares"}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{remediator.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"exampleremediations"}},
			},
		}}},
		Validations: []admissionv1.Validation{{Expression: "object.metadata.name != '" + nodes[0] + "'", Message: "hands off " + nodes[0]}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	testkit.Must(w.t, w.api.Create(w.t.Context(), policy))
	testkit.Must(w.t, w.api.Create(w.t.Context(), binding))
	w.eventually("the admission policy to be in force", func() error {
		return testkit.Says(w.api.Create(w.t.Context(), newRemediation(nodes[0]), client.DryRunAll), "hands off "+nodes[0])
	})
	w.check("check", atMost("100%"))
	tries, since := p.count(func(l *heldRequest) bool { return w.makes()(l) && isAbout(l, nodes[0]) }), time.Now()
	w.start(install.Options{Args: p.Args(alone)})
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.hasEvent("Node", nodes[0], "RemediationSkipped", "hands off "+nodes[0])
	w.makeUnhealthy(nodes[1:])
	w.hasCheckStatus("check", counted(6, 0, 5), row(nodes[0], "Retrying", "hands off"))
	w.retriesRarely(tries, 1, since)
	testkit.Must(w.t, w.api.Delete(w.t.Context(), binding))
	testkit.Must(w.t, w.api.Delete(w.t.Context(), policy))
	w.tries(nodes[0], "quick")
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 6})
}

// isAbout reports whether a request creates an object for a node.
func isAbout(l *heldRequest, node string) bool {
	var object unstructured.Unstructured
	return object.UnmarshalJSON(l.Body) == nil && object.GetAnnotations()[nodeNameAnnotation] == node
}

// ---- other clients

// testHealthCheckOtherController has another client change and delete remediations and
// Leases throughout.
func testHealthCheckOtherController(w *scope) {
	const count, rounds = 16, 12
	nodes := w.checked(testbed.Nodes{Count: count}, atMost("100%"), func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.HealthyDelay = "1s" })
	w.start(install.Options{Args: []string{alone}})
	gone := client.IgnoreNotFound
	patch := func(ctx context.Context, node, body string) error {
		object := newRemediation(node)
		return gone(w.api.Patch(ctx, object, client.RawPatch("application/merge-patch+json", []byte(body))))
	}
	deeds := []func(ctx context.Context, node string) error{
		func(ctx context.Context, node string) error {
			return patch(ctx, node, `{"metadata":{"annotations":{"other.example.com/was":"here"},"labels":{"other":"yes"}}}`)
		},
		func(ctx context.Context, node string) error {
			return patch(ctx, node, `{"spec":{"strategy":"theirs"}}`)
		},
		func(ctx context.Context, node string) error {
			return patch(ctx, node, `{"metadata":{"annotations":{"remediation.medik8s.io/healthy-delay":null,"other.example.com/was":null}}}`)
		},
		func(ctx context.Context, node string) error {
			return gone(w.api.Delete(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "node-" + node}}))
		},
		func(ctx context.Context, node string) error {
			lease := &coordinationv1.Lease{}
			if err := w.api.Get(ctx, client.ObjectKey{Namespace: leaseNamespace, Name: "node-" + node}, lease); err != nil {
				return gone(err)
			}
			lease.Spec.LeaseDurationSeconds = new(int32(5))
			if err := w.api.Update(ctx, lease); !apierrors.IsConflict(err) {
				return gone(err)
			}
			return nil
		},
	}
	stopOther := w.meanwhile(func() error {
		return w.everywhere(nodes, func(ctx context.Context, i int, node string) error {
			random := rand.New(rand.NewPCG(2, uint64(i)))
			for range rounds {
				if err := deeds[random.IntN(len(deeds))](ctx, node); err != nil {
					return err
				}
				pause(ctx, time.Duration(random.IntN(200))*time.Millisecond)
			}
			if i%4 == 0 { // once, and it is created again after a while
				object := newRemediation(node)
				return gone(w.api.Delete(ctx, object))
			}
			return nil
		})
	})
	w.makeUnhealthy(nodes)
	w.recover(nodes[:4])
	w.makeUnhealthy(nodes[:4])
	stopOther()
	// The status can still be from before the last deletion, so the objects are read.
	for _, node := range nodes {
		w.eventually("a remediation of "+node, func() error {
			objects, err := w.objects(w.t.Context(), node)
			if err == nil && len(objects) != 1 {
				err = fmt.Errorf("%s has %d remediations, want 1", node, len(objects))
			}
			return err
		})
	}
	w.hasCheckStatus("check", counted(count, 0, count))
	// Another client that takes the Lease keeps it.
	lease := &coordinationv1.Lease{}
	w.locked(nodes[0], "NodeHealthCheck-"+w.name+"-check")
	w.eventually("a Lease to be taken", func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: leaseNamespace, Name: "node-" + nodes[0]}, lease); err != nil {
			return err
		}
		now := metav1.NowMicro()
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("maintenance"), LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now}
		return w.api.Update(w.t.Context(), lease)
	})
	w.recover(nodes)
	w.hasCheckStatus("check", counted(count, count, 0))
	for _, node := range nodes[1:] {
		w.locked(node, "")
	}
	w.locked(nodes[0], "maintenance")
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: count, Releases: count})
	testkit.Must(w.t, w.api.Delete(w.t.Context(), lease))
}

// testEagerDeleter has a remediator delete its object at once. The controller creates it
// again with growing pauses.
func testEagerDeleter(w *scope) {
	const lasts = 16 * time.Second
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("100%"))
	w.start(install.Options{Args: []string{alone}})
	ctx, cancel := context.WithTimeout(w.t.Context(), lasts)
	defer cancel()
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	for ctx.Err() == nil {
		objects := testkit.Value(w.objects(w.t.Context(), nodes[0])).Must(w.t)
		for i := range objects {
			testkit.Must(w.t, client.IgnoreNotFound(w.api.Delete(w.t.Context(), &objects[i])))
		}
		pause(ctx, firstPause)
	}
	if made := w.made(nodes[0]); made < 2 || made > 4 { // after 5 seconds, after 10 more, after 20 more
		w.t.Errorf("%d were created in %s", made, lasts)
	}
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[1], "quick")
	w.tries(nodes[0], "quick")
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 4})
}

// ---- clocks

// skewed are the clock errors of nodes.
var skewed = []struct {
	name string
	by   time.Duration
}{
	{"behind", -5 * time.Minute}, {"ahead", 5 * time.Minute}, {"right", 0},
}

// stamped sets the transition time of a condition to now by a wrong clock.
func stamped(by time.Duration) func(*corev1.NodeCondition) {
	return func(c *corev1.NodeCondition) {
		c.LastTransitionTime = metav1.NewTime(time.Now().Add(by))
		c.LastHeartbeatTime = c.LastTransitionTime
	}
}

const (
	skewedWait = 6 * time.Second
	// slack is the tolerated delay of a busy machine. A wrong clock would add five minutes.
	slack = 2 * time.Minute
)

// takes checks that something took at least and at most this time.
func (w *scope) takes(what string, since time.Time, atLeast, atMost time.Duration) {
	w.t.Helper()
	if took := time.Since(since); took < atLeast || took > atMost {
		w.t.Errorf("%s took %s, want from %s to %s", what, took.Round(time.Millisecond), atLeast, atMost)
	}
}

// testSkew makes nodes with wrong clocks unhealthy and healthy again. Only the times that
// the controller itself has seen count.
func testSkew(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: len(skewed)}, atMost("100%"), func(s *remediationv1alpha1.NodeHealthCheckSpec) {
		s.UnhealthyConditions[0].Duration = skewedWait.String()
		s.HealthyDelay = skewedWait.String()
	})
	w.start(install.Options{Args: []string{alone}})
	for i, clock := range skewed {
		w.setCondition(nodes[i], "Unhealthy", corev1.ConditionFalse, stamped(clock.by-time.Hour))
	}
	w.hasCheckStatus("check", counted(3, 3, 0))
	for i, clock := range skewed {
		w.run("a clock that is "+clock.name, func(w *scope) {
			fell := time.Now()
			w.setCondition(nodes[i], "Unhealthy", corev1.ConditionTrue, stamped(clock.by))
			w.tries(nodes[i], "quick")
			w.takes("becoming unhealthy", fell, skewedWait-time.Second, skewedWait+slack)
			well := time.Now()
			w.setCondition(nodes[i], "Unhealthy", corev1.ConditionFalse, stamped(clock.by))
			w.tries(nodes[i])
			w.takes("recovering", well, skewedWait-time.Second, skewedWait+slack)
		})
	}
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 3, Releases: 3})
}

// testSkewKilled kills the controller during these waits. The next controller uses the
// remembered times, and not the wrong timestamps.
func testSkewKilled(w *scope) {
	const wait = 10 * time.Second
	nodes := w.checked(testbed.Nodes{Count: len(skewed)}, atMost("100%"), func(s *remediationv1alpha1.NodeHealthCheckSpec) {
		s.UnhealthyConditions[0].Duration = wait.String()
		s.HealthyDelay = wait.String()
	})
	for i, clock := range skewed {
		w.setCondition(nodes[i], "Unhealthy", corev1.ConditionFalse, stamped(clock.by-time.Hour))
	}
	controller := w.start(install.Options{Args: []string{alone}})
	w.hasCheckStatus("check", counted(3, 3, 0))
	fell := time.Now()
	for i, clock := range skewed {
		w.setCondition(nodes[i], "Unhealthy", corev1.ConditionTrue, stamped(clock.by))
	}
	w.hasCheckStatus("check", row(nodes[0], "Pending"), row(nodes[1], "Pending"), row(nodes[2], "Pending"))
	for _, node := range nodes[:2] {
		w.eventually("what the stamp of "+node+" does not tell is remembered", func() error {
			found, err := w.get(w.t.Context(), node)
			if err == nil && !strings.Contains(found.Annotations[recordAnnotation], "memories") {
				err = fmt.Errorf("the record is %q", found.Annotations[recordAnnotation])
			}
			return err
		})
	}
	w.kill(controller)
	w.restart(controller.Part)
	for i := range nodes {
		w.tries(nodes[i], "quick")
		w.takes("becoming unhealthy by a clock that is "+skewed[i].name, fell, wait-time.Second, wait+slack)
	}
	well := time.Now()
	for i, clock := range skewed {
		w.setCondition(nodes[i], "Unhealthy", corev1.ConditionFalse, stamped(clock.by))
	}
	w.hasCheckStatus("check", row(nodes[0], "Recovering"), row(nodes[1], "Recovering"), row(nodes[2], "Recovering"))
	w.kill(controller)
	w.restart(controller.Part)
	for i := range nodes {
		w.tries(nodes[i])
		w.takes("recovering by a clock that is "+skewed[i].name, well, wait-time.Second, wait+slack)
	}
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 3, Releases: 3})
}
