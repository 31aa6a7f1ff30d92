package testbed

import "testing"

// New starts a cluster for a test and stops it at the end of the test. If the test fails,
// or a part of the cluster has crashed, it keeps the logs and prints their folder.
func New(tb testing.TB, cfg Config) *Cluster {
	tb.Helper()
	c, err := Start(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		crashes, first := c.shutDown()
		if crashes != nil {
			tb.Error(crashes)
		}
		switch {
		case !first: // the test has stopped it
		case tb.Failed():
			tb.Logf("the cluster's logs are in %s", c.folder.keepLogs())
		default:
			c.folder.remove()
		}
	})
	return c
}

// Address returns a loopback address that is reserved until the end of the test, for a
// process that the test starts.
func Address(tb testing.TB) string {
	tb.Helper()
	p, err := holdPort()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.release)
	return p.address()
}
