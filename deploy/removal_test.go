package deploy_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/cleanup"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const uninstallPage = "../docs/how-to/uninstall.md"

// TestWhatAgentsLeaveIsRemovedAsThePageSays runs the documented commands for conditions and
// Leases.
func TestWhatAgentsLeaveIsRemovedAsThePageSays(t *testing.T) {
	t.Parallel()
	c := cluster{testbed.New(t, testbed.Config{})}
	c.kubectl(t, "apply", "-f", templates(t, "controller/namespace"))
	script := shown(t, uninstallPage, "### Remove what the agents have left")
	api := clientFor(t, c.AdminConfig())
	var nodes []string
	for _, name := range []string{"left-1", "left-2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		testkit.Value(api.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})).Must(t)
		patch := `{"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"A","status":"Unknown","reason":"AgentSilent"},{"type":"example.com/B","status":"Unknown","reason":"AgentSilent"},{"type":"C","status":"Unknown","reason":"TimedOut"}]}}`
		testkit.Value(api.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: agent}, "status")).Must(t)
		testkit.Must(t, createLease(namespace, agent+"-"+name)(t.Context(), api))
		c.kubectl(t, "-n", namespace, "label", "lease", agent+"-"+name, "app.kubernetes.io/name="+agent)
		nodes = append(nodes, name)
	}
	if out := c.runsScript(t, "..", script); strings.Count(out, " patched\n") != 4 {
		t.Fatalf("the commands of the page: %s", out)
	}
	for _, name := range nodes {
		node := testkit.Value(api.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})).Must(t)
		for kind, left := range map[corev1.NodeConditionType]bool{"Ready": true, "A": false, "example.com/B": false, "C": true} {
			if is := slices.ContainsFunc(node.Status.Conditions, func(row corev1.NodeCondition) bool { return row.Type == kind }); is != left {
				t.Errorf("%s of %s exists: %t", kind, name, is)
			}
		}
		if _, err := api.CoordinationV1().Leases(namespace).Get(t.Context(), agent+"-"+name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Lease of %s exists: %v", name, err)
		}
	}
}

// TestSharedObjectsLackTheLabel checks what the documented deletion by label would delete.
func TestSharedObjectsLackTheLabel(t *testing.T) {
	var shared []string
	documents := strings.Split(string(testkit.Value(os.ReadFile("install.yaml")).Must(t)), "\n---\n")
	for _, document := range documents {
		var object metav1.PartialObjectMetadata
		testkit.Must(t, yaml.Unmarshal([]byte(document), &object))
		if object.Kind != "" && object.Labels["app.kubernetes.io/part-of"] != "autohealer" {
			shared = append(shared, object.Kind+"/"+object.Name)
		}
	}
	slices.Sort(shared)
	testkit.Equal(t, "objects without the label", []string{"CustomResourceDefinition/nodehealthchecks.remediation.medik8s.io", "Namespace/medik8s-leases"}, shared)
}

// isRemoved runs the documented commands on a cluster with objects of a controller and of
// other components. There is no kubelet, so the test does the work of the Job.
func (c cluster) isRemoved(t *testing.T) {
	script := allShown(t, uninstallPage, "## With kubectl")
	const ofKubelet = "kubectl -n autohealer-system logs -l app.kubernetes.io/name=autohealer-cleanup --tail=-1\n"
	before, after, found := strings.Cut(script, "kubectl -n autohealer-system wait --for=condition=Complete job/autohealer-cleanup")
	testkit.Require(t, found && strings.Contains(after, ofKubelet), "the page does not wait for the Job and show its log:\n%s", script)
	after = strings.Replace(after, ofKubelet, "", 1)

	api := clientFor(t, c.AdminConfig())
	isOurs := c.leavesTaint(t, api)
	const theirs = `
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata: {name: theirs}
spec: {selector: {matchLabels: {a: b}}, remediationTemplate: {apiVersion: a.b/v1, kind: XTemplate, name: x, namespace: default}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: node-theirs, namespace: medik8s-leases}
spec: {holderIdentity: node-maintenance}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: autohealer-controller, namespace: autohealer-system}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: left}
spec: {type: Left, effect: NoSchedule, taintKey: example.com/left, conditions: {Left: {status: true}}}
`
	testkit.Value(c.KubectlApply(t.Context(), theirs)).Must(t)
	// The webhook comes last, because it does not run here and would block sets.
	c.kubectl(t, "apply", "-f", "install.yaml")
	standing := c.objects(t)
	c.runsScript(t, "..", before)
	c.cleansUp(t, api)
	c.runsScript(t, "..", "kubectl -n autohealer-system wait --for=condition=Complete job/autohealer-cleanup"+after)
	left := c.objects(t)
	for object := range standing {
		testkit.Check(t, left[object] || isAutohealers(object), "%s is deleted, but belongs to another component", object)
	}
	for object := range left {
		testkit.Check(t, !isAutohealers(object), "%s is left", object)
	}
	if !left["v1 Namespace <none> medik8s-leases"] || !left["remediation.medik8s.io/v1alpha1 NodeHealthCheck <none> theirs"] {
		t.Error("shared objects were not checked")
	}
	node := testkit.Value(api.CoreV1().Nodes().Get(t.Context(), "removed-1", metav1.GetOptions{})).Must(t)
	if node.Annotations["example.com/theirs"] == "" || node.Annotations[ownership.Annotation] != "" ||
		slices.ContainsFunc(node.Spec.Taints, isOurs) || !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/theirs" }) {
		t.Errorf("the node has %v and %v", node.Annotations, node.Spec.Taints)
	}
}

// leavesTaint creates a node with a taint of a controller, and with taints and annotations
// of other writers.
func (c cluster) leavesTaint(t *testing.T, api kubernetes.Interface) (isOurs func(corev1.Taint) bool) {
	t.Helper()
	note := ownership.Record{Taints: []ownership.Taint{{
		Rule: ownership.Rule{Kind: policykind.ConditionSet, Name: "left"}, Key: "example.com/left", Effect: corev1.TaintEffectNoExecute, Added: time.Now().UTC().Truncate(time.Second),
	}}}
	text, _ := note.Encode()
	testkit.Value(api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "removed-1", Annotations: map[string]string{ownership.Annotation: text, "example.com/theirs": "1"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{note.Taints[0].Taint(), {Key: "example.com/theirs", Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})).Must(t)
	return func(taint corev1.Taint) bool { return taint.Key == "example.com/left" }
}

// cleansUp does the work of the Job's pod, with its token, and completes the Job.
func (c cluster) cleansUp(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	config, err := c.ServiceAccountConfig(t.Context(), namespace, "autohealer-cleanup")
	testkit.Must(t, err)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, karpenter.AddToScheme, remediationv1alpha1.AddToScheme} {
		testkit.Must(t, add(scheme))
	}
	restricted := testkit.Value(client.New(config, client.Options{Scheme: scheme})).Must(t)
	var out strings.Builder
	result, err := cleanup.Run(t.Context(), cleanup.Config{Client: restricted, Namespace: namespace, AgentNamespace: namespace, LeaseName: account, Out: &out})
	if err != nil || result.Left > 0 {
		t.Fatalf("the cleanup: %+v, %v\n%s", result, err, out.String())
	}
	testkit.Eventually(t, "the Job to create its pod", func() error {
		pods, err := api.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=autohealer-cleanup"})
		if err != nil || len(pods.Items) != 1 {
			return fmt.Errorf("%d pods (%w)", len(pods.Items), err)
		}
		_, err = api.CoreV1().Pods(namespace).Patch(t.Context(), pods.Items[0].Name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
		return err
	})
}

// objects returns all stored objects by version, kind, namespace and name, except those
// that other components create and delete.
func (c cluster) objects(t *testing.T) map[string]bool {
	t.Helper()
	resources := c.kubectl(t, "api-resources", "--verbs=list", "-o", "name")
	names := slices.DeleteFunc(strings.Fields(resources), func(name string) bool {
		return slices.Contains([]string{"events", "events.events.k8s.io", "pods", "endpoints", "endpointslices.discovery.k8s.io", "replicasets.apps", "componentstatuses", "ipaddresses.networking.k8s.io"}, name)
	})
	out := testkit.Value(c.Kubectl(t.Context(), "get", strings.Join(names, ","), "-A", "--no-headers", "--ignore-not-found",
		"-o", "custom-columns=A:.apiVersion,B:.kind,C:.metadata.namespace,D:.metadata.name")).Must(t)
	found := map[string]bool{}
	for line := range strings.Lines(out) {
		found[strings.Join(strings.Fields(line), " ")] = true
	}
	return found
}

// isAutohealers reports whether an object belongs only to us, by its group, namespace or
// name.
func isAutohealers(object string) bool { return strings.Contains(object, "autohealer") }
