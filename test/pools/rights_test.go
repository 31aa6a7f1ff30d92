package pools

import (
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// testRights looks for requests that RBAC refused. The rights are those of
// deploy/controller, which must suffice.
func testRights(t *testing.T, w *fixture) {
	t.Helper()
	for _, c := range w.Controllers {
		log, err := c.Log()
		testkit.Must(t, err)
		if !strings.Contains(log, "node terminated") {
			t.Errorf("%s has terminated no node: the test proves nothing", c)
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, "forbidden") || strings.Contains(line, "permission missing") {
				t.Errorf("%s: %s", c, line)
			}
		}
	}
}
