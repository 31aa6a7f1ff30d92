package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// Limits of the agent in MB: memory and disk.
const (
	mostMegabytes = 20
	mostOnDisk    = 15
)

// nodeWatcher watches one node.
type nodeWatcher struct {
	tb     testing.TB
	events <-chan watch.Event
}

// sees returns when the watch delivers a condition with that status.
func (o nodeWatcher) sees(kind corev1.NodeConditionType, status corev1.ConditionStatus) time.Time {
	o.tb.Helper()
	for limit := time.After(20 * time.Second); ; {
		select {
		case event := <-o.events:
			node, ok := event.Object.(*corev1.Node)
			if ok && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind && c.Status == status }) {
				return time.Now()
			}
		case <-limit:
			o.tb.Fatalf("timeout while waiting for %s=%s", kind, status)
		}
	}
}

// still counts the events during a time.
func (o nodeWatcher) still(while time.Duration) (n int) {
	for limit := time.After(while); ; {
		select {
		case <-o.events:
			n++
		case <-limit:
			return n
		}
	}
}

// One op is a release build of the agent with the kernel monitor of config/ and the real
// /dev/kmsg, on a node of 15 KB of a real API server, with its rights and the admission policies.
// The agent is idle for 35 s. Then 101 times a line makes a condition True, which another client
// watches, and another line ends it. A time starts before the write of the line and ends when the
// watcher has the condition. The first one after the idle time is ms-cold and not among the
// others. In between an administrator applies a condition without admission policies. The
// watcher's time for it is ms-bare, which the agent cannot shorten.
func BenchmarkKernelLineSeenByAWatcher(b *testing.B) {
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	testkit.Require(b, err == nil, "%v: run this as root, on a machine with a kernel log", err)
	defer kmsg.Close()
	folder := b.TempDir()
	release, size := small(b, folder)
	cluster, admin := agentCluster(b)
	const lines = 100
	var took, bare []time.Duration
	var cold time.Duration
	var idle float64
	writes, round := 0, 0
	for b.Loop() {
		round++
		nodes := testbed.RealNodes(1)
		nodes.First = round
		made := testkit.Value(cluster.CreateNodes(b.Context(), nodes)).Must(b)
		mark := fmt.Sprintf("autohealer-bench-%d", time.Now().UnixNano())
		config := filepath.Join(folder, fmt.Sprint("kernel-monitor-", round, ".json"))
		put(b, config, withRule(b, mark))
		seen := testkit.Value(admin.CoreV1().Nodes().Watch(b.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + made[0].Name})).Must(b)
		o := nodeWatcher{b, seen.ResultChan()}
		a, err := install.StartAgent(b.Context(), cluster, install.AgentOptions{
			Node: made[0].Name, Program: release, StateDir: filepath.Join(folder, fmt.Sprint("state-", round)), Args: []string{"--config.system-log-monitor=" + config},
		})
		testkit.Must(b, err)
		o.sees("BenchmarkRuns", corev1.ConditionFalse)
		o.still(2 * time.Second)
		writes += o.still(33 * time.Second)
		idle = max(idle, residentOf(b, a.PID()))
		for line := range lines + 1 {
			began := time.Now()
			testkit.Value(fmt.Fprintf(kmsg, "<3>%s begins %d\n", mark, line)).Must(b)
			if passed := o.sees("BenchmarkRuns", corev1.ConditionTrue).Sub(began); line == 0 {
				cold = max(cold, passed)
			} else {
				took = append(took, passed)
			}
			o.still(500 * time.Millisecond)
			bare = append(bare, applyBare(b, o, admin, made[0].Name, line))
			// The reporter slows down flapping nodes.
			o.still(600 * time.Millisecond)
			testkit.Value(fmt.Fprintf(kmsg, "<3>%s ends %d\n", mark, line)).Must(b)
			o.sees("BenchmarkRuns", corev1.ConditionFalse)
			o.still(1100 * time.Millisecond)
		}
		seen.Stop()
		testkit.Must(b, a.Stop(b.Context()))
	}
	slices.Sort(took)
	slices.Sort(bare)
	b.ReportMetric(milliseconds(bare[len(bare)/2]), "ms-bare-median")
	b.ReportMetric(milliseconds(bare[len(bare)*95/100]), "ms-bare-p95")
	b.ReportMetric(milliseconds(took[len(took)/2]), "ms-median")
	b.ReportMetric(milliseconds(took[len(took)*95/100]), "ms-p95")
	b.ReportMetric(milliseconds(took[len(took)-1]), "ms-worst")
	b.ReportMetric(milliseconds(cold), "ms-cold")
	b.ReportMetric(float64(writes), "idle-writes")
	b.ReportMetric(idle, "MB-idle")
	b.ReportMetric(size, "MB-binary")
	testkit.Check(b, writes == 0 && idle <= mostMegabytes,
		"the idle agent wrote the node %d times and had %.1f MB of memory, want none and at most %d MB", writes, idle, mostMegabytes)
}

// applyBare writes a condition without admission policies, and returns the time until the
// watcher sees it.
func applyBare(b *testing.B, o nodeWatcher, admin kubernetes.Interface, node string, round int) time.Duration {
	b.Helper()
	status := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[round%2]
	row := fmt.Sprintf(`{"type": "Bare", "status": %q, "reason": "Applied", "message": "by an administrator", "lastHeartbeatTime": %q}`, status, time.Now().UTC().Format(time.RFC3339))
	body := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q}, "status": {"conditions": [%s]}}`, node, row)
	began := time.Now()
	wrote := make(chan error, 1)
	go func() {
		_, err := admin.CoreV1().Nodes().Patch(b.Context(), node, types.ApplyYAMLPatchType, []byte(body), metav1.PatchOptions{FieldManager: "bare"}, "status")
		wrote <- err
	}()
	passed := o.sees("Bare", status).Sub(began)
	testkit.Must(b, <-wrote)
	return passed
}

// The limits of the benchmark above that do not depend on a clock.
func TestAgentIsSmall(t *testing.T) {
	folder := t.TempDir()
	release, size := small(t, folder)
	cluster, admin := agentCluster(t)
	made := testkit.Value(cluster.CreateNodes(t.Context(), testbed.RealNodes(1))).Must(t)
	seen := testkit.Value(admin.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + made[0].Name})).Must(t)
	defer seen.Stop()
	o := nodeWatcher{t, seen.ResultChan()}
	shipped := testkit.Value(os.ReadFile("../../config/kernel-monitor.json")).Must(t)
	// Recent kernel lines of other programs would also cause writes.
	config := filepath.Join(folder, "kernel-monitor.json")
	put(t, config, strings.Replace(string(shipped), `"lookback": "5m"`, `"lookback": "0s"`, 1))
	a, err := install.StartAgent(t.Context(), cluster, install.AgentOptions{
		Node: made[0].Name, Program: release, StateDir: filepath.Join(folder, "state"), Args: []string{"--config.system-log-monitor=" + config},
	})
	testkit.Must(t, err)
	o.sees("XfsShutdown", corev1.ConditionFalse)
	writes := o.still(5 * time.Second)
	idle := residentOf(t, a.PID())
	t.Logf("the program has %.1f MB, and %.1f MB of memory when idle", size, idle)
	testkit.Check(t, writes == 0 && idle <= mostMegabytes,
		"the idle agent wrote the node %d times and had %.1f MB of memory, want none and at most %d MB", writes, idle, mostMegabytes)
	testkit.Must(t, a.Stop(t.Context()))
}

// small builds a release of the agent, and returns its size in MB.
func small(tb testing.TB, folder string) (release string, megabytes float64) {
	tb.Helper()
	release = buildRelease(tb, folder)
	info := testkit.Value(os.Stat(release)).Must(tb)
	megabytes = float64(info.Size()) / 1e6
	testkit.Check(tb, megabytes <= mostOnDisk, "the program has %.1f MB, want at most %d", megabytes, mostOnDisk)
	return release, megabytes
}

// agentCluster starts a cluster with everything that agents need.
func agentCluster(tb testing.TB) (*testbed.Cluster, *kubernetes.Clientset) {
	tb.Helper()
	cluster := testbed.New(tb, testbed.Config{})
	testkit.Must(tb, install.Install(tb.Context(), cluster))
	testkit.Must(tb, install.ApplyAgentRights(tb.Context(), cluster))
	admin := testkit.Value(kubernetes.NewForConfig(cluster.AdminConfig())).Must(tb)
	return cluster, admin
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// withRule returns the default kernel monitor with an additional condition, which lines with a
// mark set and clear.
func withRule(tb testing.TB, mark string) string {
	tb.Helper()
	text := testkit.Value(os.ReadFile("../../config/kernel-monitor.json")).Must(tb)
	var monitor map[string]any
	testkit.Must(tb, json.Unmarshal(text, &monitor))
	conditions, _ := monitor["conditions"].([]any)
	rules, _ := monitor["rules"].([]any)
	testkit.Require(tb, monitor["plugin"] == "kmsg" && len(conditions) != 0 && len(rules) != 0, "the kernel monitor is %s", text)
	monitor["conditions"] = append(conditions, map[string]string{"type": "BenchmarkRuns", "reason": "NoBenchmark", "message": "nothing runs"})
	monitor["rules"] = append(rules, map[string]string{"type": "permanent", "condition": "BenchmarkRuns", "reason": "Benchmark", "pattern": mark + " begins .*", "clearPattern": mark + " ends .*"})
	text = testkit.Value(json.Marshal(monitor)).Must(tb)
	return string(text)
}
