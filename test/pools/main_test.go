package pools

import (
	"os"
	"testing"

	"github.com/resourcestack/autohealer/internal/install"
)

// clusters is how many tests run at a time. They mostly wait, but too many would slow each
// other down.
const clusters = 14

func TestMain(m *testing.M) { os.Exit(install.Main(m, clusters)) }
