package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// opened returns a store that is closed at the end of the test, and its log.
func opened(t *testing.T, dir, boot string) (*Store, *bytes.Buffer) {
	t.Helper()
	log, logged := logger()
	m, err := Open(Config{Dir: dir, Boot: boot, Log: log})
	testkit.Must(t, err)
	t.Cleanup(func() { m.Close() })
	return m, logged
}

func logger() (*slog.Logger, *bytes.Buffer) {
	var logged bytes.Buffer
	return slog.New(slog.NewTextHandler(&logged, nil)), &logged
}

func closed(t *testing.T, m *Store) {
	t.Helper()
	testkit.Must(t, m.Close())
}

func TestStateSurvivesARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	m, _ := opened(t, dir, "first")
	if m.LastBoot() != "" || len(m.Monitors()) != 0 {
		t.Fatalf("a new store has boot %q and monitors %q", m.LastBoot(), m.Monitors())
	}
	if _, ok := m.Labels(); ok {
		t.Fatal("a new store has labels")
	}
	position := []byte(`{"seq":7}`)
	m.Keep("kernel", Entry{Position: position, State: []byte(`{"sick":true}`)}, true)
	copy(position, `"changed"`) // a reader may reuse its bytes
	m.Keep("files", Entry{State: []byte(`[]`)}, false)
	m.KeepLabels(nil)
	m.KeepTexts(map[string]string{"a.json": "{}", "b.json": `"<é>"`})
	m.KeepNote(`{"agreed":"upon"}`)
	closed(t, m)

	m, logged := opened(t, dir, "second")
	if m.LastBoot() != "first" {
		t.Errorf("the last boot is %q", m.LastBoot())
	}
	if got := m.Monitors(); !slices.Equal(got, []string{"files", "kernel"}) {
		t.Errorf("the monitors are %q", got)
	}
	if entry, ok := m.Monitor("kernel"); !ok || string(entry.Position) != `{"seq":7}` || string(entry.State) != `{"sick":true}` {
		t.Errorf("the monitor has position %s and state %s, %v", entry.Position, entry.State, ok)
	}
	if labels, ok := m.Labels(); !ok || len(labels) != 0 {
		t.Errorf("stored empty labels are %v, %v", labels, ok)
	}
	for key, want := range map[string]string{"a.json": "{}", "b.json": `"<é>"`} {
		if text, ok := m.Text(key); !ok || text != want {
			t.Errorf("the text of %s is %q, %v", key, text, ok)
		}
	}
	if m.Note() != `{"agreed":"upon"}` {
		t.Errorf("the note is %q", m.Note())
	}
	m.KeepTexts(map[string]string{"a.json": "[]"})
	m.KeepLabels(map[string]string{"gpu": "true"})
	closed(t, m)
	if logged.Len() > 0 {
		t.Errorf("the log is %s", logged)
	}

	m, _ = opened(t, dir, "third")
	if labels, _ := m.Labels(); !maps.Equal(labels, map[string]string{"gpu": "true"}) || m.LastBoot() != "second" {
		t.Errorf("the labels are %v, and the last boot was %q", labels, m.LastBoot())
	}
	if text, _ := m.Text("a.json"); text != "[]" {
		t.Errorf("the text is %q", text)
	}
	if text, ok := m.Text("b.json"); ok {
		t.Errorf("a removed text is still %q", text)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, stateFile): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s is %v, want %v: %v", path, info.Mode(), want, err)
		}
	}
}

func TestRemovedMonitorIsKeptForADay(t *testing.T) {
	dir := t.TempDir()
	start := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	both := []string{"flaps", "stays"}
	for _, step := range []struct {
		name string
		at   time.Duration
		keys []string
		want []string
	}{
		{"both are configured", 0, both, both},
		{"one is removed", time.Hour, []string{"stays"}, both},
		{"it comes back", 24 * time.Hour, both, both},
		{"it is removed again", 25 * time.Hour, []string{"stays"}, both},
		{"it was removed a day ago", 49 * time.Hour, []string{"stays"}, both},
		{"the clock is set back", 24 * time.Hour, []string{"stays"}, both},
		{"the day starts again", 48 * time.Hour, []string{"stays"}, both},
		{"it comes back too late", 48*time.Hour + time.Second, both, []string{"stays"}},
	} {
		m, _ := opened(t, dir, "") // time also counts while no agent runs
		if step.at == 0 {
			m.Keep("flaps", entry(1), true)
			m.Keep("stays", entry(1), true)
		}
		m.Ask(start.Add(step.at), step.keys...)
		if got := m.Monitors(); !slices.Equal(got, step.want) {
			t.Errorf("%s: the monitors are %q, want %q", step.name, got, step.want)
		}
		for _, key := range m.Monitors() {
			if e, _ := m.Monitor(key); string(e.State) != "1" {
				t.Errorf("%s: the state of %s is %s", step.name, key, e.State)
			}
			m.Keep(key, entry(1), true) // a monitor that is being stopped still stores its state
		}
		closed(t, m)
	}
}

func TestAskWithoutAChangeIsNotWritten(t *testing.T) {
	disk := newFakeDisk()
	m := started(t, disk)
	m.Keep("a", entry(1), true)
	m.Keep("b", entry(1), true)
	m.Ask(time.Unix(1, 0), "a")
	testkit.Must(t, m.Flush())
	before, _, _ := disk.tally()
	for i := range 10 {
		m.Ask(time.Unix(int64(i+2), 0), "a")
		testkit.Must(t, m.Flush())
	}
	if after, _, _ := disk.tally(); after != before {
		t.Errorf("it was written %d times", after-before)
	}
	closed(t, m)
}

func TestSecondAgentGetsTheHolderOfTheLock(t *testing.T) {
	dir := t.TempDir()
	first, _ := opened(t, dir, "")
	_, err := Open(Config{Dir: dir})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "--state-dir") {
		t.Fatalf("the second agent gets the error %v", err)
	}
	if who := fmt.Sprintf("(pid %d on ", os.Getpid()); !strings.Contains(err.Error(), who) {
		t.Fatalf("the second agent gets the error %v, want %s", err, who)
	}
	t.Log(err)
	closed(t, first)
	first.Keep("x", entry(1), true)
	testkit.Must(t, first.Flush())
	second, _ := opened(t, dir, "")
	if _, ok := second.Monitor("x"); ok {
		t.Error("the first agent has written after Close")
	}
	closed(t, second)
}

func TestInvalidStateFileIsRenamed(t *testing.T) {
	for name, text := range map[string]string{
		"empty":              "",
		"half":               `{"version":1,"boot":"b","monitors":{"kernel":{"posit`,
		"zeros":              "\x00\x00\x00\x00",
		"an invalid version": `{"version":-1,"boot":"b","monitors":{"kernel":{"state":1}}}`,
		"no version":         `{"boot":"b","monitors":{"kernel":{"state":1}}}`,
		"something else":     `["version"]`,
		"trailing data":      `{"version":1,"boot":"b","monitors":{}}{}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, file := range []string{stateFile, newFile} {
				testkit.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			m, logged := opened(t, dir, "now")
			if strings.Count(logged.String(), "\n") != 1 || !strings.Contains(logged.String(), badFile) {
				t.Errorf("the log is %q", logged)
			}
			if m.LastBoot() != "" || len(m.Monitors()) > 0 || m.Err() != nil {
				t.Errorf("the store has boot %q, monitors %q and the error %v", m.LastBoot(), m.Monitors(), m.Err())
			}
			if aside, err := os.ReadFile(filepath.Join(dir, badFile)); err != nil || string(aside) != text {
				t.Errorf("the renamed file is %q: %v", aside, err)
			}
			if _, err := os.Stat(filepath.Join(dir, newFile)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the unfinished file of a crash still exists: %v", err)
			}
			m.Keep("kernel", entry(1), true)
			closed(t, m)
			m, _ = opened(t, dir, "now")
			if _, ok := m.Monitor("kernel"); !ok {
				t.Error("the store does not write after that")
			}
		})
	}
}

func TestUnwritableDirectoryIsLoggedOnce(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	testkit.Must(t, os.WriteFile(blocked, nil, 0o600))
	dir := filepath.Join(blocked, "state")
	m, logged := opened(t, dir, "")
	for i := range 3 {
		m.Keep("x", entry(i), true)
		if m.Flush() == nil {
			t.Fatal("writing succeeded")
		}
	}
	if e, _ := m.Monitor("x"); string(e.State) != "2" {
		t.Errorf("the state is %s", e.State)
	}
	if m.Err() == nil || !strings.Contains(m.Err().Error(), dir) {
		t.Errorf("the error is %v", m.Err())
	}
	// The directory becomes writable while the agent runs.
	testkit.Must(t, os.Remove(blocked))
	if err := m.Flush(); err != nil || m.Err() != nil {
		t.Errorf("still fails: %v, %v", err, m.Err())
	}
	closed(t, m)
	if got := strings.Count(logged.String(), "\n"); got != 2 || strings.Count(logged.String(), "level=ERROR") != 1 {
		t.Errorf("the log is %s", logged)
	}
	m, _ = opened(t, dir, "")
	if e, _ := m.Monitor("x"); string(e.State) != "2" {
		t.Errorf("the stored state is %s", e.State)
	}
}

// A file system that has become read-only is a problem of the node. The agent must not
// lose its findings because of it.
func TestUnwritableDirectoryIsStillRead(t *testing.T) {
	disk := newFakeDisk()
	m := started(t, disk)
	m.Keep("x", entry(1), true)
	closed(t, m)
	disk.failWith(errors.New("read-only file system"))
	m = started(t, disk)
	if e, ok := m.Monitor("x"); !ok || string(e.State) != "1" {
		t.Errorf("the state is %s, %v", e.State, ok)
	}
	if m.Err() == nil {
		t.Error("Err returns nil")
	}
	_ = m.Close()
}

func TestWithoutADirectoryNothingIsWritten(t *testing.T) {
	m, logged := opened(t, "", "")
	m.Keep("x", entry(1), true)
	m.KeepLabels(map[string]string{})
	if err := errors.Join(m.Flush(), m.Err(), m.Close(), m.Close()); err != nil || logged.Len() > 0 {
		t.Errorf("the error is %v, the log is %s", err, logged)
	}
	if _, ok := m.Monitor("x"); !ok {
		t.Error("the store lost a monitor while it runs")
	}
}

// A monitor with an invalid state must not affect the state of others.
func TestInvalidJSONAffectsNoOtherMonitor(t *testing.T) {
	dir := t.TempDir()
	m, logged := opened(t, dir, "")
	m.Keep("good", entry(1), true)
	m.Keep("bad", Entry{Position: []byte(`{`), State: []byte(`1`)}, true)
	m.Keep("good", Entry{State: []byte(`}`)}, true)
	closed(t, m)
	if strings.Count(logged.String(), "not valid JSON") != 2 {
		t.Errorf("the log is %s", logged)
	}
	m, _ = opened(t, dir, "")
	if e, _ := m.Monitor("good"); string(e.State) != "1" || len(m.Monitors()) != 1 {
		t.Errorf("the monitors are %q, with the state %s", m.Monitors(), e.State)
	}
}

func TestConcurrentUse(t *testing.T) {
	dir := t.TempDir()
	m, _ := opened(t, dir, "")
	var all sync.WaitGroup
	for _, key := range []string{"a", "b", "c", "d"} {
		all.Go(func() {
			for i := range 50 {
				m.Keep(key, entry(i), i%3 == 0)
				m.KeepLabels(map[string]string{key: "x"})
				if i%10 == 0 {
					if err := m.Flush(); err != nil {
						t.Error(err)
					}
				}
				m.Monitor(key)
				m.Labels()
			}
		})
	}
	all.Wait()
	closed(t, m)
	m, _ = opened(t, dir, "")
	for _, key := range []string{"a", "b", "c", "d"} {
		if e, _ := m.Monitor(key); string(e.State) != "49" {
			t.Errorf("%s is %s", key, e.State)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"boot":"b","monitors":{"kernel":{"position":{"next":7},"state":[1,null,"x"]}},"labels":{"a":"b"}}`))
	f.Add([]byte(`{"version":1,"monitors":null,"labels":null}`))
	f.Add([]byte(`{"version":1,"monitors":{"a":null,"b":{}},"labels":{}}`))
	f.Add([]byte(`{"version":2,"new":[1]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		first, err := parse(text)
		if err != nil {
			return
		}
		// A parsed state can be written, and parsing it again gives the same state.
		written, err := first.text()
		if err != nil {
			t.Fatalf("%q cannot be written: %v", text, err)
		}
		second, err := parse(written)
		if err != nil {
			t.Fatalf("%q became %q: %v", text, written, err)
		}
		again, err := second.text()
		if err != nil || !bytes.Equal(written, again) {
			t.Fatalf("%q became %q, and then %q: %v", text, written, again, err)
		}
	})
}
