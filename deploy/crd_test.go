package deploy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const seed = "../api/autohealer/v1alpha1/testdata/seed.yaml"

func (c cluster) servesCRDs(t *testing.T) {
	for _, test := range []struct {
		name  string
		known []string // the names that kubectl accepts
		field string   // a field with an explanation
		says  string
	}{
		{sets, []string{"conditionset", "cset", "autohealer"}, "conditionset.spec.conditions.status", "true, false or unknown"},
		{policies, []string{"repairpolicy", "rp", "autohealer"}, "rp.spec.repair.policies.conditionStatus", "all statuses count that the provider considers unhealthy"},
		{rails, []string{"guardrails", "gr", "autohealer"}, "gr.spec.pace.atLeast", "no effect if max is a number"},
		{checks, []string{"nodehealthcheck", "nhc", "autohealer"}, "nhc.spec.healthyDelay", "remediation.medik8s.io/manually-confirmed-healthy"},
	} {
		testkit.Eventually(t, "the CRD "+test.name, func() error {
			var crd struct {
				Status struct {
					Conditions []metav1.Condition
				}
			}
			c.getJSON(t, &crd, "crd", test.name)
			got := map[string]metav1.ConditionStatus{}
			for _, condition := range crd.Status.Conditions {
				got[condition.Type] = condition.Status
			}
			want := map[string]metav1.ConditionStatus{"NamesAccepted": "True", "Established": "True"}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("conditions (-want +got):\n%s", diff)
			}
			return nil
		})
		for _, name := range test.known {
			if _, err := c.Kubectl(t.Context(), "get", name); err != nil {
				t.Error(err)
			}
		}
		if out, err := c.Kubectl(t.Context(), "explain", test.field); err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), test.says) {
			t.Errorf("%v:\n%s", err, out)
		}
	}
}

func (c cluster) takesSeed(t *testing.T) {
	sets := c.conditionSets()
	for _, side := range sides {
		t.Run("by apply "+side, func(t *testing.T) {
			sets.applies(t, side, seed)
			c.storedAsWritten(t)
			testkit.Must(t, sets.patchStatus(t, sets.sample, `{"observedGeneration":1,"matched":2,"nodes":[]}`))
			c.kubectl(t, "apply", "--validate=strict", side, "-f", seed) // after the controller has written a status
			changed := strings.ReplaceAll(string(testkit.Value(os.ReadFile(seed)).Must(t)), "status: true", "status: 'FALSE'")
			c.kubectl(t, "apply", "--validate=strict", side, "-f", file(t, changed)) // with another type of status
			c.kubectl(t, "delete", "-f", seed)
		})
	}
}

// storedAsWritten checks the stored objects, and their Go form.
func (c cluster) storedAsWritten(t *testing.T) {
	t.Helper()
	var raw struct {
		Items []struct{ Spec map[string]any }
	}
	c.getJSON(t, &raw, "conditionsets")
	testkit.Require(t, len(raw.Items) == 2, "%d sets are stored", len(raw.Items))
	want := map[string]any{
		"type": "KubeletContainerRuntimeUnhealthy", "effect": "NoExecute",
		"taintKey":     "node.stakater.com/KubeletContainerRuntimeUnhealthy",
		"maxUnhealthy": "49%", // the default
		"conditions": map[string]any{
			"KubeletUnhealthy":          map[string]any{"status": true},
			"ContainerRuntimeUnhealthy": map[string]any{"status": "unknown"},
		},
	}
	testkit.Equal(t, "stored", want, raw.Items[0].Spec)
	read := map[string]v1alpha1.SetCondition{
		"KubeletUnhealthy":          {Status: "True"},
		"ContainerRuntimeUnhealthy": {Status: "Unknown"},
	}
	testkit.Equal(t, "read", read, c.conditionSets().list(t)[0].Spec.Conditions)
}

// takesGoType writes sets like a program: with every field of the Go type, empty or not.
func (c cluster) takesGoType(t *testing.T) {
	sets := c.conditionSets()
	set, client := sets.with("typed", v1alpha1.ConditionSetSpec{
		Type: "Typed", Effect: "NoExecute", TaintKey: "example.com/typed",
		Conditions:   map[string]v1alpha1.SetCondition{"A": {Status: "True"}},
		MaxUnhealthy: new(intstr.FromInt32(3)),
		Windows:      []v1alpha1.Window{{Schedule: "0 22 * * 1-5", TimeZone: "Europe/Berlin", Duration: "8h"}, {Schedule: "@weekly", Duration: "48h"}},
	}), sets.client(t)
	sets.send(t, client.Post(), set)
	set.Status.Matched = 3
	sets.send(t, client.Put().Name("typed").SubResource("status"), set)
	testkit.Check(t, set.Status.Matched == 3 && set.Generation == 1, "after the status was written: %+v", set)
	set.Spec.DryRun, set.Spec.Mode = true, v1alpha1.PolicyObserve // they agree
	sets.send(t, client.Put().Name("typed"), set)
	testkit.Check(t, set.Spec.DryRun && set.Generation == 2 && set.Status.Matched == 3, "after the spec was written: %+v", set)
	c.kubectl(t, "delete", "conditionset", "typed")
}

// good is a valid set.
const good = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata:
  name: bad
spec:
  type: Combination
  effect: NoExecute
  taintKey: example.com/combination
  conditions:
    A:
      status: true
`

func (c cluster) refusesBadSets(t *testing.T) {
	c.refuses(t, good, []mistake{
		{"an invalid effect", "effect: NoExecute", "effect: Evict", `spec.effect: Unsupported value: "Evict": supported values: "NoExecute", "NoSchedule", "PreferNoSchedule"`},
		{"no effect", "  effect: NoExecute\n", "", "spec.effect: Required value"},
		{"no taint key", "  taintKey: example.com/combination\n", "", "spec.taintKey: Required value"},
		{"an empty taint key", "example.com/combination", "''", "spec.taintKey: Invalid value"},
		{"no type", "  type: Combination\n", "", "spec.type: Required value"},
		{"no conditions", "  conditions:\n    A:\n      status: true\n", "", "spec.conditions: Required value"},
		{"an empty list of conditions", "conditions:\n    A:\n      status: true\n", "conditions: {}", "spec.conditions: Invalid value"},
		{"a condition without a status", "      status: true", "      duration: 5m", "spec.conditions.A.status: Required value"},
		{"a condition without a type", "    A:", "    '':", "a condition type has 1 to 316 characters"},
		{"conditions as a list", "    A:\n      status: true", "  - A", "spec.conditions"},
		{"a duration in bare seconds", "status: true", "status: true\n      duration: 300", "spec.conditions.A.duration"},
		{"an unknown field", "status: true", "status: true\n      durtion: 300s", "spec.conditions.A.durtion"},
		{"a bound in words", "effect:", "maxUnhealthy: half\n  effect:", "spec.maxUnhealthy: Invalid value"},
		{"a bound above 100%", "effect:", "maxUnhealthy: 101%\n  effect:", "want a number of nodes like 3, or a percentage like 49%"},
		{"a negative bound", "effect:", "maxUnhealthy: -1\n  effect:", "want a number of nodes like 3, or a percentage like 49%"},
		{"a bound that is too large", "effect:", "maxUnhealthy: 3000000000\n  effect:", "want a number of nodes like 3, or a percentage like 49%"},
		{"a type in words", "type: Combination", "type: the kubelet is unhealthy", "want a name of letters, digits, dashes, underscores and dots like KubeletContainerRuntimeUnhealthy, or one with a domain before it like example.com/FanBroken"},
		{"a taint key in words", "example.com/combination", "example.com/my combination", "like example.com/KernelDeadlock; value and effect of the taint are not part of its key"},
		{"a taint key with its effect", "example.com/combination", "example.com/combination:NoExecute", "value and effect of the taint are not part of its key"},
		{"a taint key of Kubernetes", "example.com/combination", "node.kubernetes.io/not-ready", "the key is reserved: the owner of the domain places and removes taints with this key; want a key in a domain of your own, like example.com/KernelDeadlock"},
		{"a taint key of Karpenter", "example.com/combination", "karpenter.sh/disrupted", "the key is reserved: the owner of the domain"},
		{"a taint key of the Cluster Autoscaler", "example.com/combination", "ToBeDeletedByClusterAutoscaler", "the Cluster Autoscaler places and removes such taints itself; want a key of your own, like example.com/KernelDeadlock"},
		{"a condition with its status", "    A:", "    A=True:", "want the type alone, for example KernelDeadlock, and its status below it, for example status: true"},
		{"a condition in words", "    A:", "    is unhealthy:", "a condition type has no spaces"},
		{"a duration in words", "status: true", "status: true\n      duration: five minutes", "want a duration with its unit, for example 90s, 5m or 1h30m, that is not negative"},
		{"a negative duration", "status: true", "status: true\n      duration: -5m", "that is not negative"},
		{"a duration without its unit", "status: true", "status: true\n      duration: '5'", "want a duration with its unit"},
		{"a window without a schedule", "effect:", "windows: [{duration: 4h}]\n  effect:", "spec.windows[0].schedule: Required value"},
		{"an unknown mode", "effect:", "mode: Paused\n  effect:", `spec.mode: Unsupported value: "Paused": supported values: "Enforce", "Observe"`},
		{"a dry run that enforces", "effect:", "mode: Enforce\n  dryRun: true\n  effect:", "spec.dryRun: Invalid value: dryRun and mode contradict each other: dryRun: true means mode: Observe; want mode alone, so remove dryRun"},
		{"no dry run that observes", "effect:", "mode: Observe\n  dryRun: false\n  effect:", "want mode alone, so remove dryRun"},
		{"half a node", "effect:", "maxUnhealthy: 0.5\n  effect:", "spec.maxUnhealthy: Invalid value"},
	})
}

// storesOnlyReadable tries to store, without kubectl, values that the Go type cannot hold.
// The list must stay readable.
func (c cluster) storesOnlyReadable(t *testing.T) {
	sets := c.conditionSets()
	spec := func(status, more string) string {
		return `{"type": "T", "effect": "NoSchedule", "taintKey": "example.com/a", "conditions": {"A": {"status": ` + status + `}}` + more + `}`
	}
	specs := []struct {
		name  string
		spec  string
		taken v1alpha1.ConditionStatus // the status as read; empty if the set is refused
	}{
		{"boolean", spec(`true`, ``), "True"},
		{"letters", spec(`"uNkNoWn"`, ``), "Unknown"},
		{"word", spec(`"broken"`, ``), "broken"},
		{"number", spec(`1`, ``), "1"},
		{"large-number", spec(`1e300`, ``), "1e+300"},
		{"object", spec(`{"a": [1, null]}`, ``), `{"a":[1,null]}`},
		{"array", spec(`[true]`, ``), `[true]`},
		{"null", spec(`null`, ``), ""},
		{"whole-float", spec(`true`, `, "maxUnhealthy": 3.0`), ""},
		{"int32", spec(`true`, `, "maxUnhealthy": 2147483647`), "True"},
		{"digits", spec(`true`, `, "maxUnhealthy": "999999999"`), "True"},
		{"over-int32", spec(`true`, `, "maxUnhealthy": 2147483648`), ""},
		{"int64", spec(`true`, `, "maxUnhealthy": 9223372036854775807`), ""},
		{"over-int64", spec(`true`, `, "maxUnhealthy": 9223372036854775808`), ""},
		{"float", spec(`true`, `, "maxUnhealthy": 1e30`), ""},
		{"endless-digits", spec(`true`, `, "maxUnhealthy": "99999999999999999999"`), ""},
		{"bound-as-object", spec(`true`, `, "maxUnhealthy": {}`), ""},
		{"label-as-number", spec(`true`, `, "selector": {"matchLabels": {"a": 1}}`), ""},
		{"label-as-null", spec(`true`, `, "selector": {"matchLabels": {"a": null}}`), "True"},
		{"selector-as-text", spec(`true`, `, "selector": "a=b"`), ""},
		{"values-as-text", spec(`true`, `, "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": "b"}]}`), ""},
		{"dry-run-as-text", spec(`true`, `, "dryRun": "true"`), ""},
		{"condition-as-null", `{"type": "T", "effect": "NoSchedule", "taintKey": "a", "conditions": {"A": null}}`, ""},
		{"condition-as-text", `{"type": "T", "effect": "NoSchedule", "taintKey": "a", "conditions": {"A": "true"}}`, ""},
		{"spec-as-text", `"spec"`, ""},
		{"spec-as-null", `null`, ""},
	}
	want, storables := map[string]v1alpha1.ConditionStatus{}, map[string]storable{}
	for _, test := range specs {
		storables[test.name] = storable{test.spec, test.taken != ""}
		if test.taken != "" {
			want[test.name] = test.taken
		}
	}
	sets.stores(t, storables)
	got := map[string]v1alpha1.ConditionStatus{}
	for _, set := range sets.list(t) {
		got[set.Name] = set.Spec.Conditions["A"].Status
		testkit.Check(t, set.Spec.Unreadable == "", "%s is stored and cannot be read: %s", set.Name, set.Spec.Unreadable)
	}
	testkit.Equal(t, "the statuses of the stored sets", want, got)

	const isTaken, isRead = true, true
	sets.staysReadable(t, "boolean", []writable{
		{`{"matched": 2147483647}`, isTaken, isRead},
		{`{"matched": 2147483648}`, c.isOldest(t), !isRead},
		{`{"maxTainted": 1e30}`, !isTaken, !isRead},
		{`{"selected": -1}`, !isTaken, !isRead},
		{`{"observedGeneration": 9223372036854775807}`, isTaken, isRead},
		{`{"observedGeneration": 9223372036854775808}`, !isTaken, !isRead},
		{`{"nodes": [{"name": "a"}]}`, !isTaken, !isRead},
		{`{"conditions": [{"type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}`, isTaken, isRead},
		// The API server accepts more time formats than Go.
		{`{"conditions": [{"type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-03-01t12:00:00z"}]}`, isTaken, !isRead},
		{`{"conditions": [{"type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-03-01T12:00:00+99:99"}]}`, isTaken, !isRead},
		{`{"conditions": [{"type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z", "observedGeneration": 9223372036854775808}]}`, !isTaken, !isRead},
	})
	sets.deleteAll(t)
}

func (c cluster) printsColumns(t *testing.T) {
	c.kubectl(t, "apply", "-f", seed)
	testkit.Must(t, c.conditionSets().patchStatus(t, "conditionset-1", `{"mode": "Observe", "matched": 7, "tainted": 5, "heldBack": 2, "conditions": [
		{"type": "HeldBack", "status": "True", "reason": "FellBack", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"},
		{"type": "Ready", "status": "False", "reason": "Invalid", "message": "not well", "lastTransitionTime": "2026-03-01T12:00:00Z"},
		{"type": "Accepted", "status": "False", "reason": "Invalid", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}`))
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"get", "conditionsets"}, []string{
			"NAME EFFECT MODE MATCHED ACCEPTED REASON AGE",
			"conditionset-1 NoExecute Observe 7 False not well",
			"conditionset-2 NoExecute",
		}},
		{[]string{"get", "conditionsets", "-o", "wide"}, []string{
			"NAME TYPE EFFECT MODE MATCHED ACCEPTED REASON TAINTED HELD BACK AGE",
			"conditionset-1 KubeletContainerRuntimeUnhealthy NoExecute Observe 7 False not well 5 2",
			"conditionset-2 KernelDeadlock NoExecute",
		}},
	} {
		c.prints(t, test.want, test.args...)
	}
}

// prints compares kubectl's output without the age at the end of each line.
func (c cluster) prints(t *testing.T, want []string, args ...string) {
	t.Helper()
	out := c.kubectl(t, args...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	testkit.Require(t, len(lines) == len(want), "%d lines are printed:\n%s", len(lines), out)
	for i, line := range lines {
		words := strings.Fields(line)
		if i > 0 {
			words = words[:len(words)-1]
		}
		if got := strings.Join(words, " "); got != want[i] {
			t.Errorf("line %d is %q, want %q:\n%s", i, got, want[i], out)
		}
	}
}

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
	trials = append(trials, windowTrials()...)
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
	sets.storesOld(t, "chart/crds/autohealer.resourcestack.com_conditionsets.yaml", 5, bad, func(map[string]any) {}, func() {})
	for _, old := range bad {
		err := sets.patchStatus(t, old.name, `{"observedGeneration": 1, "conditions": [
			{"type": "Accepted", "status": "False", "reason": "Invalid", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}`)
		testkit.Check(t, (err == nil) != c.isOldest(t), "%s: writing the status: %v", old.name, err)
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
