package repair

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
)

// New statements are in force at once. Statements with which a policy would be invalid are
// refused until the policy changes, and its rule stays.
func TestNewStatements(t *testing.T) {
	box := &statementBox{latest: &dialect.Statements{Pools: brokenStates, Static: brokenStates}}
	states := func(kind, toleration string) {
		stated := []dialect.RepairStatement{{Type: kind, Status: "True", Toleration: toleration}}
		box.latest = &dialect.Statements{Pools: stated, Static: stated}
	}
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(time.Minute)
		h.WantNoTask("a")
		states(broken, "2m")
		h.advance(time.Minute)
		h.WantTask("a", nodeclaim.TerminateClaim)
	}, func(c *Config) { c.Statements = box })

	states(broken, "10m")
	withNodePools(t, func(h *nodePoolFixture) {
		named := func(condition string) *v1alpha1.RepairSpec {
			block := ofAtMost("1")
			block.Policies = []v1alpha1.ConditionRepair{{ConditionType: condition, Toleration: "5m"}}
			return block
		}
		h.pool("default", named(broken))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a")
		box.latest = &dialect.Statements{}
		h.advance(5 * time.Minute)
		h.WantTask("a", nodeclaim.TerminateClaim)
		if got := h.repairs.refused.problem; !strings.HasPrefix(got, "the repair block of NodePool default would be invalid: ") {
			t.Errorf("the statements are refused because %q", got)
		}
		testkit.Check(t, box.refused, "the source does not know that its statements are refused")
		h.noPool("default")
		h.runRound()
		if got := h.repairs.refused.problem; got != "" || h.repairs.statements != box.latest {
			t.Errorf("the statements are still refused because %q", got)
		}
		testkit.Check(t, !box.refused, "the source does not know that its statements are in force")
	}, func(c *Config) { c.Statements = box })
}
