package scale

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/install"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // otherwise it complains between the results
	code := m.Run()
	if err := shared.clear(); err != nil {
		code = 1
	}
	install.Clean()
	os.Exit(code)
}
