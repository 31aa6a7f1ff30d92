package pools

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// plain creates nodes without Karpenter, and a policy that creates remediations for
// unhealthy nodes among them.
func (w *fixture) plain(t *testing.T, name string, count int) (p *pool, nodes []string) {
	t.Helper()
	const label = "example.com/plain"
	p = &pool{fixture: w, t: t, name: name}
	template := &unstructured.Unstructured{Object: object{"spec": object{"template": object{"spec": object{"strategy": "reboot"}}}}}
	template.SetGroupVersionKind(remediator.TemplateKind)
	template.SetNamespace(metav1.NamespaceDefault)
	template.SetName(name)
	testkit.Must(p.t, p.api.Create(t.Context(), template))
	made, err := p.CreateNodes(t.Context(), testbed.Nodes{Prefix: name, Count: count, Labels: map[string]string{label: name}})
	testkit.Must(p.t, err)
	for _, node := range made {
		nodes = append(nodes, node.Name)
	}
	p.policy(name, "1s", selecting(label, name), func(s *v1alpha1.RepairPolicySpec) {
		s.RemediationTemplate = &corev1.ObjectReference{
			APIVersion: remediator.GroupVersion.String(), Kind: remediator.TemplateKind.Kind, Namespace: metav1.NamespaceDefault, Name: name,
		}
	})
	return p, nodes
}

// remediated waits until the policy has remediations for exactly these nodes.
func (p *pool) remediated(nodes ...string) {
	p.t.Helper()
	p.eventually("remediations", func(ctx context.Context) error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(remediator.Kind)
		if err := p.api.List(ctx, list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		var names []string
		for _, o := range list.Items {
			if owner := o.GetOwnerReferences(); len(owner) == 1 && owner[0].Kind == "RepairPolicy" && owner[0].Name == p.name {
				names = append(names, o.GetName())
			}
		}
		if !slices.Equal(names, nodes) {
			return fmt.Errorf("the remediated nodes are %v, want %v", names, nodes)
		}
		return nil
	})
}

// unlocked waits until the Leases of these nodes have no holder.
func (p *pool) unlocked(nodes ...string) {
	p.t.Helper()
	p.eventually("Leases released", func(ctx context.Context) error {
		var leases coordinationv1.LeaseList
		if err := p.api.List(ctx, &leases, client.InNamespace(leaseNamespace)); err != nil {
			return err
		}
		for _, lease := range leases.Items {
			if node := strings.TrimPrefix(lease.Name, "node-"); slices.Contains(nodes, node) && lease.Spec.HolderIdentity != nil {
				return fmt.Errorf("%s is held by %s", lease.Name, *lease.Spec.HolderIdentity)
			}
		}
		return nil
	})
}

// testPlainNodes has nodes without Karpenter become unhealthy.
func testPlainNodes(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p, nodes := w.plain(t, "plain", 10)
	p.hasStatus("plain", counted(10, 0, 0, 0), condition(v1alpha1.Accepted, metav1.ConditionTrue))
	p.makeUnhealthy(nodes[:4]...)
	p.hasStatus("plain", counted(10, 4, 2, 2)) // the bound is a fifth
	p.remediated(nodes[:2]...)
	p.setCondition("BadDisk", corev1.ConditionFalse, nodes[:4]...) // the remediator has repaired them
	p.hasStatus("plain", counted(10, 0, 0, 0))
	p.remediated()
	p.unlocked(nodes...)
}

// testPlainKilled kills the controller during the ledger write for a node without a
// NodeClaim, during the creation of its remediation, and during its deletion. Each
// controller continues where the previous one was killed. The fault tests of health checks
// cover Leases, statuses and Events.
func testPlainKilled(t *testing.T, w *fixture) {
	t.Helper()
	p, nodes := w.plain(t, "plain-killed", 10)
	plural, _ := meta.UnsafeGuessKindToResource(remediator.Kind)
	about := func(method string) func(*heldRequest) bool {
		return func(l *heldRequest) bool { return l.Method == method && strings.Contains(l.Path, "/"+plural.Resource) }
	}
	namesNode := func(l *heldRequest) bool {
		return l.Method == http.MethodPut && strings.HasSuffix(l.Path, "/configmaps/"+ledgerName) && bytes.Contains(l.Body, []byte(nodes[0]))
	}
	k := p.newFaultRunner()
	p.makeUnhealthy(nodes[:4]...)
	for _, is := range []delivery{never, after, late} {
		k.over(namesNode, "names the node in the ledger", is)
	}
	for _, is := range []delivery{never, late, after} {
		k.over(about(http.MethodPost), "creates the remediation", is)
	}
	k.launch()
	p.hasStatus(p.name, counted(10, 4, 2, 2))
	p.remediated(nodes[:2]...)
	testkit.Must(p.t, k.controller.Kill())
	p.setCondition("BadDisk", corev1.ConditionFalse, nodes[:2]...)
	for _, is := range []delivery{never, late, after} {
		k.over(about(http.MethodDelete), "deletes the remediation", is)
	}
	k.launch()
	k.deliver()
	p.remediated(nodes[2:4]...)
	p.hasStatus(p.name, counted(10, 2, 2, 0))
	p.setCondition("BadDisk", corev1.ConditionFalse, nodes[2:4]...)
	p.remediated()
	p.unlocked(nodes...)
	testkit.Must(p.t, k.controller.Kill())
}
