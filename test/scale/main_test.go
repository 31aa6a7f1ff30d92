package scale

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/install"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // or it complains in the middle of the figures
	code := m.Run()
	if err := shared.clear(); err != nil {
		code = 1
	}
	install.Clean()
	os.Exit(code)
}
