package main

import (
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestBadInputIsTold(t *testing.T) {
	for name, test := range map[string]struct{ crd, says string }{
		"no YAML":       {"{", "yaml"},
		"no versions":   {"spec: {}", "want one version with a schema of spec"},
		"no schema":     {"spec: {versions: [{name: v1alpha1}]}", "want one version with a schema of spec"},
		"two of them":   {"spec: {versions: [{name: v1alpha1}, {name: v1alpha2}]}", "want one version"},
		"another shape": {"spec: {versions: 3}", "cannot unmarshal"},
	} {
		if _, err := specFields([]byte(test.crd)); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want something with %q", name, err, test.says)
		}
	}
	testkit.Fails(t, command([]string{t.TempDir(), "helm"}), "repairpolicies.yaml") // no CRD
	_, err := nodePoolPatch(nil)
	testkit.Fails(t, err, "no spec.repair")
	testkit.Fails(t, writeSchema(t.TempDir()), "guardrails.yaml") // no CRD
	testkit.Fails(t, command(nil), "want two arguments")
	testkit.Fails(t, render(t.TempDir(), "/does/not/exist"), "rendering install.yaml")
}
