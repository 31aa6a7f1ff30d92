package deploy_test

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/resourcestack/autohealer/deploy"
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

// TestWhatOthersUseTooIsInAFolderOfItsOwn looks at what each folder would delete.
func TestWhatOthersUseTooIsInAFolderOfItsOwn(t *testing.T) {
	shared := map[string]bool{}
	looked := 0
	if err := fs.WalkDir(deploy.Manifests, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := deploy.Manifests.ReadFile(path)
		if err != nil {
			return err
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			var object struct {
				Kind     string                `json:"kind"`
				Metadata struct{ Name string } `json:"metadata"`
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				return err
			}
			looked++
			name := object.Metadata.Name
			isOthers := object.Kind == "Namespace" && !strings.HasPrefix(name, "autohealer") ||
				object.Kind == "CustomResourceDefinition" && !strings.HasSuffix(name, ".autohealer.resourcestack.com")
			switch {
			case strings.HasPrefix(path, "shared/"):
				shared[object.Kind+"/"+name] = true
			case isOthers:
				t.Errorf("deploy/%s has %s %s, which others use too: put it into deploy/shared", path, object.Kind, name)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]bool{"Namespace/medik8s-leases": true, "CustomResourceDefinition/nodehealthchecks.remediation.medik8s.io": true}; !maps.Equal(shared, want) {
		t.Errorf("deploy/shared has %v, want %v", shared, want)
	}
	if looked < 30 {
		t.Errorf("%d objects were looked at", looked)
	}
}

// TestThePageDeletesNothingThatOthersUse holds the commands of the page against the folders.
func TestThePageDeletesNothingThatOthersUse(t *testing.T) {
	page, err := os.ReadFile("../docs/removing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(page), "```\n")
	script, _, _ = strings.Cut(script, "```")
	for i, step := range []string{"kubectl delete conditionsets,repairpolicies", "scale deployment autohealer-controller --replicas=0", "apply -f deploy/cleanup", "kubectl delete -f deploy/cleanup -f deploy/controller -f deploy/crds"} {
		_, rest, found := strings.Cut(script, step)
		if !found {
			t.Errorf("step %d, %q, is not on the page after the one before it", i+1, step)
		}
		script = rest
	}
	if strings.Contains(script, "deploy/shared") {
		t.Error("the commands delete what others use")
	}
}
