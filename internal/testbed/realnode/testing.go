package realnode

import (
	"os"
	"testing"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// Wanted skips a test unless real nodes are enabled. If they are enabled, a missing
// requirement is an error.
func Wanted(tb testing.TB) {
	tb.Helper()
	if os.Getenv("REAL_NODES") != "1" {
		tb.Skip("real nodes are not enabled: run REAL_NODES=1 make test as root (docs/contributing/real-nodes.md)")
	}
}

// New starts nodes for a test, and stops them at its end.
func New(tb testing.TB, c *testbed.Cluster, cfg Config) []*Node {
	tb.Helper()
	nodes, err := Start(tb.Context(), c, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := Stop(nodes); err != nil {
			tb.Error(err)
		}
	})
	return nodes
}
