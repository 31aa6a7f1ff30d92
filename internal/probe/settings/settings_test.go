package settings_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// judge accepts every text that does not begin with "bad".
func judge(path string, kind config.Kind, text []byte) (file *config.File, warnings []string, err error) {
	if strings.HasPrefix(string(text), "bad") {
		return nil, nil, errors.New(path + ": " + string(text))
	}
	return &config.File{Path: path, Kind: kind, Log: &config.LogMonitor{Source: string(text)}}, nil, nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

func newStore(paths ...string) *settings.Store { return newNudgedStore(nil, paths...) }

func newNudgedStore(nudges <-chan os.Signal, paths ...string) *settings.Store {
	cfg := settings.Config{Parse: judge, Nudges: nudges, Logger: slog.New(slog.DiscardHandler)}
	for _, path := range paths {
		cfg.Names = append(cfg.Names, settings.Name{Kind: config.SystemLog, Path: path})
	}
	return settings.New(cfg)
}

// source returns the content of the version in effect.
func source(s settings.Setting) string {
	if s.File == nil {
		return ""
	}
	return s.File.Log.Source
}

func TestTheLastValidVersionStaysInEffect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	s := newStore(path, path)
	ids := map[string]bool{}
	for _, step := range []struct {
		name, text, inForce, reason, words string
	}{
		{"not there yet", "-", "", settings.Invalid, "there is no such file"},
		{"bad from the start", "bad 1", "", settings.Invalid, "no version of the file is in effect: "},
		{"good", "good 1", "good 1", settings.Loaded, "in effect"},
		{"the same", "good 1", "good 1", "nothing", ""},
		{"bad", "bad 1", "good 1", settings.Invalid, "the last good version stays in force: "},
		{"bad in another way", "bad 2", "good 1", settings.Invalid, "bad 2"},
		{"good as before", "good 1", "good 1", settings.Loaded, ""},
		{"better", "good 2", "good 2", "", ""},
		{"gone", "-", "", settings.Removed, "was deleted"},
		{"back", "good 2", "good 2", settings.Loaded, ""},
	} {
		if step.text == "-" {
			err := os.Remove(path)
			testkit.Require(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
		} else {
			write(t, path, step.text)
		}
		changes := s.Read()
		if step.reason == "nothing" {
			testkit.Same(t, len(changes), 0, "%s: reported changes", step.name)
			continue
		}
		testkit.MustBeSame(t, len(changes), 1, "%s: reported changes; a file that is named twice is one file", step.name)
		got := source(changes[0].Now)
		testkit.Check(t, got == step.inForce && source(s.Settings()[0]) == got, "%s: in force is %q, want %q", step.name, got, step.inForce)
		testkit.Same(t, changes[0].Reason(), step.reason, "%s: the reason", step.name)
		event, ok := changes[0].Event(time.Unix(1, 0))
		testkit.Check(t, ok == (step.reason != "") && strings.Contains(event.Message, step.words), "%s: the event is %+v (%t)", step.name, event, ok)
		testkit.Check(t, !ok || !ids[event.ID], "%s: the event has the identity of another", step.name)
		ids[event.ID] = true
		wantsWarn := step.reason == settings.Invalid || step.reason == settings.Removed
		testkit.Check(t, !ok || (event.Severity == finding.Warn) == wantsWarn, "%s: the severity is %q", step.name, event.Severity)
	}
}

func TestTheLastValidVersionSurvivesARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	for _, step := range []struct {
		name, last, text, inForce, reason string
	}{
		{"nothing was known", "-", "bad", "", settings.Invalid},
		{"it has become bad", "good 1", "bad", "good 1", settings.Invalid},
		{"it is the same", "good 1", "good 1", "good 1", ""},
		{"it is better", "good 1", "good 2", "good 2", ""},
		{"it is gone", "good 1", "-", "", settings.Removed},
		{"what was good is bad by now", "bad 1", "bad 2", "", settings.Invalid},
		{"what was good is bad by now, and it is good", "bad 1", "good 1", "good 1", ""},
	} {
		err := os.Remove(path)
		testkit.Require(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
		if step.text != "-" {
			write(t, path, step.text)
		}
		name := settings.Name{Kind: config.SystemLog, Path: path}
		s := settings.New(settings.Config{
			Names: []settings.Name{name}, Parse: judge, Logger: slog.New(slog.DiscardHandler),
			Last: func(asked settings.Name) (string, bool) { return step.last, asked == name && step.last != "-" },
		})
		changes := s.Read()
		testkit.Check(t, len(changes) == 1 && changes[0].Reason() == step.reason,
			"%s: told %+v, want one change with the reason %q", step.name, changes, step.reason)
		now := s.Settings()[0]
		if got := source(now); got != step.inForce || now.Text != step.inForce {
			t.Errorf("%s: in force is %q, with the text %q, want %q", step.name, got, now.Text, step.inForce)
		}
		testkit.Same(t, (now.Err != nil), step.text == "-" || strings.HasPrefix(step.text, "bad"), "%s: the error is %v", step.name, now.Err)
	}
}

func TestTheSameEditHasTheSameEventID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	write(t, path, "bad")
	first, _ := newStore(path).Read()[0].Event(time.Unix(1, 0))
	again, _ := newStore(path).Read()[0].Event(time.Unix(2, 0)) // after a restart
	testkit.Same(t, first.ID, again.ID, "the identity of the same version")
}

func TestAPipeOrFolderIsRefusedWithoutBlocking(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	testkit.Must(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{folder, pipe} {
		changes := newStore(path).Read()
		testkit.Check(t, len(changes) == 1 && changes[0].Now.Err != nil && strings.Contains(changes[0].Now.Err.Error(), path),
			"of %s it is told %v", path, changes)
	}
}

// watched is a Store that is being watched.
type watched struct {
	t       *testing.T
	changes chan []settings.Change
}

func watch(t *testing.T, paths ...string) watched {
	t.Helper()
	return watchNudged(t, nil, paths...)
}

func watchNudged(t *testing.T, nudges <-chan os.Signal, paths ...string) watched {
	t.Helper()
	s := newNudgedStore(nudges, paths...)
	s.Read()
	w := watched{t: t, changes: make(chan []settings.Change, 100)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Watch(ctx, func(changes []settings.Change) { w.changes <- changes })
	}()
	t.Cleanup(func() { stop(); <-ended })
	return w
}

// sees waits until a version is in effect. It does not wait for slowLook.
func (w watched) sees(what string) {
	w.t.Helper()
	for limit := time.After(10 * time.Second); ; {
		select {
		case changes := <-w.changes:
			for _, change := range changes {
				if source(change.Now) == what && change.Now.Err == nil || what == "" && change.Now.File == nil {
					return
				}
			}
		case <-limit:
			w.t.Fatalf("that %q is in force is not told", what)
		}
	}
}

func TestEditsAreNoticed(t *testing.T) {
	t.Run("in place", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a.json")
		write(t, path, "one")
		w := watch(t, path)
		for _, text := range []string{"two", "three"} {
			write(t, path, text)
			w.sees(text)
		}
	})
	t.Run("by a new file in its place", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a.json")
		write(t, path, "one")
		w := watch(t, path)
		for _, text := range []string{"two", "three"} {
			write(t, path+".tmp", text)
			testkit.Must(t, os.Rename(path+".tmp", path))
			w.sees(text)
		}
	})
	t.Run("in a mounted ConfigMap", func(t *testing.T) {
		mount := t.TempDir()
		publish(t, mount, "..1", map[string]string{"a.json": "one", "b.json": "one of b"})
		w := watch(t, filepath.Join(mount, "a.json"), filepath.Join(mount, "b.json"))
		publish(t, mount, "..2", map[string]string{"a.json": "two", "b.json": "one of b"})
		w.sees("two")
		publish(t, mount, "..3", map[string]string{"a.json": "three", "b.json": "one of b"})
		w.sees("three")
	})
	t.Run("of a file that a link leads to", func(t *testing.T) {
		folder, elsewhere := t.TempDir(), t.TempDir()
		write(t, filepath.Join(elsewhere, "real.json"), "one")
		testkit.Must(t, os.Symlink(filepath.Join(elsewhere, "real.json"), filepath.Join(folder, "a.json")))
		w := watch(t, filepath.Join(folder, "a.json"))
		write(t, filepath.Join(elsewhere, "real.json"), "two")
		w.sees("two")
	})
	t.Run("of a file in a folder that a link leads to, and when nudged of one to which the link is turned", func(t *testing.T) {
		folder, link := t.TempDir(), filepath.Join(t.TempDir(), "current")
		turn := func(version, text string) {
			testkit.Must(t, os.Mkdir(filepath.Join(folder, version), 0o700))
			write(t, filepath.Join(folder, version, "a.json"), text)
			testkit.Must(t, errors.Join(os.Symlink(filepath.Join(folder, version), link+"~"), os.Rename(link+"~", link)))
		}
		turn("1", "one")
		nudges := make(chan os.Signal, 1)
		w := watchNudged(t, nudges, filepath.Join(link, "a.json"))
		write(t, filepath.Join(folder, "1", "a.json"), "two")
		w.sees("two")
		turn("2", "three") // of which no notice comes
		nudges <- syscall.SIGHUP
		w.sees("three")
	})
	t.Run("of a folder whose parent is replaced", func(t *testing.T) {
		parent := filepath.Join(t.TempDir(), "x")
		testkit.Must(t, os.Mkdir(parent, 0o700))
		path := filepath.Join(parent, "y", "a.json")
		write(t, parent+".json", "one")
		w := watch(t, path, parent+".json")
		write(t, parent+".json", "two")
		w.sees("two") // now it watches
		testkit.Must(t, os.RemoveAll(parent))
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		write(t, path, "late")
		w.sees("late")
	})
	t.Run("of a folder that comes later, goes and comes back", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "x", "y")
		path := filepath.Join(folder, "a.json")
		w := watch(t, path)
		for range 3 {
			testkit.Must(t, os.MkdirAll(folder, 0o700))
			write(t, path, "one")
			w.sees("one")
			testkit.Must(t, os.RemoveAll(filepath.Dir(folder)))
			w.sees("")
		}
	})
}

// publish updates a mounted ConfigMap as the kubelet does, except for the removal of the old
// folder, which would cause a notification of its own.
func publish(t *testing.T, mount, version string, files map[string]string) {
	t.Helper()
	testkit.Must(t, os.Mkdir(filepath.Join(mount, version), 0o700))
	for name, text := range files {
		write(t, filepath.Join(mount, version, name), text)
		err := os.Symlink(filepath.Join("..data", name), filepath.Join(mount, name))
		testkit.Require(t, err == nil || errors.Is(err, fs.ErrExist), "%v", err)
	}
	testkit.Must(t, os.Symlink(version, filepath.Join(mount, "..data_tmp")))
	testkit.Must(t, os.Rename(filepath.Join(mount, "..data_tmp"), filepath.Join(mount, "..data")))
}
