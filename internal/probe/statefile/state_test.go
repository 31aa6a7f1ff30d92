package statefile

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func golden(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	testkit.Must(t, err)
	return text
}

// The agent reads the state of all earlier versions. These golden files never change; a
// new version adds its own.
func TestStatesOfAllVersionsAreRead(t *testing.T) {
	got, err := parse(golden(t, "state-v1.json"))
	testkit.Must(t, err)
	labels := map[string]string{"zone": "a"}
	want := state{
		Version: 1, Boot: "6b7c", Labels: &labels, Texts: map[string]string{"kernel-monitor.json": "{}"}, Note: `{"taken":{}}`,
		Monitors: map[string]Entry{
			"kernel": {Position: []byte(`{"boot":"6b7c","next":4711}`), State: json.RawMessage(`{"since":"2026-11-15T12:00:00Z","boot":"6b7c","log":"kmsg /dev/kmsg"}`)},
			"old":    {State: json.RawMessage(`[1]`), Left: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if text, err := got.text(); err != nil || !bytes.Equal(text, golden(t, "state-v1.json")) {
		t.Errorf("the format has changed: add a new version: %v\n%s", err, text)
	}
}

// An agent that runs between two newer ones continues with their state and preserves
// unknown fields.
func TestUnknownFieldsArePreserved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, stateFile)
	testkit.Must(t, os.WriteFile(path, golden(t, "state-newer.json"), 0o600))
	m, logged := opened(t, dir, "now")
	if e, ok := m.Monitor("kernel"); !ok || string(e.State) != `{"a":1}` || m.LastBoot() != "6b7c" {
		t.Errorf("kernel is %+v", e)
	}
	if n := m.CountUnknown(); n != 2 || !strings.Contains(logged.String(), "newer agent") {
		t.Errorf("%d fields are unknown, and the log is: %s", n, logged)
	}
	m.Keep("kernel", Entry{State: json.RawMessage(`{"a":2}`)}, true)
	closed(t, m)
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	for _, want := range []string{`"peers":["x"]`, `"lag":"3s"`, `"state":{"a":2}`, `"version":1`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing: %s", want, text)
		}
	}
}
