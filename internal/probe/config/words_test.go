package config_test

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/resourcestack/autohealer/internal/probe/config"
)

// TestWords runs the transcripts in testdata/words: the messages about a file, line by line. With
// -rewrite it writes them.
func TestWords(t *testing.T) {
	refused, warned := 0, 0
	datadriven.Walk(t, "testdata/words", func(t *testing.T, path string) {
		t.Helper()
		// A command is the kind of a file. Its body is the file.
		datadriven.RunTest(t, path, func(t *testing.T, command *datadriven.TestData) string {
			t.Helper()
			file, warnings, err := config.Parse("f.json", config.Kind(command.Cmd), []byte(command.Input))
			var b strings.Builder
			if err != nil {
				refused++
				b.WriteString(err.Error() + "\n")
			}
			for _, warning := range warnings {
				warned++
				b.WriteString("warning: " + warning + "\n")
			}
			switch {
			case (err == nil) != (file != nil):
				t.Errorf("%s: a file and an error, or neither", command.Pos)
			case err == nil:
				b.WriteString("ok\n")
			}
			return b.String()
		})
	})
	t.Logf("saw %d files refused, %d warnings", refused, warned)
	if refused == 0 || warned == 0 {
		t.Error("no transcript shows a refusal, or none a warning")
	}
}
