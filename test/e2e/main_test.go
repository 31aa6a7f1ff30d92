package e2e

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/rig"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // of the client's library, which complains otherwise
	code := m.Run()
	rig.Clean()
	os.Exit(code)
}
