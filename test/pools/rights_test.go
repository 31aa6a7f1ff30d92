package pools

import (
	"strings"
	"testing"
)

// testRights looks for requests that were turned down for want of a right. The rights
// are those of deploy/controller, which have to do for everything that is no more than
// that.
func testRights(t *testing.T, w *fixture) {
	t.Helper()
	for _, c := range w.controllers {
		log, err := c.Log()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log, "node terminated") {
			t.Errorf("%s has terminated nobody: this looks at nothing", c)
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, "forbidden") || strings.Contains(line, "right missing") {
				t.Errorf("%s: %s", c, line)
			}
		}
	}
}
