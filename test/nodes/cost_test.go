package nodes

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed/realnode"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// minutesEnv is the number of minutes to observe nodes; ten by default.
const minutesEnv = "NODE_MINUTES"

const (
	mostCPU       = 0.1 // % of a core, for all checks together
	mostMegabytes = 20
)

// An op is ten minutes, or NODE_MINUTES, of two idle real nodes. Both agents are pods of
// the DaemonSet and read the kernel's log. The agent of the first node also runs the checks
// of deploy/ at their usual intervals. The CPU time of the checks is the difference of the
// two agents, as the kernel counts it.
func BenchmarkTheChecksOfANode(b *testing.B) {
	realnode.Wanted(b)
	watched := minutes(b)
	files, err := install.AgentFiles()
	testkit.Must(b, err)
	const name, source = "health-checks.json", `"source": "health-checker",`
	if strings.Count(files[name], source) != 1 {
		b.Fatalf("%s has changed", name)
	}
	files[name] = strings.Replace(files[name], source, source+` "nodeSelector": "kubernetes.io/hostname=first",`, 1)
	w := newFixture(b, files)
	asked := func() {
		b.Helper()
		w.becomes(w.first, "KubeletUnhealthy", corev1.ConditionFalse, "KubeletIsHealthy")
		w.becomes(w.first, "ContainerRuntimeUnhealthy", corev1.ConditionFalse, "ContainerRuntimeIsHealthy")
		// Any line suffices: the kernel's log is that of the machine, which others write,
		// too.
		w.eventually("the agent of the second node to report", func() error {
			if w.condition(w.second, "KernelDeadlock").Type == "" {
				return errors.New("it has not reported")
			}
			return nil
		})
		if c := w.condition(w.second, "KubeletUnhealthy"); c.Type != "" {
			b.Fatalf("the second node has checks: %+v", c)
		}
	}
	asked()
	with, without := agentOf(b, w.first), agentOf(b, w.second)
	var more, all, worst float64
	for b.Loop() {
		began, before, beforeWithout := time.Now(), cpu(b, with), cpu(b, without)
		<-time.After(watched)
		took := time.Since(began).Seconds()
		share, shareWithout := 100*(cpu(b, with)-before)/took, 100*(cpu(b, without)-beforeWithout)/took
		b.Logf("in %.0f s the agent takes %.4f%% of a core, and %.4f%% without checks", took, share, shareWithout)
		more, all, worst = more+share-shareWithout, all+share, max(worst, share-shareWithout)
	}
	asked()
	b.ReportMetric(more/float64(b.N), "%checks/op")
	b.ReportMetric(all/float64(b.N), "%agent/op")
	b.ReportMetric(resident(b, with), "MB-agent")
	b.ReportMetric(resident(b, without), "MB-without-checks")
	if worst > mostCPU {
		b.Logf("the checks take %.3f%% of a core, want at most %.1f%%", worst, mostCPU)
	}
	if is := resident(b, with); is > mostMegabytes {
		b.Errorf("the agent has %.1f MB, want at most %d", is, mostMegabytes)
	}
}

func minutes(tb testing.TB) time.Duration {
	tb.Helper()
	text := os.Getenv(minutesEnv)
	if text == "" {
		return 10 * time.Minute
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n <= 0 {
		tb.Fatalf("%s=%s is not a number of minutes", minutesEnv, text)
	}
	return time.Duration(n * float64(time.Minute))
}

// agentOf returns the process of a node's agent.
func agentOf(tb testing.TB, node *realnode.Node) int {
	tb.Helper()
	pids, err := node.Processes("autohealer-agent")
	if err != nil || len(pids) != 1 {
		tb.Fatalf("the agent of %s has processes %v (%v)", node.Name, pids, err)
	}
	return pids[0]
}

// cpu returns the CPU time of a process in seconds, to the nanosecond. /proc has only
// hundredths of a second.
func cpu(tb testing.TB, pid int) float64 {
	tb.Helper()
	const scheduler = 2 // selects the clock of a process
	var had unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &had); err != nil {
		tb.Fatalf("asking for the time that process %d has had: %v", pid, err)
	}
	return float64(had.Nano()) / 1e9
}

// resident returns the memory of a process in MB.
func resident(tb testing.TB, pid int) float64 {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	testkit.Must(tb, err)
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	kilobytes, err := strconv.ParseFloat(strings.Fields(after + " 0")[0], 64)
	if err != nil || kilobytes == 0 {
		tb.Fatalf("process %d does not say how much memory it has", pid)
	}
	return kilobytes / 1024
}
