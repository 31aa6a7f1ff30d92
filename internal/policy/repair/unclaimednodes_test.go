package repair

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	treatment "github.com/resourcestack/autohealer/internal/treatment/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

var (
	rebootKind         = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Reboot"}
	rebootTemplateKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "RebootTemplate"}
)

// withStaticNodes runs a test with three nodes without claims: a, b and c. Policy "p"
// repairs one at a time after ten minutes with template "quick".
func withStaticNodes(t *testing.T, test func(h *nodePoolFixture)) {
	t.Helper()
	withNodePools(t, func(h *nodePoolFixture) {
		for _, name := range []string{"a", "b", "c"} {
			n := enginetest.Named(name, "")
			n.UID, n.Labels = types.UID("uid-of-"+name), map[string]string{"plain": "yes"}
			n.Status.Conditions = []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
				{Type: broken, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()},
			}
			h.api.storeNode(n)
		}
		h.policy("p", selecting("plain", "yes"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = *ofAtMost("1") })
		h.deliver()
		test(h)
	})
}

// remediates sets the template of the policy, empty for none.
func (h *nodePoolFixture) remediates(template string) {
	h.T.Helper()
	h.policy("p", func(p *v1alpha1.RepairPolicy) {
		p.Spec.RemediationTemplate = nil
		if template != "" {
			p.Spec.RemediationTemplate = &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "ns", Name: template}
		}
	})
	h.runRound() // starts the watches of the kinds
	if template != "" {
		quick := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
		quick.SetGroupVersionKind(rebootTemplateKind)
		quick.SetNamespace("ns")
		quick.SetName("quick")
		for gvk, all := range map[schema.GroupVersionKind][]any{rebootKind: nil, rebootTemplateKind: {quick}} {
			h.kinds.Known[gvk].SetAvailability(nil)
			testkit.Must(h.T, h.kinds.Known[gvk].Replace(all, h.api.next()))
		}
	}
	h.runRound()
}

// brings delivers a remediation object or its deletion.
func (h *nodePoolFixture) brings(u *unstructured.Unstructured, isGone bool) {
	h.T.Helper()
	mail := h.kinds.Known[rebootKind]
	u.SetResourceVersion(h.api.next())
	if isGone {
		testkit.Must(h.T, mail.Delete(u.DeepCopy()))
	} else {
		testkit.Must(h.T, mail.Update(u.DeepCopy()))
	}
	h.runRound()
}

// begun starts the due remediation of a node, and returns its object.
func (h *nodePoolFixture) begun(node string) *unstructured.Unstructured {
	h.T.Helper()
	h.WantTask(node, treatment.CreateRemediation)
	h.writeSnapshot()
	result := h.begins(node)
	r := result.Task.Work.(*treatment.Work)
	object := r.Create.DeepCopy()
	object.SetUID(types.UID("uid-of-remediation-of-" + node))
	object.SetResourceVersion(h.api.next())
	r.Current = object.DeepCopy()
	if by := *r.Lease.Spec.HolderIdentity; by != nodelease.HolderOf("RepairPolicy/p") {
		h.T.Errorf("the node's Lease is held by %q", by)
	}
	r.NewLease, r.LeaseKnown = r.Lease.DeepCopy(), true
	r.NewLease.ResourceVersion = h.api.next()
	h.Finish(result)
	h.runRound()
	return object
}

var plainRule = triage.RuleID{Kind: policykind.Repair, Name: "RepairPolicy/p"}

// A node without a claim is remediated like with health checks, within the bound of its
// policy.
func TestANodeWithoutAClaimIsRemediatedByItsPolicy(t *testing.T) {
	withStaticNodes(t, func(h *nodePoolFixture) {
		h.remediates("quick")
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.advance(10*time.Minute - time.Second)
		h.WantNoTask("a")
		h.advance(time.Second)
		object := h.begun("a")
		if owner := remediation.Read(object).Owner; owner.Kind != remediation.PolicyKind || owner.Name != "p" || owner.UID != "policy-p" {
			t.Errorf("its owner is %+v", owner)
		}
		if object.GroupVersionKind() != rebootKind || object.GetNamespace() != "ns" || object.GetName() != "a" {
			t.Errorf("what is made is %v", object)
		}
		h.WantNoTask("b")
		if is := h.finding(policykind.Repair, "b"); is.Code != triage.CapFull {
			t.Errorf("what is said of the next: %v", is)
		}
		// The message must not speak of a termination.
		const words = ", remediation is under way"
		if row := h.statusOf("p").UnhealthyNodes[0]; row.Name != "a" || !strings.HasSuffix(row.Message, words) {
			t.Errorf("what the status says of it: %+v", row)
		}
		if told := h.Events[len(h.Events)-1]; told.EventReason != treat.RemediationCreated || !strings.HasSuffix(told.Reason.String(), words) {
			t.Errorf("what is reported of it: %v", told.Reason)
		}
		if is := h.statusOf("p"); is.Nodes != 3 || is.Unhealthy != 2 || is.Repairing != 1 || is.Held != 1 {
			t.Errorf("the status of the policy: %+v", is)
		}
		h.breaks(corev1.ConditionFalse, "a")
		if e := h.WantTask("a", treatment.DeleteRemediation); e.Work.(*treatment.Work).Object.Name != "a" {
			t.Errorf("%v is to be ended", e.Work.(*treatment.Work).Object)
		}
		h.brings(object, true)
		h.begun("b")
	})
}

// A user can create a NodeClaim without a NodePool. It does not affect nodes without a
// claim.
func TestAClaimWithoutAPoolDoesNotAffectOtherNodes(t *testing.T) {
	withStaticNodes(t, func(h *nodePoolFixture) {
		h.remediates("quick")
		h.launches("", "by-hand")
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		if is := h.finding(policykind.Repair, "a"); is.Code == triage.NotAllowed {
			t.Errorf("what is said of it: %v", is)
		}
		h.WantTask("a", treatment.CreateRemediation)
	})
}

// Nothing replaces the node of a NodeClaim without a NodePool, so the claim stays, unless the policy
// asks for its deletion.
func TestAStandaloneClaimIsDeletedOnlyIfThePolicyAsksForIt(t *testing.T) {
	withStaticNodes(t, func(h *nodePoolFixture) {
		h.api.launch("alone", "", func(n *corev1.Node, c *karpenter.NodeClaim) {
			n.Labels = map[string]string{"plain": "yes"}
			delete(c.Labels, karpenter.NodePoolLabel)
		})
		h.deliver()
		h.breaks(corev1.ConditionTrue, "alone")
		h.advance(10 * time.Minute)
		stays := func(when string) {
			t.Helper()
			h.WantNoTask("alone")
			if is := h.finding(policykind.Repair, "alone"); is.Code != triage.Vetoed || !strings.Contains(is.String(), "NodeClaim claim-alone belongs to no NodePool, so nothing would replace the node") {
				t.Errorf("%s: what is said of it: %v", when, is)
			}
		}
		asks := func(deletes bool) {
			h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.DeleteStandaloneNodeClaims = deletes })
			h.runRound()
		}
		stays("by default")
		asks(true)
		h.WantTask("alone", nodeclaim.TerminateClaim)
		asks(false)
		stays("when the policy does not ask for it any more")
		h.remediates("quick")
		h.WantTask("alone", treatment.CreateRemediation)
		h.api.changeClaim("claim-alone", func(c *karpenter.NodeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, karpenter.DoNotRepairAnnotation, "true")
		})
		h.deliver()
		h.WantNoTask("alone")
	})
}

// A change of the policy's template takes effect without a change of the node.
func TestAPolicyGainsAndLosesItsTemplate(t *testing.T) {
	withStaticNodes(t, func(h *nodePoolFixture) {
		h.breaks(corev1.ConditionTrue, "a", "b")
		h.advance(10 * time.Minute)
		left := func(node string) {
			t.Helper()
			h.WantNoTask(node)
			if is := h.finding(policykind.Repair, node); is.Code != triage.Vetoed || !strings.Contains(is.String(), "the policy names no remediationTemplate") {
				t.Errorf("what is said of %s: %v", node, is)
			}
		}
		left("a")
		for range 2 {
			h.remediates("quick")
			h.WantTask("a", treatment.CreateRemediation)
			h.remediates("")
			left("a")
			left("b")
		}
		h.remediates("quick")
		object := h.begun("a")
		h.remediates("") // the running remediation continues, and the next does not start
		left("b")
		if counts, _ := h.Core().Population(plainRule); counts.Treated != 1 || !h.remediations.HasObjects("a", plainRule) {
			t.Errorf("%d are in treatment", counts.Treated)
		}
		h.breaks(corev1.ConditionFalse, "a")
		h.WantTask("a", treatment.DeleteRemediation)
		h.brings(object, true)
		left("b")
	})
}

// A policy with a missing template starts nothing and says so in its status.
func TestAPolicyWaitsForItsTemplate(t *testing.T) {
	withStaticNodes(t, func(h *nodePoolFixture) {
		h.breaks(corev1.ConditionTrue, "a")
		h.remediates("slow")
		h.advance(10 * time.Minute)
		h.WantNoTask("a")
		if is := h.finding(policykind.Repair, "a"); is.Code != triage.OnHold || !strings.Contains(is.String(), "there is no template") {
			t.Errorf("what is said of it: %v", is)
		}
		h.remediates("quick")
		h.WantTask("a", treatment.CreateRemediation)
	})
}
