package history

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// seedSets have statuses without quotes, and in lower case.
const seedSets = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: conditionset-1}
spec:
  type: KubeletContainerRuntimeUnhealthy
  effect: NoExecute
  taintKey: node.stakater.com/KubeletContainerRuntimeUnhealthy
  conditions:
    KubeletUnhealthy: {status: true}
    ContainerRuntimeUnhealthy: {status: unknown}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: conditionset-2}
spec:
  type: KernelDeadlock
  effect: NoExecute
  taintKey: node.stakater.com/KernelDeadlock
  conditions:
    KernelDeadlock: {status: true}
`

// clusterWriter writes to a real cluster like the controller.
type clusterWriter struct {
	*testing.T
	cluster *testbed.Cluster
	client  kubernetes.Interface
	dynamic dynamic.Interface
}

func TestRecordingsOfARealCluster(t *testing.T) {
	h := newClusterWriter(t)
	nodes := h.createNodes(5)
	h.apply(seedSets)
	deadlocked := corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionTrue, Reason: "AUFSUmountHung"}
	const evict, wait = "node.stakater.com/KernelDeadlock:NoExecute", "node.stakater.com/KernelDeadlock:NoSchedule"

	h.kubectl("taint", "node", nodes[0].Name, "example.com/theirs=kept:NoSchedule")
	for i, text := range []string{evict, evict, wait} {
		h.check(h.cluster.SetCondition(t.Context(), nodes[i].Name, deadlocked))
		h.write(nodes[i].Name, "conditionset-2", text)
	}
	h.check(h.cluster.SetCondition(t.Context(), nodes[3].Name, corev1.NodeCondition{Type: "KubeletUnhealthy", Status: corev1.ConditionTrue}))
	h.check(h.cluster.SetCondition(t.Context(), nodes[3].Name, corev1.NodeCondition{Type: "ContainerRuntimeUnhealthy", Status: corev1.ConditionUnknown, Reason: "ProbeTimedOut"}))
	h.write(nodes[3].Name, "conditionset-1", "node.stakater.com/KubeletContainerRuntimeUnhealthy:NoExecute")
	// A node recovers, and the waiting node is next.
	h.check(h.cluster.SetCondition(t.Context(), nodes[0].Name, corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse}))
	h.write(nodes[0].Name, "conditionset-2")
	h.write(nodes[2].Name, "conditionset-2", evict)
	_, err := h.dynamic.Resource(SetsResource).Patch(t.Context(), "conditionset-2", types.MergePatchType,
		[]byte(`{"status":{"matched":2}}`), metav1.PatchOptions{FieldManager: us.FieldManager}, "status")
	h.check(err)

	cfg := Config{Us: UserAgent("autohealer-controller"), Ledger: ledgerName, EndAt: time.Now()}
	report := Require(t, h.recording(), cfg, Counts{Changes: 20, Writes: 6, Placements: 5, Evictions: 4, Fallbacks: 1, Removals: 2, Statuses: 1})
	t.Log(report)

	t.Run("whose managedFields prove the author", func(t *testing.T) {
		recording, unproved := h.recording(), map[string]bool{}
		for i := range recording {
			change := &recording[i]
			if cfg.Us(change.Author) && change.GVR == testbed.NodesResource && !unproved[change.Name] {
				unproved[change.Name] = true
				change.Author = testbed.Author{User: testbed.UnknownUser, Reason: "removed by the test"}
			}
		}
		withoutAuthors, err := Check(recording, cfg)
		if err != nil || len(unproved) != 4 || len(withoutAuthors.Of(UnknownAuthor)) != 4 {
			t.Errorf("removed the author of %d writes: %v %s", len(unproved), err, withoutAuthors)
		}
		cfg := cfg
		cfg.FieldManager = us.FieldManager
		Require(t, recording, cfg, Counts{Evictions: 4, Unproved: 4})
	})

	t.Run("with a real violation", func(t *testing.T) {
		h := &clusterWriter{t, h.cluster, h.client, h.dynamic}
		h.check(h.cluster.SetCondition(t.Context(), nodes[4].Name, deadlocked))
		h.write(nodes[4].Name, "conditionset-2", evict)
		_, err := h.client.CoreV1().Nodes().Patch(t.Context(), nodes[0].Name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
		h.check(err)
		report, err := Check(h.recording(), cfg)
		h.check(err)
		var kinds []Kind
		for _, v := range report.Violations {
			kinds = append(kinds, v.Kind)
		}
		if !slices.Equal(kinds, []Kind{CapExceeded, ForeignTouched}) {
			t.Errorf("found %s", report)
		}
	})
}

func newClusterWriter(t *testing.T) *clusterWriter {
	t.Helper()
	h := &clusterWriter{T: t, cluster: testbed.New(t, testbed.Config{Record: Resources(checkConfig.Remediation...), RecordIn: Namespaces("theirs")})}
	h.kubectl("create", "namespace", ledgerName.Namespace)
	h.kubectl("create", "namespace", leaseNamespace)
	h.kubectl("create", "clusterrolebinding", "hand", "--clusterrole=cluster-admin", "--serviceaccount="+ledgerName.Namespace+":hand")
	h.kubectl("apply", "-f", "../../deploy/chart/crds")
	h.kubectl("wait", "--for=condition=Established", "crd/conditionsets.autohealer.resourcestack.com")
	config, err := h.cluster.ServiceAccountConfig(t.Context(), ledgerName.Namespace, "hand")
	h.check(err)
	config.UserAgent = "autohealer-controller/test"
	h.client, err = kubernetes.NewForConfig(config)
	h.check(err)
	h.dynamic, err = dynamic.NewForConfig(config)
	h.check(err)
	return h
}

func (h *clusterWriter) createNodes(count int) []*corev1.Node {
	h.Helper()
	nodes, err := h.cluster.CreateNodes(h.Context(), testbed.Nodes{Count: count})
	h.check(err)
	return nodes
}

func (h *clusterWriter) check(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *clusterWriter) kubectl(args ...string) {
	h.Helper()
	_, err := h.cluster.Kubectl(h.Context(), args...)
	h.check(err)
}

func (h *clusterWriter) apply(manifests string) {
	h.Helper()
	h.kubectl("apply", "-f", h.file(manifests))
}

// file writes manifests to a file.
func (h *clusterWriter) file(manifests string) string {
	h.Helper()
	file := filepath.Join(h.TempDir(), "manifests.yaml")
	h.check(os.WriteFile(file, []byte(manifests), 0o600))
	return file
}

func (h *clusterWriter) recording() testbed.Recording {
	h.Helper()
	recording, err := h.cluster.Recording(h.Context())
	h.check(err)
	return recording
}

// write gives a node exactly these taints of a set, through the ledger.
func (h *clusterWriter) write(name, set string, texts ...string) {
	h.Helper()
	node, err := h.client.CoreV1().Nodes().Get(h.Context(), name, metav1.GetOptions{})
	h.check(err)
	taints := []corev1.Taint{}
	for _, t := range node.Spec.Taints {
		if !slices.ContainsFunc(readForm(node).Taints, func(f formTaint) bool { return f.is(t) }) {
			taints = append(taints, t)
		}
	}
	var note form
	added := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	for _, text := range texts {
		taints = append(taints, corev1.Taint{Key: keyOf(text), Effect: effectOf(text), TimeAdded: &added})
		note.Taints = append(note.Taints, formTaint{"ConditionSet/" + set, keyOf(text), string(effectOf(text)), added.UTC()})
		if strings.HasSuffix(text, noExecute) {
			h.enter(grant{"ConditionSet/" + set, name, string(node.UID), node.ResourceVersion, ""})
		}
	}
	written := any(nil)
	if len(texts) > 0 {
		text, err := json.Marshal(note)
		h.check(err)
		written = string(text)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": map[string]any{recordAnnotation: written}},
		"spec":     map[string]any{"taints": taints},
	})
	h.check(err)
	_, err = h.client.CoreV1().Nodes().Patch(h.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: us.FieldManager})
	h.check(err)
}

func (h *clusterWriter) enter(g grant) {
	h.Helper()
	text, err := json.Marshal(ledgerState{Grants: []grant{g}})
	h.check(err)
	patch := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"ledger":%q}}`, ledgerName.Name, text)
	_, err = h.client.CoreV1().ConfigMaps(ledgerName.Namespace).Patch(h.Context(), ledgerName.Name, types.ApplyPatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: us.FieldManager, Force: new(true)})
	h.check(err)
}
