package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestThePatchStandsAsItIsMade(t *testing.T) {
	root := t.TempDir()
	crds := filepath.Join(root, "deploy", "crds")
	testkit.Must(t, os.MkdirAll(crds, 0o755))
	const crd = "autohealer.resourcestack.com_repairpolicies.yaml"
	text := testkit.Value(os.ReadFile("../crds/" + crd)).Must(t)
	testkit.Must(t, os.WriteFile(filepath.Join(crds, crd), text, 0o600))
	testkit.Must(t, command([]string{root}))
	made := testkit.Value(os.ReadFile(filepath.Join(root, "deploy", "karpenter", "nodepool-repair.json"))).Must(t)
	stands := testkit.Value(os.ReadFile("../karpenter/nodepool-repair.json")).Must(t)
	testkit.Check(t, string(made) == string(stands), "deploy/karpenter/nodepool-repair.json is stale, run make generate")
}

func TestBadInputIsTold(t *testing.T) {
	for name, test := range map[string]struct{ crd, says string }{
		"no YAML":       {"{", "yaml"},
		"no versions":   {"spec: {}", "want one version with a schema of spec.repair"},
		"no block":      {"spec: {versions: [{name: v1alpha1}]}", "want one version with a schema of spec.repair"},
		"two of them":   {"spec: {versions: [{name: v1alpha1}, {name: v1alpha2}]}", "want one version"},
		"another shape": {"spec: {versions: 3}", "cannot unmarshal"},
	} {
		if _, err := nodePoolPatch([]byte(test.crd)); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want something with %q", name, err, test.says)
		}
	}
	testkit.Fails(t, command([]string{t.TempDir()}), "repairpolicies.yaml") // no CRD
	testkit.Fails(t, command(nil), "want one argument")                     // no argument
}
