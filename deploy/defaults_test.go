package deploy_test

import (
	"cmp"
	"os"
	"strings"
	"testing"

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
	for _, side := range sides {
		t.Run("by apply "+side, func(t *testing.T) {
			c.conditionSets().applies(t, side, "defaults")
			c.storedAsDecided(t, false)
			c.kubectl(t, "delete", "-f", "defaults")
		})
	}
	t.Run("as dry runs first as the documentation says", func(t *testing.T) {
		page := testkit.Value(os.ReadFile("../docs/reference/conditions.md")).Must(t)
		if !strings.Contains(string(page), "\n"+`kubectl patch -f deploy/defaults/conditionsets.yaml --local -o json --type=merge -p '{"spec": {"dryRun": true}}' | kubectl apply -f -`+"\n") {
			t.Error("the documentation says something else")
		}
		trial := testkit.Value(c.Kubectl(t.Context(), "patch", "-f", "defaults/conditionsets.yaml", "--local", "-o", "json",
			"--type=merge", "-p", `{"spec": {"dryRun": true}}`)).Must(t)
		c.kubectl(t, "apply", "-f", file(t, trial))
		c.storedAsDecided(t, true)
		c.kubectl(t, "apply", "-f", "defaults")
		c.storedAsDecided(t, false)
		c.kubectl(t, "delete", "-f", "defaults")
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
		spec.MaxUnhealthy = new(intstr.FromString(cmp.Or(known.MaxUnhealthy, "49%")))
		want[known.Type] = spec
	}
	testkit.Require(t, len(want) != 0, "the catalog has no defaults: the test proves nothing")
	got := map[string]v1alpha1.ConditionSetSpec{}
	for _, set := range c.conditionSets().list(t) {
		got[set.Spec.Type] = set.Spec
		if _, err := observe.ConditionSet(&set); err != nil {
			t.Errorf("%s: %v", set.Name, err)
		}
	}
	testkit.Equal(t, "the sets", want, got)
}
