package pools

import (
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// testRights looks for requests that RBAC refused. The rights are those of
// deploy/install.yaml, which must suffice.
func testRights(t *testing.T, w *fixture) {
	t.Helper()
	for _, c := range w.Controllers {
		log, err := c.Log()
		testkit.Must(t, err)
		testkit.Check(t, strings.Contains(log, "node terminated"), "%s has terminated no node: the test proves nothing", c)
		for line := range strings.Lines(log) {
			testkit.Check(t, !strings.Contains(line, "forbidden") && !strings.Contains(line, "permission missing"), "%s: %s", c, line)
		}
	}
}
