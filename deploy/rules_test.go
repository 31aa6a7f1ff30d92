package deploy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// agreesWithCompiler compares the API server with the compiler. A difference means an
// unnecessary refusal, or a stored set that is not applied.
func (c cluster) agreesWithCompiler(t *testing.T) {
	type change struct {
		name   string
		change func(*v1alpha1.ConditionSetSpec)
		late   bool // only the compiler refuses it
	}
	var changes []change
	key := func(key string, late bool) {
		changes = append(changes, change{"key " + key, func(s *v1alpha1.ConditionSetSpec) { s.TaintKey = key }, late})
	}
	for _, name := range []string{
		"a", "A", "a.b", "example.com/a", "example.com/a-b_c.D", "mykubernetes.io/a", "k8s.io.example.com/a", "example.com/kubernetes.io", "kubernetes.io",
		"autohealer.resourcestack.com/KernelDeadlock", "example.com/ToBeDeletedByClusterAutoscaler", "nvidia.com/gpu", "x/" + strings.Repeat("y", 63),
		"node.kubernetes.io/not-ready", "kubernetes.io/a", "k8s.io/a", "node.cluster.x-k8s.io/a", "karpenter.sh/disrupted", "karpenter.k8s.aws/a",
		"eks.amazonaws.com/a", "cloud.google.com/a", "remediator.kubernetes.azure.com/a", "medik8s.io/a", "node.cilium.io/a",
		"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler",
		"a b", "a/b/c", "/a", "a/", "-a", "a-", ".a", "a=b", "a:NoExecute", "Example.com/a", "example..com/a", "a_b/c", "größe", "a\nb", "x/" + strings.Repeat("y", 64),
	} {
		key(name, false)
	}
	key(strings.Repeat("x", 254)+"/y", true) // only the compiler checks the length of a domain
	for _, duration := range []string{
		"", "0", "0s", "5m", "1h30m", "1.5h", ".5s", "1.s", "+5m", "90s", "1ms", "1us", "1µs", "1μs", "1ns",
		"5", "m", "5 m", "-5m", "5M", "5d", "five", ".", ".s", "1..5s", "5m-1s", "+", " 5m",
	} {
		changes = append(changes, change{"duration " + duration, func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["A"] = v1alpha1.SetCondition{Status: "True", Duration: duration}
		}, false})
	}
	changes = append(changes, change{"duration of ages", func(s *v1alpha1.ConditionSetSpec) {
		s.Conditions["A"] = v1alpha1.SetCondition{Status: "True", Duration: "99999999h"}
	}, true})
	for _, name := range []string{"T", "kernel-deadlock", "example.com/T", "a.b", "T U", "T=1", "-T", "T-", "/T", "a/b/c", "größe", "T\n"} {
		changes = append(changes, change{"type " + name, func(s *v1alpha1.ConditionSetSpec) { s.Type = name }, false})
	}
	for _, name := range []string{"A", "kernel-deadlock", "example.com/A", "größe", "A=True", "A: true", "A B", " A"} {
		changes = append(changes, change{"condition " + name, func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions = map[string]v1alpha1.SetCondition{name: {Status: "True"}}
		}, false})
	}

	client := c.rawClient(t, v1alpha1.GroupVersion)
	var taken, refused int
	for _, test := range changes {
		set := &v1alpha1.ConditionSet{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ConditionSet"},
			ObjectMeta: metav1.ObjectMeta{Name: "trial"},
			Spec: v1alpha1.ConditionSetSpec{
				Type: "T", Effect: "NoSchedule", TaintKey: "example.com/a",
				Conditions: map[string]v1alpha1.SetCondition{"A": {Status: "True"}},
			},
		}
		test.change(&set.Spec)
		body, err := json.Marshal(set)
		testkit.Must(t, err)
		err = client.Post().Resource("conditionsets").Param("dryRun", "All").Body(body).Do(t.Context()).Error()
		_, wrong := observe.ConditionSet(set)
		switch {
		case err != nil && !apierrors.IsInvalid(err):
			t.Errorf("%q: %v", test.name, err)
		case test.late && (err != nil || wrong == nil):
			t.Errorf("%q: only the compiler should refuse it; the API server says %v, the compiler %v", test.name, err, wrong)
		case !test.late && (err == nil) != (wrong == nil):
			t.Errorf("%q: the API server says %v, the compiler %v", test.name, err, wrong)
		}
		if err == nil {
			taken++
		} else {
			refused++
		}
	}
	t.Logf("%d were accepted and %d refused", taken, refused)
	if taken == 0 || refused == 0 {
		t.Error("one kind was never tried")
	}
}

// keepsWhatIsStored stores sets that the CRD's rules refuse, under the CRD without rules.
// They must stay readable, and all valid parts must stay editable, above all the status,
// which reports the problem.
func (c cluster) keepsWhatIsStored(t *testing.T) {
	const crd = "crds/autohealer.resourcestack.com_conditionsets.yaml"
	data, err := os.ReadFile(crd)
	testkit.Must(t, err)
	var definition map[string]any
	testkit.Must(t, yaml.Unmarshal(data, &definition))
	if n := withoutRules(definition); n < 5 {
		t.Fatalf("the CRD has %d rules: the test proves nothing", n)
	}
	lax, err := json.Marshal(definition)
	testkit.Must(t, err)
	if _, err := c.Kubectl(t.Context(), "replace", "-f", file(t, string(lax))); err != nil {
		t.Fatal(err)
	}

	bad := []struct {
		name, spec, mend string
	}{
		{"old-key", `{"type": "T", "effect": "NoSchedule", "taintKey": "karpenter.sh/mine", "conditions": {"A": {"status": true}}}`, `{"taintKey": "example.com/a"}`},
		{"old-type", `{"type": "the type", "effect": "NoSchedule", "taintKey": "example.com/a", "conditions": {"A": {"status": true}}}`, `{"type": "T"}`},
		{"old-duration", `{"type": "T", "effect": "NoSchedule", "taintKey": "example.com/a", "conditions": {"A": {"status": true, "duration": "long"}}}`, `{"conditions": {"A": {"duration": "5m"}}}`},
		{"old-condition", `{"type": "T", "effect": "NoSchedule", "taintKey": "example.com/a", "conditions": {"A=True": {"status": true}}}`, `{"conditions": {"A=True": null, "A": {"status": true}}}`},
		{"old-bound", `{"type": "T", "effect": "NoSchedule", "taintKey": "example.com/a", "maxUnhealthy": "half", "conditions": {"A": {"status": true}}}`, `{"maxUnhealthy": "49%"}`},
	}
	client := c.rawClient(t, v1alpha1.GroupVersion)
	create := func(name, spec, dryRun string) error {
		request := client.Post().Resource("conditionsets")
		if dryRun != "" {
			request = request.Param("dryRun", dryRun)
		}
		return request.Body([]byte(`{"apiVersion": "autohealer.resourcestack.com/v1alpha1", "kind": "ConditionSet", "metadata": {"name": "` + name + `"}, "spec": ` + spec + `}`)).
			Do(t.Context()).Error()
	}
	for _, old := range bad {
		testkit.Eventually(t, "the CRD without rules to be served", func() error { return create(old.name, old.spec, "") })
	}
	if _, err := c.Kubectl(t.Context(), "replace", "-f", crd); err != nil {
		t.Fatal(err)
	}
	for _, old := range bad {
		testkit.Eventually(t, "the CRD with rules to be served", func() error {
			if create("trial", old.spec, "All") == nil {
				return fmt.Errorf("%s is still accepted", old.spec)
			}
			return nil
		})
	}

	if got := len(c.list(t).Items); got != len(bad) {
		t.Errorf("%d sets can be read, want %d", got, len(bad))
	}
	for _, old := range bad {
		c.writeStatus(t, old.name, `{"status": {"observedGeneration": 1, "conditions": [{"type": "Accepted", "status": "False", "reason": "Invalid", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}}`)
		patch := func(patch string) error {
			_, err := c.Kubectl(t.Context(), "patch", "conditionset", old.name, "--type=merge", "-p", patch)
			return err
		}
		for _, change := range []string{
			`{"metadata": {"labels": {"team": "a"}}}`,
			`{"spec": {"dryRun": true, "effect": "PreferNoSchedule"}}`,
			`{"spec": ` + old.mend + `}`,
		} {
			if err := patch(change); err != nil {
				t.Errorf("%s: %s: %v", old.name, change, err)
			}
		}
		if patch(`{"spec": `+old.spec+`}`) == nil {
			t.Errorf("%s: a fixed field can become invalid again", old.name)
		}
	}
	if _, err := c.Kubectl(t.Context(), "delete", "conditionsets", "--all"); err != nil {
		t.Fatal(err)
	}
}

// withoutRules removes the CEL rules from a schema and returns their number.
func withoutRules(schema any) (removed int) {
	switch schema := schema.(type) {
	case map[string]any:
		if rules, ok := schema["x-kubernetes-validations"].([]any); ok {
			removed += len(rules)
			delete(schema, "x-kubernetes-validations")
		}
		for _, value := range schema {
			removed += withoutRules(value)
		}
	case []any:
		for _, value := range schema {
			removed += withoutRules(value)
		}
	}
	return removed
}
