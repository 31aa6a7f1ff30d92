package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	examplePool   = "../examples/nodepool.yaml"
	restoreRights = "extras/restore-rights.yaml"
	poolReadme    = "karpenter/README.md"
)

// stockCRD returns the CRD of NodePools as Karpenter publishes it.
func stockCRD(t *testing.T) string {
	t.Helper()
	for _, folder := range []string{os.Getenv("KUBEBUILDER_ASSETS"), "../bin/testbed"} {
		if found, _ := filepath.Glob(filepath.Join(folder, ".sources/karpenter-*/pkg/apis/crds/karpenter.sh_nodepools.yaml")); folder != "" && len(found) == 1 {
			return found[0]
		}
	}
	t.Fatal("Karpenter's CRDs are not in bin/testbed/.sources, run make testbed-karpenter")
	return ""
}

// TestNodePools installs Karpenter's CRD like an upgrade, and the patch as documented in
// the README.
func TestNodePools(t *testing.T) {
	t.Parallel()
	c := cluster{testbed.New(t, testbed.Config{})}
	c.appliesStockCRD(t)
	if _, err := c.Kubectl(t.Context(), "apply", "--validate=strict", "-f", examplePool); err == nil || !strings.Contains(err.Error(), `unknown field "spec.repair"`) {
		t.Fatalf("without the patch the example is accepted: %v", err)
	}
	c.runs(t, "## Adding it")
	t.Run("has the schema of NodePoolSchema", c.hasNodePoolSchema)
	t.Run("accepts the example unchanged", c.takesSeedPool)
	t.Run("refuses invalid blocks with a message", c.refusesBadBlocks)
	t.Run("calls the webhook only for changed blocks", c.judgesBlocks)
	t.Run("behaves as documented when the schema is lost", c.losesSchema)
	t.Run("is restored by a controller with the rights", c.putsBackSchema)
	t.Run("is removed as documented", c.removesSchema)
}

func (c cluster) appliesStockCRD(t *testing.T) {
	t.Helper()
	c.kubectl(t, "apply", "-f", stockCRD(t))
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=30s", "crd/"+deploy.NodePoolCRD)
	c.seesSchema(t, false)
}

// runs runs the commands in a section of the README. It waits for the API server to explain
// the new schema.
func (c cluster) runs(t *testing.T, section string) {
	t.Helper()
	script, explains := strings.CutSuffix(shown(t, poolReadme, section), "kubectl explain nodepool.spec.repair\n")
	c.runsScript(t, "..", script)
	if explains {
		c.seesSchema(t, true)
	}
}

// shown returns the first block of commands on a page after a line with this text.
func shown(t *testing.T, page, after string) string {
	t.Helper()
	text := testkit.Value(os.ReadFile(page)).Must(t)
	_, rest, found := strings.Cut(string(text), "\n"+after)
	for i, part := range strings.Split(rest, "```") {
		language, script, _ := strings.Cut(part, "\n")
		if found && i%2 == 1 && (language == "" || language == "sh") {
			return script
		}
	}
	t.Fatalf("%s shows no commands after %q", page, after)
	return ""
}

// allShown returns all commands of a section, in their order. Blocks in a list are indented.
func allShown(t *testing.T, page, heading string) string {
	t.Helper()
	var script strings.Builder
	text := testkit.Value(os.ReadFile(page)).Must(t)
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for i, part := range strings.Split(section, "```") {
		if block, isShell := strings.CutPrefix(part, "sh\n"); i%2 == 1 && isShell {
			for line := range strings.Lines(block) {
				script.WriteString(strings.TrimPrefix(line, "   "))
			}
		}
	}
	testkit.Require(t, found && script.Len() > 0, "%s shows no commands in %q", page, heading)
	return script.String()
}

// runsScript runs commands in a folder, like a user who pastes them.
func (c cluster) runsScript(t *testing.T, in, script string) (out string) {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "sh", "-ec", script)
	shell.Dir = in
	shell.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":"+filepath.Join(folder(t), "../bin/testbed")+":"+os.Getenv("PATH"))
	text, err := shell.CombinedOutput()
	testkit.Require(t, err == nil, "%v:\n%s\n%s", err, script, text)
	return string(text)
}

func folder(t *testing.T) string {
	t.Helper()
	return testkit.Value(os.Getwd()).Must(t)
}

// seesSchema waits until the API server serves the stored CRD.
func (c cluster) seesSchema(t *testing.T, want bool) {
	t.Helper()
	testkit.Eventually(t, "the schema to be served", func() error {
		_, err := c.Kubectl(t.Context(), "explain", "nodepool.spec.repair")
		if (err == nil) != want {
			return fmt.Errorf("it is explained: %v", err == nil)
		}
		return nil
	})
}

func (c cluster) hasNodePoolSchema(t *testing.T) {
	schema := testkit.Value(deploy.NodePoolSchema()).Must(t)
	var want any
	testkit.Must(t, json.Unmarshal(schema, &want))
	testkit.Equal(t, "the stored schema", want, c.storedSchema(t))
	var patch []any
	if err := json.Unmarshal(deploy.NodePoolPatch(), &patch); err != nil || len(patch) != 2 {
		t.Errorf("the patch has %d operations: %v", len(patch), err)
	}
}

// storedSchema returns the schema of the block in the installed CRD, nil if it has none.
func (c cluster) storedSchema(t *testing.T) any {
	t.Helper()
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct {
						Properties struct {
							Spec struct{ Properties map[string]any }
						}
					}
				}
			}
		}
	}
	c.getJSON(t, &crd, "crd", deploy.NodePoolCRD)
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties.Spec.Properties["repair"]
}

// storedBlock returns the block of the example's pool, nil if it has none.
func (c cluster) storedBlock(t *testing.T) map[string]any {
	t.Helper()
	var pool struct {
		Spec struct{ Repair map[string]any }
	}
	c.getJSON(t, &pool, "nodepool", "default")
	return pool.Spec.Repair
}

// seedBlock returns the block of the example.
func seedBlock() map[string]any {
	return map[string]any{
		"readyTimeout":              "15m",
		"defaultTolerationDuration": "30m",
		"policies": []any{
			map[string]any{"conditionType": "Ready", "toleration": "45m"},
			map[string]any{"conditionType": "NetworkUnavailable", "toleration": "10m"},
		},
	}
}

func (c cluster) takesSeedPool(t *testing.T) {
	for _, side := range sides {
		if _, err := c.Kubectl(t.Context(), "apply", "--validate=strict", side, "-f", examplePool); err != nil {
			t.Fatalf("apply %s: %v", side, err)
		}
		testkit.Equal(t, "the block stored by apply "+side, seedBlock(), c.storedBlock(t))
		c.kubectl(t, "delete", "-f", examplePool)
	}
}

const (
	wantDuration   = "want a duration with its unit, for example 90s, 5m or 1h30m, that is not negative"
	wantToleration = "want a duration with its unit that is not negative, like 90s, 5m or 1h30m, or Never"
)

// badBlocks are blocks with one mistake each, as changes of the example, with the expected
// message.
var badBlocks = []mistake{
	{"a toleration in words", "toleration: 45m", "toleration: long", "repair.policies[0].toleration: Invalid value: \"long\": " + wantToleration},
	{"a negative toleration", "toleration: 45m", "toleration: -45m", "repair.policies[0].toleration: Invalid value: \"-45m\": " + wantToleration},
	{"a toleration in bare minutes", "toleration: 10m", "toleration: 10", "repair.policies[1].toleration"},
	{"a toleration without its unit", "toleration: 10m", "toleration: '10'", "repair.policies[1].toleration: Invalid value: \"10\": " + wantToleration},
	{"no toleration", "\n      toleration: 10m", "", "repair.policies[1].toleration: Required value"},
	{"a negative default", "Duration: 30m", "Duration: -30m", "repair.defaultTolerationDuration: Invalid value: \"-30m\": " + wantToleration},
	{"an empty default", "Duration: 30m", "Duration: ''", wantToleration},
	{"no condition", "conditionType: NetworkUnavailable", "reason: A", "repair.policies[1].conditionType: Required value"},
	{"an empty condition", "conditionType: Ready", "conditionType: ''", "repair.policies[0].conditionType: Invalid value"},
	{"a status that is none", "conditionType: Ready", "conditionType: Ready\n      conditionStatus: broken", "want True, False or Unknown"},
	{"a status without quotes", "conditionType: Ready", "conditionType: Ready\n      conditionStatus: false", "repair.policies[0].conditionStatus"},
	{"a way to go that there is not", "repair:", "repair:\n    termination: Gentle", `repair.termination: Unsupported value: "Gentle": supported values: "Forceful", "Graceful"`},
	{"a negative grace", "repair:", "repair:\n    terminationGracePeriod: -1h", "repair.terminationGracePeriod: Invalid value: \"-1h\": " + wantDuration},
	{"a timeout in words", "readyTimeout: 15m", "readyTimeout: soon", "repair.readyTimeout: Invalid value: \"soon\": " + wantDuration},
	{"a timeout of nothing", "readyTimeout: 15m", "readyTimeout: 0m0.0s", "a node needs some time to become ready; want a duration like 10m"},
	{"a bound with both of its names", "repair:", "repair:\n    maxUnhealthy: 1\n    maxConcurrent: 1", "repair.maxUnhealthy: Invalid value: maxUnhealthy is the old name of maxConcurrent, and both are set; want maxConcurrent alone, so remove maxUnhealthy"},
	{"a threshold of more than all", "repair:", "repair:\n    unhealthyThreshold: 101%", "want a number of nodes like 3, or a percentage like 20%, of at most 100%"},
	{"a negative threshold", "repair:", "repair:\n    unhealthyThreshold: -1", "want a number of nodes like 3"},
	{"a bound of more than all", "repair:", "repair:\n    maxConcurrent: 101%", "want a number of nodes like 3, or a percentage like 20%, of at most 100%"},
	{"a negative bound", "repair:", "repair:\n    maxConcurrent: -1", "want a number of nodes like 3"},
	{"a bound in words", "repair:", "repair:\n    maxUnhealthy: half", "want a number of nodes like 3"},
	{"a bound that no number holds", "repair:", "repair:\n    maxUnhealthy: 3000000000", "want a number of nodes like 3"},
	{"a switch in words", "repair:", "repair:\n    enabled: maybe", "repair.enabled"},
	{"a window without five fields", "repair:", "repair:\n    windows: [{schedule: 0 22 * *, duration: 4h}]", `repair.windows[0].schedule: Invalid value: "0 22 * *": want five fields of a cron schedule, for example 0 22 * * 1-5`},
	{"a window in a time zone that is none", "repair:", "repair:\n    windows: [{schedule: 0 22 * * *, timeZone: '+01:00', duration: 4h}]", `repair.windows[0].timeZone: Invalid value: "+01:00": want the name of a time zone, for example UTC or Europe/Berlin`},
	{"a window that never ends", "repair:", "repair:\n    windows: [{schedule: 0 22 * * *, duration: 9000h}]", `repair.windows[0].duration: Invalid value: "9000h": want a duration with its unit, for example 4h, that is more than zero and at most 8760h`},
	{"an unknown field", "repair:", "repair:\n    tolerationDuration: 30m", `repair.tolerationDuration`},
}

func (c cluster) refusesBadBlocks(t *testing.T) {
	manifest := testkit.Value(os.ReadFile(examplePool)).Must(t)
	c.refuses(t, string(manifest), badBlocks)
	for name, good := range map[string]string{
		"nothing":         "repair: {}",
		"all there is":    "repair: {enabled: true, maxConcurrent: 3, unhealthyThreshold: 30%, termination: Graceful, terminationGracePeriod: 1h, readyTimeout: 0.5h, policies: [{conditionType: A, toleration: 0s}, {conditionType: A, conditionStatus: 'True', toleration: 1m}, {conditionType: A, reason: B, toleration: 1m}]}",
		"sixty-four":      "repair: {policies: [" + many(64) + "]}",
		"a share":         "repair: {maxConcurrent: 100%, unhealthyThreshold: 100%}",
		"an old name":     "repair: {maxUnhealthy: 100%}",
		"off by a switch": "repair: {enabled: false}",
	} {
		before, _, _ := strings.Cut(string(manifest), "repair:")
		if _, err := c.Kubectl(t.Context(), "apply", "--dry-run=server", "--validate=strict", "-f", file(t, before+good+"\n")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	before, _, _ := strings.Cut(string(manifest), "repair:")
	if _, err := c.Kubectl(t.Context(), "apply", "--dry-run=server", "-f", file(t, before+"repair: {policies: ["+many(65)+"]}\n")); err == nil || !strings.Contains(err.Error(), "spec.repair.policies: Too many: 65") {
		t.Errorf("sixty-five: %v", err)
	}
}

// many returns n policies of maximal length.
func many(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("{conditionType: %s%03d, conditionStatus: Unknown, reason: %s%03d, toleration: 1h}", strings.Repeat("A", 313), i, strings.Repeat("B", 1021), i)
	}
	return strings.Join(list, ", ")
}

// losesSchema applies Karpenter's CRD again, like an upgrade.
func (c cluster) losesSchema(t *testing.T) {
	c.kubectl(t, "apply", "-f", examplePool)
	block := func(want map[string]any) func() error {
		return func() error {
			if diff := cmp.Diff(want, c.storedBlock(t)); diff != "" {
				return errors.New(diff)
			}
			return nil
		}
	}
	// Without a write to the pool, the block is back.
	c.appliesStockCRD(t)
	testkit.Eventually(t, "the block to be hidden", block(nil))
	c.runs(t, "## Adding it")
	testkit.Eventually(t, "the block to be back", block(seedBlock()))

	// After any write, even of a status, the block is lost.
	c.appliesStockCRD(t)
	testkit.Eventually(t, "the block to be hidden", block(nil))
	c.kubectl(t, "patch", "nodepool", "default", "--subresource=status", "--type=merge", "-p", `{"status":{"nodes":3}}`)
	c.runs(t, "## Adding it")
	// A new pool with a block shows that the schema is in force again; the earlier pool has
	// lost its block.
	testkit.Eventually(t, "blocks to be stored again", func() error {
		if _, err := c.Kubectl(t.Context(), "apply", "--validate=strict", "--dry-run=server", "-f", examplePool); err != nil {
			return err
		}
		return block(nil)()
	})
}

// putsBackSchema runs a controller that is configured to restore the schema: first with the
// default rights, and then with the additional rights.
func (c cluster) putsBackSchema(t *testing.T) {
	c.kubectl(t, "apply", "-f", examplePool)
	controller := testkit.Value(install.Start(t.Context(), c.Cluster, install.Options{Name: "restorer", Args: []string{"--restore-nodepool-schema"}})).Must(t)
	defer func() {
		if err := controller.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	log := func() string {
		return testkit.Value(controller.Log()).Must(t)
	}
	testkit.Eventually(t, "a copy of the block", func() error {
		kept, err := c.Kubectl(t.Context(), "get", "controllerrevisions", "-n", namespace, "-l", repairblock.RevisionLabel+"=default", "-o", "name")
		if err == nil && kept == "" {
			err = errors.New("there is no copy")
		}
		return err
	})
	// The controller logs missing rights before it needs them.
	const missing = "permission missing"
	testkit.Eventually(t, "the log to report it", func() error {
		if line := log(); !strings.Contains(line, missing) || !strings.Contains(line, "deploy/"+restoreRights) {
			return errors.New("the log does not report it")
		}
		return nil
	})
	c.appliesStockCRD(t)
	testkit.Eventually(t, "an Event with the missing rights", func() error {
		words, err := c.Kubectl(t.Context(), "get", "events.events.k8s.io", "-o", "jsonpath={range .items[?(@.regarding.kind=='NodePool')]}{.note}{'\\n'}{end}")
		if err != nil {
			return err
		}
		for _, want := range []string{"could not be put back", `cannot patch resource "customresourcedefinitions"`, "deploy/" + restoreRights + " gives the right"} {
			if !strings.Contains(words, want) {
				return fmt.Errorf("%s is missing in:\n%s", want, words)
			}
		}
		return nil
	})
	if schema := c.storedSchema(t); schema != nil {
		t.Fatal("the schema was restored without the right")
	}
	c.runs(t, "## Having it put back")
	testkit.Eventually(t, "schema and block to be restored", func() error {
		if diff := cmp.Diff(seedBlock(), c.storedBlock(t)); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	if told := strings.Count(log(), missing); told != 1 {
		t.Errorf("a missing right is logged %d times:\n%s", told, log())
	}
	// No other right was missing.
	for line := range strings.Lines(log()) {
		testkit.Check(t, !strings.Contains(line, "forbidden"), "turned down: %s", line)
	}
	c.kubectl(t, "delete", "-f", restoreRights, "-f", examplePool)
}

func (c cluster) removesSchema(t *testing.T) {
	c.kubectl(t, "apply", "-f", examplePool)
	testkit.Require(t, c.storedBlock(t) != nil, "there is no block to remove")
	c.runs(t, "## Removing it")
	testkit.Value(c.Kubectl(t.Context(), "apply", "-f", file(t, strings.Join([]string{"", // kubectl 1.30 would read YAML that begins with a brace as JSON
		"{apiVersion: v1, kind: Namespace, metadata: {name: " + namespace + "}}",
		"{apiVersion: apps/v1, kind: ControllerRevision, revision: 1, data: {a: b}, metadata: {namespace: " + namespace + ", name: left, labels: {" + repairblock.RevisionLabel + ": default}}}",
	}, "\n---\n")))).Must(t)
	c.runs(t, "If no block should be in force any more")
	if left, err := c.Kubectl(t.Context(), "get", "controllerrevisions", "-n", namespace, "-o", "name", "-l", repairblock.RevisionLabel); err != nil || strings.TrimSpace(left) != "" {
		t.Errorf("copies are left: %s (%v)", left, err)
	}
	c.seesSchema(t, false)
	if schema := c.storedSchema(t); schema != nil {
		t.Errorf("the CRD still has %v", schema)
	}
	if block := c.storedBlock(t); block != nil {
		t.Errorf("the pool still has %v", block)
	}
	if _, err := c.Kubectl(t.Context(), "patch", "crd", deploy.NodePoolCRD, "--type=json", "-p", string(deploy.NodePoolPatch())); err != nil {
		t.Errorf("adding it again: %v", err)
	}
}

// judgesBlocks uses the controller's own webhook, and then removes it.
func (c cluster) judgesBlocks(t *testing.T) {
	testkit.Must(t, install.Install(t.Context(), c.Cluster))
	controller := testkit.Value(install.Start(t.Context(), c.Cluster, install.Options{Webhook: true})).Must(t)
	testkit.Must(t, install.UseWebhook(t.Context(), c.Cluster, controller))
	nodes := clientFor(t, c.AdminConfig()).CoreV1().Nodes()
	testkit.Value(nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unhealthy", Labels: map[string]string{"karpenter.sh/nodepool": "default"}}}, metav1.CreateOptions{})).Must(t)
	unhealthy := []byte(`{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`)
	testkit.Value(nodes.PatchStatus(t.Context(), "unhealthy", unhealthy)).Must(t)
	manifest := testkit.Value(os.ReadFile(examplePool)).Must(t)
	policy := testkit.Value(os.ReadFile(seedPolicy)).Must(t)
	// The webhook refuses what the schema allows, with the same texts for both.
	for _, test := range []struct{ name, old, new, says string }{
		{"a toleration of ages", "toleration: 45m", "toleration: 99999999h", `spec.repair.policies[0].toleration: "99999999h": want a duration like 90s, 5m or 1h30m that is not negative, or Never`},
		{"a grace of ages", "repair:", "repair:\n    terminationGracePeriod: 99999999h", `spec.repair.terminationGracePeriod: "99999999h"`},
		// CEL could not name the duplicate: its cost budget is too small for a message that
		// does.
		{"a condition twice", "NetworkUnavailable", "Ready", `spec.repair.policies[1].conditionType: "Ready": there is a policy for this condition already`},
		{"a condition twice in two letter cases", "conditionType: Ready", "conditionType: Ready\n      conditionStatus: 'false'\n      toleration: 5m\n    - conditionType: Ready\n      conditionStatus: 'False'", `spec.repair.policies[1].conditionType: "Ready": there is a policy for this condition already`},
		{"a condition twice with a reason", "conditionType: Ready", "conditionType: Ready\n      reason: A\n      toleration: 5m\n    - conditionType: Ready\n      reason: A", `spec.repair.policies[1].conditionType: "Ready": there is a policy for this condition already`},
		{"a condition twice, once with no reason", "conditionType: NetworkUnavailable", "conditionType: Ready\n      reason: ''", `spec.repair.policies[1].conditionType: "Ready": there is a policy for this condition already`},
		{"what healthy nodes report", "conditionType: Ready", "conditionType: Ready\n      conditionStatus: 'True'", `spec.repair.policies[0].conditionStatus: Ready=True is what a healthy node reports`},
	} {
		for hook, good := range map[string]string{"nodepools": string(manifest), "repairpolicies": string(policy)} {
			bad := strings.Replace(good, test.old, test.new, 1)
			_, err := c.Kubectl(t.Context(), "apply", "-f", file(t, bad))
			if err == nil || !strings.Contains(err.Error(), `admission webhook "`+hook+`.autohealer.resourcestack.com" denied the request: `+test.says) {
				t.Errorf("%s in %s: %v, want %s", test.name, hook, err, test.says)
			}
		}
	}
	// kubectl prints warnings in addition to its output; on request they are errors.
	for hook, good := range map[string]string{"block": string(manifest), "policy": string(policy)} {
		testkit.Eventually(t, "the webhook to know the unhealthy node", func() error {
			_, err := c.Kubectl(t.Context(), "apply", "--dry-run=server", "--warnings-as-errors", "-f", file(t, good))
			return testkit.Says(err, "1 of 1 selected node (100%) matches now (unhealthy): the "+hook+" will repair it, when the condition has lasted for 10m to 45m")
		})
	}
	c.kubectl(t, "apply", "-f", examplePool)

	// Without a running webhook, every call of it fails. Karpenter's writes do not call it.
	testkit.Must(t, controller.Stop(t.Context()))
	c.setFailurePolicy(t, admissionv1.Fail)
	change := func(patch string, args ...string) error {
		_, err := c.Kubectl(t.Context(), append([]string{"patch", "nodepool", "default", "--type=merge", "-p", patch}, args...)...)
		return err
	}
	const lengthen = `{"spec": {"repair": {"defaultTolerationDuration": "99999999h"}}}`
	testkit.Eventually(t, "the webhook to be called for a changed block", func() error {
		return testkit.Says(change(lengthen, "--dry-run=server"), `failed calling webhook "nodepools.autohealer.resourcestack.com"`)
	})
	if err := change(`{"spec": {"repair": null}}`, "--dry-run=server"); err == nil {
		t.Error("a block is removed without a call of the webhook")
	}
	for name, err := range map[string]error{
		"status":     change(`{"status": {"nodes": 3}}`, "--subresource=status"),
		"annotation": change(`{"metadata": {"annotations": {"karpenter.sh/nodepool-hash": "1"}}}`),
		"finalizer":  change(`{"metadata": {"finalizers": ["karpenter.sh/termination"]}}`),
		"no longer":  change(`{"metadata": {"finalizers": null}}`),
		"spec":       change(`{"spec": {"weight": 10}}`),
	} {
		testkit.Check(t, err == nil, "%s: %v", name, err)
	}
	testkit.Equal(t, "after the writes of others", seedBlock(), c.storedBlock(t))
	without, _, _ := strings.Cut(string(manifest), "  repair:")
	if _, err := c.Kubectl(t.Context(), "create", "--dry-run=server", "-f", file(t, strings.Replace(without, "name: default", "name: other", 1))); err != nil {
		t.Errorf("a pool without a block: %v", err)
	}
	// With the default failure policy, a block passes then.
	c.setFailurePolicy(t, admissionv1.Ignore)
	testkit.Eventually(t, "a block passing", func() error { return change(lengthen) })
	testkit.Must(t, install.RemoveWebhook(t.Context(), c.Cluster))
	c.kubectl(t, "delete", "nodepool", "default")
}

// setFailurePolicy sets the failure policy of the webhook for NodePools.
func (c cluster) setFailurePolicy(t *testing.T, policy admissionv1.FailurePolicyType) {
	t.Helper()
	hooks := clientFor(t, c.AdminConfig()).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	config := testkit.Value(hooks.Get(t.Context(), "autohealer", metav1.GetOptions{})).Must(t)
	for i := range config.Webhooks {
		if hook := &config.Webhooks[i]; hook.Name == "nodepools.autohealer.resourcestack.com" {
			hook.FailurePolicy = &policy
		}
	}
	testkit.Value(hooks.Update(t.Context(), config, metav1.UpdateOptions{})).Must(t)
}
