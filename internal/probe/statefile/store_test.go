package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// opened returns a store that is closed at the end of the test, and its log.
func opened(t *testing.T, dir, boot string) (*Store, *bytes.Buffer) {
	t.Helper()
	log, logged := logger()
	m := testkit.Value(Open(Config{Dir: dir, Boot: boot, Log: log})).Must(t)
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
	testkit.Require(t, len(m.Monitors()) == 0, "a new store has monitors %q", m.Monitors())
	_, ok := m.Labels()
	testkit.Require(t, !ok, "a new store has labels")
	position := []byte(`{"seq":7}`)
	m.Keep("kernel", Entry{Position: position, State: []byte(`{"unhealthy":true}`)}, true)
	copy(position, `"changed"`) // a reader may reuse its bytes
	m.Keep("files", Entry{State: []byte(`[]`)}, false)
	m.KeepLabels(nil)
	m.KeepTexts(map[string]string{"a.json": "{}", "b.json": `"<é>"`})
	m.KeepNote(`{"agreed":"upon"}`)
	closed(t, m)

	m, logged := opened(t, dir, "second")
	testkit.Same(t, m.Monitors(), []string{"files", "kernel"}, "the monitors")
	if entry, ok := m.Monitor("kernel"); !ok || string(entry.Position) != `{"seq":7}` || string(entry.State) != `{"unhealthy":true}` {
		t.Errorf("the monitor has position %s and state %s, %v", entry.Position, entry.State, ok)
	}
	if labels, ok := m.Labels(); !ok || len(labels) != 0 {
		t.Errorf("stored empty labels are %v, %v", labels, ok)
	}
	for key, want := range map[string]string{"a.json": "{}", "b.json": `"<é>"`} {
		text, ok := m.Text(key)
		testkit.Check(t, ok && text == want, "the text of %s is %q, %v", key, text, ok)
	}
	testkit.Same(t, m.Note(), `{"agreed":"upon"}`, "the note")
	m.KeepTexts(map[string]string{"a.json": "[]"})
	m.KeepLabels(map[string]string{"gpu": "true"})
	closed(t, m)
	testkit.Check(t, logged.Len() == 0, "the log is %s", logged)

	m, _ = opened(t, dir, "third")
	if labels, _ := m.Labels(); !maps.Equal(labels, map[string]string{"gpu": "true"}) {
		t.Errorf("the labels are %v", labels)
	}
	text, _ := m.Text("a.json")
	testkit.Check(t, text == "[]", "the text is %q", text)
	text, ok = m.Text("b.json")
	testkit.Check(t, !ok, "a removed text is still %q", text)
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, stateFile): 0o600} {
		info, err := os.Stat(path)
		testkit.Check(t, err == nil && info.Mode().Perm() == want, "%s is %v, want %v: %v", path, info.Mode(), want, err)
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
		testkit.Same(t, m.Monitors(), step.want, "%s: the monitors", step.name)
		for _, key := range m.Monitors() {
			e, _ := m.Monitor(key)
			testkit.Check(t, string(e.State) == "1", "%s: the state of %s is %s", step.name, key, e.State)
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
	after, _, _ := disk.tally()
	testkit.Check(t, after == before, "it was written %d times", after-before)
	closed(t, m)
}

func TestSecondAgentGetsTheHolderOfTheLock(t *testing.T) {
	dir := t.TempDir()
	first, _ := opened(t, dir, "")
	_, err := Open(Config{Dir: dir})
	testkit.Require(t, errors.Is(err, ErrInUse) && strings.Contains(err.Error(), dir) && strings.Contains(err.Error(), "--state-dir"),
		"the second agent gets the error %v", err)
	owner := fmt.Sprintf("(pid %d on ", os.Getpid())
	testkit.Require(t, strings.Contains(err.Error(), owner), "the second agent gets the error %v, want %s", err, owner)
	t.Log(err)
	closed(t, first)
	first.Keep("x", entry(1), true)
	testkit.Must(t, first.Flush())
	second, _ := opened(t, dir, "")
	_, ok := second.Monitor("x")
	testkit.Check(t, !ok, "the first agent has written after Close")
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
			testkit.Check(t, strings.Count(logged.String(), "\n") == 1 && strings.Contains(logged.String(), badFile), "the log is %q", logged)
			testkit.Check(t, len(m.Monitors()) == 0 && m.Err() == nil, "the store has monitors %q and the error %v", m.Monitors(), m.Err())
			aside, err := os.ReadFile(filepath.Join(dir, badFile))
			testkit.Check(t, err == nil && string(aside) == text, "the renamed file is %q: %v", aside, err)
			_, err = os.Stat(filepath.Join(dir, newFile))
			testkit.Check(t, errors.Is(err, os.ErrNotExist), "the unfinished file of a crash still exists: %v", err)
			m.Keep("kernel", entry(1), true)
			closed(t, m)
			m, _ = opened(t, dir, "now")
			_, ok := m.Monitor("kernel")
			testkit.Check(t, ok, "the store does not write after that")
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
		testkit.Require(t, m.Flush() != nil, "writing succeeded")
	}
	e, _ := m.Monitor("x")
	testkit.Check(t, string(e.State) == "2", "the state is %s", e.State)
	testkit.Check(t, m.Err() != nil && strings.Contains(m.Err().Error(), dir), "the error is %v", m.Err())
	// The directory becomes writable while the agent runs.
	testkit.Must(t, os.Remove(blocked))
	err := m.Flush()
	testkit.Check(t, err == nil && m.Err() == nil, "still fails: %v, %v", err, m.Err())
	closed(t, m)
	got := strings.Count(logged.String(), "\n")
	testkit.Check(t, got == 2 && strings.Count(logged.String(), "level=ERROR") == 1, "the log is %s", logged)
	m, _ = opened(t, dir, "")
	e, _ = m.Monitor("x")
	testkit.Check(t, string(e.State) == "2", "the stored state is %s", e.State)
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
	e, ok := m.Monitor("x")
	testkit.Check(t, ok && string(e.State) == "1", "the state is %s, %v", e.State, ok)
	testkit.Check(t, m.Err() != nil, "Err returns nil")
	_ = m.Close()
}

func TestWithoutADirectoryNothingIsWritten(t *testing.T) {
	m, logged := opened(t, "", "")
	m.Keep("x", entry(1), true)
	m.KeepLabels(map[string]string{})
	err := errors.Join(m.Flush(), m.Err(), m.Close(), m.Close())
	testkit.Check(t, err == nil && logged.Len() == 0, "the error is %v, the log is %s", err, logged)
	_, ok := m.Monitor("x")
	testkit.Check(t, ok, "the store lost a monitor while it runs")
}

// A monitor with an invalid state must not affect the state of others.
func TestInvalidJSONAffectsNoOtherMonitor(t *testing.T) {
	dir := t.TempDir()
	m, logged := opened(t, dir, "")
	m.Keep("good", entry(1), true)
	m.Keep("bad", Entry{Position: []byte(`{`), State: []byte(`1`)}, true)
	m.Keep("good", Entry{State: []byte(`}`)}, true)
	closed(t, m)
	testkit.Same(t, strings.Count(logged.String(), "not valid JSON"), 2, "lines of the log about bad JSON: %s", logged)
	m, _ = opened(t, dir, "")
	e, _ := m.Monitor("good")
	testkit.Check(t, string(e.State) == "1" && len(m.Monitors()) == 1, "the monitors are %q, with the state %s", m.Monitors(), e.State)
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
					testkit.Must(t, m.Flush())
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
		e, _ := m.Monitor(key)
		testkit.Check(t, string(e.State) == "49", "%s is %s", key, e.State)
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
		testkit.Require(t, err == nil, "%q cannot be written: %v", text, err)
		second, err := parse(written)
		testkit.Require(t, err == nil, "%q became %q: %v", text, written, err)
		again, err := second.text()
		testkit.Require(t, err == nil && bytes.Equal(written, again), "%q became %q, and then %q: %v", text, written, again, err)
	})
}

// The root directory of a container is an overlay. The root directory of the host may be
// one as well, for example if the host is a container.
func TestDirectoryInsideTheContainerIsLoggedOnce(t *testing.T) {
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil { // the kernel does not mount an overlay on an overlay
		t.Fatalf("%v: run this test as root", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	at := map[string]string{}
	for _, name := range []string{"lower", "upper", "work", "root"} {
		at[name] = filepath.Join(base, name)
		testkit.Must(t, os.Mkdir(at[name], 0o700))
	}
	err := unix.Mount("overlay", at["root"], "overlay", 0, "lowerdir="+at["lower"]+",upperdir="+at["upper"]+",workdir="+at["work"])
	testkit.Require(t, err == nil, "mounting an overlay: %v: run this test as root, with a kernel that has overlays", err)
	t.Cleanup(func() { _ = unix.Unmount(at["root"], unix.MNT_DETACH) })
	layer := filepath.Join(at["root"], "state")
	for name, of := range map[string]struct {
		path, root string
		lasts      bool
	}{
		"in the container":                   {layer, at["root"], false},
		"on a host whose root is an overlay": {layer, base, true},
		"on the host":                        {filepath.Join(base, "state"), at["root"], true},
		"without a container":                {filepath.Join(base, "state"), base, true},
	} {
		t.Run(name, func(t *testing.T) {
			log, logged := logger()
			m := testkit.Value(open(&directory{path: of.path, root: of.root}, "", log)).Must(t)
			for i := range 3 {
				m.Keep("x", entry(i), true)
				testkit.Must(t, m.Flush())
			}
			lasts := m.Err() == nil
			testkit.Check(t, lasts == of.lasts, "Err says that it is persistent: %t: %v", lasts, m.Err())
			testkit.Must(t, m.Close())
			want := 1
			if of.lasts {
				want = 0
			}
			testkit.Check(t, strings.Count(logged.String(), "\n") == want && strings.Count(logged.String(), of.path) == want, "the log is %q", logged)
		})
	}
	if err := (&directory{path: filepath.Join(base, "nowhere"), root: "/"}).CheckPersistent(); err != nil {
		t.Errorf("a missing directory gives %v", err)
	}
}

func golden(t *testing.T, name string) []byte {
	t.Helper()
	text := testkit.Value(os.ReadFile("testdata/" + name)).Must(t)
	return text
}

// The agent reads the state of all earlier versions. These golden files never change; a
// new version adds its own.
func TestStatesOfAllVersionsAreRead(t *testing.T) {
	got := testkit.Value(parse(golden(t, "state-v1.json"))).Must(t)
	labels := map[string]string{"zone": "a"}
	want := state{
		Version: 1, Boot: "6b7c", Labels: &labels, Texts: map[string]string{"kernel-monitor.json": "{}"}, Note: `{"taken":{}}`,
		Monitors: map[string]Entry{
			"kernel": {Position: []byte(`{"boot":"6b7c","next":4711}`), State: json.RawMessage(`{"since":"2026-11-15T12:00:00Z","boot":"6b7c","log":"kmsg /dev/kmsg"}`)},
			"old":    {State: json.RawMessage(`[1]`), Left: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)},
		},
	}
	testkit.NoDiff(t, cmp.Diff(want, got), "the entries")
	text, err := got.text()
	testkit.Check(t, err == nil && bytes.Equal(text, golden(t, "state-v1.json")), "the format has changed: add a new version: %v\n%s", err, text)
}

// An agent that runs between two newer ones continues with their state and preserves
// unknown fields.
func TestUnknownFieldsArePreserved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, stateFile)
	testkit.Must(t, os.WriteFile(path, golden(t, "state-newer.json"), 0o600))
	m, logged := opened(t, dir, "now")
	e, ok := m.Monitor("kernel")
	testkit.Check(t, ok && string(e.State) == `{"a":1}`, "kernel is %+v", e)
	n := m.CountUnknown()
	testkit.Check(t, n == 2 && strings.Contains(logged.String(), "newer agent"), "%d fields are unknown, and the log is: %s", n, logged)
	m.Keep("kernel", Entry{State: json.RawMessage(`{"a":2}`)}, true)
	closed(t, m)
	text := testkit.Value(os.ReadFile(path)).Must(t)
	for _, want := range []string{`"peers":["x"]`, `"lag":"3s"`, `"state":{"a":2}`, `"version":1`} {
		testkit.Contains(t, string(text), want, "the text of the state")
	}
}
