package pools

import (
	"flag"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/install"
)

// clusters is how many tests run at a time. They mostly wait, but too many would slow each
// other down.
const clusters = "14"

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
