package history

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// remediatorKinds are the CRDs of a remediator. checkConfig has the same plurals.
const remediatorKinds = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rebootremediations.remediator.example.com}
spec:
  group: remediator.example.com
  scope: Namespaced
  names: {plural: rebootremediations, singular: rebootremediation, kind: RebootRemediation}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rebootremediationtemplates.remediator.example.com}
spec:
  group: remediator.example.com
  scope: Namespaced
  names: {plural: rebootremediationtemplates, singular: rebootremediationtemplate, kind: RebootRemediationTemplate}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const remediatorObjects = `
apiVersion: remediator.example.com/v1
kind: RebootRemediationTemplate
metadata: {name: quick, namespace: healing}
spec: {template: {spec: {size: 42, ratio: 0.5}}}
---
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata: {name: workers}
spec:
  remediationTemplate: {apiVersion: remediator.example.com/v1, kind: RebootRemediationTemplate, namespace: healing, name: quick}
  unhealthyConditions: [{type: Ready, status: "False", duration: 0s}]
`

func TestRecordingsOfRemediationsInARealCluster(t *testing.T) {
	h := newClusterWriter(t)
	for _, namespace := range []string{"healing", "theirs"} {
		h.kubectl("create", "namespace", namespace)
	}
	h.apply(remediatorKinds)
	h.kubectl("wait", "--for=condition=Established", "crd", "--all")
	h.apply(remediatorObjects)
	check, err := h.dynamic.Resource(ChecksResource).Get(t.Context(), "workers", metav1.GetOptions{})
	h.check(err)
	nodes := h.createNodes(5)
	notReady := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "TestSaysSo"}
	cfg := Config{Us: UserAgent("autohealer-controller"), Ledger: ledgerName, Remediation: checkConfig.Remediation, EndAt: time.Now().Add(time.Minute)}

	// A node is treated, and recovers.
	h.check(h.cluster.SetCondition(t.Context(), nodes[0].Name, notReady))
	h.lock(nodes[0].Name, "workers")
	h.remediate(nodes[0], check)
	objects := h.dynamic.Resource(checkConfig.Remediation[0]).Namespace("healing")
	h.kubectl("patch", "rebootremediations", "-n", "healing", nodes[0].Name, "--subresource=status", "--type=merge", "-p", `{"status":{"conditions":[{"type":"Succeeded","status":"True"}]}}`)
	h.check(h.cluster.SetCondition(t.Context(), nodes[0].Name, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}))
	h.check(objects.Delete(t.Context(), nodes[0].Name, metav1.DeleteOptions{}))
	h.check(h.client.CoordinationV1().Leases(leaseNamespace).Delete(t.Context(), leasePrefix+nodes[0].Name, metav1.DeleteOptions{}))
	_, err = h.dynamic.Resource(ChecksResource).Patch(t.Context(), "workers", types.MergePatchType,
		[]byte(`{"status":{"phase":"Enabled","observedNodes":5,"healthyNodes":5,"inTreatment":0}}`), metav1.PatchOptions{FieldManager: us.FieldManager}, "status")
	h.check(err)
	t.Log(Require(t, h.recording(), cfg, Counts{Remediations: 1, Releases: 1, Leases: 2, CheckStatuses: 1}))

	// A healthy node is treated without its Lease, and the controller overwrites the Lease
	// of another holder.
	h.remediate(nodes[1], check)
	h.kubectl("create", "-f", h.file(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node-`+nodes[2].Name+`","namespace":"`+leaseNamespace+`"},
		"spec":{"holderIdentity":"maintenance","leaseDurationSeconds":600,"renewTime":"`+time.Now().UTC().Format(metav1.RFC3339Micro)+`"}}`))
	h.check(h.client.CoordinationV1().Leases(leaseNamespace).Delete(t.Context(), leasePrefix+nodes[2].Name, metav1.DeleteOptions{}))
	cfg.Unfinished = true
	report, err := Check(h.recording(), cfg)
	h.check(err)
	if len(report.Violations) != 2 || len(report.Of(Unjustified)) != 1 || len(report.Of(ForeignTouched)) != 1 {
		t.Errorf("found %s\n%s", report, Format(h.recording(), nodes[1].Name, nodes[2].Name))
	}
}

// lock acquires the Lease of a node for a health check.
func (h *clusterWriter) lock(node, check string) {
	h.Helper()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: leasePrefix + node},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(holderPrefix + check), LeaseDurationSeconds: new(int32(600)), RenewTime: new(metav1.NewMicroTime(time.Now())),
		},
	}
	_, err := h.client.CoordinationV1().Leases(leaseNamespace).Create(h.Context(), lease, metav1.CreateOptions{})
	h.check(err)
}

// remediate creates the remediation object of a node.
func (h *clusterWriter) remediate(node *corev1.Node, check *unstructured.Unstructured) {
	h.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": int64(42), "ratio": 0.5}}}
	object.SetGroupVersionKind(healing.WithKind("RebootRemediation"))
	object.SetName(node.Name)
	object.SetLabels(map[string]string{partOfLabel: partOf})
	object.SetAnnotations(map[string]string{nodeNameAnnotation: node.Name, templateNameAnnotation: "quick", nodeUIDAnnotation: string(node.UID)})
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: checkAPIVersion, Kind: checkKind, Name: check.GetName(), UID: check.GetUID(), Controller: new(false)}})
	_, err := h.dynamic.Resource(checkConfig.Remediation[0]).Namespace("healing").Create(h.Context(), object, metav1.CreateOptions{})
	h.check(err)
}
