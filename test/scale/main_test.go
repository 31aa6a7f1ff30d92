package scale

import (
	"os"
	"testing"

	"github.com/resourcestack/autohealer/internal/rig"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := standing.clear(); err != nil {
		code = 1
	}
	rig.Clean()
	os.Exit(code)
}
