package logmonitor

import (
	"os"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/probe/config"
)

func TestTheExampleOfTheDocsIsAMonitor(t *testing.T) {
	text, err := os.ReadFile("../../../docs/log-rules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```json\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("there is no example")
	}
	file, warnings, err := config.Parse("log-rules.md", config.SystemLog, []byte(example))
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	m, err := New(Config{Monitor: *file.Log})
	if err != nil {
		t.Fatal(err)
	}
	if dear := m.Expensive(); len(dear) > 0 {
		t.Errorf("the example is expensive: %q", dear)
	}
}

func TestTheMonitorsOfNodeProblemDetectorAreCheap(t *testing.T) {
	const dir = "../config/testdata/node-problem-detector/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	monitors := 0
	for _, entry := range entries {
		file, _, err := config.Read(dir+entry.Name(), config.SystemLog)
		if err != nil {
			continue // of another kind, which internal/probe/config proves that it can tell
		}
		monitors++
		m, err := New(Config{Monitor: *file.Log, Translator: noon{}})
		if err != nil {
			t.Errorf("%s: %v", entry.Name(), err)
			continue
		}
		if dear := m.Expensive(); len(dear) > 0 {
			t.Errorf("%s: %q", entry.Name(), dear)
		}
	}
	if monitors != 8 {
		t.Errorf("%d monitors of logs, not 8", monitors)
	}
}
