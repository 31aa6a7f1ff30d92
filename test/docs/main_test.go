package docs

import (
	"os"
	"testing"

	"github.com/resourcestack/autohealer/internal/install"
)

func TestMain(m *testing.M) { os.Exit(install.Main(m, 0)) }
