package periodic_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/subprocess"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestMain(m *testing.M) {
	if !subprocess.Become() {
		m.Run()
	}
}

const original = "../config/testdata/node-problem-detector/custom-plugin-monitor.json"

// fixture runs the monitor of the original file under a supervisor, with a program that the test
// writes.
type fixture struct {
	t       *testing.T
	program string
	log     *strings.Builder
	made    *periodic.Monitor

	mu       sync.Mutex
	received []string
	seen     []string // reports that the test has already waited for
}

func (s *fixture) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(text)
}

func (s *fixture) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func newFixture(t *testing.T, change func(*config.PluginMonitor)) *fixture {
	t.Helper()
	text := testkit.Value(os.ReadFile(original)).Must(t)
	file, _, err := config.Parse(original, config.CustomPlugin, text)
	testkit.Must(t, err)
	t.Chdir(t.TempDir())
	testkit.Must(t, os.MkdirAll("config/plugin", 0o700))
	s := &fixture{t: t, program: "./config/plugin/check_ntp.sh", log: &strings.Builder{}}
	monitor := *file.Plugin
	for i := range monitor.Rules {
		testkit.MustBeSame(t, monitor.Rules[i].Path, s.program, "the program of the original")
		monitor.Rules[i].InvokeInterval = 20 * time.Millisecond
	}
	if change != nil {
		change(&monitor)
	}
	log := slog.New(slog.NewTextHandler(s, nil))
	made := testkit.Value(periodic.NewPlugin(periodic.PluginConfig{Key: "ntp", Monitor: monitor, Children: subprocess.New(), Logger: log})).Must(t)
	s.made = made
	supervisor := supervise.New(supervise.Config{Emit: s.emit, Logger: slog.New(slog.DiscardHandler)})
	supervisor.Apply(context.WithoutCancel(t.Context()), []supervise.Job{{
		Name: "ntp", Source: monitor.Source, Conditions: []string{"NTPProblem"}, Make: func() supervise.Monitor { return made },
	}})
	t.Cleanup(supervisor.Stop)
	return s
}

func (s *fixture) emit(_ string, r finding.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range r.Events {
		s.received = append(s.received, fmt.Sprintf("%s: %s", e.Reason, e.Message))
	}
	for _, c := range r.Conditions {
		s.received = append(s.received, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
}

// all returns all reports.
func (s *fixture) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.seen, s.received)
}

// write replaces the program atomically.
func (s *fixture) write(lines string) {
	s.t.Helper()
	next := filepath.Join(filepath.Dir(s.program), "next")
	testkit.Must(s.t, os.WriteFile(next, []byte("#!/bin/sh\n"+lines+"\n"), 0o700))
	testkit.Must(s.t, os.Rename(next, s.program))
}

// waitFor waits for a report with this prefix and returns it.
func (s *fixture) waitFor(want string) string {
	s.t.Helper()
	late := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		for i, received := range s.received {
			if strings.HasPrefix(received, want) {
				s.seen, s.received = append(s.seen, s.received[:i+1]...), s.received[i+1:]
				s.mu.Unlock()
				return received
			}
		}
		s.mu.Unlock()
		select {
		case <-late:
			s.t.Fatalf("waiting for %q, got %q", want, s.received)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestTheOriginalClockMonitor(t *testing.T) {
	s := newFixture(t, nil)
	s.waitFor("NTPProblem=Unknown PluginMissing: running ./config/plugin/check_ntp.sh: there is no such file")
	s.write("exit 0")
	s.waitFor("NTPProblem=False NTPIsUp: ntp service is up")
	s.write("echo '  NTP service is not running.  '; echo details >&2; exit 1")
	s.waitFor("NTPProblem=True NTPIsDown: NTP service is not running.")
	s.waitFor("NTPIsDown: NTP service is not running.") // the temporary rule, again and again
	s.waitFor("NTPIsDown: NTP service is not running.")
	n := strings.Count(s.logged(), "details")
	testkit.Check(t, n >= 1 && n <= 2, "what it writes to its standard error is logged %d times, want once for each of the two rules at most", n)
	s.write("exit 3")
	s.waitFor("NTPProblem=Unknown PluginUnclear: running ./config/plugin/check_ntp.sh: it exited with code 3")
	s.write("echo not sure; exit 2")
	s.write("exit 0")
	s.waitFor("NTPProblem=False NTPIsUp: ntp service is up")
	testkit.Must(t, os.Chmod(s.program, 0o600))
	s.waitFor("NTPProblem=Unknown PluginNotExecutable")
	testkit.Must(t, os.Remove(s.program))
	s.waitFor("NTPProblem=Unknown PluginMissing")
	testkit.Must(t, os.Mkdir(s.program, 0o700))
	s.waitFor("NTPProblem=Unknown PluginIsFolder")
}

func TestAProgramThatTakesTooLongIsUnknown(t *testing.T) {
	s := newFixture(t, func(m *config.PluginMonitor) {
		for i := range m.Rules {
			m.Rules[i].Timeout = 200 * time.Millisecond
		}
	})
	s.write("echo begun; sleep 1000")
	s.waitFor("NTPProblem=Unknown PluginTimeout: running ./config/plugin/check_ntp.sh: it was killed as it had not ended after 2")
	s.write("kill -9 $$")
	s.waitFor("NTPProblem=Unknown PluginKilled")
}

// Unlike node-problem-detector, a temporary rule finds no problem with a program that cannot run.
func TestAProgramThatCannotRunFindsNoProblem(t *testing.T) {
	for file, want := range map[string]string{
		"":                                      "there is no such file",
		"#!/no/such/shell\nexit 1":              "its interpreter /no/such/shell does not exist",
		"#!/usr/bin/env no-such-shell\nexit 1":  "it exited with code 127: it could not run its interpreter or another program; add the program to the image, or mount it; it wrote \"",
		"#!/bin/sh\nno-such-program --of shell": "it exited with code 127: it could not run",
	} {
		t.Run(want, func(t *testing.T) {
			s := newFixture(t, func(m *config.PluginMonitor) {
				m.Rules = slices.DeleteFunc(m.Rules, func(r config.PluginRule) bool { return r.Permanent })
				if file != "" {
					testkit.Must(t, os.WriteFile(m.Rules[0].Path, []byte(file), 0o700))
				}
			})
			s.waitFor("PluginMissing: running ./config/plugin/check_ntp.sh: " + want)
			testkit.Equal(t, "problems", map[string]uint64{"NTPIsDown": 0}, s.made.Problems())
		})
	}
}

// The other counters match node-problem-detector's, because users have alerts on them.
func TestATemporaryRuleWritesAnEventForEveryFailure(t *testing.T) {
	s := newFixture(t, func(m *config.PluginMonitor) {
		m.Rules = slices.DeleteFunc(m.Rules, func(r config.PluginRule) bool { return r.Permanent })
		m.Rules[0].Timeout = 200 * time.Millisecond
	})
	for _, end := range []struct{ lines, says string }{
		{"echo one; exit 1", "one"}, {"echo two; exit 2", "two"}, {"exit 3", "running ./config/plugin/check_ntp.sh: it exited with code 3"},
		{"sleep 1000", "running ./config/plugin/check_ntp.sh: it was killed as it had not ended"},
		{"kill -9 $$", "running ./config/plugin/check_ntp.sh: it was killed by signal 9"},
	} {
		s.write(end.lines)
		for range 2 { // each time
			s.waitFor("NTPIsDown: " + end.says)
		}
	}
	told := 0
	for _, received := range s.all() {
		if strings.HasPrefix(received, "NTPIsDown: ") {
			told++
		}
	}
	counted := s.made.Problems()["NTPIsDown"]
	testkit.Check(t, told >= 10 && counted >= uint64(told), "%d are told, %d are counted", told, counted)
}

func TestArgumentsAreNotLogged(t *testing.T) {
	s := newFixture(t, func(m *config.PluginMonitor) {
		for i := range m.Rules {
			m.Rules[i].Args = []string{"--token=hunter2"}
			m.Rules[i].Timeout = 200 * time.Millisecond
		}
	})
	s.write("echo $1; echo odd >&2; sleep 1000")
	s.waitFor("NTPProblem=Unknown PluginTimeout")
	s.write("echo odd >&2; exit 3")
	s.waitFor("NTPProblem=Unknown PluginUnclear")
	log := s.logged()
	testkit.Check(t, strings.Contains(log, "plugin wrote to stderr") && strings.Contains(log, "check_ntp.sh"), "the program is not in the log:\n%s", log)
	testkit.Check(t, !strings.Contains(log, "hunter2"), "its arguments are in the log:\n%s", log)
}

func TestTheMessageIsCutToTheLimitOfTheFile(t *testing.T) {
	for most, want := range map[int]string{0: "", 3: "no ", 5: "no ü", 6: "no ü", 7: "no üü", 80: "no üü\ufffd."} {
		t.Run(strconv.Itoa(most), func(t *testing.T) {
			s := newFixture(t, func(m *config.PluginMonitor) { m.MaxOutputLength = most })
			s.write(`printf 'no üü\377.\n'; exit 1`)
			testkit.Same(t, strings.TrimPrefix(s.waitFor("NTPProblem=True"), "NTPProblem=True NTPIsDown: "), want, "the output that is kept of %d bytes", most)
		})
	}
}

// A program does not outlive the monitor.
func TestTheMonitorEndsItsPrograms(t *testing.T) {
	text := testkit.Value(os.ReadFile(original)).Must(t)
	file, _, err := config.Parse(original, config.CustomPlugin, text)
	testkit.Must(t, err)
	folder := t.TempDir()
	program, note := filepath.Join(folder, "check"), filepath.Join(folder, "pid")
	testkit.Must(t, os.WriteFile(program, []byte("#!/bin/sh\necho $$ >"+note+".new; mv "+note+".new "+note+"; exec sleep 1000\n"), 0o700))
	monitor := *file.Plugin
	monitor.Rules = monitor.Rules[1:] // the permanent rule
	monitor.Rules[0].Path = program
	made, err := periodic.NewPlugin(periodic.PluginConfig{Key: "ntp", Monitor: monitor, Children: subprocess.New(), Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	var received []string
	supervisor := supervise.New(supervise.Config{Logger: slog.New(slog.DiscardHandler), Emit: func(_ string, r finding.Report) {
		for _, c := range r.Conditions {
			received = append(received, c.Type+"="+string(c.Status))
		}
	}})
	supervisor.Apply(context.WithoutCancel(t.Context()), []supervise.Job{{Name: "ntp", Make: func() supervise.Monitor { return made }}})
	var pid []byte
	for late := time.After(10 * time.Second); len(pid) == 0; pid, _ = os.ReadFile(note) {
		select {
		case <-late:
			t.Fatal("it is not run")
		case <-time.After(time.Millisecond):
		}
	}
	supervisor.Stop()
	_, err = os.Stat("/proc/" + strings.TrimSpace(string(pid)))
	testkit.Check(t, err != nil, "the program has outlived its monitor")
	testkit.NoDiff(t, cmp.Diff([]string(nil), received), "reports after the end")
}
