package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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

// The reasons of the problems in the log, in addition to the condition KernelDeadlock.
var problems = []string{"OOMKilling", "TaskHung", "IOError"}

// logAgent is a node whose agent reads a log file of the test.
type logAgent struct {
	*install.Agent
	node  string
	log   *os.File
	admin *kubernetes.Clientset
}

// startLogAgent starts the agent of a node.
func (w *scope) startLogAgent(node string, shape func(*install.AgentOptions)) *logAgent {
	w.t.Helper()
	folder := w.t.TempDir()
	log := testkit.Value(os.Create(filepath.Join(folder, "kernel.log"))).Must(w.t)
	w.t.Cleanup(func() { _ = log.Close() })
	rules := []string{`{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung", "pattern": "docker hangs .*", "clearPattern": "docker goes on .*"}`}
	for _, reason := range problems {
		rules = append(rules, fmt.Sprintf(`{"type": "temporary", "reason": %q, "pattern": "%s .*"}`, reason, reason))
	}
	monitor := filepath.Join(folder, "kernel-monitor.json")
	testkit.Must(w.t, os.WriteFile(monitor, fmt.Appendf(nil, `{"plugin": "filelog", "logPath": %q, "lookback": "5m", "source": "kernel-monitor",
		"pluginConfig": {"timestamp": "^\\S+", "message": "^\\S+ (.*)", "timestampFormat": "2006-01-02T15:04:05.000000Z"},
		"conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "100%% well"}], "rules": [%s]}`, log.Name(), strings.Join(rules, ", ")), 0o600))
	o := install.AgentOptions{Node: node, StateDir: filepath.Join(folder, "state"), Args: []string{"--config.system-log-monitor=" + monitor, "--k8s-exporter-heartbeat-period=10s"}}
	if shape != nil {
		shape(&o)
	}
	l := &logAgent{node: node, log: log}
	l.admin = testkit.Value(kubernetes.NewForConfig(w.AdminConfig())).Must(w.t)
	l.Agent = testkit.Value(install.StartAgent(w.t.Context(), w.Cluster, o)).Must(w.t)
	endWithTest(w.t, l.Agent)
	return l
}

// endWithTest ends an agent with its test, before the folder of its state is removed, and
// shows the end of its log if the test has failed.
func endWithTest(t *testing.T, agent *install.Agent) {
	t.Helper()
	t.Cleanup(func() {
		_ = agent.Kill() // the test may have ended it
		if text, err := agent.Log(); t.Failed() {
			t.Logf("the end of the agent's log (%v):\n%s", err, text[max(0, len(text)-4000):])
		}
	})
}

// writes appends lines to the log, all at once.
func (l *logAgent) writes(w *scope, lines ...string) {
	w.t.Helper()
	var text bytes.Buffer
	for _, line := range lines {
		fmt.Fprintf(&text, "%s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"), line)
	}
	testkit.Value(l.log.Write(text.Bytes())).Must(w.t)
}

// becomes waits until the node has the condition.
func (l *logAgent) becomes(w *scope, status corev1.ConditionStatus, message string) {
	w.t.Helper()
	w.eventually("KernelDeadlock of "+l.node, func() error {
		found, err := w.get(w.t.Context(), l.node)
		if err != nil {
			return err
		}
		for _, c := range found.Status.Conditions {
			if c.Type == "KernelDeadlock" && c.Status == status && strings.Contains(c.Message, message) {
				return nil
			}
		}
		return fmt.Errorf("it has %+v", found.Status.Conditions)
	})
}

// agentMetrics are the agent's metrics.
type agentMetrics map[string]float64

const ofAgent = "autohealer_agent_"

func (l *logAgent) metrics(ctx context.Context) (agentMetrics, error) {
	_, text, err := testkit.Get(ctx, "http://"+l.Metrics+"/metrics")
	if err != nil {
		return nil, err
	}
	read := agentMetrics{}
	for line := range strings.Lines(text) {
		at := strings.LastIndexByte(line, ' ')
		if name, ok := strings.CutPrefix(line, ofAgent); ok && at > 0 {
			if read[name[:at-len(ofAgent)]], err = strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err != nil {
				return nil, err
			}
		}
	}
	return read, nil
}

// sum adds all metrics with a name.
func (f agentMetrics) sum(name string) (total int) {
	for of, value := range f {
		if of == name || strings.HasPrefix(of, name+"{") {
			total += int(value)
		}
	}
	return total
}

// results returns how many requests had this result.
func (f agentMetrics) results(result string) (total int) {
	for of, value := range f {
		if strings.HasPrefix(of, "requests_total{") && strings.HasSuffix(of, fmt.Sprintf("result=%q}", result)) {
			total += int(value)
		}
	}
	return total
}

// failures returns how many requests failed or have an unknown result.
func (f agentMetrics) failures() int { return f.sum("requests_total") - f.results("ok") }

// comes waits until the agent's metrics fulfil a condition.
func (l *logAgent) comes(w *scope, what string, so func(agentMetrics) bool) agentMetrics {
	w.t.Helper()
	var last agentMetrics
	w.eventually(what, func() error {
		var err error
		if last, err = l.metrics(w.t.Context()); err != nil {
			return err
		}
		if !so(last) {
			return fmt.Errorf("the agent has %v", last)
		}
		return nil
	})
	return last
}

// idle reports whether the agent has sent everything.
func idle(f agentMetrics) bool { return f["conditions_pending"] == 0 && f["events_queued"] == 0 }

// reported returns the occurrences in the stored Events by reason, and the number of Events.
func (l *logAgent) reported(w *scope) (occurrences map[string]int, events int) {
	w.t.Helper()
	list, err := l.admin.CoreV1().Events("default").List(w.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,source=kernel-monitor,involvedObject.name=" + l.node})
	testkit.Must(w.t, err)
	occurrences = map[string]int{}
	for i := range list.Items {
		occurrences[list.Items[i].Reason] += int(list.Items[i].Count)
	}
	return occurrences, len(list.Items)
}

// sumOf returns how many occurrences Events stand for.
func sumOf(occurrences map[string]int) (sum int) {
	for _, n := range occurrences {
		sum += n
	}
	return sum
}

// said counts lines of the agent's log.
func (l *logAgent) said(w *scope, words ...string) (n int) {
	w.t.Helper()
	text := testkit.Value(l.Log()).Must(w.t)
lines:
	for line := range strings.Lines(text) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue lines
			}
		}
		n++
	}
	return n
}

// agents prepares the cluster for agents, with this number of nodes.
func (w *scope) agents(nodes int) []string {
	w.t.Helper()
	testkit.Must(w.t, install.ApplyAgentRights(w.t.Context(), w.Cluster))
	w.agentsAreBound()
	return w.createNodes(testbed.Nodes{Count: nodes})
}
