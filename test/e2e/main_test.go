package e2e

import (
	"flag"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/install"
)

// clusters is how many tests run at a time. They mostly wait: all together need less than
// one core.
const clusters = "8"

func TestMain(m *testing.M) {
	// The command line is parsed later, and takes precedence.
	if err := flag.Set("test.parallel", clusters); err != nil {
		panic(err)
	}
	log.SetLogger(logr.Discard()) // otherwise the client library complains
	code := m.Run()
	install.Clean()
	os.Exit(code)
}
