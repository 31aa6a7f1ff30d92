package pools

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// everything allows all nodes of a pool to be replaced at once.
var everything = object{"maxConcurrent": "100%", "unhealthyThreshold": "100%"}

// veto is a reason that prevents the repair of an unhealthy node.
type veto struct {
	put, lift func(p *pool, node string) error
	words     string // part of the Event about the node
}

// doNotRepair is the annotation of a user on the node, or on its claim.
func doNotRepair(kind, annotation string, nameOf func(*pool, string) string, words string) veto {
	key, _, _ := strings.Cut(annotation, "=")
	return veto{
		func(p *pool, node string) error {
			return p.annotate(p.t.Context(), kind, nameOf(p, node), annotation)
		},
		func(p *pool, node string) error {
			return p.annotate(p.t.Context(), kind, nameOf(p, node), key+"-")
		},
		words + key,
	}
}

func nodeItself(_ *pool, node string) string { return node }
func itsClaim(p *pool, node string) string   { return p.claimOf(node).GetName() }
func itsPool(p *pool, _ string) string       { return p.name }

var vetoes = map[string]veto{
	"Karpenter's on the node":   doNotRepair("node", karpentersVeto+"=true", nodeItself, "the node is annotated "),
	"ours on the node":          doNotRepair("node", ourVeto+"=until Monday", nodeItself, "the node is annotated "),
	"Karpenter's on the claim":  doNotRepair("nodeclaim", karpentersVeto+"=true", itsClaim, "is annotated "),
	"ours on the claim":         doNotRepair("nodeclaim", ourVeto+"=", itsClaim, "is annotated "),
	"a Lease of another holder": {takeLease, dropLease, "maintenance holds the node's Lease until "},
	"a second claim":            {addClaim, dropClaim, "have one provider ID"},
}

// testVetoes has many unhealthy nodes, with a veto against the repair of each but one.
func testVetoes(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "vetoed", Spec: object{"repair": repair("1s", everything), "disruption": budgets("100%")}}, len(vetoes)+1)
	names := p.names()
	by := map[string]string{}
	for name, veto := range vetoes {
		node := names[len(by)]
		by[name] = node
		testkit.Must(p.t, veto.put(p, node))
	}
	for _, node := range by {
		p.makeUnhealthy(node)
	}
	for name, node := range by {
		p.hasEvent("Node", node, "NodeRepairBlocked", vetoes[name].words)
	}
	free := names[len(by)]
	p.makeUnhealthy(free)
	a := p.repaired(free)
	for _, node := range by {
		p.untouched(a, node)
	}
	// Each veto is lifted on its own.
	for name, node := range by {
		testkit.Must(p.t, vetoes[name].lift(p, node))
		p.eventually(name+" lifted, and the claim deleted", func(context.Context) error {
			if e := p.account().of(node); e == nil || e.deleted.IsZero() {
				return errors.New("it is not")
			}
			return nil
		})
	}
	if a = p.repaired(names...); len(a.terminations) != len(names) || len(a.others) > 0 {
		t.Errorf("%d terminations, and %d by others, of %d nodes", len(a.terminations), len(a.others), len(names))
	}
}

func testVetoedPool(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	annotations := []string{karpentersVeto + "=true", ourVeto + "=true"}
	pools := make([]*pool, len(annotations))
	for i := range annotations {
		pools[i] = w.createPool(t, karpenter.Pool{Name: fmt.Sprintf("vetoed-pool-%d", i), Spec: object{"repair": repair("1s")}}, 1)
	}
	for i, p := range pools {
		p.fills(1)
		veto := doNotRepair("nodepool", annotations[i], itsPool, "NodePool "+p.name+" is annotated ")
		unhealthy := p.names()[0]
		testkit.Must(p.t, veto.put(p, unhealthy))
		p.makeUnhealthy(unhealthy)
		p.hasEvent("Node", unhealthy, "NodeRepairBlocked", veto.words)
		p.untouched(p.account(), unhealthy)
		testkit.Must(p.t, veto.lift(p, unhealthy))
		p.repaired(unhealthy)
	}
}

// takeLease locks a node for another client, like a maintenance tool.
func takeLease(p *pool, node string) error {
	now := metav1.NowMicro()
	err := p.api.Create(p.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaseNamespace}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return p.api.Create(p.t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "node-" + node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("maintenance"), LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now},
	})
}

func dropLease(p *pool, node string) error {
	return p.api.Delete(p.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "node-" + node}})
}

// addClaim creates a second claim with the provider ID of a node. Its node class is of a
// kind that this Karpenter ignores.
func addClaim(p *pool, node string) error {
	id, _, _ := unstructured.NestedString(p.claimOf(node).Object, "status", "providerID")
	_, err := p.KubectlApply(p.t.Context(), fmt.Sprintf(`
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: %s, labels: {example.com/second: "true"}}
spec:
  nodeClassRef: {group: example.com, kind: OtherClass, name: other}
  requirements: [{key: kubernetes.io/os, operator: Exists}]
`, "second-"+p.name))
	if err != nil {
		return err
	}
	_, err = p.Kubectl(p.t.Context(), "patch", "nodeclaim", "second-"+p.name, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status":{"providerID":%q}}`, id))
	return err
}

func dropClaim(p *pool, _ string) error {
	_, err := p.Kubectl(p.t.Context(), "delete", "nodeclaim", "second-"+p.name)
	return err
}

// testAlreadyGoing has an admin delete a claim gracefully. A policy that drains leaves it alone. A
// policy that terminates by force ends the drain when the condition is no longer tolerated.
func testAlreadyGoing(t *testing.T, w *fixture, c *install.Controller) {
	t.Helper()
	const toleration = 5 * time.Second
	block := func(toleration, termination string) object {
		return object{"repair": repair(toleration, everything, object{"termination": termination}), "disruption": budgets("100%")}
	}
	p := w.createFilledPool(t, karpenter.Pool{Name: "going", Spec: block("1s", "Graceful")}, 2)
	p.protect()
	unhealthy := p.names()[0]
	claim := p.claimOf(unhealthy).GetName()
	_, err := p.Kubectl(t.Context(), "delete", "nodeclaim", "--wait=false", claim)
	testkit.Must(p.t, err)
	p.makeUnhealthy(unhealthy)
	p.hasEvent("Node", unhealthy, "NodeRepairBlocked", "is being deleted")
	testkit.Check(t, p.claimOf(unhealthy).GetAnnotations()[deadlineAnnotation] == "", "a graceful policy has set a deadline")
	p.setCondition("BadDisk", corev1.ConditionFalse, unhealthy)
	p.patch(block(toleration.String(), "Forceful"))
	p.makeUnhealthy(unhealthy)
	due := p.since(unhealthy, "BadDisk").Add(toleration)
	p.gone(unhealthy)
	e := p.account().of(unhealthy)
	testkit.Require(t, e != nil && e.marked.IsZero(), "the admin deleted the claim, but we marked it: %+v", e)
	deadline, err := time.Parse(time.RFC3339, e.deadline)
	testkit.Must(p.t, err)
	testkit.Check(t, !deadline.Before(due.Truncate(time.Second)), "the drain was ended at %s, the condition is tolerated until %s", deadline, due)
	p.hasEvent("NodeClaim", claim, "NodeRepair", "Ending the drain of NodeClaim "+claim, "another client has deleted it")
	p.measures(c, `autohealer_repairs_total{condition="BadDisk",mode="Forceful",nodepool="going",outcome="forced",policy="going",policy_kind="NodePool"}`, "1")
}

// testKarpentersRepair has Karpenter repair a node. It waits for the replacement until the
// node is due for the controller, too.
func testKarpentersRepair(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	const condition, toleratedByKarpenter = "KWOKUnhealthy", 30 * time.Second
	tolerating := func(toleration string) object {
		return object{"policies": list{object{"conditionType": condition, "conditionStatus": "True", "toleration": toleration}}, "maxConcurrent": "100%", "unhealthyThreshold": "100%"}
	}
	p := w.createPool(t, karpenter.Pool{Name: "both-repair", Startup: karpenter.StartsTainted, Spec: object{"repair": tolerating("1h"), "disruption": budgets("100%")}}, 2)
	p.startAll(func(*corev1.Node) bool { return !p.isHeldUp.Load() })
	p.fills(2)
	p.isHeldUp.Store(true)
	unhealthy := p.names()[0]
	claim := p.claimOf(unhealthy)
	testkit.Must(p.t, p.SetCondition(t.Context(), unhealthy, corev1.NodeCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: "TestSaysSo", LastTransitionTime: metav1.NewTime(time.Now().Add(-toleratedByKarpenter)),
	}))
	p.eventually("Karpenter's choice", func(context.Context) error {
		if karpenter.Condition(p.claimOf(unhealthy), "DisruptionReason").Status != metav1.ConditionTrue {
			return errors.New("it has not been created")
		}
		return nil
	})
	p.patch(object{"repair": tolerating("1s")})
	p.hasEvent("Node", unhealthy, "NodeRepairBlocked", "not treated", claim.GetName()+" is about to be deleted by Karpenter: Unhealthy")
	p.isHeldUp.Store(false)
	p.gone(unhealthy)
	p.whole()
	a := p.account()
	if e := a.of(unhealthy); e == nil || !e.marked.IsZero() || len(a.terminations) > 0 || len(a.others) != 1 {
		t.Errorf("Karpenter deleted the claim of %s, but another client changed it: %+v", unhealthy, e)
	}
	p.eventually("the author of the deletion", func(ctx context.Context) error {
		recording, err := p.RecordingOf(ctx, func(c testbed.Change) bool { return c.UID == claim.GetUID() })
		testkit.Must(p.t, err)
		for _, change := range recording {
			if change.Type != watch.Deleted && change.Object.GetDeletionTimestamp() != nil {
				testkit.Check(t, change.Author.User == karpenter.User, "it was %s", change.Author)
				return nil
			}
		}
		return errors.New("the claim is not being deleted")
	})
}

// testBeforeKarpenter has the node be due for the controller first.
func testBeforeKarpenter(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "first-repair", Spec: object{
		"repair":     object{"policies": list{object{"conditionType": "KWOKUnhealthy", "conditionStatus": "True", "toleration": "2s"}}, "maxConcurrent": "100%", "unhealthyThreshold": "100%"},
		"disruption": budgets("100%"),
	}}, 2)
	unhealthy := p.names()[0]
	p.setCondition("KWOKUnhealthy", corev1.ConditionTrue, unhealthy)
	a := p.repaired(unhealthy)
	if len(a.terminations) != 1 || len(a.others) != 0 || a.made != 3 {
		t.Errorf("%d terminations, %d by others, %d claims in all", len(a.terminations), len(a.others), a.made)
	}
}
