package deploy_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// TestWhatAgentsLeaveIsRemovedAsThePageSays runs the commands for rows and Leases.
func TestWhatAgentsLeaveIsRemovedAsThePageSays(t *testing.T) {
	c := cluster{testbed.New(t, testbed.Config{})}
	if _, err := c.Kubectl(t.Context(), "apply", "-f", "controller/1-namespace.yaml"); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/agent-installing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(page), "\n## Removing it\n")
	_, script, _ = strings.Cut(script, "```\n")
	script, _, found := strings.Cut(script, "kubectl delete -f deploy/agent\n```")
	if !found {
		t.Fatal("the page shows no commands")
	}
	client := clientFor(t, c.AdminConfig())
	var nodes []string
	for _, name := range []string{"left-1", "left-2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		patch := `{"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"A","status":"Unknown","reason":"AgentSilent"},{"type":"example.com/B","status":"Unknown","reason":"AgentSilent"},{"type":"C","status":"Unknown","reason":"TimedOut"}]}}`
		if _, err := client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: agent}, "status"); err != nil {
			t.Fatal(err)
		}
		if err := createLease(namespace, agent+"-"+name)(t.Context(), client); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Kubectl(t.Context(), "-n", namespace, "label", "lease", agent+"-"+name, "app.kubernetes.io/name="+agent); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, name)
	}
	shell := exec.CommandContext(t.Context(), "sh", "-ec", script)
	shell.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":../bin/testbed:"+os.Getenv("PATH"))
	if out, err := shell.CombinedOutput(); err != nil || strings.Count(string(out), " patched\n") != 4 {
		t.Fatalf("the commands of the page: %v\n%s", err, out)
	}
	for _, name := range nodes {
		node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for kind, left := range map[corev1.NodeConditionType]bool{"Ready": true, "A": false, "example.com/B": false, "C": true} {
			if is := slices.ContainsFunc(node.Status.Conditions, func(row corev1.NodeCondition) bool { return row.Type == kind }); is != left {
				t.Errorf("%s of %s is there: %t", kind, name, is)
			}
		}
		if _, err := client.CoordinationV1().Leases(namespace).Get(t.Context(), agent+"-"+name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Lease of %s is there: %v", name, err)
		}
	}
}
