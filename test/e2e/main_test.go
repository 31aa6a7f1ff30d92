package e2e

import (
	"flag"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/install"
)

// clusters is how many tests are at work at a time: they wait more than they compute, and
// one for each core would leave the cores idle half of the time.
const clusters = "4"

func TestMain(m *testing.M) {
	// The command line is read later, and wins.
	if err := flag.Set("test.parallel", clusters); err != nil {
		panic(err)
	}
	log.SetLogger(logr.Discard()) // of the client's library, which complains otherwise
	code := m.Run()
	install.Clean()
	os.Exit(code)
}
