package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// builtDiskWatch builds the example daemon once for all tests.
var builtDiskWatch = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(binary), "disk-watch")
	out, err := exec.Command("go", "build", "-o", path, "../../examples/disk-watch").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building disk-watch: %w\n%s", err, out)
	}
	return path, nil
})

// watched is a list of bad blocks, and the socket to which its daemon reports.
type watched struct {
	t      testing.TB
	list   string
	socket string
}

func newWatched(tb testing.TB) watched {
	tb.Helper()
	folder, err := os.MkdirTemp("", "dw") // the path of a socket must be short
	testkit.Must(tb, err)
	tb.Cleanup(func() { os.RemoveAll(folder) })
	w := watched{tb, filepath.Join(folder, "sda.badblocks"), filepath.Join(folder, "disk-watch", "problems.sock")}
	w.has("")
	return w
}

// has replaces the list atomically.
func (w watched) has(text string) {
	w.t.Helper()
	put(w.t, w.list+"~", text)
	testkit.Must(w.t, os.Rename(w.list+"~", w.list))
}

// daemon runs disk-watch until it is killed or the test ends.
func (w watched) daemon() (kill func()) {
	w.t.Helper()
	path := testkit.Value(builtDiskWatch()).Must(w.t)
	command := exec.CommandContext(context.WithoutCancel(w.t.Context()), path, "--socket="+w.socket, "--every=50ms", "--heartbeat=1s", w.list)
	var said strings.Builder
	command.Stderr = &said
	testkit.Must(w.t, command.Start())
	kill = sync.OnceFunc(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if w.t.Failed() {
			w.t.Logf("the daemon says:\n%s", said.String())
		}
	})
	w.t.Cleanup(kill)
	return kill
}

// problemSources is a file that lets disk-watch report these conditions.
func problemSources(w watched, conditions string) string {
	return fmt.Sprintf(`{"sources": [{"name": "disk-watch", "socket": %q, "silence": "5s", "conditions": [%s]}]}`, w.socket, conditions)
}

func TestDaemonReportsFallsSilentAndComesBack(t *testing.T) {
	t.Parallel()
	s, w := newScene(t), newWatched(t)
	file := filepath.Join(t.TempDir(), "sources.json")
	put(t, file, problemSources(w, `"DiskBadBlock"`))
	args := append(s.args(), "--config.problem-sources="+file)
	p := start(t, args...)
	p.waitFor("its metric, before anything is said", func() bool { return p.metric(`problem_gauge{type="DiskBadBlock",reason=""}`) == "0" })
	p.waitFor("that nothing was said", p.is("DiskBadBlock", "Unknown", "SourceNotHeardYet"))
	kill := w.daemon()
	p.waitFor("that the disk is well", p.is("DiskBadBlock", "False", "NoBadBlocks"))
	w.has("17 200\n")
	p.waitFor("a bad block", p.is("DiskBadBlock", "True", "BadBlocksFound"))
	p.waitFor("the event of it", func() bool {
		return p.logged("problem found", "problem-source:disk-watch", "BadBlockFound", "200 more bad sectors") == 1
	})
	for metric, want := range map[string]string{
		`problem_gauge{type="DiskBadBlock",reason="BadBlocksFound"}`:                 "1",
		`problem_counter{reason="BadBlocksFound"}`:                                   "1",
		`problem_counter{reason="BadBlockFound"}`:                                    "1",
		`autohealer_agent_problem_report_events_total{source="disk-watch"}`:          "1",
		`autohealer_agent_problem_source_silent{source="disk-watch"}`:                "0",
		`autohealer_agent_problem_reports_slowed_total{source="disk-watch"}`:         "0",
		`autohealer_agent_problem_reports_unauthenticated_total`:                     "0",
		`autohealer_agent_problem_reports_total{source="disk-watch",code="403"}`:     "none",
		`autohealer_agent_config_valid{file="` + file + `"}`:                         "1",
		`autohealer_agent_monitor_up{monitor="system-log-monitor:` + s.config + `"}`: "1",
	} {
		testkit.Same(t, p.metric(metric), want, "%s", metric)
	}
	lint(t, p)

	kill()
	p.waitFor("its silence", p.is("DiskBadBlock", "Unknown", "SourceSilent"))
	testkit.Same(t, p.metric(`autohealer_agent_problem_source_silent{source="disk-watch"}`), "1", "problem_source_silent")
	answers(t, p.statusURL+"/healthz", http.StatusOK, "")
	kill = w.daemon()
	p.waitFor("that it is back", p.is("DiskBadBlock", "True", "BadBlocksFound"))
	kill()
	before, _ := p.condition("DiskBadBlock")
	testkit.Between(t, p.stop(), 0, 3*time.Second, "the time to stop")

	p = start(t, args...)
	p.waitFor("what it had said before the restart", p.is("DiskBadBlock", "True", "BadBlocksFound"))
	c, _ := p.condition("DiskBadBlock")
	testkit.Check(t, c.Transition == before.Transition, "the condition is since %s, want %s", c.Transition, before.Transition)
	w.daemon()
	w.has("")
	p.waitFor("that the disk was repaired", p.is("DiskBadBlock", "False", "NoBadBlocks"))
}

func TestConfigMapChangesTheSources(t *testing.T) {
	t.Parallel()
	s, w := newScene(t), newWatched(t)
	mount := t.TempDir()
	file := filepath.Join(mount, "sources.json")
	publish(t, mount, "..1", "sources.json", problemSources(w, `"DiskBadBlock"`))
	p := start(t, append(s.args(), "--config.problem-sources="+file)...)
	w.has("17 200\n")
	w.daemon()
	p.waitFor("a bad block", p.is("DiskBadBlock", "True", "BadBlocksFound"))

	publish(t, mount, "..2", "sources.json", problemSources(w, `"DiskBadBlok"`))
	p.waitFor("the complaint", func() bool {
		return p.logged("level=ERROR", "ConfigInvalid", file+": sources[0].conditions[0]", "did you mean DiskBadBlock?") == 1
	})
	w.has("")
	p.waitFor("that the last good version is in force", p.is("DiskBadBlock", "False", "NoBadBlocks"))

	publish(t, mount, "..3", "sources.json", problemSources(w, `"ReadonlyFilesystem"`))
	p.waitFor("the removal of the condition", func() bool { _, ok := p.condition("DiskBadBlock"); return !ok })
	refused := `autohealer_agent_problem_reports_total{source="disk-watch",code="403"}`
	p.waitFor("that it is refused", func() bool { return p.metric(refused) != "none" })

	publish(t, mount, "..4", "sources.json", problemSources(w, `"DiskBadBlock"`))
	p.waitFor("that it may", func() bool { return p.metric(`problem_gauge{type="DiskBadBlock",reason=""}`) == "0" })
	w.has("18 100\n") // disk-watch repeats a refused report after a change, or after a minute
	p.waitFor("the next report", p.is("DiskBadBlock", "True", "BadBlocksFound"))
	testkit.Same(t, p.logged("a monitor is replaced"), 0, "monitors were replaced")
	testkit.Must(t, os.Remove(file))
	p.waitFor("the removal of the source", func() bool { return p.logged("is heard no longer", "disk-watch") == 1 })
	p.waitFor("the end of its socket", func() bool { _, err := os.Stat(w.socket); return os.IsNotExist(err) })
}

func TestMissingSocketMakesTheAgentUnhealthy(t *testing.T) {
	t.Parallel()
	s, w := newScene(t), newWatched(t)
	folder := filepath.Dir(w.socket)
	put(t, folder, "a file where a folder should be")
	file := filepath.Join(t.TempDir(), "sources.json")
	put(t, file, problemSources(w, `"DiskBadBlock"`))
	p := start(t, append(s.args(), "--config.problem-sources="+file)...)
	p.waitFor("an ailment", func() bool {
		code, body := get(t, p.statusURL+"/healthz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, w.socket)
	})
	testkit.Must(t, os.Remove(folder))
	p.waitFor("health", func() bool { code, _ := get(t, p.statusURL+"/healthz"); return code == http.StatusOK })
}

// Without state, the agent does not know the status of a condition that was True. It must
// neither remove it nor report False before the daemon's silence limit.
func TestAgentWithoutStateDoesNotReportHealthy(t *testing.T) {
	t.Parallel()
	e, s, w := newEar(t), newScene(t), newWatched(t)
	file := filepath.Join(t.TempDir(), "sources.json")
	put(t, file, problemSources(w, `"DiskBadBlock"`))
	args := append(append(s.args(), e.args()...), "--config.problem-sources="+file)
	p := start(t, args...)
	w.has("17 200\n")
	kill := w.daemon()
	applied := func(what string) func() bool {
		return func() bool {
			rows := e.appliedRows()
			return len(rows) > 0 && strings.Contains(rows[len(rows)-1], what)
		}
	}
	p.waitFor("the condition", applied("DiskBadBlock=True"))
	kill()
	p.stop()
	testkit.Must(t, os.RemoveAll(s.state))
	before := len(e.appliedRows())
	p = start(t, args...)
	p.waitFor("the silence of the daemon", p.is("DiskBadBlock", "Unknown", "SourceNeverHeard"))
	p.waitFor("the report of it", applied("DiskBadBlock=Unknown"))
	for _, row := range e.appliedRows()[before:] {
		testkit.Contains(t, row, "DiskBadBlock=Unknown", "the reported row")
	}
	p.stop()
}

func TestMissingTokenBlocksNothing(t *testing.T) {
	t.Parallel()
	s, w := newScene(t), newWatched(t)
	pipe := filepath.Join(t.TempDir(), "token")
	testkit.Must(t, syscall.Mkfifo(pipe, 0o600))
	file := filepath.Join(t.TempDir(), "sources.json")
	other := fmt.Sprintf(`{"socket": %q, "sources": [{"name": "other", "tokenFile": %q, "conditions": ["NTPProblem"]}, `, w.list+".sock", pipe)
	put(t, file, strings.Replace(problemSources(w, `"DiskBadBlock"`), `{"sources": [`, other, 1))
	p := start(t, append(s.args(), "--config.problem-sources="+file)...)
	w.daemon()
	p.waitFor("that the disk is well", p.is("DiskBadBlock", "False", "NoBadBlocks"))
	p.waitFor("an ailment", func() bool {
		code, body := get(t, p.statusURL+"/healthz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, pipe)
	})
	testkit.Between(t, p.stop(), 0, 3*time.Second, "the time to stop")
}

func TestValidateChecksSources(t *testing.T) {
	w := newWatched(t)
	file := filepath.Join(t.TempDir(), "sources.json")
	said := func(text string) (string, error) {
		put(t, file, text)
		var out strings.Builder
		err := command(t.Context(), []string{"--validate", "--config.problem-sources=" + file}, none, &out, io.Discard)
		return out.String(), err
	}
	if out, err := said(problemSources(w, `"DiskBadBlock"`)); err != nil || out != file+": ok, problem-sources: 1 source, 1 condition\n" {
		t.Errorf("%v: the output is %q", err, out)
	}
	out, err := said(`{"tcp": "0.0.0.0:1", "sources": [{"name": "a", "uid": 7, "conditions": ["Ready"]}]}`)
	testkit.Check(t, err != nil && strings.Count(out, file+": ") == 3 && strings.Contains(out, "sources[0].conditions[0]") && strings.Contains(out, "tcp: "),
		"%v: the output is %q", err, out)
	out, err = said(`{"sources": [{"name": "a", "uid": 7, "rate": 0, "conditions": ["DiskBadBlok"]}, {"uid": "x", "conditions": ["Ready"]}]}`)
	if want := []string{
		"sources[0].rate: 0 is too small", "sources[1].name: missing", "sources[1].uid: \"x\" is not a whole number",
		"sources[0].conditions[0]: \"DiskBadBlok\" is neither in the catalogue", "sources[1].conditions[0]: Ready is reported by Kubernetes",
	}; err == nil || strings.Count(out, file+": ") != 1+len(want) || slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(out, "  "+file+": "+w) }) {
		t.Errorf("%v: the output is %s", err, out)
	}
	out, err = said(`{"conditions": [{"type": "RAIDDegraded", "meaning": "A disk is missing."}, {"type": "FabricReady", "healthyStatus": "True", "meaning": "The link is down."}, {"type": "Idle", "meaning": "Unused."}],
		"sources": [{"name": "a", "uid": 7, "conditions": ["RAIDDegraded", "FabricReady"]}]}`)
	for _, want := range []string{"ok, problem-sources: 1 source, 2 conditions", "condition RAIDDegraded: False on a healthy node. A disk is missing.", "condition FabricReady: True on a healthy node. The link is down.",
		"warning: conditions[2]: no source reports Idle"} {
		testkit.Check(t, err == nil && strings.Contains(out, want), "%v: the output is %s, want %s", err, out, want)
	}
	out, err = said(`{"conditions": [{"type": "RAIDDegraded"}, {"type": "DiskBadBlock", "healthyStatus": "True"}, {"type": "Odd", "meaning": "Odd.", "healthyStatus": "yes"}], "sources": [{"name": "a", "uid": 7}]}`)
	for _, want := range []string{"conditions[0].meaning: missing", "conditions[1].healthyStatus: the catalogue says that DiskBadBlock is False on a healthy node", `conditions[2].healthyStatus: "yes" is no status of a healthy node`} {
		testkit.Check(t, err != nil && strings.Contains(out, want), "%v: the output is %s, want %s", err, out, want)
	}
	const beside = `{%s"sources": [{"name": "a", "uid": 7, "conditions": ["NTPProblem"]}, {"name": "b", "socket": "/run/autohealer/b/problems.sock", "conditions": ["DiskBadBlock"]}]}`
	out, err = said(fmt.Sprintf(beside, ""))
	testkit.Check(t, err == nil && !strings.Contains(out, "warning"), "with the default socket: %v, the output is %q", err, out)
	out, err = said(fmt.Sprintf(beside, `"socket": "/run/autohealer/problems.sock", `))
	if err != nil || !strings.Contains(out, "\n  warning: socket: a container that mounts its folder /run/autohealer also gets the socket of b and "+check.RepairsFolder) {
		t.Errorf("%v: the output is %q", err, out)
	}
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	tokens := fmt.Sprintf(`{"sources": [{"name": "a", "tokenFile": %q, "conditions": ["NTPProblem"]}, {"name": "b", "tokenFile": %q, "conditions": ["DiskBadBlock"]}]}`, one, two)
	put(t, one, "correct-horse-battery-staple")
	out, err = said(tokens)
	testkit.Check(t, err == nil && strings.Contains(out, "warning: sources[1].tokenFile: reading a token: open "+two), "%v: the output is %q", err, out)
	put(t, two, "correct-horse-battery-staple\n")
	out, err = said(tokens)
	testkit.Check(t, err != nil && strings.Contains(out, "sources[1].tokenFile: it has the token of a"), "%v: the output is %q", err, out)
}

func TestSharedConditionOfDaemonAndMonitorIsLogged(t *testing.T) {
	const monitor = "../../config/disk-log-message-filelog.json"
	s, w := newScene(t), newWatched(t)
	file := filepath.Join(t.TempDir(), "sources.json")
	put(t, file, problemSources(w, `"DiskBadBlock", "NTPProblem"`))
	flags := []string{"--config.problem-sources=" + file, "--config.system-log-monitor=" + monitor}
	var out strings.Builder
	testkit.Must(t, command(t.Context(), append([]string{"--validate"}, flags...), none, &out, io.Discard))
	if strings.Count(out.String(), "warning: ") != 1 || !strings.Contains(out.String(), "warning: DiskBadBlock is kept by disk-watch and by "+monitor) {
		t.Errorf("the output is %q", out.String())
	}
	p := start(t, append(s.args(), flags...)...)
	p.waitFor("the warning", func() bool {
		return p.logged("level=WARN", "DiskBadBlock is kept by disk-watch and by system-log-monitor:"+monitor) == 1
	})
	p.stop()
}

// inotify does not report a changed link in the path of a file. Without a signal the agent
// would notice it after half a minute.
func TestSIGHUPReloadsFiles(t *testing.T) {
	s, w := newScene(t), newWatched(t)
	folder := t.TempDir()
	link := filepath.Join(folder, "current")
	turn := func(version, conditions string) {
		testkit.Must(t, os.Mkdir(filepath.Join(folder, version), 0o700))
		put(t, filepath.Join(folder, version, "sources.json"), problemSources(w, conditions))
		testkit.Must(t, os.Symlink(version, link+"~"))
		testkit.Must(t, os.Rename(link+"~", link))
	}
	turn("one", `"DiskBadBlock"`)
	p := start(t, append(s.args(), "--config.problem-sources="+filepath.Join(link, "sources.json"))...)
	stands := func(kind string) bool { return p.metric(`problem_gauge{type="`+kind+`",reason=""}`) == "0" }
	p.waitFor("the first version", func() bool { return stands("DiskBadBlock") })
	put(t, filepath.Join(folder, "one", "sources.json"), problemSources(w, `"DiskBadBlock", "NTPProblem"`))
	p.waitFor("that edits are noticed", func() bool { return stands("NTPProblem") })
	turn("two", `"ReadonlyFilesystem"`)
	testkit.Must(t, p.command.Process.Signal(syscall.SIGHUP))
	p.waitFor("the second version", func() bool { return stands("ReadonlyFilesystem") && !stands("DiskBadBlock") })
	p.stop()
}
