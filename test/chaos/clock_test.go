package chaos

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// skewVariable names a file with the number of seconds by which the clock of a replica is wrong.
const skewVariable = "CLOCK_SKEW_FILE"

// skewed reads the file when a program starts.
const skewed = `package time

import "syscall"

var skew = func() (seconds int64) {
	name, _ := syscall.Getenv("` + skewVariable + `")
	text, err := readFile(name)
	if err != nil {
		return 0
	}
	sign := int64(1)
	for _, c := range text {
		switch {
		case c == '-':
			sign = -1
		case c >= '0' && c <= '9':
			seconds = seconds*10 + int64(c-'0')
		}
	}
	return sign * seconds
}()
`

// buildController builds the controller with a package time whose clock can be wrong. The kernel
// has one clock for all processes, and Go asks the kernel without the C library.
func buildController(t *testing.T) (program string) {
	t.Helper()
	const right, wrong = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n\tsec += skew\n"
	folder := t.TempDir()
	root := strings.TrimSpace(string(testkit.Value(exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()).Must(t)))
	path := filepath.Join(root, "src", "time", "time.go")
	source := string(testkit.Value(os.ReadFile(path)).Must(t))
	testkit.Require(t, strings.Count(source, right) == 1, "%s has no function Now as expected: adapt this test to the version of Go", path)
	files := map[string]string{"time.go": strings.Replace(source, right, wrong, 1), "skew.go": skewed}
	replace := map[string]string{}
	for name, content := range files {
		replace[filepath.Join(root, "src", "time", name)] = filepath.Join(folder, name)
		testkit.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
	overlay := filepath.Join(folder, "overlay.json")
	testkit.Must(t, os.WriteFile(overlay, testkit.Value(json.Marshal(map[string]any{"Replace": replace})).Must(t), 0o600))
	return testkit.Value(install.Build(t.Context(), "cmd/autohealer-controller", "-overlay", overlay)).Must(t)
}

// setClock sets how wrong the clock of a replica is after its next start.
func (r *replica) setClock(t *testing.T, seconds int) {
	t.Helper()
	testkit.Must(t, os.WriteFile(r.clock, []byte(strconv.Itoa(seconds)), 0o600))
}
