package main

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// The agent runs on every node, so the release build must stay small, although it links gRPC.
// The test uses the monitors of the kernel log and the shipped checks, a plugin that runs each
// second, requests for metrics and health, and a real API server.
func TestTheReleaseIsSmallOnDiskAndInMemory(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	release := buildRelease(t, folder)
	info, err := os.Stat(release)
	testkit.Must(t, err)
	cluster := testbed.New(t, testbed.Config{})
	testkit.Must(t, install.Install(t.Context(), cluster))
	testkit.Must(t, install.ApplyAgentRights(t.Context(), cluster))
	made, err := cluster.CreateNodes(t.Context(), testbed.RealNodes(1))
	testkit.Must(t, err)
	programs := filepath.Join(folder, "programs.json")
	put(t, programs, `{
	"plugin": "custom", "source": "programs", "pluginConfig": {"invoke_interval": "1s"},
	"conditions": [{"type": "ProgramSick", "reason": "ProgramIsWell", "message": "it is well"}],
	"rules": [{"type": "permanent", "condition": "ProgramSick", "reason": "ProgramIsSick", "path": "/bin/true"}]}`)
	shipped := func(names ...string) string {
		for i, name := range names {
			if names[i], err = filepath.Abs("../../config/" + name); err != nil {
				t.Fatal(err)
			}
		}
		return strings.Join(names, ",")
	}
	a, err := install.StartAgent(t.Context(), cluster, install.AgentOptions{
		Node: made[0].Name, Program: release, StateDir: filepath.Join(folder, "state"),
		Args: []string{
			"--config.system-log-monitor=" + shipped("kernel-monitor.json", "readonly-monitor.json", "gpu-monitor.json", "frequent-unregister-netdevice.json"),
			"--config.check-monitor=" + shipped("health-checks.json"), "--config.custom-plugin-monitor=" + programs,
		},
	})
	testkit.Must(t, err)
	p := &process{t: t, statusURL: "http://" + a.Status, metricsURL: "http://" + a.Metrics}
	admin, err := kubernetes.NewForConfig(cluster.AdminConfig())
	testkit.Must(t, err)
	p.waitFor("all conditions on the node", func() bool {
		node, err := admin.CoreV1().Nodes().Get(t.Context(), made[0].Name, metav1.GetOptions{})
		testkit.Must(t, err)
		for _, kind := range []string{"KernelDeadlock", "GPUUnhealthy", "KubeletUnhealthy", "ContainerRuntimeUnhealthy", "ReadonlyFilesystem", "NTPProblem", "ProgramSick"} {
			if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return string(c.Type) == kind }) {
				return false
			}
		}
		return true
	})
	memory := residentOf(t, a.PID())
	for range 12 { // several runs of the checks and the plugin
		<-time.After(time.Second)
		for _, url := range []string{p.metricsURL + "/metrics", p.statusURL + "/conditions"} {
			if code, body := get(t, url); code != http.StatusOK {
				t.Fatalf("%s returns %d %q", url, code, body)
			}
		}
		memory = max(memory, residentOf(t, a.PID()))
	}
	const room = 2 // margin for other kernels and longer runs
	disk := float64(info.Size()) / 1e6
	t.Logf("%.1f MB on disk, at most %.1f MB resident", disk, memory)
	if disk > mostMegabytes || memory > mostMegabytes-room {
		t.Errorf("%.1f MB on disk and %.1f MB in memory, want at most %d and %d", disk, memory, mostMegabytes, mostMegabytes-room)
	}
}
