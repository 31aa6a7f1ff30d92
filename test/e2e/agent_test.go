package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// kernelAgent is a node with the agent's own program, with the token of its pod, its rights
// and the admission policies. It reads the kernel log of this machine.
type kernelAgent struct {
	*install.Agent
	w    *scope
	node string
	mark string // in the lines for this agent
	file string
}

// monitor configures the agent: which lines set KernelDeadlock, and which clear it.
func (p *kernelAgent) monitor(conditions string) {
	p.w.t.Helper()
	testkit.Must(p.w.t, os.WriteFile(p.file, []byte(fmt.Sprintf(`{"plugin": "kmsg", "logPath": "/dev/kmsg", "lookback": "5m", "source": "kernel-monitor", "conditions": [%s],
		"rules": [{"type": "temporary", "reason": "OOMKilling", "pattern": "%s killed .*"}%s]}`, conditions, p.mark, map[bool]string{
		true: fmt.Sprintf(`, {"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung", "pattern": "%[1]s hung.*", "clearPattern": "%[1]s goes on.*"}`, p.mark),
	}[conditions != ""])), 0o600))
}

// kernelSays writes a line to the kernel log.
func (p *kernelAgent) kernelSays(words string) {
	p.w.t.Helper()
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		p.w.t.Fatalf("%v: run this test as root, on a machine with a kernel log", err)
	}
	defer kmsg.Close()
	testkit.Value(kmsg.WriteString("<3>" + p.mark + " " + words + "\n")).Must(p.w.t)
}

func (p *kernelAgent) shows(w *scope, metric string) {
	w.t.Helper()
	w.HasMetric(w.t, p.Metrics, metric)
}

func (p *kernelAgent) becomes(w *scope, kind string, status corev1.ConditionStatus, reason string) {
	w.t.Helper()
	w.eventually(kind, func() error { return w.is(p.node, kind, status, reason) })
}

// owners returns the field managers of a condition's status, with their operations.
func (p *kernelAgent) owners(w *scope, kind string) (names []string) {
	w.t.Helper()
	node := testkit.Value(w.get(w.t.Context(), p.node)).Must(w.t)
	for _, entry := range node.ManagedFields {
		if _, row, found := strings.Cut(entry.FieldsV1.GetRawString(), `"k:{\"type\":\"`+kind+`\"}":{`); found {
			if row, _, _ = strings.Cut(row, "}}"); strings.Contains(row+"}", `"f:status":{}`) {
				names = append(names, entry.Manager+" "+string(entry.Operation))
			}
		}
	}
	slices.Sort(names)
	return names
}

// TestTheAgent runs the programs of the agent and the controller together.
func TestTheAgent(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	w := fixture.scope(t, "probed")
	testkit.Must(w.t, install.ApplyAgentRights(t.Context(), w.Cluster))
	w.agentsAreBound()
	folder := t.TempDir()
	p := &kernelAgent{w: w, node: w.createNodes(testbed.Nodes{Count: 1})[0], mark: fmt.Sprintf("autohealer-e2e-%d", time.Now().UnixNano()), file: filepath.Join(folder, "kernel-monitor.json")}
	p.monitor(`{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "100% well"}, {"type": "XfsShutdown", "reason": "XfsHasNotShutDown", "message": "the agent to be up"}`)
	w.createSet("hung", func(s *v1alpha1.ConditionSetSpec) {
		s.Conditions = map[string]v1alpha1.SetCondition{"KernelDeadlock": stand}
	})
	controller := w.start(install.Options{Args: []string{alone}})
	p.Agent = testkit.Value(install.StartAgent(t.Context(), w.Cluster, install.AgentOptions{
		Node: p.node, StateDir: filepath.Join(folder, "state"),
		Args: []string{"--config.system-log-monitor=" + p.file, "--k8s-exporter-heartbeat-period=10s"},
	})).Must(w.t)
	endWithTest(t, p.Agent)

	w.run("a line becomes a condition, an Event and a taint, which are cleared again", func(w *scope) {
		p.becomes(w, "KernelDeadlock", corev1.ConditionFalse, "KernelHasNoDeadlock")
		p.becomes(w, "XfsShutdown", corev1.ConditionFalse, "XfsHasNotShutDown")
		w.metric(controller, `autohealer_agents{state="alive"} 1`)
		p.kernelSays("hung: 100% of it")
		p.becomes(w, "KernelDeadlock", corev1.ConditionTrue, "DockerHung")
		w.has(p.node, noSchedule(w.key("hung")))
		w.tells(p.node, "DockerHung", "100% of it")
		p.kernelSays("goes on")
		p.becomes(w, "KernelDeadlock", corev1.ConditionFalse, "KernelHasNoDeadlock")
		w.has(p.node)
	})
	w.run("a killed agent is marked silent, and owns its conditions after its restart", func(w *scope) {
		p.kernelSays("hung")
		p.becomes(w, "KernelDeadlock", corev1.ConditionTrue, "DockerHung")
		testkit.Must(w.t, p.Kill())
		// The default of six minutes is too long for a test.
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "autohealer-agent-" + p.node}}
		testkit.Must(w.t, w.api.Patch(w.t.Context(), lease, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":1}}`))))
		w.isSilent(p.node, "KernelDeadlock", "XfsShutdown")
		w.has(p.node, noSchedule(w.key("hung"))) // a silent agent does not make the node healthy
		testkit.Must(w.t, p.Restart(w.t.Context()))
		p.becomes(w, "KernelDeadlock", corev1.ConditionTrue, "DockerHung")
		p.becomes(w, "XfsShutdown", corev1.ConditionFalse, "XfsHasNotShutDown")
		for _, kind := range []string{"KernelDeadlock", "XfsShutdown"} {
			if owners := p.owners(w, kind); !slices.Equal(owners, []string{"autohealer-agent Apply"}) {
				w.t.Errorf("%s is owned by %q", kind, owners)
			}
		}
		w.metric(controller, `autohealer_agents{state="alive"} 1`)
		p.shows(w, "autohealer_agent_conditions_taken_over_total 0")
	})
	w.run("an annotation clears a condition, and hides no later problem", func(w *scope) {
		testkit.Must(w.t, p.Kill())
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.node}}
		annotation := fmt.Sprintf(`{"metadata":{"annotations":{"autohealer.resourcestack.com/clear":"KernelDeadlock=%s,XfsShutdwon=now"}}}`, time.Now().UTC().Format(time.RFC3339Nano))
		testkit.Must(w.t, w.api.Patch(w.t.Context(), node, client.RawPatch(types.MergePatchType, []byte(annotation))))
		testkit.Must(w.t, p.Restart(w.t.Context())) // a running agent looks once a minute
		p.becomes(w, "KernelDeadlock", corev1.ConditionFalse, "KernelHasNoDeadlock")
		w.tells(p.node, "ConditionCleared", "by the annotation autohealer.resourcestack.com/clear; it was True since")
		w.tells(p.node, "ClearRefused", `"XfsShutdwon=now" does not say until when`)
		p.kernelSays("hung")
		p.becomes(w, "KernelDeadlock", corev1.ConditionTrue, "DockerHung")
	})
	w.run("a condition is taken over once, and then left to its other writer, also after a restart", func(w *scope) {
		admin := testkit.Value(kubernetes.NewForConfig(w.AdminConfig())).Must(w.t)
		old := func() {
			body := fmt.Sprintf(`{"status":{"conditions":[{"type":"KernelDeadlock","status":"False","reason":"SaysTheOld","message":"100%%","lastHeartbeatTime":%[1]q,"lastTransitionTime":%[1]q}]}}`, time.Now().UTC().Format(time.RFC3339))
			_, err := admin.CoreV1().Nodes().Patch(w.t.Context(), p.node, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "node-problem-detector"}, "status")
			testkit.Must(w.t, err)
		}
		old()
		p.becomes(w, "KernelDeadlock", corev1.ConditionTrue, "DockerHung")
		p.shows(w, "autohealer_agent_conditions_taken_over_total 1")
		old()
		yielded := `autohealer_agent_condition_yielded{condition="KernelDeadlock",manager="node-problem-detector"} 1`
		p.shows(w, yielded)
		p.shows(w, "autohealer_agent_conditions_pending 0")
		testkit.Must(w.t, p.Restart(w.t.Context()))
		p.shows(w, yielded)
		p.shows(w, "autohealer_agent_conditions_pending 0")
		testkit.Must(w.t, w.is(p.node, "KernelDeadlock", corev1.ConditionFalse, "SaysTheOld"))
		testkit.Must(w.t, w.is(p.node, "XfsShutdown", corev1.ConditionFalse, "XfsHasNotShutDown"))
	})
	w.run("an agent without conditions leaves none of its own and removes none of other writers", func(w *scope) {
		before := testkit.Value(w.get(w.t.Context(), p.node)).Must(w.t)
		p.monitor("")
		gone := func() error {
			node, err := w.get(w.t.Context(), p.node)
			if err != nil {
				return err
			}
			for _, c := range node.Status.Conditions {
				if c.Type == "XfsShutdown" || c.Type == "AutohealerPlaceholder" {
					return fmt.Errorf("%s is there", c.Type)
				}
			}
			return nil
		}
		w.eventually("the conditions to be removed", gone)
		p.shows(w, "autohealer_agent_conditions_pending 0")
		testkit.Must(w.t, gone())
		after := testkit.Value(w.get(w.t.Context(), p.node)).Must(w.t)
		if len(after.Status.Conditions) != len(before.Status.Conditions)-1 || after.Status.NodeInfo != before.Status.NodeInfo || len(after.Status.Addresses) != len(before.Status.Addresses) {
			w.t.Errorf("the conditions were %+v\nand are %+v", before.Status, after.Status)
		}
		testkit.Must(w.t, w.is(p.node, "KernelDeadlock", corev1.ConditionFalse, "SaysTheOld"))
	})
	text := testkit.Value(p.Log()).Must(w.t)
	if strings.Contains(text, "a request is refused") || strings.Contains(text, "cannot report to the api server") {
		t.Errorf("the agent is blocked:\n%s", text)
	}
}

// agentsAreBound waits until the admission policies are in force.
func (w *scope) agentsAreBound() {
	w.t.Helper()
	config := testkit.Value(w.ServiceAccountConfig(w.t.Context(), install.AgentAccount, install.AgentAccount)).Must(w.t)
	unbound := testkit.Value(kubernetes.NewForConfig(config)).Must(w.t)
	w.eventually("the guard", func() error {
		_, err := unbound.CoordinationV1().Leases(install.Namespace).Create(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "names no node") {
			return errors.Join(errors.New("it is not in force yet"), err)
		}
		return nil
	})
}
