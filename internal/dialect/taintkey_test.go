package dialect_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// taintKey compiles a set with the key, valid otherwise.
func taintKey(key string) error {
	_, err := dialect.ConditionSet{
		Name: "set", Effect: "NoSchedule", TaintKey: key,
		Conditions: []dialect.SetCondition{{Type: "A", Status: "True"}},
	}.Rule()
	return err
}

func TestTaintKey(t *testing.T) {
	tests := []struct {
		name string
		key  string
		says string // part of the problem; empty if there is none
	}{
		{"the documented key", "node.stakater.com/KubeletContainerRuntimeUnhealthy", ""},
		{"a name alone", "KernelDeadlock", ""},
		{"marks within the name", "example.com/a-b_c.D", ""},
		{"the longest name", strings.Repeat("x", 63), ""},
		{"the longest prefix", strings.Repeat("x", 253) + "/y", ""},
		{"a domain that only ends like a reserved one", "mykubernetes.io/a", ""},
		{"a reserved domain as the name", "example.com/kubernetes.io", ""},
		{"a reserved domain as the name of a key without a prefix", "kubernetes.io", ""},
		{"the Autoscaler's name in another domain", "example.com/ToBeDeletedByClusterAutoscaler", ""},
		{"the domain of the default sets", "autohealer.resourcestack.com/KernelDeadlock", ""},
		{"a key that users give", "nvidia.com/gpu", ""},
		{"a domain beside a reserved one", "aws.k8s.example.com/a", ""},

		{"nothing", "", "needs a taint key like example.com/KernelDeadlock"},
		{"no name", "example.com/", "the name of the key"},
		{"a space", "example.com/kernel deadlock", "the name of the key"},
		{"a name that ends with a dash", "example.com/a-", "the name of the key"},
		{"a name that begins with a dot", ".a", "the name of the key"},
		{"a name that is too long", strings.Repeat("x", 64), "63"},
		{"a letter outside of ASCII", "example.com/größe", "the name of the key"},
		{"no prefix", "/a", "the part before the slash"},
		{"a prefix in capitals", "Example.com/a", "the part before the slash"},
		{"a prefix with an empty part", "example..com/a", "the part before the slash"},
		{"a prefix that ends with a dash", "example.com-/a", "the part before the slash"},
		{"a prefix with an underscore", "my_domain.com/a", "the part before the slash"},
		{"a prefix that is too long", strings.Repeat("x", 254) + "/y", "253"},
		{"two slashes", "example.com/a/b", "more than one slash"},
		{"a key and its value", "example.com/a=b", "the name of the key"},
		{"a key and its effect", "example.com/a:NoSchedule", "the name of the key"},

		{"a taint of the node lifecycle", "node.kubernetes.io/not-ready", "reserved for Kubernetes itself, which places and removes such taints; want a key in a domain of your own"},
		{"a role of a node", "node-role.kubernetes.io/control-plane", "reserved"},
		{"the domain of Kubernetes", "kubernetes.io/a", "reserved"},
		{"the short domain of Kubernetes", "k8s.io/a", "reserved"},
		{"below the short domain", "node.cluster.x-k8s.k8s.io/a", "reserved"},
		{"a key of Cluster API", "node.cluster.x-k8s.io/uninitialized", "reserved for Kubernetes"},
		{"a key of Karpenter", "karpenter.sh/disrupted", "reserved for Karpenter itself"},
		{"a key of Karpenter's provider", "karpenter.k8s.aws/unready", "reserved for Amazon EKS"},
		{"a key of a managed node group", "eks.amazonaws.com/compute-type", "reserved for Amazon EKS"},
		{"a key of Google Cloud", "cloud.google.com/impending-node-termination", "reserved for Google Cloud"},
		{"a key of Azure", "remediator.kubernetes.azure.com/unschedulable", "reserved for Azure"},
		{"a key of a remediator", "medik8s.io/remediation", "reserved for Medik8s"},
		{"a key of the network", "node.cilium.io/agent-not-ready", "reserved for Cilium"},
		{"a key of the Cluster Autoscaler", "ToBeDeletedByClusterAutoscaler", "reserved for the Cluster Autoscaler"},
		{"the other key of the Cluster Autoscaler", "DeletionCandidateOfClusterAutoscaler", "reserved for the Cluster Autoscaler"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := taintKey(test.key)
			if test.says == "" {
				testkit.Must(t, err)
				return
			}
			var field *triage.FieldError
			testkit.Require(t, errors.As(err, &field), "error is %v, want a FieldError", err)
			if field.Field != "spec.taintKey" || field.Value != test.key || !strings.Contains(field.Problem, test.says) {
				t.Errorf("refused with %v, want something with %q", field, test.says)
			}
		})
	}
}

// A key compiles if and only if the API server accepts it, unless it is reserved.
func TestTaintKeyAgreesWithKubernetes(t *testing.T) {
	var good, bad int
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.OneOf(
			rapid.StringMatching(`([a-z0-9.-]{0,6}/)?[A-Za-z0-9._-]{0,6}`),
			rapid.StringMatching(`[aZ9._/ -]{0,8}`),
			rapid.StringMatching(`[a.]{250,256}/[aB_]{60,66}`),
			rapid.StringMatching(`[aB.]{60,66}`),
		).Draw(t, "key")
		problems := validation.IsQualifiedName(key)
		if len(problems) == 0 {
			good++
		} else {
			bad++
		}
		if err := taintKey(key); (err == nil) != (len(problems) == 0) {
			t.Fatalf("%q: here %v, in Kubernetes %q", key, err, problems)
		}
	})
	t.Logf("saw %d good keys and %d bad ones", good, bad)
	testkit.Check(t, good != 0 && bad != 0, "no valid or no invalid key was tried")
}
