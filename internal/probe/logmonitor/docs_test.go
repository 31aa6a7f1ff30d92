package logmonitor

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// examples returns the configurations in the documentation.
func examples(t *testing.T) []config.LogMonitor {
	t.Helper()
	var monitors []config.LogMonitor
	for _, page := range []string{"agent-configuration.md", "agent-logs.md"} {
		text := testkit.Value(os.ReadFile("../../../docs/reference/" + page)).Must(t)
		for _, rest := range strings.Split(string(text), "```json\n")[1:] {
			example, _, _ := strings.Cut(rest, "```")
			file, warnings, err := config.Parse(page, config.SystemLog, []byte(example))
			testkit.Require(t, err == nil && len(warnings) == 0, "%v %v", err, warnings)
			monitors = append(monitors, *file.Log)
		}
	}
	return monitors
}

func TestDocumentedExamplesAreValid(t *testing.T) {
	monitors := examples(t)
	testkit.Check(t, len(monitors) >= 4, "the pages have %d examples", len(monitors))
	for _, monitor := range monitors {
		m, err := New(Config{Monitor: monitor})
		if err != nil {
			t.Errorf("%s: %v", monitor.Source, err)
			continue
		}
		dear := m.Expensive()
		testkit.Check(t, len(dear) == 0, "%s is expensive: %q", monitor.Source, dear)
	}
}

// The examples behave as documented. Each step is a line, a minute after the previous one,
// and the state of the condition after it.
func TestDocumentedExamplesBehaveAsDocumented(t *testing.T) {
	restarted := "kubelet.service: Scheduled restart job, restart counter is at 7."
	for source, steps := range map[string][][2]string{
		"storage-monitor": {
			{"Failed to mount scratch.mount - Scratch.", "True"}, {"Started kubelet.", "True"}, {"Mounted scratch.mount - Scratch.", "False"},
		},
		"systemd-monitor": {
			{restarted, "False"}, {restarted, "False"}, {restarted, "False"}, {"Started kubelet.service - kubelet.", "False"},
			{restarted, "False"}, {restarted, "True"}, {"", "True"},
		},
	} {
		monitors := examples(t)
		i := slices.IndexFunc(monitors, func(m config.LogMonitor) bool { return m.Source == source })
		if i < 0 {
			t.Errorf("the pages have no %s", source)
			continue
		}
		m := started(t, Config{Monitor: monitors[i]})
		now := day
		for number, step := range steps {
			now = now.Add(time.Minute)
			text := []byte(step[0] + "\n")
			m.Take(now, logs.Chunk{Text: text, Records: []logs.Record{{End: len(text), Time: now, Number: uint64(number)}}})
			testkit.Same(t, string(m.conditions[0].status), step[1], "%s, line %d", source, number)
		}
		m.Wake(now.Add(20 * time.Minute))
		testkit.Same(t, m.conditions[0].status, "False", "%s: after 20 minutes", source)
	}
}

func TestPatternsOfNodeProblemDetectorAreCheap(t *testing.T) {
	const dir = "../config/testdata/node-problem-detector/"
	entries := testkit.Value(os.ReadDir(dir)).Must(t)
	monitors := 0
	for _, entry := range entries {
		file, _, err := config.Read(dir+entry.Name(), config.SystemLog)
		if err != nil {
			continue // another kind of monitor; internal/probe/config tests that it detects the kind
		}
		monitors++
		m, err := New(Config{Monitor: *file.Log, Translator: noon{}})
		if err != nil {
			t.Errorf("%s: %v", entry.Name(), err)
			continue
		}
		dear := m.Expensive()
		testkit.Check(t, len(dear) == 0, "%s: %q", entry.Name(), dear)
	}
	testkit.Same(t, monitors, 8, "monitors of logs")
}
