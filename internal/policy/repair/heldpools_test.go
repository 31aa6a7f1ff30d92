package repair

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

// TestHeldPools runs the transcripts in testdata/held_pools. Each is about one NodePool,
// whose nodes have ten minutes to become ready. These are the commands:
//
//	template HASH         Karpenter notes what the pool's nodes are made from now
//	launch NODE...        Karpenter launches nodes that do not become ready; with the
//	                      argument ready those that do, with from=HASH from another template
//	wait DURATION         time passes
//	successor             another controller takes over
//
// After every command the controller does all that it may, and Karpenter removes what is
// deleted. The output is what the controller does and says about holds, and how many
// failures in a row it counts.
func TestHeldPools(t *testing.T) {
	files, err := filepath.Glob("testdata/held_pools/*.txt")
	testkit.Require(t, err == nil && len(files) != 0, "there are no transcripts: %v", err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newNodePoolFixture(t, timed)
				h.pool("default", ofAtMost("100"))
				datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
					t.Helper()
					h = h.tell(d)
					return h.settle()
				})
			})
		})
	}
}

// tell executes one command of a transcript.
func (h *nodePoolFixture) tell(d *datadriven.TestData) *nodePoolFixture {
	h.T.Helper()
	switch d.Cmd {
	case "template":
		h.pool("default", ofAtMost("100"), madeOf(d.CmdArgs[0].Key))
	case "launch":
		from, becomes := h.repairs.templateOf("default"), unready
		d.MaybeScanArgs(h.T, "from", &from)
		if d.HasArg("ready") {
			becomes = func(*corev1.Node, *karpenter.NodeClaim) {}
		}
		for _, arg := range d.CmdArgs {
			if arg.Key != "ready" && arg.Key != "from" {
				h.api.launch(arg.Key, "default", becomes, func(_ *corev1.Node, c *karpenter.NodeClaim) {
					metav1.SetMetaDataAnnotation(&c.ObjectMeta, karpenter.HashAnnotation, from)
				})
			}
		}
		h.deliver()
	case "wait":
		d, err := time.ParseDuration(d.CmdArgs[0].Key)
		testkit.Must(h.T, err)
		h.advance(d)
	case "successor":
		h = h.successor(timed)
	default:
		h.T.Fatalf("unknown command %s", d.Cmd)
	}
	return h
}

// settle does everything that the controller may do, and returns what it did.
func (h *nodePoolFixture) settle() string {
	h.T.Helper()
	var out strings.Builder
	for again := true; again; {
		again = false
		h.writeSnapshot()
		for _, node := range slices.Sorted(maps.Keys(h.Startable())) {
			h.runs(node, how{})
			if h.api.claims["claim-"+node].DeletionTimestamp != nil {
				fmt.Fprintf(&out, "%s is terminated\n", node)
				h.goes(node)
			}
			again = true
		}
	}
	for _, event := range h.Events {
		if event.EventReason == treat.PoolHeld || event.EventReason == treat.PoolReleased {
			fmt.Fprintln(&out, event.Message)
		}
	}
	h.Events = nil
	fmt.Fprintf(&out, "%s failed in a row: %d\n", time.Now().UTC().Format(time.TimeOnly), h.repairs.counts["default"].failures.failed)
	return out.String()
}
