package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// asInTheImage links the helper programs of node-problem-detector to the agent, as in the
// image. It returns a replacer of their paths in configuration files, which also disables
// repairs on this machine.
func asInTheImage(tb testing.TB) *strings.Replacer {
	tb.Helper()
	folder := tb.TempDir()
	for _, program := range []string{"health-checker", "log-counter", "check_ntp.sh", "network_problem.sh", "dns_problem.sh", "iptables_mode.sh"} {
		testkit.Must(tb, os.Symlink(binary, filepath.Join(folder, program)))
	}
	return strings.NewReplacer("/home/kubernetes/bin/", folder+"/", "./config/plugin/", folder+"/", "--enable-repair=true", "--enable-repair=false")
}

// Helm charts start node-problem-detector with a shell.
func TestShellOfTheImageStartsTheAgent(t *testing.T) {
	sh := filepath.Join(t.TempDir(), "sh")
	testkit.Must(t, os.Symlink(binary, sh))
	out, err := exec.CommandContext(t.Context(), sh, "-c", "exec "+binary+" --version ").CombinedOutput()
	testkit.Check(t, err == nil && string(out) == name+" dev\n", "%v: %s", err, out)
	out, err = exec.CommandContext(t.Context(), sh, "-c", "echo here").CombinedOutput()
	testkit.Check(t, err != nil && strings.Contains(string(out), "this image has no shell"), "%v: %s", err, out)
}

// kubelet is a fake kubelet with a configurable answer.
func kubelet(tb testing.TB) (code *atomic.Int32) {
	tb.Helper()
	code = &atomic.Int32{}
	code.Store(http.StatusOK)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testkit.Same(tb, r.URL.Path, "/healthz", "the request to the kubelet")
		w.WriteHeader(int(code.Load()))
	}))
	tb.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	testkit.Must(tb, err)
	tb.Setenv("KUBELET_PORT", port)
	return code
}

func TestFlagsAndFilesOfNodeProblemDetectorWork(t *testing.T) {
	kubelet(t)
	paths, err := filepath.Glob(originals + "/*.json")
	testkit.Require(t, err == nil && len(paths) == 19, "there are %d files (%v)", len(paths), err)
	folder, replacer := t.TempDir(), asInTheImage(t)
	flags := map[string][]string{}
	programs := 0
	for _, path := range paths {
		text := testkit.Value(os.ReadFile(path)).Must(t)
		copied := filepath.Join(folder, filepath.Base(path))
		put(t, copied, replacer.Replace(string(text)))
		flag := "system-log-monitor"
		switch {
		case strings.Contains(string(text), `"custom"`):
			flag = "custom-plugin-monitor"
			programs++
		case strings.Contains(string(text), `"metricsConfigs"`):
			flag = "system-stats-monitor"
		}
		flags[flag] = append(flags[flag], copied)
	}
	args := []string{"--logtostderr", "--state-dir=" + filepath.Join(folder, "state")}
	for flag, files := range flags {
		args = append(args, "--config."+flag+"="+strings.Join(files, ","))
	}
	p := start(t, args...)
	p.waitFor("a monitor of each file", func() bool { return p.logged("a monitor is started") == len(paths) })
	for kind, is := range map[string]string{
		"KubeletUnhealthy": "False", // the fake kubelet answers; other conditions depend on this machine
		"KernelDeadlock":   "", "ReadonlyFilesystem": "",
		"NTPProblem": "", "ContainerRuntimeUnhealthy": "", "FrequentKubeletRestart": "", "CorruptDockerOverlay2": "",
	} {
		p.waitFor("what is said of "+kind, func() bool { c, ok := p.condition(kind); return ok && (is == "" || c.Status == is) })
		if c, _ := p.condition(kind); c.Reason == "PluginMissing" || c.Reason == "PluginNotExecutable" || c.Reason == "PluginTimeout" {
			t.Errorf("%s: %+v", kind, c)
		}
	}
	for _, reason := range []string{"OOMKilling", "DockerHung", "KubeletUnhealthy", "NTPIsDown", "ConntrackFull", "DNSUnreachable", "FrequentKubeletRestart"} {
		got := p.metric(`problem_counter{reason="` + reason + `"}`)
		testkit.Check(t, got != "none", "%s is not counted", reason)
	}
	answers(t, p.statusURL+"/healthz", http.StatusOK, "")
	t.Logf("%d files, of which %d run programs", len(paths), programs)
	lint(t, p)
	p.stop()
}

func TestHealthCheckerIsCalledByItsPath(t *testing.T) {
	code := kubelet(t)
	text := testkit.Value(os.ReadFile(originals + "/health-checker-kubelet.json")).Must(t)
	s, folder := newScene(t), t.TempDir()
	file := filepath.Join(folder, "health-checker-kubelet.json")
	put(t, file, strings.Replace(asInTheImage(t).Replace(string(text)), `"invoke_interval": "10s"`, `"invoke_interval": "200ms"`, 1))
	p := start(t, append(s.args(), "--config.custom-plugin-monitor="+file)...)
	p.waitFor("that the kubelet is well", p.is("KubeletUnhealthy", "False", "KubeletIsHealthy"))
	code.Store(http.StatusInternalServerError)
	p.waitFor("that it is not", p.is("KubeletUnhealthy", "True", "KubeletUnhealthy"))
	c, _ := p.condition("KubeletUnhealthy")
	testkit.Check(t, strings.Contains(c.Message, "500"), "the message is %q", c.Message)
	code.Store(http.StatusOK)
	p.waitFor("that it is well again", p.is("KubeletUnhealthy", "False", "KubeletIsHealthy"))
}
