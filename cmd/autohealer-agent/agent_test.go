package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestExampleOfTheDesign(t *testing.T) {
	s := newScene(t)
	p := start(t, s.args()...)
	p.waitFor("a healthy condition", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
	if code, body := get(t, p.statusURL+"/healthz"); code != http.StatusOK || body != "ok" {
		t.Errorf("/healthz returns %d %q", code, body)
	}
	if got := p.metric(`problem_counter{reason="OOMKilling"}`) + p.metric(`problem_gauge{type="KernelDeadlock",reason="DockerHung"}`); got != "00" {
		t.Errorf("before there is a problem its metrics are %q, want 0 each", got)
	}
	s.log.write("all is well", oom, "100% fine", hung)
	p.waitFor("the problem", func() bool { return p.logged("problem found", "OOMKilling", "heapster") == 1 })
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	if c, _ := p.condition("KernelDeadlock"); !strings.Contains(c.Message, hung) {
		t.Errorf("the condition's message is %q", c.Message)
	}
	for metric, want := range map[string]string{
		`problem_counter{reason="OOMKilling"}`:                             "1",
		`problem_counter{reason="DockerHung"}`:                             "1",
		`problem_counter{reason="AUFSUmountHung"}`:                         "0",
		`problem_gauge{type="KernelDeadlock",reason="DockerHung"}`:         "1",
		`problem_gauge{type="KernelDeadlock",reason="AUFSUmountHung"}`:     "0",
		`autohealer_agent_config_valid{file="` + s.config + `"}`:           "1",
		`autohealer_agent_state_kept`:                                      "1",
		`autohealer_agent_lines_total{monitor="` + monitorOf(s) + `"}`:     "4",
		`autohealer_agent_monitor_up{monitor="` + monitorOf(s) + `"}`:      "1",
		`autohealer_agent_monitor_waiting{monitor="` + monitorOf(s) + `"}`: "0",
	} {
		if got := p.metric(metric); got != want {
			t.Errorf("%s is %s, want %s", metric, got, want)
		}
	}
	lint(t, p)
	// The kubelet kills a container after 30 s. A busy machine takes more than one of them.
	if took := p.stop(); took > 10*time.Second {
		t.Errorf("stopping took %s", took)
	}
}

func monitorOf(s fixture) string { return "system-log-monitor:" + s.config }

// lint checks a scrape with promlint. Two metrics and those of the machine keep the names of
// node-problem-detector, which dashboards use.
func lint(t *testing.T, p *process) {
	t.Helper()
	_, body := get(t, p.metricsURL+"/metrics")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	testkit.Must(t, err)
	for _, problem := range problems {
		others := []string{"problem_counter", "problem_gauge", "cpu_", "disk_", "net_", "system_"}
		if !slices.ContainsFunc(others, func(name string) bool { return strings.HasPrefix(problem.Metric, name) }) {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
	if strings.Count(body, "# HELP autohealer_agent_") < 8 {
		t.Errorf("the scrape has few metrics:\n%s", body)
	}
}

func TestRestartNeitherReplaysNorForgets(t *testing.T) {
	for name, end := range map[string]func(*process){
		"after SIGTERM": func(p *process) { p.stop() },
		// The agent writes its state soon after a problem. After an earlier kill it finds the
		// problem again, with the same identity.
		"after SIGKILL": func(p *process) { p.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			found := map[string]bool{}
			// finds waits for all problems so far. A process may report a problem again that a
			// killed process reported.
			finds := func(p *process, many int) {
				t.Helper()
				p.waitFor(fmt.Sprintf("%d different things", many), func() bool {
					for id := range p.ids() {
						found[id] = true
					}
					return len(found) >= many
				})
			}
			for round := range 3 {
				p := start(t, s.args()...)
				if round > 0 {
					p.waitFor("the problem of before", p.is("KernelDeadlock", "True", "DockerHung"))
					finds(p, 3*round+1)
				}
				s.log.write(oom, hung)
				finds(p, 3*round+2)
				for id, n := range p.ids() {
					if n != 1 {
						t.Errorf("round %d: %s is reported %d times", round, id, n)
					}
				}
				end(p)
				s.log.write(oom, oom) // while no agent runs
			}
			// Three problems while an agent ran, six while none ran, and one change of a condition.
			finds(start(t, s.args()...), 3+6+1)
			if len(found) != 3+6+1 {
				t.Errorf("%d different findings, want 10", len(found))
			}
		})
	}
}

func TestRebootClearsConditions(t *testing.T) {
	s := newScene(t)
	p := start(t, s.args()...)
	s.log.write(hung)
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	p.stop()
	// Change the stored boot ID, so that the current boot looks like a new one.
	path := filepath.Join(s.state, "state.json")
	state, err := os.ReadFile(path)
	testkit.Must(t, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	testkit.Must(t, err)
	other := strings.ReplaceAll(string(state), strings.TrimSpace(string(boot)), "00000000-0000-0000-0000-000000000000")
	if other == string(state) {
		t.Fatal("the state does not name its boot")
	}
	put(t, path, other)
	p = start(t, s.args()...)
	p.waitFor("a cured condition", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
	if n := p.logged("condition changed", "KernelDeadlock"); n != 1 {
		t.Errorf("the recovery is reported %d times", n)
	}
}

func TestConfigMapsAreReloaded(t *testing.T) {
	s := newScene(t)
	mount := t.TempDir()
	file := filepath.Join(mount, "kernel-monitor.json")
	publish(t, mount, "..1", "kernel-monitor.json", kernelMonitor(s.log.path, ""))
	other := newScene(t)
	p := start(t, "--config.system-log-monitor="+file+","+other.config, "--state-dir="+s.state)
	s.log.write(hung)
	other.log.write("one line")
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))

	publish(t, mount, "..2", "kernel-monitor.json", `{"plugin": "filelog"`)
	p.waitFor("the complaint", func() bool { return p.logged("level=ERROR", "cannot be used", "ConfigInvalid", file) == 1 })
	if got := p.metric(`autohealer_agent_config_valid{file="` + file + `"}`); got != "0" {
		t.Errorf("config_valid is %s", got)
	}
	if code, _ := get(t, p.statusURL+"/healthz"); code != http.StatusOK {
		t.Errorf("while the last good version is in force, /healthz returns %d", code)
	}
	s.log.write(oom)
	p.waitFor("a problem that the last good version knows", func() bool { return p.logged("problem found", "OOMKilling") == 1 })

	publish(t, mount, "..3", "kernel-monitor.json", strings.ReplaceAll(kernelMonitor(s.log.path, ""), "OOMKilling", "OutOfMemory"))
	p.waitFor("the new version", func() bool {
		return p.logged("can be used again", "ConfigLoaded") == 1 && p.logged("a monitor is replaced") == 1
	})
	s.log.write(oom)
	p.waitFor("a problem in the new words", func() bool { return p.logged("problem found", "OutOfMemory") == 1 })
	if !p.is("KernelDeadlock", "True", "DockerHung")() {
		t.Error("the condition was lost with a new version of the file")
	}
	if n := p.logged("a monitor is started"); n != 2 {
		t.Errorf("%d monitors were started, want each once", n)
	}
	if n := p.logged("a monitor is replaced"); n != 1 {
		t.Errorf("%d monitors were replaced, want the one whose file has changed", n)
	}
	if got := p.metric(`problem_counter{reason="OOMKilling"}`); got != "1" {
		t.Errorf("the counter of a removed rule is %s, want no decrease", got)
	}

	testkit.Must(t, os.Remove(file))
	p.waitFor("the end of its monitor", func() bool { return p.logged("ConfigRemoved") == 1 && p.logged("a monitor is stopped") == 1 })
	if c, _ := p.condition("KernelDeadlock"); c.Status != "False" {
		t.Errorf("the condition is %+v, want that of the other file's monitor", c)
	}
	testkit.Must(t, os.Remove(other.config))
	p.waitFor("that nobody keeps the condition", func() bool { _, ok := p.condition("KernelDeadlock"); return !ok })
}

// publish updates a mounted ConfigMap as the kubelet does.
func publish(t *testing.T, mount, version, file, text string) {
	t.Helper()
	testkit.Must(t, os.Mkdir(filepath.Join(mount, version), 0o700))
	put(t, filepath.Join(mount, version, file), text)
	_ = os.Symlink(filepath.Join("..data", file), filepath.Join(mount, file))
	testkit.Must(t, os.Symlink(version, filepath.Join(mount, "..data_tmp")))
	testkit.Must(t, os.Rename(filepath.Join(mount, "..data_tmp"), filepath.Join(mount, "..data")))
}

// node-problem-detector logs a warning for each such line.
func TestLinesWithoutATimestampAreCountedAndNotLogged(t *testing.T) {
	s := newScene(t)
	p := start(t, s.args()...)
	put(t, s.log.path, strings.Repeat("no stamp, and yet: "+hung+"\n", 500))
	s.log.write(oom)
	p.waitFor("the line that has one", func() bool { return p.logged("problem found", "OOMKilling") == 1 })
	if got := p.metric(`autohealer_agent_unstamped_lines_total{monitor="` + monitorOf(s) + `"}`); got != "500" {
		t.Errorf("%s lines are counted", got)
	}
	if n := p.logged("no stamp, and yet"); n > 0 {
		t.Errorf("%d lines are logged", n)
	}
}

func TestOneBadFileDoesNotAffectOthers(t *testing.T) {
	s := newScene(t)
	bad := filepath.Join(t.TempDir(), "bad.json")
	put(t, bad, "{")
	p := start(t, append(s.args(), "--config.system-log-monitor="+bad)...)
	s.log.write(hung)
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	if code, body := get(t, p.statusURL+"/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, bad) {
		t.Errorf("/healthz returns %d %q, want the name of the bad file", code, body)
	}
	put(t, bad, kernelMonitor(s.log.path, ""))
	p.waitFor("health", func() bool { code, _ := get(t, p.statusURL+"/healthz"); return code == http.StatusOK })
}

func TestAgentWithoutUsableFilesExits(t *testing.T) {
	s := newScene(t)
	put(t, s.config, "{")
	p := start(t, s.args()...)
	<-p.ended
	if p.command.ProcessState.ExitCode() != 1 || p.logged("no configuration file can be used") != 1 || p.logged(s.config) == 0 {
		t.Errorf("the exit code is %d", p.command.ProcessState.ExitCode())
	}
}

func TestExpensivePatternWorksAndIsLogged(t *testing.T) {
	s := newScene(t)
	put(t, s.config, strings.Replace(kernelMonitor(s.log.path, ""), `task docker:\\w+ blocked for more than \\w+ seconds\\.`, `\\d+ \\w\\w`, 1))
	p := start(t, s.args()...)
	s.log.write("it goes on for 17 ms")
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	if p.logged("level=WARN", "is expensive", s.config) != 1 {
		t.Error("no warning about the expensive pattern")
	}
}

func TestPortInUseIsReportedAtTheStart(t *testing.T) {
	s, other := newScene(t), newScene(t)
	p := start(t, s.args()...)
	_, port, _ := strings.Cut(p.statusURL, "127.0.0.1:")
	second := start(t, append(other.args(), "--port="+port)...)
	<-second.ended
	if second.logged("listening on 127.0.0.1:"+port, "--port") == 0 {
		t.Error("the error does not name the port")
	}
}

func TestProfilesAreServedLocally(t *testing.T) {
	p := start(t, newScene(t).args()...)
	for path, want := range map[string]string{
		"/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=2": "logwatch.(*Watch).Run", "/debug/pprof/cmdline": "--state-dir",
		"/debug/pprof/trace?seconds=0.1": "go 1.", "/debug/pprof/profile?seconds=1": "\x1f\x8b",
	} {
		p.waitFor(path+" to show "+want, func() bool {
			code, body := get(t, p.statusURL+path)
			return code == http.StatusOK && strings.Contains(body, want)
		})
	}
	if code, _ := get(t, p.metricsURL+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("the metrics port returns %d", code)
	}
}

// As in deploy/agent: the kubelet and other machines reach the port from outside the pod.
func TestProfilesAreNotServedToOthers(t *testing.T) {
	p := start(t, append(newScene(t).args(), "--address=0.0.0.0")...)
	_, port, _ := strings.Cut(p.statusURL, "127.0.0.1:")
	outside := "http://" + net.JoinHostPort(ownAddress(t), port)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/profile?seconds=1", "/debug/pprof/symbol", "/debug/pprof/trace", "/debug/pprof/heap"} {
		if code, body := get(t, outside+path); code != http.StatusForbidden || !strings.Contains(body, "kubectl port-forward") {
			t.Errorf("%s returns %d and %q to others", path, code, body)
		}
	}
	for _, path := range []string{"/healthz", "/conditions"} {
		if code, body := get(t, outside+path); code != http.StatusOK {
			t.Errorf("%s returns %d and %q to others", path, code, body)
		}
	}
	if code, _ := get(t, p.statusURL+"/debug/pprof/cmdline"); code != http.StatusOK {
		t.Errorf("from the same pod it returns %d", code)
	}
}

// ownAddress returns an address of this machine that is not loopback.
func ownAddress(tb testing.TB) string {
	tb.Helper()
	all, err := net.InterfaceAddrs()
	testkit.Must(tb, err)
	for _, one := range all {
		if is, ok := one.(*net.IPNet); ok && is.IP.IsGlobalUnicast() && is.IP.To4() != nil {
			return is.IP.String()
		}
	}
	tb.Fatalf("this machine has only loopback addresses: %v", all)
	return ""
}

func TestIsLocal(t *testing.T) {
	for _, test := range []struct {
		from, to string
		want     bool
	}{
		{"127.0.0.1:40000", "127.0.0.1:20256", true},
		{"[::1]:40000", "[::1]:20256", true},
		{"[::ffff:127.0.0.1]:40000", "[::ffff:127.0.0.1]:20256", true},
		{"10.0.0.7:40000", "10.0.0.8:20256", false},
		{"10.0.0.8:40000", "10.0.0.8:20256", false}, // this machine, not by loopback
		{"10.0.0.7:40000", "127.0.0.1:20256", false},
		{"127.0.0.6:40000", "10.0.0.8:20256", false},
		{"[fe80::1%eth0]:40000", "[::1]:20256", false},
		{"@", "127.0.0.1:20256", false},
		{"127.0.0.1:40000", "", false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/pprof/", nil)
		r.RemoteAddr = test.from
		if to, err := net.ResolveTCPAddr("tcp", test.to); err == nil {
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, to))
		}
		if got := isLocal(r); got != test.want {
			t.Errorf("from %s to %s: %t", test.from, test.to, got)
		}
	}
}

func TestTwoAgentsDoNotShareAStateDirectory(t *testing.T) {
	s := newScene(t)
	start(t, s.args()...)
	second := start(t, s.args()...)
	<-second.ended
	if second.logged("--state-dir") == 0 {
		t.Error("the second agent does not explain the error")
	}
}

func TestFilesForOtherNodesAreNotUsed(t *testing.T) {
	var labels atomic.Value
	labels.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if labels.Load() == "" || r.URL.Path != "/api/v1/nodes/worker-1" {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"metadata":{"labels":%s}}`, labels.Load())
	}))
	defer server.Close()
	s := newScene(t)
	folder := t.TempDir()
	gpu, cpu := filepath.Join(folder, "gpu.json"), filepath.Join(folder, "cpu.json")
	gpuLog, cpuLog := kernelLog{t, filepath.Join(folder, "gpu.log")}, kernelLog{t, filepath.Join(folder, "cpu.log")}
	put(t, gpu, strings.ReplaceAll(kernelMonitor(gpuLog.path, `"nodeSelector": "gpu=true",`), "KernelDeadlock", "GPUHung"))
	put(t, cpu, strings.ReplaceAll(kernelMonitor(cpuLog.path, `"nodeSelector": "!gpu",`), "KernelDeadlock", "CPUHung"))
	args := append(s.args(), "--config.system-log-monitor="+gpu+","+cpu, "--hostname-override=worker-1",
		"--apiserver-override="+server.URL+"?inClusterConfig=false")

	p := start(t, args...)
	p.waitFor("the file that is for all", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
	p.waitFor("that the others wait", func() bool { return p.logged("wait until the labels", gpu, cpu) == 1 })
	if got := p.metric(`autohealer_agent_config_waiting{file="` + gpu + `"}`); got != "1" {
		t.Errorf("config_waiting is %s", got)
	}
	if code, _ := get(t, p.statusURL+"/healthz"); code != http.StatusOK {
		t.Errorf("while files wait, /healthz returns %d", code)
	}
	labels.Store(`{"gpu":"true"}`)
	p.waitFor("the file for GPUs", p.is("GPUHung", "False", "KernelHasNoDeadlock"))
	if _, ok := p.condition("CPUHung"); ok {
		t.Error("a file for other nodes is used")
	}
	p.stop()

	labels.Store("") // the API server does not answer
	p = start(t, args...)
	p.waitFor("the labels of before", p.is("GPUHung", "False", "KernelHasNoDeadlock"))
}

func TestRealKernelLog(t *testing.T) {
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Fatalf("%v: run this test as root, on a machine with a kernel log", err)
	}
	defer kmsg.Close()
	folder := t.TempDir()
	mark := fmt.Sprintf("autohealer-test-%d", time.Now().UnixNano())
	config := filepath.Join(folder, "kernel-monitor.json")
	put(t, config, fmt.Sprintf(`{"plugin": "kmsg", "logPath": "/dev/kmsg", "lookback": "5m", "source": "kernel-monitor",
		"conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"}],
		"rules": [{"type": "temporary", "reason": "Marked", "pattern": "%s problem \\d+"},
			{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung", "pattern": "%s hung"}]}`, mark, mark))
	write := func(text string) {
		if _, err := kmsg.WriteString("<3>" + mark + " " + text + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	write("problem 1") // within the lookback
	args := []string{"--config.system-log-monitor=" + config, "--state-dir=" + filepath.Join(folder, "state")}
	p := start(t, args...)
	p.waitFor("what was there", func() bool { return p.logged("problem found", mark+" problem 1") == 1 })
	write("hung")
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	p.stop()
	write("problem 2")
	p = start(t, args...)
	p.waitFor("what was written meanwhile", func() bool { return p.logged("problem found", mark+" problem 2") == 1 })
	p.waitFor("the condition of before", p.is("KernelDeadlock", "True", "DockerHung"))
	if p.logged(mark+" problem 1") != 0 {
		t.Error("an old problem is found again")
	}
}
