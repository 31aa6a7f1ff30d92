package main

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	info := testkit.Value(os.Stat(release)).Must(t)
	cluster := testbed.New(t, testbed.Config{})
	testkit.Must(t, install.Install(t.Context(), cluster))
	testkit.Must(t, install.ApplyAgentRights(t.Context(), cluster))
	made := testkit.Value(cluster.CreateNodes(t.Context(), testbed.RealNodes(1))).Must(t)
	programs := filepath.Join(folder, "programs.json")
	put(t, programs, `{
	"plugin": "custom", "source": "programs", "pluginConfig": {"invoke_interval": "1s"},
	"conditions": [{"type": "ProgramUnhealthy", "reason": "ProgramIsWell", "message": "it is well"}],
	"rules": [{"type": "permanent", "condition": "ProgramUnhealthy", "reason": "ProgramIsUnhealthy", "path": "/bin/true"}]}`)
	shipped := func(names ...string) string {
		for i, name := range names {
			names[i] = testkit.Value(filepath.Abs("../../config/" + name)).Must(t)
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
	admin := testkit.Value(kubernetes.NewForConfig(cluster.AdminConfig())).Must(t)
	p.waitFor("all conditions on the node", func() bool {
		node := testkit.Value(admin.CoreV1().Nodes().Get(t.Context(), made[0].Name, metav1.GetOptions{})).Must(t)
		for _, kind := range []string{"KernelDeadlock", "GPUUnhealthy", "KubeletUnhealthy", "ContainerRuntimeUnhealthy", "ReadonlyFilesystem", "NTPProblem", "ProgramUnhealthy"} {
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
			answers(t, url, http.StatusOK, "")
		}
		memory = max(memory, residentOf(t, a.PID()))
	}
	const room = 2 // margin for other kernels and longer runs
	disk := float64(info.Size()) / 1e6
	t.Logf("%.1f MB on disk, at most %.1f MB resident", disk, memory)
	testkit.Check(t, disk <= mostMegabytes && memory <= mostMegabytes-room,
		"%.1f MB on disk and %.1f MB in memory, want at most %d and %d", disk, memory, mostMegabytes, mostMegabytes-room)
}

func TestOnlyUnmodifiedMappingsAreReleased(t *testing.T) {
	const table = `00400000-00a2d000 r-xp 00000000 fe:00 10642682                           /autohealer-agent
Size:               6324 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00a2d000-00b00000 r--p 0062d000 fe:00 10642682                           /autohealer-agent
Rss:                  60 kB
Anonymous:             4 kB
00b00000-010ee000 r--p 0062d000 fe:00 10642682                           /autohealer-agent
Anonymous:             0 kB
010ee000-01160000 rw-p 00cee000 fe:00 10642682                           /autohealer-agent
Anonymous:             0 kB
01160000-031aa000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f7693b00000-7f7693b01000 r--p 00000000 fe:00 7                          /lib/other
Anonymous:             0 kB
7ffd1a9e8000-7ffd1a9ec000 r--p 00000000 00:00 0                          [vvar]
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0xa2d000}, {0xb00000, 0x10ee000}}
	testkit.NoDiff(t, cmp.Diff(want, unmodifiedMappings(strings.NewReader(table), "/autohealer-agent"), cmp.AllowUnexported(mapping{})),
		"the unmodified mappings")
	for _, odd := range []string{"", "\n", "Anonymous: 0 kB\n", "1-\nAnonymous: 0 kB\n", "0-0\n"} {
		got := unmodifiedMappings(strings.NewReader(odd), "")
		testkit.Check(t, len(got) == 0, "%q: %v is released", odd, got)
	}
}

func TestProgramRunsAfterReleasingPages(t *testing.T) {
	mapped := func() int {
		text := testkit.Value(os.ReadFile("/proc/self/status")).Must(t)
		_, after, _ := strings.Cut(string(text), "RssFile:")
		kilobytes := testkit.Value(strconv.Atoi(strings.Fields(after)[0])).Must(t)
		return kilobytes
	}
	before := mapped()
	testkit.Must(t, releaseProgramPages())
	after := mapped()
	t.Logf("of %d kB of the program %d are left", before, after)
	testkit.Check(t, after < before, "nothing was released")
}
