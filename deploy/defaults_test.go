package deploy_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// takesDefaults applies the default sets in every documented way, and compares the stored
// sets with the catalog.
func (c cluster) takesDefaults(t *testing.T) {
	for _, kind := range []string{"--server-side=false", "--server-side=true"} {
		t.Run("by apply "+kind, func(t *testing.T) {
			apply := []string{"apply", "--validate=strict", kind, "-f", "defaults"}
			if _, err := c.Kubectl(t.Context(), apply...); err != nil {
				t.Fatal(err)
			}
			c.storedAsDecided(t, false)
			before := c.versions(t)
			if _, err := c.Kubectl(t.Context(), apply...); err != nil {
				t.Fatalf("the second time: %v", err)
			}
			if diff := cmp.Diff(before, c.versions(t)); diff != "" {
				t.Errorf("the second apply has changed something:\n%s", diff)
			}
			if _, err := c.Kubectl(t.Context(), "delete", "-f", "defaults"); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("as dry runs first as the documentation says", func(t *testing.T) {
		page, err := os.ReadFile("../docs/conditions.md")
		testkit.Must(t, err)
		if !strings.Contains(string(page), "\n"+`kubectl patch -f deploy/defaults/conditionsets.yaml --local -o json --type=merge -p '{"spec": {"dryRun": true}}' | kubectl apply -f -`+"\n") {
			t.Error("the documentation says something else")
		}
		trial, err := c.Kubectl(t.Context(), "patch", "-f", "defaults/conditionsets.yaml", "--local", "-o", "json",
			"--type=merge", "-p", `{"spec": {"dryRun": true}}`)
		testkit.Must(t, err)
		if _, err := c.Kubectl(t.Context(), "apply", "-f", file(t, trial)); err != nil {
			t.Fatal(err)
		}
		c.storedAsDecided(t, true)
		if _, err := c.Kubectl(t.Context(), "apply", "-f", "defaults"); err != nil {
			t.Fatal(err)
		}
		c.storedAsDecided(t, false)
		if _, err := c.Kubectl(t.Context(), "delete", "-f", "defaults"); err != nil {
			t.Fatal(err)
		}
	})
}

// storedAsDecided compares the stored sets with the catalog, and with the controller's form
// of them.
func (c cluster) storedAsDecided(t *testing.T, dryRun bool) {
	t.Helper()
	want := map[string]v1alpha1.ConditionSetSpec{}
	for _, known := range catalog.Conditions() {
		if known.Effect == catalog.None {
			continue
		}
		spec := v1alpha1.ConditionSetSpec{
			Type: known.Type, Effect: corev1.TaintEffect(known.Effect), TaintKey: known.TaintKey(), DryRun: dryRun,
			Conditions: map[string]v1alpha1.SetCondition{
				known.Type: {Status: v1alpha1.ConditionStatus(known.Unhealthy()), Duration: known.Duration},
			},
		}
		if known.MaxUnhealthy != "" {
			spec.MaxUnhealthy = new(intstr.FromString(known.MaxUnhealthy))
		}
		want[known.Type] = spec
	}
	if len(want) == 0 {
		t.Fatal("the catalog has no defaults: the test proves nothing")
	}
	got := map[string]v1alpha1.ConditionSetSpec{}
	for _, set := range c.list(t).Items {
		got[set.Spec.Type] = set.Spec
		if _, err := observe.ConditionSet(&set); err != nil {
			t.Errorf("%s: %v", set.Name, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the sets (-decided +stored):\n%s", diff)
	}
}
