package spelling_test

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/spelling"
)

func TestNearest(t *testing.T) {
	names := []string{"clearPattern", "count", "port", "prometheus-port", "invoke_interval"}
	for written, want := range map[string]string{
		"clearpatern":    "clearPattern",
		"clear_pattern":  "clearPattern",
		"invokeInterval": "invoke_interval",
		"coutn":          "count",
		"prometheusport": "prometheus-port",
		"prot":           "port",
		"part":           "port",
		"pt":             "",
		"something":      "",
		"":               "",
	} {
		if got, ok := spelling.Nearest(written, names); got != want || ok != (want != "") {
			t.Errorf("the suggestion for %q is %q, want %q", written, got, want)
		}
	}
}
