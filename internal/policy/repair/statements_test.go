package repair

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
)

// New statements are in force at once.
func TestNewStatements(t *testing.T) {
	box := &statementBox{&dialect.Statements{Pools: brokenStates, Static: brokenStates}}
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
}
