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
)

// plain makes nodes that no Karpenter has made, and a policy by which a remediation is
// made for those of them that are sick.
func (w *fixture) plain(t *testing.T, name string, count int) (p *pool, nodes []string) {
	t.Helper()
	const label = "example.com/plain"
	p = &pool{fixture: w, t: t, name: name}
	template := &unstructured.Unstructured{Object: object{"spec": object{"template": object{"spec": object{"strategy": "reboot"}}}}}
	template.SetGroupVersionKind(remediator.TemplateKind)
	template.SetNamespace(metav1.NamespaceDefault)
	template.SetName(name)
	p.must(p.api.Create(t.Context(), template))
	made, err := p.CreateNodes(t.Context(), testbed.Nodes{Prefix: name, Count: count, Labels: map[string]string{label: name}})
	p.must(err)
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

// remediated waits until there are remediations for these nodes by the policy, and for no
// others.
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
			return fmt.Errorf("they are there for %v, want %v", names, nodes)
		}
		return nil
	})
}

// unlocked waits until nobody has the Lease of a node.
func (p *pool) unlocked(nodes ...string) {
	p.t.Helper()
	p.eventually("Leases given back", func(ctx context.Context) error {
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

// testPlainNodes has nodes fall sick that no Karpenter has made.
func testPlainNodes(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p, nodes := w.plain(t, "plain", 10)
	p.hasStatus("plain", counted(10, 0, 0, 0), condition(v1alpha1.Accepted, metav1.ConditionTrue))
	p.makeUnhealthy(nodes[:4]...)
	p.hasStatus("plain", counted(10, 4, 2, 2)) // a fifth
	p.remediated(nodes[:2]...)
	p.setCondition("BadDisk", corev1.ConditionFalse, nodes[:4]...) // the remediator has done its work
	p.hasStatus("plain", counted(10, 0, 0, 0))
	p.remediated()
	p.unlocked(nodes...)
}

// testPlainKilled kills the controller over the page that names a node without a machine,
// over its remediation and over the end of that. Each heir finds what the one before has
// left. Leases, statuses and Events are as for health checks, whose faults try them.
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
		k.over(namesNode, "naming it in the ledger", is)
	}
	for _, is := range []delivery{never, late, after} {
		k.over(about(http.MethodPost), "making its remediation", is)
	}
	k.launch()
	p.hasStatus(p.name, counted(10, 4, 2, 2))
	p.remediated(nodes[:2]...)
	p.must(k.controller.Kill())
	p.setCondition("BadDisk", corev1.ConditionFalse, nodes[:2]...)
	for _, is := range []delivery{never, late, after} {
		k.over(about(http.MethodDelete), "deleting its remediation", is)
	}
	k.launch()
	k.deliver()
	p.remediated(nodes[2:4]...)
	p.hasStatus(p.name, counted(10, 2, 2, 0))
	p.setCondition("BadDisk", corev1.ConditionFalse, nodes[2:4]...)
	p.remediated()
	p.unlocked(nodes...)
	p.must(k.controller.Kill())
}
