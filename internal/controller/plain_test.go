package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// openPlainHall runs a test in a hall with three plain nodes, a, b and c, of which one may
// be in repair by policy "p", as soon as it is sick for ten minutes. There is a remediator,
// with template "quick".
func openPlainHall(t *testing.T, test func(h *hall)) {
	t.Helper()
	openHall(t, func(h *hall) {
		h.checks.known, h.checks.templates = map[string]*check{}, map[remediation.Template]*unstructured.Unstructured{}
		h.checks.watches = dynamicWatches{known: map[schema.GroupVersionKind]*dynamicWatch{}, watch: func(func(context.Context)) context.CancelFunc { return func() {} }}
		for _, name := range []string{"a", "b", "c"} {
			n := named(name, "")
			n.UID, n.Labels = types.UID("uid-of-"+name), map[string]string{"plain": "yes"}
			n.Status.Conditions = []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
				{Type: broken, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()},
			}
			h.world.storeNode(n)
		}
		h.policy("p", selecting("plain", "yes"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.MaxUnhealthy = ofAtMost("1").MaxUnhealthy })
		h.hears()
		test(h)
	})
}

// remediates has the policy name a template, or none.
func (h *hall) remediates(template string) {
	h.t.Helper()
	h.policy("p", func(p *v1alpha1.RepairPolicy) {
		p.Spec.RemediationTemplate = nil
		if template != "" {
			p.Spec.RemediationTemplate = new(referTo(rebootTemplateKind, template))
		}
	})
	h.takeChecks(time.Now()) // by which the kinds are asked for
	if w := (&ward{clinic: h.clinic, version: 1000}); template != "" {
		w.lists(rebootKind)
		w.lists(rebootTemplateKind)
		w.template(rebootTemplateKind, "quick")
	}
	h.takeChecks(time.Now())
	h.followChecks(time.Now())
	h.goesOn()
}

// brings has the watch bring a remediation object, or tell that it is gone.
func (h *hall) brings(u *unstructured.Unstructured, isGone bool) {
	h.t.Helper()
	mail := h.checks.watches.known[rebootKind]
	u.SetResourceVersion(h.world.next())
	if isGone {
		must(h.t, mail.Delete(u.DeepCopy()))
	} else {
		must(h.t, mail.Update(u.DeepCopy()))
	}
	h.goesOn()
}

// begun has the remediation of a node begun that is due, and returns its object.
func (h *hall) begun(node string) *unstructured.Unstructured {
	h.t.Helper()
	h.wants(node, createRemediation)
	h.turns()
	r := h.begins(node)
	object := r.task.create.DeepCopy()
	object.SetUID(types.UID("uid-of-remediation-of-" + node))
	object.SetResourceVersion(h.world.next())
	r.object, r.isCreated = object.DeepCopy(), true
	r.lease, r.isLeased = r.task.lease.DeepCopy(), true
	r.lease.ResourceVersion = h.world.next()
	h.handleTaskResult(r)
	h.goesOn()
	return object
}

var plainRule = triage.RuleID{Kind: triage.Repair, Name: "RepairPolicy/p"}

// A node without a machine is remediated as health checks do it, within the bound of its
// policy.
func TestAPlainNodeIsRemediatedByItsPolicy(t *testing.T) {
	openPlainHall(t, func(h *hall) {
		h.remediates("quick")
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.passes(10*time.Minute - time.Second)
		h.rests("a")
		h.passes(time.Second)
		object := h.begun("a")
		if owner := remediation.Read(object).Owner; owner.Kind != remediation.PolicyKind || owner.Name != "p" || owner.UID != "policy-p" {
			t.Errorf("its owner is %+v", owner)
		}
		if object.GroupVersionKind() != rebootKind || object.GetNamespace() != "ns" || object.GetName() != "a" {
			t.Errorf("what is made is %v", object)
		}
		if by, _, held := nodelease.Held(h.treatments["a"].lease, time.Now()); !held || by != nodelease.HolderOf("RepairPolicy/p") {
			t.Errorf("the node's Lease is held by %q", by)
		}
		h.rests("b")
		if is := h.finding(triage.Repair, "b"); is.Code != triage.CapFull {
			t.Errorf("what is said of the next: %v", is)
		}
		// Nothing is terminated, and nobody says so.
		const words = ", remediation is under way"
		if row := h.statusOf("p").SickNodes[0]; row.Name != "a" || !strings.HasSuffix(row.Message, words) {
			t.Errorf("what the status says of it: %+v", row)
		}
		if told := h.events[len(h.events)-1]; told.EventReason != treat.RemediationCreated || !strings.HasSuffix(told.Reason.String(), words) {
			t.Errorf("what is told of it: %v", told.Reason)
		}
		if is := h.statusOf("p"); is.Nodes != 3 || is.Sick != 2 || is.Repairing != 1 || is.Held != 1 {
			t.Errorf("the status of the policy: %+v", is)
		}
		h.breaks(corev1.ConditionFalse, "a")
		if e := h.wants("a", deleteRemediation); e.object.Name != "a" {
			t.Errorf("%v is to be ended", e.object)
		}
		h.brings(object, true)
		h.begun("b")
	})
}

// A NodeClaim can be made by hand, and is of no NodePool then. It has nothing to say
// about nodes that are of none either.
func TestAClaimWithoutAPoolIsNoneOfAPlainNodesBusiness(t *testing.T) {
	openPlainHall(t, func(h *hall) {
		h.remediates("quick")
		h.launches("", "by-hand")
		h.breaks(corev1.ConditionTrue, "a")
		h.passes(10 * time.Minute)
		if is := h.finding(triage.Repair, "a"); is.Code == triage.NotAllowed {
			t.Errorf("what is said of it: %v", is)
		}
		h.wants("a", createRemediation)
	})
}

// Whether anything can be done about a plain node depends on its policy, and it does not
// take news of the node for that to be noticed.
func TestAPolicyGainsAndLosesItsTemplate(t *testing.T) {
	openPlainHall(t, func(h *hall) {
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.passes(10 * time.Minute)
		left := func(node string) {
			t.Helper()
			h.rests(node)
			if is := h.finding(triage.Repair, node); is.Code != triage.Vetoed || !strings.Contains(is.String(), "the policy names no remediationTemplate") {
				t.Errorf("what is said of %s: %v", node, is)
			}
		}
		left("a")
		for range 2 {
			h.remediates("quick")
			h.wants("a", createRemediation)
			h.remediates("")
			left("a")
			left("b")
		}
		h.remediates("quick")
		object := h.begun("a")
		h.remediates("") // what is under way is not forgotten, and the next is left
		left("b")
		if counts, _ := h.core.Population(plainRule); counts.Treated != 1 || len(h.treatments["a"].objectsOf(plainRule)) != 1 {
			t.Errorf("%d are in treatment", counts.Treated)
		}
		h.breaks(corev1.ConditionFalse, "a")
		h.wants("a", deleteRemediation)
		h.brings(object, true)
		left("b")
	})
}

// A policy whose template is not there begins nothing, and says so of its nodes.
func TestAPolicyWaitsForItsTemplate(t *testing.T) {
	openPlainHall(t, func(h *hall) {
		h.breaks(corev1.ConditionTrue, "a")
		h.remediates("slow")
		h.passes(10 * time.Minute)
		h.rests("a")
		if is := h.finding(triage.Repair, "a"); is.Code != triage.OnHold || !strings.Contains(is.String(), "there is no template") {
			t.Errorf("what is said of it: %v", is)
		}
		h.remediates("quick")
		h.wants("a", createRemediation)
	})
}
