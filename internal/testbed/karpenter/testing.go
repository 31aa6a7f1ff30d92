package karpenter

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// New starts Karpenter for a test. It stops with the cluster.
func New(tb testing.TB, c *testbed.Cluster, cfg Config) *Karpenter {
	tb.Helper()
	k, err := Start(tb.Context(), c, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}
