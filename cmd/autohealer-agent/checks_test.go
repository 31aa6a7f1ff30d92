package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestKubeletCheckNeedsNoProgram(t *testing.T) {
	code := kubelet(t)
	s, folder := newScene(t), t.TempDir()
	file := filepath.Join(folder, "checks.json")
	put(t, file, `{"plugin": "builtin", "source": "health-checker", "pluginConfig": {"invoke_interval": "100ms"},
		"conditions": [{"type": "KubeletUnhealthy", "reason": "KubeletIsHealthy", "message": "kubelet on the node is functioning properly"}],
		"rules": [{"type": "permanent", "condition": "KubeletUnhealthy", "reason": "KubeletUnhealthy", "check": "kubelet", "settings": {"grace": "0s"}}]}`)
	args := append(s.args(), "--config.check-monitor="+file)
	p := start(t, args...)
	p.waitFor("that the kubelet is well", p.is("KubeletUnhealthy", "False", "KubeletIsHealthy"))
	code.Store(http.StatusInternalServerError)
	p.waitFor("that it is not", p.is("KubeletUnhealthy", "True", "KubeletUnhealthy"))
	testkit.Same(t, p.metric(`problem_gauge{type="KubeletUnhealthy",reason="KubeletUnhealthy"}`), "1", "the metric of the condition")
	code.Store(http.StatusServiceUnavailable)
	says := func() bool {
		c, ok := p.condition("KubeletUnhealthy")
		return ok && strings.Contains(c.Message, "answers 503")
	}
	p.waitFor("that it is otherwise", says)
	p.stop()
	p = start(t, args...)
	p.waitFor("that it is unhealthy still", p.is("KubeletUnhealthy", "True", "KubeletUnhealthy"))
	testkit.Same(t, p.logged("condition changed"), 0, "reported changes")
	code.Store(http.StatusOK)
	p.waitFor("that it is well again", p.is("KubeletUnhealthy", "False", "KubeletIsHealthy"))
}

// The results do not matter: this machine has no kubelet and mostly no runtime.
func TestShippedChecksRun(t *testing.T) {
	s := newScene(t)
	p := start(t, append(s.args(), "--config.check-monitor=../../config/health-checks.json")...)
	for _, kind := range []string{"KubeletUnhealthy", "ContainerRuntimeUnhealthy", "ReadonlyFilesystem", "NTPProblem"} {
		p.waitFor(kind, func() bool { c, ok := p.condition(kind); return ok && c.Reason != "NotCheckedYet" })
	}
	for _, metric := range []string{
		`problem_counter{reason="ConntrackFull"}`, `problem_counter{reason="FilesystemIsReadOnly"}`,
		`problem_gauge{type="ContainerRuntimeUnhealthy",reason="ContainerdUnhealthy"}`, `problem_gauge{type="NTPProblem",reason="NTPIsDown"}`,
	} {
		got := p.metric(metric)
		testkit.Check(t, got == "0" || got == "1", "%s is %s", metric, got)
	}
	answers(t, p.statusURL+"/healthz", http.StatusOK, "")
	p.stop()
}
