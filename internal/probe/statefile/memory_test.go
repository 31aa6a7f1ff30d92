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
)

// opened returns a memory that is closed at the end, and what it says.
func opened(t *testing.T, dir, boot string) (*Store, *bytes.Buffer) {
	t.Helper()
	log, said := logger()
	m, err := Open(Config{Dir: dir, Boot: boot, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m, said
}

func logger() (*slog.Logger, *bytes.Buffer) {
	var said bytes.Buffer
	return slog.New(slog.NewTextHandler(&said, nil)), &said
}

func closed(t *testing.T, m *Store) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestARestartRemembers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	m, _ := opened(t, dir, "first")
	if m.LastBoot() != "" || len(m.Monitors()) != 0 {
		t.Fatalf("a new memory remembers boot %q and %q", m.LastBoot(), m.Monitors())
	}
	if _, ok := m.Labels(); ok {
		t.Fatal("a new memory knows labels")
	}
	position := []byte(`{"seq":7}`)
	m.Keep("kernel", Entry{Position: position, State: []byte(`{"sick":true}`)}, true)
	copy(position, `"changed"`) // by a reader that uses its bytes again
	m.Keep("files", Entry{State: []byte(`[]`)}, false)
	m.KeepLabels(nil)
	m.KeepTexts(map[string]string{"a.json": "{}", "b.json": `"<é>"`})
	m.KeepNote(`{"agreed":"upon"}`)
	closed(t, m)

	m, said := opened(t, dir, "second")
	if m.LastBoot() != "first" {
		t.Errorf("the last boot was %q", m.LastBoot())
	}
	if got := m.Monitors(); !slices.Equal(got, []string{"files", "kernel"}) {
		t.Errorf("remembered %q", got)
	}
	if entry, ok := m.Monitor("kernel"); !ok || string(entry.Position) != `{"seq":7}` || string(entry.State) != `{"sick":true}` {
		t.Errorf("remembered %s %s, %v", entry.Position, entry.State, ok)
	}
	if labels, ok := m.Labels(); !ok || len(labels) != 0 {
		t.Errorf("labels that are known to be none are %v, %v", labels, ok)
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
	if said.Len() > 0 {
		t.Errorf("said %s", said)
	}

	m, _ = opened(t, dir, "third")
	if labels, _ := m.Labels(); !maps.Equal(labels, map[string]string{"gpu": "true"}) || m.LastBoot() != "second" {
		t.Errorf("the labels are %v, and the last boot was %q", labels, m.LastBoot())
	}
	if text, _ := m.Text("a.json"); text != "[]" {
		t.Errorf("the text is %q", text)
	}
	if text, ok := m.Text("b.json"); ok {
		t.Errorf("what is kept no longer is %q", text)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, stateFile): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s is %v, want %v: %v", path, info.Mode(), want, err)
		}
	}
}

func TestAMonitorThatNobodyAsksForIsRememberedForADay(t *testing.T) {
	dir := t.TempDir()
	start := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	both := []string{"flaps", "stays"}
	for _, step := range []struct {
		name string
		at   time.Duration
		keys []string
		want []string
	}{
		{"both are asked for", 0, both, both},
		{"one is away", time.Hour, []string{"stays"}, both},
		{"it comes back", 24 * time.Hour, both, both},
		{"it goes once more", 25 * time.Hour, []string{"stays"}, both},
		{"it is away for a day", 49 * time.Hour, []string{"stays"}, both},
		{"the clock is set back", 24 * time.Hour, []string{"stays"}, both},
		{"the day begins anew", 48 * time.Hour, []string{"stays"}, both},
		{"it comes back too late", 48*time.Hour + time.Second, both, []string{"stays"}},
	} {
		m, _ := opened(t, dir, "") // time passes also when nobody is there
		if step.at == 0 {
			m.Keep("flaps", entry(1), true)
			m.Keep("stays", entry(1), true)
		}
		m.Ask(start.Add(step.at), step.keys...)
		if got := m.Monitors(); !slices.Equal(got, step.want) {
			t.Errorf("%s: remembered %q, want %q", step.name, got, step.want)
		}
		for _, key := range m.Monitors() {
			if e, _ := m.Monitor(key); string(e.State) != "1" {
				t.Errorf("%s: of %s remembered %s", step.name, key, e.State)
			}
			m.Keep(key, entry(1), true) // one that ends still speaks
		}
		closed(t, m)
	}
}

func TestToAskForTheSameIsNotWritten(t *testing.T) {
	disk := newPlatter()
	m := started(t, disk)
	m.Keep("a", entry(1), true)
	m.Keep("b", entry(1), true)
	m.Ask(time.Unix(1, 0), "a")
	if err := m.Flush(); err != nil {
		t.Fatal(err)
	}
	before, _, _ := disk.tally()
	for i := range 10 {
		m.Ask(time.Unix(int64(i+2), 0), "a")
		if err := m.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if after, _, _ := disk.tally(); after != before {
		t.Errorf("it was written %d times", after-before)
	}
	closed(t, m)
}

func TestASecondAgentIsToldWhoUsesTheFolder(t *testing.T) {
	dir := t.TempDir()
	first, _ := opened(t, dir, "")
	_, err := Open(Config{Dir: dir})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "--state-dir") {
		t.Fatalf("the second agent is told %v", err)
	}
	if who := fmt.Sprintf("(pid %d on ", os.Getpid()); !strings.Contains(err.Error(), who) {
		t.Fatalf("the second agent is told %v, want %s", err, who)
	}
	t.Log(err)
	closed(t, first)
	first.Keep("x", entry(1), true)
	if err := first.Flush(); err != nil {
		t.Fatal(err)
	}
	second, _ := opened(t, dir, "")
	if _, ok := second.Monitor("x"); ok {
		t.Error("the first agent has written after it has left")
	}
	closed(t, second)
}

func TestAStateThatCannotBeUsedIsPutAside(t *testing.T) {
	for name, text := range map[string]string{
		"empty":                    "",
		"half":                     `{"version":1,"boot":"b","monitors":{"kernel":{"posit`,
		"zeros":                    "\x00\x00\x00\x00",
		"a version that never was": `{"version":-1,"boot":"b","monitors":{"kernel":{"state":1}}}`,
		"no version":               `{"boot":"b","monitors":{"kernel":{"state":1}}}`,
		"something else":           `["version"]`,
		"more than there is":       `{"version":1,"boot":"b","monitors":{}}{}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, file := range []string{stateFile, newFile} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m, said := opened(t, dir, "now")
			if strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), badFile) {
				t.Errorf("said %q", said)
			}
			if m.LastBoot() != "" || len(m.Monitors()) > 0 || m.Err() != nil {
				t.Errorf("remembers boot %q and %q, and the error %v", m.LastBoot(), m.Monitors(), m.Err())
			}
			if aside, err := os.ReadFile(filepath.Join(dir, badFile)); err != nil || string(aside) != text {
				t.Errorf("aside is %q: %v", aside, err)
			}
			if _, err := os.Stat(filepath.Join(dir, newFile)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("what a crash has left is still there: %v", err)
			}
			m.Keep("kernel", entry(1), true)
			closed(t, m)
			m, _ = opened(t, dir, "now")
			if _, ok := m.Monitor("kernel"); !ok {
				t.Error("nothing is kept after that")
			}
		})
	}
}

func TestAFolderThatCannotBeWrittenIsToldOfOnceAndDoneWithout(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(blocked, "state")
	m, said := opened(t, dir, "")
	for i := range 3 {
		m.Keep("x", entry(i), true)
		if m.Flush() == nil {
			t.Fatal("it was written")
		}
	}
	if e, _ := m.Monitor("x"); string(e.State) != "2" {
		t.Errorf("remembered %s", e.State)
	}
	if m.Err() == nil || !strings.Contains(m.Err().Error(), dir) {
		t.Errorf("the error is %v", m.Err())
	}
	// It comes back while the agent runs.
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	if err := m.Flush(); err != nil || m.Err() != nil {
		t.Errorf("still %v, %v", err, m.Err())
	}
	closed(t, m)
	if got := strings.Count(said.String(), "\n"); got != 2 || strings.Count(said.String(), "level=ERROR") != 1 {
		t.Errorf("said %s", said)
	}
	m, _ = opened(t, dir, "")
	if e, _ := m.Monitor("x"); string(e.State) != "2" {
		t.Errorf("kept %s", e.State)
	}
}

// A file system that has become read-only is a reason to remember that the node is
// sick, not to forget it.
func TestAFolderThatCannotBeWrittenIsStillRead(t *testing.T) {
	disk := newPlatter()
	m := started(t, disk)
	m.Keep("x", entry(1), true)
	closed(t, m)
	disk.beset(errors.New("read-only file system"))
	m = started(t, disk)
	if e, ok := m.Monitor("x"); !ok || string(e.State) != "1" {
		t.Errorf("remembered %s, %v", e.State, ok)
	}
	if m.Err() == nil {
		t.Error("nothing is said of it")
	}
	_ = m.Close()
}

func TestWithoutAFolderNothingIsKeptAndNothingIsWrong(t *testing.T) {
	m, said := opened(t, "", "")
	m.Keep("x", entry(1), true)
	m.KeepLabels(map[string]string{})
	if err := errors.Join(m.Flush(), m.Err(), m.Close(), m.Close()); err != nil || said.Len() > 0 {
		t.Errorf("error %v, said %s", err, said)
	}
	if _, ok := m.Monitor("x"); !ok {
		t.Error("it forgets while it runs")
	}
}

// One monitor that goes astray must not take the memory of the others with it.
func TestWhatIsNotJSONIsRefusedByItself(t *testing.T) {
	dir := t.TempDir()
	m, said := opened(t, dir, "")
	m.Keep("good", entry(1), true)
	m.Keep("bad", Entry{Position: []byte(`{`), State: []byte(`1`)}, true)
	m.Keep("good", Entry{State: []byte(`}`)}, true)
	closed(t, m)
	if strings.Count(said.String(), "not JSON") != 2 {
		t.Errorf("said %s", said)
	}
	m, _ = opened(t, dir, "")
	if e, _ := m.Monitor("good"); string(e.State) != "1" || len(m.Monitors()) != 1 {
		t.Errorf("remembered %q, with the state %s", m.Monitors(), e.State)
	}
}

func TestManyMayKeepAtTheSameTime(t *testing.T) {
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
		// What was understood can be written, and is understood the same.
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
