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
	code, body := get(t, p.statusURL+"/healthz")
	testkit.Check(t, code == http.StatusOK && body == "ok", "/healthz returns %d %q", code, body)
	testkit.Same(t, p.metric(`problem_counter{reason="OOMKilling"}`)+p.metric(`problem_gauge{type="KernelDeadlock",reason="DockerHung"}`), "00",
		"the metrics of a problem before there is one")
	s.log.write("all is well", oom, "100% fine", hung)
	p.waitFor("the problem", func() bool { return p.logged("problem found", "OOMKilling", "heapster") == 1 })
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	c, _ := p.condition("KernelDeadlock")
	testkit.Check(t, strings.Contains(c.Message, hung), "the condition's message is %q", c.Message)
	for metric, want := range map[string]string{
		`problem_counter{reason="OOMKilling"}`:                             "1",
		`problem_counter{reason="DockerHung"}`:                             "1",
		`problem_counter{reason="AUFSUmountHung"}`:                         "0",
		`problem_gauge{type="KernelDeadlock",reason="DockerHung"}`:         "1",
		`problem_gauge{type="KernelDeadlock",reason="AUFSUmountHung"}`:     "0",
		`autohealer_agent_config_valid{file="` + s.config + `"}`:           "1",
		`autohealer_agent_state_kept`:                                      "1",
		`autohealer_build_info{version="` + version + `"}`:                 "1",
		`autohealer_agent_lines_total{monitor="` + monitorOf(s) + `"}`:     "4",
		`autohealer_agent_monitor_up{monitor="` + monitorOf(s) + `"}`:      "1",
		`autohealer_agent_monitor_waiting{monitor="` + monitorOf(s) + `"}`: "0",
	} {
		testkit.Same(t, p.metric(metric), want, "%s", metric)
	}
	lint(t, p)
	// The kubelet kills a container after 30 s. A busy machine takes more than one of them.
	testkit.Between(t, p.stop(), 0, 10*time.Second, "the time to stop")
}

func monitorOf(s fixture) string { return "system-log-monitor:" + s.config }

// lint checks a scrape with promlint. Two metrics and those of the machine keep the names of
// node-problem-detector, which dashboards use.
func lint(t *testing.T, p *process) {
	t.Helper()
	_, body := get(t, p.metricsURL+"/metrics")
	problems := testkit.Value(promlint.New(strings.NewReader(body)).Lint()).Must(t)
	for _, problem := range problems {
		others := []string{"problem_counter", "problem_gauge", "cpu_", "disk_", "net_", "system_"}
		testkit.Check(t, slices.ContainsFunc(others, func(name string) bool { return strings.HasPrefix(problem.Metric, name) }),
			"%s: %s", problem.Metric, problem.Text)
	}
	testkit.Check(t, strings.Count(body, "# HELP autohealer_agent_") >= 8, "the scrape has few metrics:\n%s", body)
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
					testkit.Same(t, n, 1, "round %d: reports of %s", round, id)
				}
				end(p)
				s.log.write(oom, oom) // while no agent runs
			}
			// Three problems while an agent ran, six while none ran, and one change of a condition.
			finds(start(t, s.args()...), 3+6+1)
			testkit.Same(t, len(found), 3+6+1, "different findings")
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
	state := testkit.Value(os.ReadFile(path)).Must(t)
	boot := testkit.Value(os.ReadFile("/proc/sys/kernel/random/boot_id")).Must(t)
	other := strings.ReplaceAll(string(state), strings.TrimSpace(string(boot)), "00000000-0000-0000-0000-000000000000")
	testkit.Require(t, other != string(state), "the state does not name its boot")
	put(t, path, other)
	p = start(t, s.args()...)
	p.waitFor("a cured condition", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
	testkit.Same(t, p.logged("condition changed", "KernelDeadlock"), 1, "reports of the recovery")
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
	testkit.Same(t, p.metric(`autohealer_agent_config_valid{file="`+file+`"}`), "0", "config_valid")
	answers(t, p.statusURL+"/healthz", http.StatusOK, "") // the last good version is in force
	s.log.write(oom)
	p.waitFor("a problem that the last good version knows", func() bool { return p.logged("problem found", "OOMKilling") == 1 })

	publish(t, mount, "..3", "kernel-monitor.json", strings.ReplaceAll(kernelMonitor(s.log.path, ""), "OOMKilling", "OutOfMemory"))
	p.waitFor("the new version", func() bool {
		return p.logged("can be used again", "ConfigLoaded") == 1 && p.logged("a monitor is replaced") == 1
	})
	s.log.write(oom)
	p.waitFor("a problem in the new words", func() bool { return p.logged("problem found", "OutOfMemory") == 1 })
	testkit.Check(t, p.is("KernelDeadlock", "True", "DockerHung")(), "the condition was lost with a new version of the file")
	testkit.Same(t, p.logged("a monitor is started"), 2, "started monitors: each starts once")
	testkit.Same(t, p.logged("a monitor is replaced"), 1, "replaced monitors: only the one whose file has changed")
	testkit.Same(t, p.metric(`problem_counter{reason="OOMKilling"}`), "1", "the counter of a removed rule: it never decreases")

	testkit.Must(t, os.Remove(file))
	p.waitFor("the end of its monitor", func() bool { return p.logged("ConfigRemoved") == 1 && p.logged("a monitor is stopped") == 1 })
	c, _ := p.condition("KernelDeadlock")
	testkit.Check(t, c.Status == "False", "the condition is %+v, want that of the other file's monitor", c)
	testkit.Must(t, os.Remove(other.config))
	p.waitFor("the removal of a condition without a monitor", func() bool { _, ok := p.condition("KernelDeadlock"); return !ok })
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
	testkit.Same(t, p.metric(`autohealer_agent_unstamped_lines_total{monitor="`+monitorOf(s)+`"}`), "500", "counted lines")
	n := p.logged("no stamp, and yet")
	testkit.Check(t, n == 0, "%d lines are logged", n)
}

func TestOneBadFileDoesNotAffectOthers(t *testing.T) {
	s := newScene(t)
	bad := filepath.Join(t.TempDir(), "bad.json")
	put(t, bad, "{")
	p := start(t, append(s.args(), "--config.system-log-monitor="+bad)...)
	s.log.write(hung)
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	answers(t, p.statusURL+"/healthz", http.StatusServiceUnavailable, bad) // the name of the bad file
	put(t, bad, kernelMonitor(s.log.path, ""))
	p.waitFor("health", func() bool { code, _ := get(t, p.statusURL+"/healthz"); return code == http.StatusOK })
}

func TestAgentWithoutUsableFilesExits(t *testing.T) {
	s := newScene(t)
	put(t, s.config, "{")
	p := start(t, s.args()...)
	<-p.ended
	testkit.Check(t, p.command.ProcessState.ExitCode() == 1 && p.logged("no configuration file can be used") == 1 && p.logged(s.config) != 0,
		"the exit code is %d", p.command.ProcessState.ExitCode())
}

func TestExpensivePatternWorksAndIsLogged(t *testing.T) {
	s := newScene(t)
	put(t, s.config, strings.Replace(kernelMonitor(s.log.path, ""), `task docker:\\w+ blocked for more than \\w+ seconds\\.`, `\\d+ \\w\\w`, 1))
	p := start(t, s.args()...)
	s.log.write("it goes on for 17 ms")
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	testkit.Same(t, p.logged("level=WARN", "is expensive", s.config), 1, "warnings about the expensive pattern")
}

func TestPortInUseIsReportedAtTheStart(t *testing.T) {
	s, other := newScene(t), newScene(t)
	p := start(t, s.args()...)
	_, port, _ := strings.Cut(p.statusURL, "127.0.0.1:")
	second := start(t, append(other.args(), "--port="+port)...)
	<-second.ended
	testkit.Check(t, second.logged("listening on 127.0.0.1:"+port, "--port") != 0, "the error does not name the port")
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
	answers(t, p.metricsURL+"/debug/pprof/", http.StatusNotFound, "")
}

// As in deploy/install.yaml: the kubelet and other machines reach the port from outside the pod.
func TestProfilesAreNotServedToOthers(t *testing.T) {
	p := start(t, append(newScene(t).args(), "--address=0.0.0.0")...)
	_, port, _ := strings.Cut(p.statusURL, "127.0.0.1:")
	outside := "http://" + net.JoinHostPort(ownAddress(t), port)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/profile?seconds=1", "/debug/pprof/symbol", "/debug/pprof/trace", "/debug/pprof/heap"} {
		answers(t, outside+path, http.StatusForbidden, "kubectl port-forward")
	}
	for _, path := range []string{"/healthz", "/conditions"} {
		answers(t, outside+path, http.StatusOK, "")
	}
	answers(t, p.statusURL+"/debug/pprof/cmdline", http.StatusOK, "") // from the same pod
}

// ownAddress returns an address of this machine that is not loopback.
func ownAddress(tb testing.TB) string {
	tb.Helper()
	all := testkit.Value(net.InterfaceAddrs()).Must(tb)
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
		testkit.Same(t, isLocal(r), test.want, "from %s to %s is local", test.from, test.to)
	}
}

func TestTwoAgentsDoNotShareAStateDirectory(t *testing.T) {
	s := newScene(t)
	start(t, s.args()...)
	second := start(t, s.args()...)
	<-second.ended
	testkit.Check(t, second.logged("--state-dir") != 0, "the second agent does not explain the error")
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
	testkit.Same(t, p.metric(`autohealer_agent_config_waiting{file="`+gpu+`"}`), "1", "config_waiting")
	answers(t, p.statusURL+"/healthz", http.StatusOK, "") // although files wait
	labels.Store(`{"gpu":"true"}`)
	p.waitFor("the file for GPUs", p.is("GPUHung", "False", "KernelHasNoDeadlock"))
	_, ok := p.condition("CPUHung")
	testkit.Check(t, !ok, "a file for other nodes is used")
	p.stop()

	labels.Store("") // the API server does not answer
	p = start(t, args...)
	p.waitFor("the labels of before", p.is("GPUHung", "False", "KernelHasNoDeadlock"))
}

func TestRealKernelLog(t *testing.T) {
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	testkit.Require(t, err == nil, "%v: run this test as root, on a machine with a kernel log", err)
	defer kmsg.Close()
	folder := t.TempDir()
	mark := fmt.Sprintf("autohealer-test-%d", time.Now().UnixNano())
	config := filepath.Join(folder, "kernel-monitor.json")
	put(t, config, fmt.Sprintf(`{"plugin": "kmsg", "logPath": "/dev/kmsg", "lookback": "5m", "source": "kernel-monitor",
		"conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"}],
		"rules": [{"type": "temporary", "reason": "Marked", "pattern": "%s problem \\d+"},
			{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung", "pattern": "%s hung"}]}`, mark, mark))
	write := func(text string) {
		testkit.Value(kmsg.WriteString("<3>" + mark + " " + text + "\n")).Must(t)
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
	testkit.Same(t, p.logged(mark+" problem 1"), 0, "an old problem is found again")
}
