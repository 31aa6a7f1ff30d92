package e2e

import (
	"os"
	"testing"

	"github.com/resourcestack/autohealer/internal/install"
)

// clusters is how many tests run at a time. They mostly wait: all together need less than
// one core.
const clusters = 6

func TestMain(m *testing.M) { os.Exit(install.Main(m, clusters)) }
