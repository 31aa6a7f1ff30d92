package deploy_test

import (
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func (c cluster) agreesWithCompiler(t *testing.T) {
	var trials []trial[v1alpha1.ConditionSetSpec]
	try := func(name string, late bool, change func(*v1alpha1.ConditionSetSpec)) {
		trials = append(trials, trial[v1alpha1.ConditionSetSpec]{name: name, change: change, late: late})
	}
	key := func(key string, late bool) {
		try("key "+key, late, func(s *v1alpha1.ConditionSetSpec) { s.TaintKey = key })
	}
	duration := func(name, duration string, late bool) {
		try("duration "+name, late, func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions["A"] = v1alpha1.SetCondition{Status: "True", Duration: duration}
		})
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
	for _, text := range []string{
		"", "0", "0s", "5m", "1h30m", "1.5h", ".5s", "1.s", "+5m", "90s", "1ms", "1us", "1µs", "1μs", "1ns",
		"5", "m", "5 m", "-5m", "5M", "5d", "five", ".", ".s", "1..5s", "5m-1s", "+", " 5m",
	} {
		duration(text, text, false)
	}
	duration("of ages", "99999999h", true)
	for _, name := range []string{"T", "kernel-deadlock", "example.com/T", "a.b", "T U", "T=1", "-T", "T-", "/T", "a/b/c", "größe", "T\n"} {
		try("type "+name, false, func(s *v1alpha1.ConditionSetSpec) { s.Type = name })
	}
	for _, name := range []string{"A", "kernel-deadlock", "example.com/A", "größe", "A=True", "A: true", "A B", " A"} {
		try("condition "+name, false, func(s *v1alpha1.ConditionSetSpec) {
			s.Conditions = map[string]v1alpha1.SetCondition{name: {Status: "True"}}
		})
	}
	agrees(t, c.conditionSets(), func(set *v1alpha1.ConditionSet) error {
		_, err := observe.ConditionSet(set)
		return err
	}, func() v1alpha1.ConditionSetSpec {
		return v1alpha1.ConditionSetSpec{
			Type: "T", Effect: "NoSchedule", TaintKey: "example.com/a", Conditions: map[string]v1alpha1.SetCondition{"A": {Status: "True"}},
		}
	}, trials)
}

// keepsWhatIsStored stores sets that the CRD's rules refuse, under the CRD without rules.
// They must stay readable, and all valid parts must stay editable, above all the status,
// which reports the problem.
func (c cluster) keepsWhatIsStored(t *testing.T) {
	bad := []oldObject{
		{"old-key", `{"type": "T", "effect": "NoSchedule", "taintKey": "karpenter.sh/mine", "conditions": {"A": {"status": true}}}`, `{"taintKey": "example.com/a"}`},
		{"old-type", `{"type": "the type", "effect": "NoSchedule", "taintKey": "example.com/a", "conditions": {"A": {"status": true}}}`, `{"type": "T"}`},
		{"old-duration", `{"type": "T", "effect": "NoSchedule", "taintKey": "example.com/a", "conditions": {"A": {"status": true, "duration": "long"}}}`, `{"conditions": {"A": {"duration": "5m"}}}`},
		{"old-condition", `{"type": "T", "effect": "NoSchedule", "taintKey": "example.com/a", "conditions": {"A=True": {"status": true}}}`, `{"conditions": {"A=True": null, "A": {"status": true}}}`},
		{"old-bound", `{"type": "T", "effect": "NoSchedule", "taintKey": "example.com/a", "maxUnhealthy": "half", "conditions": {"A": {"status": true}}}`, `{"maxUnhealthy": "49%"}`},
	}
	sets := c.conditionSets()
	sets.storesOld(t, "crds/autohealer.resourcestack.com_conditionsets.yaml", 5, bad, func(map[string]any) {}, func() {})
	for _, old := range bad {
		testkit.Must(t, sets.patchStatus(t, old.name, `{"observedGeneration": 1, "conditions": [
			{"type": "Accepted", "status": "False", "reason": "Invalid", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}`))
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
	sets.deleteAll(t)
}
