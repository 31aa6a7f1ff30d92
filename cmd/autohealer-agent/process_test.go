package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// process is a running agent and its log.
type process struct {
	t          testing.TB
	command    *exec.Cmd
	statusURL  string // address of /healthz
	metricsURL string // address of /metrics
	ended      chan struct{}

	mu    sync.Mutex
	lines []string
}

// start runs the agent with free ports until the test ends.
func start(tb testing.TB, args ...string) *process {
	tb.Helper()
	return launch(tb, binary, args...)
}

// launch runs a given build of the agent.
func launch(tb testing.TB, binary string, args ...string) *process {
	tb.Helper()
	status, metrics := testbed.Address(tb), testbed.Address(tb)
	port := func(address string) string { return strings.TrimPrefix(address, "127.0.0.1:") }
	p := &process{
		t: tb, ended: make(chan struct{}),
		statusURL: "http://" + status, metricsURL: "http://" + metrics,
		command: exec.CommandContext(context.WithoutCancel(tb.Context()), binary,
			slices.Concat([]string{"--log-format=text", "--port=" + port(status), "--prometheus-port", port(metrics)}, args)...),
	}
	// Otherwise the agent would report to the cluster that the test runs in, and stop a second later.
	p.command.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "KUBERNETES_SERVICE_HOST=")
	log := testkit.Value(p.command.StderrPipe()).Must(tb)
	testkit.Must(tb, p.command.Start())
	go func() {
		defer close(p.ended)
		scanner := bufio.NewScanner(log)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, scanner.Text())
			p.mu.Unlock()
		}
		_ = p.command.Wait()
	}()
	tb.Cleanup(func() {
		p.kill()
		for _, line := range p.log() {
			if strings.Contains(line, "DATA RACE") || strings.Contains(line, "panic") {
				tb.Errorf("log of the agent:\n%s", strings.Join(p.log(), "\n"))
				break
			}
		}
		if tb.Failed() {
			tb.Logf("the log of the agent, or its end:\n%s", strings.Join(p.log()[max(0, len(p.log())-40):], "\n"))
		}
	})
	p.waitFor("that it starts", func() bool { return p.logged("msg=starting") > 0 || p.hasEnded() })
	return p
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill kills the agent.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// stop stops the agent as Kubernetes does, and returns the duration.
func (p *process) stop() time.Duration {
	p.t.Helper()
	began := time.Now()
	testkit.Must(p.t, p.command.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.t.Fatal("the agent does not stop")
	}
	testkit.Same(p.t, p.command.ProcessState.ExitCode(), 0, "the exit code")
	return time.Since(began)
}

func (p *process) log() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// logged counts the lines that contain all of these texts.
func (p *process) logged(words ...string) int {
	n := 0
	for _, line := range p.log() {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			n++
		}
	}
	return n
}

var idOf = regexp.MustCompile(`msg="(?:problem found|condition changed)".* id=([0-9a-f]+)( |$)`)

// ids returns the identities of all findings, with their number.
func (p *process) ids() map[string]int {
	ids := map[string]int{}
	for _, line := range p.log() {
		if found := idOf.FindStringSubmatch(line); found != nil {
			ids[found[1]]++
		}
	}
	return ids
}

func (p *process) waitFor(what string, done func() bool) {
	p.t.Helper()
	testkit.Until(p.t, what, done)
}

func get(tb testing.TB, url string) (code int, body string) {
	tb.Helper()
	code, body, err := testkit.Get(tb.Context(), url)
	testkit.Must(tb, err)
	return code, body
}

// answers checks the status code of a URL and a part of its answer.
func answers(tb testing.TB, url string, want int, part string) {
	tb.Helper()
	code, body := get(tb, url)
	testkit.Check(tb, code == want && strings.Contains(body, part), "%s returns %d %q, want %d %q", url, code, body, want, part)
}

// shownCondition has exactly the fields that node-problem-detector shows of a condition.
type shownCondition struct {
	Type, Status, Transition, Reason, Message string
}

// condition returns a condition from /conditions.
func (p *process) condition(kind string) (c shownCondition, ok bool) {
	p.t.Helper()
	_, body := get(p.t, p.statusURL+"/conditions")
	var list []shownCondition
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&list)
	testkit.Require(p.t, err == nil, "/conditions is %q: %v", body, err)
	for _, c := range list {
		if c.Type == kind {
			return c, true
		}
	}
	return shownCondition{}, false
}

// is reports whether a condition has a status and a reason.
func (p *process) is(kind, status, reason string) func() bool {
	return func() bool {
		c, ok := p.condition(kind)
		return ok && c.Status == status && c.Reason == reason
	}
}

// metric returns the value of a metric from a scrape.
func (p *process) metric(metric string) string {
	p.t.Helper()
	_, body := get(p.t, p.metricsURL+"/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), metric+" "); ok {
			return value
		}
	}
	return "none"
}

func put(tb testing.TB, path, text string) {
	tb.Helper()
	testkit.Must(tb, os.WriteFile(path, []byte(text), 0o600))
}

// kernelLog is a file in the format of a syslog daemon.
type kernelLog struct {
	t    testing.TB
	path string
}

func (l kernelLog) write(messages ...string) {
	l.t.Helper()
	file := testkit.Value(os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)).Must(l.t)
	defer file.Close()
	var text strings.Builder
	for _, message := range messages {
		fmt.Fprintf(&text, "%s node kernel: [%12.6f] %s\n", time.Now().Format(time.Stamp), 1234.5, message)
	}
	testkit.Value(file.WriteString(text.String())).Must(l.t)
}

// kernelMonitor is the configuration of the design's example: one rule of each type, on a
// file, plus extra.
func kernelMonitor(log, extra string) string {
	return fmt.Sprintf(`{
	"plugin": "filelog", "logPath": %q, "lookback": "5m", "bufferSize": 10, "source": "kernel-monitor", %s
	"pluginConfig": {"timestamp": "^.{15}", "message": "kernel: \\[.*\\] (.*)", "timestampFormat": "Jan _2 15:04:05"},
	"conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"}],
	"rules": [
		{"type": "temporary", "reason": "OOMKilling", "pattern": "Killed process \\d+ (.+) total-vm:\\d+kB, anon-rss:\\d+kB, file-rss:\\d+kB"},
		{"type": "permanent", "condition": "KernelDeadlock", "reason": "AUFSUmountHung", "pattern": "task umount\\.aufs:\\w+ blocked for more than \\w+ seconds\\."},
		{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung", "pattern": "task docker:\\w+ blocked for more than \\w+ seconds\\."}
	]}`, log, extra)
}

const (
	oom  = "Killed process 1012 (heapster) total-vm:327128kB, anon-rss:306328kB, file-rss:11132kB"
	hung = "task docker:7 blocked for more than 300 seconds."
)

// fixture holds a log, its configuration file and a state directory.
type fixture struct {
	log    kernelLog
	config string
	state  string
}

func newScene(tb testing.TB) fixture {
	tb.Helper()
	folder := tb.TempDir()
	s := fixture{log: kernelLog{tb, filepath.Join(folder, "kern.log")}, config: filepath.Join(folder, "kernel-monitor.json"), state: filepath.Join(folder, "state")}
	put(tb, s.config, kernelMonitor(s.log.path, ""))
	return s
}

func (s fixture) args() []string {
	return []string{"--config.system-log-monitor=" + s.config, "--state-dir=" + s.state}
}
