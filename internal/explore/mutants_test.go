package explore

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// mutant is a fault in the source of the controller, and the scenario that shows it.
type mutant struct {
	file, old, fault string
	scenario         string
}

// Faults that no interface of the engine can plant.
var mutants = map[string]mutant{
	"core: the cap allows one more":                               {"triage/decide.go", "r.inTreatment() < limit.Of(r.capBase())", "r.inTreatment() <= limit.Of(r.capBase())", "a cap of one"},
	"core: two control-plane nodes at a time":                     {"triage/decide.go", "n.controlPlane && len(c.controlPlane.holders) > 0:", "n.controlPlane && len(c.controlPlane.holders) > 1:", "two broken control-plane nodes and a worker"},
	"core: a closed gate stops nothing":                           {"triage/decide.go", "if code := r.gateClosedBy(); code != 0 {", "if code := r.gateClosedBy(); code == CapFull {", "a gate of one"},
	"core: a closing gate does not call off a decided step":       {"triage/decide.go", "	return ep.rule.gateClosedBy()\n}", "	return 0\n}", "a gate of one"},
	"core: a restored decision takes no slot":                     {"triage/core.go", "		if !ep.active {\n			c.activate(ep, r.clampStep(g.Step)", "		if ep.active {\n			c.activate(ep, r.clampStep(g.Step)", "two broken control-plane nodes and a worker"},
	"core: an abandoned decision keeps its slot":                  {"triage/core.go", "		c.deactivate(ep)\n	}\n	ep.notBefore", "	}\n	ep.notBefore", "a cap of one"},
	"engine: a task does not wait for the ledger":                 {"engine/nodetasks.go", "case t.takesSlot() && nodeTasks.granted != t.Slot:", "case t.takesSlot() && nodeTasks.granted != t.Slot && now.IsZero():", "two broken control-plane nodes and a worker"},
	"engine: a task does not look at the node again":              {"engine/tasks.go", "isStill, err = l.write.IsStill(ctx, known)", "isStill, err = l.write.IsStill(ctx, known)\n	isStill = err == nil", "a gate of one"},
	"engine: a remediation starts without the checks":             {"engine/startcheck.go", "if r.Task.Begins {", "if r.Task.Begins && ctx == nil {", "a gate of one"},
	"engine: a remediation starts whatever the plan says":         {"engine/startcheck.go", "isPlanned := ok && planned != nil", "isPlanned := ok || planned != nil", "a gate of one"},
	"engine: a restored creation is forgotten":                    {"engine/ledger.go", "w.restoreTreatment(now, w.engine.nodeStates[e.Node], e)", "_ = e", "two broken control-plane nodes and a worker"},
	"engine: a failed ledger write counts as stored":              {"engine/ledger.go", "	if err != nil {\n		isNews", "	if err != nil && w == nil {\n		isNews", "a cap of one"},
	"engine: a treatment begins whatever has changed since":       {"engine/attempts.go", "return l.MayStillStart(ctx, r)", "return true, nil", "a window, and pauses of nodes"},
	"core: a decided taint is placed where nodes failed together": {"triage/explain.go", "c.isOutsideWindow(ep, 0) || c.failureOf(ep.node) != nil)", "c.isOutsideWindow(ep, 0))", "pace, attempts and correlated failures"},
	"guardrails: maxInTreatment is not read":                      {"dialect/guardrails.go", "orDefault(g.MaxInTreatment, DefaultMaxUnhealthy)", `"100%"`, "limits on all policies together"},
	"guardrails: maxUnschedulable is not read":                    {"dialect/guardrails.go", "orDefault(g.MaxUnschedulable, DefaultMaxUnhealthy)", `"100%"`, "limits on all policies together"},
	"guardrails: a new leader forgets the pace":                   {"policy/guardrails/policy.go", "p.host.Core().ResumeStarts(p.now, starts)", "_ = starts", "pace, attempts and correlated failures"},
	"treatment: the remediation of an earlier node stays":         {"treatment/remediation/tasks.go", "n.objects[key], state); t != nil && !yield(t) {", "n.objects[key], state); t != nil && now.IsZero() && !yield(t) {", "nodes that are replaced"},
	"treatment: the Lease of a node is never released":            {"treatment/remediation/leases.go", "case lease != nil && lease.Spec.HolderIdentity != nil && nodelease", "case lease != nil && now.IsZero() && nodelease", "a gate of one"},
	"taints: taints of others are removed":                        {"treat/change.go", "if before.Owns(taint) && !c.record.Owns(taint) && !before.Keeps(taint) {", "if !c.record.Owns(taint) && !before.Keeps(taint) {", "other components"},
	"taints: a patch names no version":                            {"treat/change.go", "\"resourceVersion\": c.Node.ResourceVersion,", "", "a cap of one"},
	"ledger: the holder does not notice that it was succeeded":    {"ledger/ledger.go", "if now.holder != l.holder {", "if now.holder == \"\" {", "a cap of one"},
	"watch: a list does not remove what is gone":                  {"treatment/remediation/treatment.go", "!there && o.GroupKind() == gvk.GroupKind()", "!there && o.UID == \"\" && o.GroupKind() == gvk.GroupKind()", "a gate of one"},
}

// TestMutants builds the controller with each fault, and expects that the search finds it. It
// takes some minutes, so it runs only if EXPLORE_MUTANTS is set.
func TestMutants(t *testing.T) {
	if os.Getenv("EXPLORE_MUTANTS") == "" {
		t.Skip("takes minutes; to run it: EXPLORE_MUTANTS=1 go test -run TestMutants -v ./internal/explore")
	}
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			path := testkit.Value(filepath.Abs(filepath.Join("..", m.file))).Must(t)
			source := string(testkit.Value(os.ReadFile(path)).Must(t))
			testkit.Require(t, strings.Count(source, m.old) == 1, "%s has %d times %q", m.file, strings.Count(source, m.old), m.old)
			folder := t.TempDir()
			changed, overlay := filepath.Join(folder, "mutant.go"), filepath.Join(folder, "overlay.json")
			testkit.Must(t, os.WriteFile(changed, []byte(strings.Replace(source, m.old, m.fault, 1)), 0o600))
			replace := testkit.Value(json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})).Must(t)
			testkit.Must(t, os.WriteFile(overlay, replace, 0o600))
			run := "^TestSmallClusters$/^" + strings.ReplaceAll(m.scenario, " ", "_") + "$"
			//nolint:gosec // the arguments are constants of this test
			out, err := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-run", run, ".").CombinedOutput()
			testkit.Check(t, err != nil && strings.Contains(string(out), "a promise is broken"), "the fault was not found (%v):\n%s", err, out)
			t.Logf("%s", out)
		})
	}
}
