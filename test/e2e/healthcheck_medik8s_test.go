package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
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

const (
	// medik8sLease is the Lease of the leader of medik8s' own controller.
	medik8sLease         = "e1f13584.medik8s.io"
	medik8sNamespace     = "operators"
	medik8sLeaseDuration = 8 * time.Second
)

// TestStandingBack simulates medik8s' own controller by its Lease and its objects.
func TestStandingBack(t *testing.T) {
	t.Parallel()
	w := newHealthCheckScope(t, medik8sNamespace)
	testkit.Must(t, w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: medik8sNamespace}}))
	for _, part := range []part{
		{"nothing is written while medik8s leads, until its Lease expires", "expires", testMedik8sLeaseExpires},
		{"medik8s releases its Lease, and returns during a treatment", "returns", testMedik8sReturns},
		{"the steps of medik8s are continued", "steps", testMedik8sSteps},
		{"a restart does not take over", "restart", testMedik8sRestart},
		{"the controller cannot determine whether medik8s leads", "unseen", testMedik8sUnseen},
		{"the Lease of medik8s cannot be read for a while", "broken", testMedik8sUnreadable},
	} {
		t.Run(part.name, func(t *testing.T) {
			subscope := w.scope(t, part.subscope)
			defer subscope.deleteCheck()
			part.test(subscope)
		})
	}
}

// medik8sLeads renews the Lease of medik8s' own controller until end is called.
func (w *scope) medik8sLeads() (end func(how func())) {
	w.t.Helper()
	renew := func() error {
		now := metav1.NowMicro()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: medik8sNamespace, Name: medik8sLease}}
		is := coordinationv1.LeaseSpec{HolderIdentity: new("medik8s_1"), LeaseDurationSeconds: new(int32(medik8sLeaseDuration / time.Second)), AcquireTime: &now, RenewTime: &now}
		err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(lease), lease)
		lease.Spec = is
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		if err != nil {
			return w.api.Create(w.t.Context(), lease)
		}
		return w.api.Update(w.t.Context(), lease)
	}
	testkit.Must(w.t, renew())
	stop := make(chan struct{})
	ended := w.meanwhile(func() error {
		for {
			select {
			case <-stop:
				return nil
			case <-w.t.Context().Done():
				return nil
			case <-time.After(time.Second):
				if err := renew(); err != nil {
					return err
				}
			}
		}
	})
	return func(how func()) {
		w.t.Helper()
		close(stop)
		ended()
		how()
	}
}

// expires leaves the Lease unchanged: its holder is dead.
func expires() {}

// medik8sReleases releases the Lease, like a leader that exits regularly.
func (w *scope) medik8sReleases() {
	w.t.Helper()
	lease := &coordinationv1.Lease{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: medik8sNamespace, Name: medik8sLease}, lease))
	lease.Spec.HolderIdentity = new("")
	testkit.Must(w.t, w.api.Update(w.t.Context(), lease))
}

// stands waits until a health check says that another controller is responsible, or no
// longer says so.
func (w *scope) stands(name string, back bool, words ...string) {
	w.t.Helper()
	check := &remediationv1alpha1.NodeHealthCheck{}
	w.eventually("the controller that follows "+w.name+"-"+name, func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: w.name + "-" + name}, check); err != nil {
			return err
		}
		err := condition(remediationv1alpha1.StandingBack, metav1.ConditionTrue, words...)(check.Status)
		if back {
			return err
		}
		if err == nil {
			return fmt.Errorf("another controller is responsible: %+v", check.Status)
		}
		return nil
	})
}

// isDeferring checks the metrics and the log of a controller.
func (w *scope) isDeferring(c *install.Controller, back bool, words string) {
	w.t.Helper()
	want := 0.0
	if back {
		want = 1
	}
	if got := value(w.t, w.scrape(c), "autohealer_nodehealthcheck_deferring"); got != want {
		w.t.Errorf("the metric is %v, want %v", got, want)
	}
	log := testkit.Value(c.Log()).Must(w.t)
	if !strings.Contains(log, words) {
		w.t.Errorf("the log does not contain %q:\n%s", words, log)
	}
}

// medik8sCreates creates a remediation like medik8s' own controller: without the UID of the
// node.
func (w *scope) medik8sCreates(check *remediationv1alpha1.NodeHealthCheck, node, template string) *unstructured.Unstructured {
	w.t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"strategy": template}}}
	object.SetGroupVersionKind(remediator.Kind)
	object.SetNamespace(metav1.NamespaceDefault)
	object.SetName(node)
	if w.isSeveral(template) {
		object.SetName("")
		object.SetGenerateName(node + "-")
	}
	object.SetAnnotations(map[string]string{nodeNameAnnotation: node, "remediation.medik8s.io/template-name": w.name + "-" + template})
	object.SetLabels(map[string]string{"app.kubernetes.io/part-of": "node-healthcheck-controller"})
	object.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: remediationv1alpha1.GroupVersion.String(), Kind: "NodeHealthCheck", Name: check.Name, UID: check.UID, Controller: new(false),
	}})
	testkit.Must(w.t, w.api.Create(w.t.Context(), object))
	return object
}

func (w *scope) isSeveral(template string) bool {
	w.t.Helper()
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(remediator.TemplateKind)
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: w.name + "-" + template}, found))
	_, several := found.GetAnnotations()[severalAnnotation]
	return several
}

// untouched checks that an object is unchanged.
func (w *scope) untouched(object *unstructured.Unstructured) {
	w.t.Helper()
	now := object.DeepCopy()
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKeyFromObject(object), now))
	if now.GetResourceVersion() != object.GetResourceVersion() || now.GetDeletionTimestamp() != nil {
		w.t.Errorf("%s was changed:\n%v\n%v", object.GetName(), object.Object, now.Object)
	}
}

func testMedik8sLeaseExpires(w *scope) {
	end := w.medik8sLeads()
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 6})
	check := w.check("check", atMost("100%"))
	w.makeUnhealthy(nodes[:3])
	theirs := []*unstructured.Unstructured{w.medik8sCreates(check, nodes[0], "quick"), w.medik8sCreates(check, nodes[1], "quick")}
	w.lock(nodes[0], "NodeHealthCheck-"+check.Name, time.Minute)
	w.lock(nodes[1], "NodeHealthCheck-"+check.Name, time.Minute)
	controller := w.start(install.Options{Args: []string{alone}})
	w.stands("check", true, "medik8s_1", medik8sNamespace+"/"+medik8sLease)
	w.isDeferring(controller, true, "deferring to another controller")
	// The node has recovered, which medik8s will see. Another node becomes unhealthy.
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionFalse)
	w.setCondition(nodes[3], "Unhealthy", corev1.ConditionTrue)
	w.mark(nodes[4], `{"annotations":{"`+confirmedAnnotation+`":""}}`)
	w.createSet("set") // medik8s does not handle sets
	w.counts(w.key("set"), 0, 3)
	for _, object := range theirs {
		w.untouched(object)
	}
	report := w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{CheckStatuses: 1})
	if report.Remediations+report.Releases+report.Notes+report.Leases+report.Confirmations > 0 || report.CheckStatuses > 1 {
		w.t.Errorf("it wrote: %+v", report.Counts)
	}

	end(expires)
	w.stands("check", false)
	w.tries(nodes[2], "quick")
	w.tries(nodes[3], "quick")
	w.tries(nodes[1])
	w.untouched(theirs[0]) // it is adopted
	w.hasCheckStatus("check", counted(6, 3, 3))
	w.isDeferring(controller, false, "following health checks")
	w.locked(nodes[1], "")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.tries(nodes[0])
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 2, Releases: 2})
}

func testMedik8sReturns(w *scope) {
	end := w.medik8sLeads()
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("100%"))
	w.makeUnhealthy(nodes[:2])
	controller := w.start(install.Options{Args: []string{alone}})
	w.stands("check", true)
	end(w.medik8sReleases)
	first := w.tries(nodes[0], "quick")
	w.tries(nodes[1], "quick")
	w.hasCheckStatus("check", counted(4, 2, 2))
	end = w.medik8sLeads()
	w.stands("check", true)
	w.isDeferring(controller, true, "deferring to another controller")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.setCondition(nodes[2], "Unhealthy", corev1.ConditionTrue)
	w.createSet("set")
	w.counts(w.key("set"), 0, 2) // by now the controller has seen everything
	w.untouched(first)
	testkit.Must(w.t, w.triesNow(nodes[2]))
	w.locked(nodes[0], "NodeHealthCheck-"+w.name+"-check")
	// Medik8s deletes its remediation, and stops.
	testkit.Must(w.t, w.api.Delete(w.t.Context(), first))
	end(func() {
		testkit.Must(w.t, w.api.Delete(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: medik8sNamespace, Name: medik8sLease}}))
	})
	w.tries(nodes[2], "quick")
	w.locked(nodes[0], "")
	w.hasCheckStatus("check", counted(4, 2, 2))
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 3})
}

func testMedik8sSteps(w *scope) {
	end := w.medik8sLeads()
	w.template("first", several)
	w.template("second", several)
	nodes := w.createNodes(testbed.Nodes{Count: 4})
	check := w.check("check", atMost("100%"), w.steps("first", "second"))
	w.makeUnhealthy(nodes[:2])
	early := w.medik8sCreates(check, nodes[0], "first")
	before := w.medik8sCreates(check, nodes[1], "first")
	late := w.medik8sCreates(check, nodes[1], "second")
	w.start(install.Options{Args: []string{alone}})
	w.stands("check", true)
	w.replies(early, "Succeeded", metav1.ConditionFalse)
	w.replies(before, "Succeeded", metav1.ConditionFalse)
	w.replies(late, "Succeeded", metav1.ConditionFalse)
	end(w.medik8sReleases)
	w.tries(nodes[0], "first", "second")
	w.hasCheckStatus("check", row(nodes[1], "Exhausted"), counted(4, 2, 2))
	testkit.Must(w.t, w.triesNow(nodes[1], "first", "second"))
	w.recover(nodes[:2])
	w.tries(nodes[0])
	w.tries(nodes[1])
	w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{Remediations: 1, Escalations: 1, Releases: 4})
}

// testMedik8sRestart kills a deferring controller. The next controller knows of medik8s
// only by its Lease.
func testMedik8sRestart(w *scope) {
	end := w.medik8sLeads()
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("100%"))
	w.makeUnhealthy(nodes[:2])
	controller := w.start(install.Options{Args: []string{alone}})
	w.stands("check", true)
	for range 3 {
		w.kill(controller)
		w.restart(controller.Part)
		w.eventually("the lead", func() error {
			if value(w.t, w.scrape(controller), "autohealer_nodehealthcheck_deferring") != 1 {
				return errors.New("the controller does not defer")
			}
			return nil
		})
	}
	report := w.judgeRemediations(history.Config{AnyTurn: true}, history.Counts{})
	if report.Remediations+report.Leases > 0 {
		w.t.Errorf("it wrote: %+v", report.Counts)
	}
	end(w.medik8sReleases)
	w.tries(nodes[0], "quick")
	w.hasCheckStatus("check", counted(4, 2, 2))
}

// testMedik8sUnseen withdraws the right to read the Lease of medik8s.
func testMedik8sUnseen(w *scope) {
	role := &rbacv1.ClusterRole{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: install.Account}, role))
	giveBack := w.withdrawEach(role, &role.Rules, authorizationv1.ResourceAttributes{
		Group: coordinationv1.GroupName, Resource: "leases", Name: medik8sLease,
	}, []string{"list", "watch"})
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("100%"))
	w.makeUnhealthy(nodes[:2])
	controller := w.start(install.Options{Args: []string{alone}})
	w.stands("check", true, "cannot determine whether", "forbidden")
	check := &remediationv1alpha1.NodeHealthCheck{} // the conditions and the reason are written together
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: w.name + "-check"}, check))
	testkit.Must(w.t, condition(remediationv1alpha1.Ready, metav1.ConditionFalse, "cannot determine whether")(check.Status))
	testkit.Check(w.t, strings.Contains(check.Status.Reason, "cannot determine whether"), "the reason is %q", check.Status.Reason)
	w.isDeferring(controller, true, "cannot determine whether")
	w.createSet("set")
	w.counts(w.key("set"), 0, 2)
	testkit.Must(w.t, w.triesNow(nodes[0]))
	giveBack()
	w.tries(nodes[0], "quick")
	w.stands("check", false)
	w.hasCheckStatus("check", counted(4, 2, 2))
	w.isDeferring(controller, false, "following health checks")
}

// testMedik8sUnreadable prevents the controller from reading the Lease of medik8s for
// longer than its duration, while medik8s renews it. A failed read is no proof that medik8s
// is gone.
func testMedik8sUnreadable(w *scope) {
	end := w.medik8sLeads()
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	everywhere := func(r testbed.Request) bool {
		return r.Resource == "leases" && r.Namespace == "" && (r.Verb == "list" || r.Verb == "watch")
	}
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("100%"))
	w.makeUnhealthy(nodes[:2])
	// From the start, and later.
	for i := range 2 {
		broken := proxy.Inject(everywhere, testbed.InternalError(), 0)
		if i == 0 {
			w.start(install.Options{Through: proxy, Unready: true, Args: []string{alone}})
		} else {
			w.dropWatches(proxy)
		}
		before := broken.Hits()
		for deadline := time.Now().Add(medik8sLeaseDuration + 3*time.Second); time.Now().Before(deadline); pause(w.t.Context(), time.Second) {
			testkit.Must(w.t, w.triesNow(nodes[0]))
		}
		if broken.Hits() == before {
			w.t.Error("no request for the Lease was made")
		}
		broken.Lift()
		w.stands("check", true)
		testkit.Must(w.t, w.triesNow(nodes[0]))
	}
	end(w.medik8sReleases)
	w.tries(nodes[0], "quick")
}
