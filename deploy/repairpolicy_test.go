package deploy_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/provider"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	seedPolicy = "../api/autohealer/v1alpha1/testdata/repairpolicy.yaml"

	statementsPage    = "../docs/reference/repair-resolution.md"
	exampleStatements = "../examples/repair-statements.yaml"
)

func (c cluster) takesRepairPolicies(t *testing.T) {
	want := v1alpha1.RepairPolicySpec{NodePool: "default", Repair: v1alpha1.RepairSpec{
		DefaultTolerationDuration: "30m",
		Policies:                  []v1alpha1.ConditionRepair{{ConditionType: "Ready", Toleration: "45m"}, {ConditionType: "NetworkUnavailable", Toleration: "10m"}},
		Termination:               v1alpha1.Forceful, // the default
	}}
	all := c.repairPolicies()
	for _, side := range sides {
		all.applies(t, side, seedPolicy)
		testkit.Equal(t, "stored by apply "+side, want, all.one(t).Spec)
		testkit.Must(t, all.patchStatus(t, all.sample, `{"nodes":2}`))
		c.kubectl(t, "apply", "--validate=strict", side, "-f", seedPolicy)
		if got := all.one(t).Status.Nodes; got != 2 {
			t.Errorf("after another apply there are %d nodes in the status", got)
		}
		c.kubectl(t, "delete", "-f", seedPolicy)
	}
}

func (c cluster) takesTypedRepairPolicy(t *testing.T) {
	then := metav1.Unix(1772366400, 0)
	spec := v1alpha1.RepairPolicySpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}},
		Repair: v1alpha1.RepairSpec{
			Enabled:                   new(false),
			Policies:                  []v1alpha1.ConditionRepair{{ConditionType: "Ready", ConditionStatus: "False", Reason: "KubeletNotReady", Toleration: "1.5h", Urgent: true}},
			DefaultTolerationDuration: "30m", MaxConcurrent: new(intstr.FromString("10%")), UnhealthyThreshold: new(intstr.FromInt32(3)),
			Termination: v1alpha1.Graceful, TerminationGracePeriod: "1h", ReadyTimeout: "20m",
			Windows: []v1alpha1.Window{{Schedule: "0 22 * * 1-5", TimeZone: "Europe/Berlin", Duration: "4h"}},
		},
		RemediationTemplate: &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "a", Name: "b"},
	}
	status := v1alpha1.RepairPolicyStatus{
		ObservedGeneration: 2, Nodes: 5, Unhealthy: 3, Repairing: 1, Held: 1,
		UnhealthyNodes: []v1alpha1.UnhealthyNode{{Name: "n1", Reason: "Pending", Message: "it waits", EligibleAt: &then}, {Name: "n2"}},
		Conditions:     []metav1.Condition{{Type: v1alpha1.Conflict, Status: "True", Reason: "OtherPolicy", LastTransitionTime: then}},
	}
	c.repairPolicies().roundTrips(t, v1alpha1.RepairPolicySpec{NodePool: "default"}, spec, status)
}

// refusesBadRepairPolicies tests mistakes that a NodePool cannot have. Mistakes within a
// block are tested with NodePools, which have the same schema.
func (c cluster) refusesBadRepairPolicies(t *testing.T) {
	manifest := string(testkit.Value(os.ReadFile(seedPolicy)).Must(t))
	template := func(words string) string {
		return "nodePool: default\n  remediationTemplate: {" + words + "}"
	}
	// The documentation quotes these messages.
	for _, test := range []struct{ old, new, says string }{
		{"toleration: 10m", "toleration: -5m", `spec.repair.policies[1].toleration: Invalid value: "-5m": want a duration with its unit that is not negative, like 90s, 5m or 1h30m, or Never`},
		{"nodePool: default\n  repair", "repair", `spec.nodePool: Invalid value: want either nodePool or selector: one of them, and not both`},
		{"repair:", "repair:\n    termination: Gentle", `spec.repair.termination: Unsupported value: "Gentle": supported values: "Forceful", "Graceful"`},
	} {
		_, err := c.Kubectl(t.Context(), "apply", "-f", file(t, strings.Replace(manifest, test.old, test.new, 1)))
		_, answer, _ := strings.Cut(fmt.Sprint(err), `The RepairPolicy "default" is invalid: `)
		// If the schema check stops early, it says so on a separate line.
		if answer, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(answer), "* "), "\n"); c.message(t, answer) != c.message(t, test.says) {
			t.Errorf("%s: the error is %v, want %s", test.new, err, test.says)
		}
	}
	c.refuses(t, manifest, []mistake{
		{"a negative toleration", "toleration: 45m", "toleration: -45m", "spec.repair.policies[0].toleration: Invalid value: \"-45m\": " + wantToleration},
		{"neither pool nor selector", "nodePool: default\n  repair", "repair", "spec.nodePool: Invalid value"},
		{"neither in words", "nodePool: default\n  repair", "repair", "want either nodePool or selector: one of them, and not both"},
		{"standalone claims of a pool", "nodePool: default", "nodePool: default\n  deleteStandaloneNodeClaims: true", "the NodeClaims of a NodePool are not standalone; want a selector"},
		{"both pool and selector", "nodePool: default", "nodePool: default\n  selector: {}", "want either nodePool or selector: one of them, and not both"},
		{"an unknown mode", "nodePool: default", "nodePool: default\n  mode: Paused", `spec.mode: Unsupported value: "Paused": supported values: "Enforce", "Observe"`},
		{"an empty pool", "nodePool: default", "nodePool: ''", "spec.nodePool: Invalid value"},
		{"a selector in words", "nodePool: default", "selector: pool=gpu", "spec.selector"},
		{"no block", "  repair:\n    defaultTolerationDuration: 30m\n    policies:\n    - conditionType: Ready\n      toleration: 45m\n    - conditionType: NetworkUnavailable\n      toleration: 10m\n", "", "spec.repair: Required value"},
		{"a kind that is no template", "nodePool: default", template("apiVersion: example.com/v1, kind: Reboot, name: b"), "want a kind that ends in Template, for example SelfNodeRemediationTemplate"},
		{"a version without its group", "nodePool: default", template("apiVersion: v1, kind: RebootTemplate, name: b"), "spec.remediationTemplate.apiVersion: Invalid value"},
		{"a template without a name", "nodePool: default", template("apiVersion: example.com/v1, kind: RebootTemplate"), "want the name of the template"},
		{"an unknown field", "nodePool: default", "nodePool: default\n  maxUnhealthy: 3", "spec.maxUnhealthy"},
	})
}

// storesOnlyReadableRepairPolicies tries to store, without kubectl, values that the Go type
// cannot hold. The list must stay readable.
func (c cluster) storesOnlyReadableRepairPolicies(t *testing.T) {
	block := func(words string) string { return `{"nodePool": "default", "repair": {` + words + `}}` }
	const isTaken = true
	all := c.repairPolicies()
	all.stores(t, map[string]storable{
		"default":              {block(``), isTaken},
		"int32":                {block(`"maxUnhealthy": 2147483647`), isTaken},
		"over-int32":           {block(`"maxUnhealthy": 2147483648`), !isTaken},
		"float":                {block(`"maxUnhealthy": 1e30`), !isTaken},
		"old-name-as-null":     {block(`"maxUnhealthy": null, "maxConcurrent": 2`), isTaken},
		"both-names":           {block(`"maxUnhealthy": 2, "maxConcurrent": 2`), !isTaken},
		"threshold-as-float":   {block(`"unhealthyThreshold": 1e30`), !isTaken},
		"nulls":                {block(`"enabled": null, "policies": null, "maxUnhealthy": null, "termination": null, "readyTimeout": null`), isTaken},
		"policy-as-null":       {block(`"policies": [null]`), !isTaken},
		"toleration-as-number": {block(`"policies": [{"conditionType": "Ready", "toleration": 300}]`), !isTaken},
		"status-as-boolean":    {block(`"policies": [{"conditionType": "Ready", "conditionStatus": false, "toleration": "5m"}]`), !isTaken},
		"reason-as-null":       {block(`"policies": [{"conditionType": "Ready", "reason": null, "toleration": "5m"}]`), isTaken},
		"label-as-null":        {`{"selector": {"matchLabels": {"a": null}}, "repair": {}}`, isTaken},
		"label-as-number":      {`{"selector": {"matchLabels": {"a": 1}}, "repair": {}}`, !isTaken},
		"pool-as-null":         {`{"nodePool": null, "selector": {}, "repair": {}}`, isTaken},
		"block-as-null":        {`{"nodePool": "default", "repair": null}`, !isTaken},
		"block-as-text":        {`{"nodePool": "default", "repair": "30m"}`, !isTaken},
		"spec-as-null":         {`null`, !isTaken},
	})
	for _, policy := range all.list(t) {
		testkit.Check(t, policy.Spec.Repair.Unreadable == "", "%s is stored and cannot be read: %s", policy.Name, policy.Spec.Repair.Unreadable)
	}
	const isRead = true
	all.staysReadable(t, all.sample, []writable{
		{`{"nodes": 2147483647}`, isTaken, isRead},
		{`{"nodes": 2147483648}`, c.isOldest(t), !isRead},
		{`{"unhealthy": -1}`, !isTaken, !isRead},
		{`{"unhealthyNodes": [{}]}`, !isTaken, !isRead},
		{`{"unhealthyNodes": [{"name": "n1", "eligibleAt": "2026-03-01T12:00:00Z"}]}`, isTaken, isRead},
		// The API server accepts more time formats than Go.
		{`{"unhealthyNodes": [{"name": "n1", "eligibleAt": "2026-03-01t12:00:00z"}]}`, isTaken, !isRead},
	})
	all.deleteAll(t)
}

func (c cluster) printsRepairPolicyColumns(t *testing.T) {
	c.kubectl(t, "apply", "-f", seedPolicy)
	testkit.Must(t, c.repairPolicies().patchStatus(t, "default", `{"mode": "Paused", "nodes": 10, "unhealthy": 3, "repairing": 1, "held": 0, "unhealthyNodes": [{"name": "n1", "eligibleAt": "2026-03-01T11:00:00Z", "reason": "Treating"}, {"name": "n2"},
		{"name": "n3", "eligibleAt": "2026-03-01T12:00:00Z", "reason": "Pending"}, {"name": "n4", "eligibleAt": "2026-03-01T13:00:00Z", "reason": "Pending"}], "conditions": [
		{"type": "Conflict", "status": "False", "reason": "Alone", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"},
		{"type": "Ready", "status": "True", "reason": "Followed", "message": "3 nodes", "lastTransitionTime": "2026-03-01T12:00:00Z"},
		{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}`))
	c.prints(t, []string{
		"NAME POOL MODE NODES UNHEALTHY REPAIRING HELD ACCEPTED REASON AGE",
		"default default Paused 10 3 1 0 True 3 nodes",
	}, "get", "repairpolicies")
	c.prints(t, []string{
		"NAME POOL MODE NODES UNHEALTHY REPAIRING HELD ACCEPTED REASON CONFLICT NEXT AGE",
		"default default Paused 10 3 1 0 True 3 nodes False 2026-03-01T12:00:00Z",
	}, "get", "rp", "-o", "wide")
	c.kubectl(t, "delete", "-f", seedPolicy)
}

// takesStatements gives the controller a file of further conditions.
func (c cluster) takesStatements(t *testing.T) {
	statements := string(testkit.Value(os.ReadFile(exampleStatements)).Must(t))
	if _, err := provider.Parse([]byte(statements)); err != nil {
		t.Fatalf("%s: %v", exampleStatements, err)
	}
	page := string(testkit.Value(os.ReadFile(statementsPage)).Must(t))
	testkit.Check(t, strings.Contains(page, "```yaml\n"+statements+"```\n"), "%s does not show %s", statementsPage, exampleStatements)
	c.runsScript(t, "..", shown(t, statementsPage, "This file is [examples/repair-statements.yaml]"))
	var data corev1.ConfigMap
	c.getJSON(t, &data, "configmap", "-n", namespace, "autohealer-repair-statements")
	var deployment appsv1.Deployment
	c.getJSON(t, &deployment, "deployment", "-n", namespace, account)
	pod := deployment.Spec.Template.Spec
	mount, volume := pod.Containers[0].VolumeMounts[0], pod.Volumes[0]
	if mount.Name != volume.Name || volume.ConfigMap.Name != data.Name || !*volume.ConfigMap.Optional {
		t.Errorf("mounted is %+v as %+v", volume, mount)
	}
	for name, text := range data.Data {
		flag := "--repair-statements=" + mount.MountPath + "/" + name
		if text != statements || !slices.Contains(pod.Containers[0].Args, flag) {
			t.Errorf("%s is not among %q, or another file:\n%s", flag, pod.Containers[0].Args, text)
		}
	}
	testkit.Check(t, len(data.Data) == 1, "the ConfigMap has %d files", len(data.Data))
}
