package nodes

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed/realnode"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// hung taints nodes whose kernel hangs.
const hung = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: hung}
spec:
  type: Hung
  effect: NoExecute
  taintKey: example.com/hung
  maxUnhealthy: 1
  conditions:
    KernelDeadlock: {status: "True"}
`

// worker is a pod that prefers the first node.
const worker = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: worker, namespace: default}
spec:
  replicas: 1
  selector: {matchLabels: {app: worker}}
  template:
    metadata: {labels: {app: worker}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: work, image: "localhost/pause:1"}]
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [first]}]}
`

// mark is in the lines of the kernel's log that belong to this test.
var mark = fmt.Sprintf("autohealer-nodes-%d", time.Now().UnixNano())

// kernelMonitor is for one node: both nodes share a kernel, whose log others write, too.
var kernelMonitor = fmt.Sprintf(`{
	"plugin": "kmsg", "logPath": "/dev/kmsg", "lookback": "5m", "source": "kernel-monitor", "nodeSelector": "kubernetes.io/hostname=first",
	"conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"}],
	"rules": [{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung",
		"pattern": "%[1]s task dockerd?:\\w+ blocked .*", "clearPattern": "%[1]s goes on"}]}`, mark)

// healthChecker is a configuration like node-problem-detector's, but with its own
// condition: the built-in check has the usual one.
const (
	asEver        = "KubeletUnhealthyAsEver"
	healthChecker = `{
	"plugin": "custom", "source": "health-checker", "nodeSelector": "kubernetes.io/hostname=first",
	"pluginConfig": {"invoke_interval": "10s", "timeout": "3m", "max_output_length": 80, "concurrency": 1},
	"conditions": [{"type": "` + asEver + `", "reason": "KubeletIsHealthy", "message": "kubelet on the node is functioning properly"}],
	"rules": [{"type": "permanent", "condition": "` + asEver + `", "reason": "KubeletUnhealthy",
		"path": "/home/kubernetes/bin/health-checker", "args": ["--component=kubelet", "--enable-repair=false"]}]}`
)

func TestRealNodes(t *testing.T) {
	realnode.Wanted(t)
	w := newFixture(t, map[string]string{"kernel-monitor.json": kernelMonitor, "health-checker.json": healthChecker}, "--config.custom-plugin-monitor=/config/health-checker.json")

	w.run(t, "everything that the checks need exists in a pod", func(w *fixture) {
		for _, node := range []*realnode.Node{w.first, w.second} {
			w.becomes(node, "KubeletUnhealthy", corev1.ConditionFalse, "KubeletIsHealthy")
			w.becomes(node, "ContainerRuntimeUnhealthy", corev1.ConditionFalse, "ContainerRuntimeIsHealthy")
			w.becomes(node, "ReadonlyFilesystem", corev1.ConditionFalse, "FilesystemIsNotReadOnly")
		}
	})
	w.run(t, "the webhook, which is a pod, refuses a policy for all nodes", func(w *fixture) {
		out, err := w.KubectlApply(w.t.Context(), strings.Replace(hung, "KernelDeadlock", "Ready", 1))
		if err == nil || !strings.Contains(err.Error(), "conditionsets.autohealer.resourcestack.com") || !strings.Contains(err.Error(), "2 of 2 selected nodes") {
			w.t.Errorf("the response is %q (%v)", out, err)
		}
	})
	w.run(t, "a kernel line becomes a condition, a taint, and a pod that runs elsewhere", func(w *fixture) {
		w.apply(hung)
		w.apply(worker)
		w.worksOnlyOn(w.first)
		w.becomes(w.first, "KernelDeadlock", corev1.ConditionFalse, "KernelHasNoDeadlock")
		lap := stopwatch(w.t)
		w.kernelSays("task docker:7 blocked for more than 120 seconds.")
		w.becomes(w.first, "KernelDeadlock", corev1.ConditionTrue, "DockerHung")
		lap("the condition stands")
		w.eventually("the taint", func() error { return w.isTainted(w.first, true) })
		lap("the taint stands")
		w.worksOnlyOn(w.second)
		lap("the pod runs elsewhere")
		if c := w.condition(w.second, "KernelDeadlock"); c.Type != "" {
			w.t.Errorf("the second node, whose agent does not read the log, has %+v", c)
		}
		testkit.Must(w.t, w.isTainted(w.second, false))
		w.kernelSays("goes on")
		w.becomes(w.first, "KernelDeadlock", corev1.ConditionFalse, "KernelHasNoDeadlock")
		w.eventually("the end of the taint", func() error { return w.isTainted(w.first, false) })
		lap("all is well again")
		w.rolledOut() // a replica of the controller had to leave as well
		lap("the controller has its replicas again")
	})
	w.run(t, "the agent survives a killed kubelet and reports it", func(w *fixture) {
		w.becomes(w.first, "KubeletUnhealthy", corev1.ConditionFalse, "KubeletIsHealthy")
		w.becomes(w.first, asEver, corev1.ConditionFalse, "KubeletIsHealthy")
		lap := stopwatch(w.t)
		testkit.Must(w.t, w.first.Kubelet.Kill())
		w.becomes(w.first, "KubeletUnhealthy", corev1.ConditionTrue, "KubeletUnhealthy")
		lap("KubeletUnhealthy stands")
		w.becomes(w.first, asEver, corev1.ConditionTrue, "KubeletUnhealthy")
		lap("the program that is called by its path reports it, too")
		if c := w.condition(w.second, "KubeletUnhealthy"); c.Status != corev1.ConditionFalse {
			w.t.Errorf("of the other node, KubeletUnhealthy is %+v", c)
		}
		testkit.Must(w.t, w.first.Kubelet.Restart(w.t.Context()))
		w.becomes(w.first, "KubeletUnhealthy", corev1.ConditionFalse, "KubeletIsHealthy")
		w.becomes(w.first, asEver, corev1.ConditionFalse, "KubeletIsHealthy")
		w.becomes(w.first, corev1.NodeReady, corev1.ConditionTrue, "")
		lap("all is well again")
	})
	w.run(t, "a stopped containerd is reported before the kubelet notices", func(w *fixture) {
		w.becomes(w.second, "ContainerRuntimeUnhealthy", corev1.ConditionFalse, "ContainerRuntimeIsHealthy")
		lap := stopwatch(w.t)
		testkit.Must(w.t, w.second.Containerd.Stop(w.t.Context()))
		w.becomes(w.second, "ContainerRuntimeUnhealthy", corev1.ConditionTrue, "ContainerdUnhealthy")
		lap("ContainerRuntimeUnhealthy stands")
		if ready := w.condition(w.second, corev1.NodeReady); ready.Status != corev1.ConditionTrue {
			w.t.Errorf("the kubelet was first: its message is %q", ready.Message)
		}
		testkit.Must(w.t, w.second.Containerd.Restart(w.t.Context()))
		w.becomes(w.second, "ContainerRuntimeUnhealthy", corev1.ConditionFalse, "ContainerRuntimeIsHealthy")
		w.becomes(w.second, corev1.NodeReady, corev1.ConditionTrue, "")
		lap("all is well again")
	})
	w.run(t, "the conditions of stopped agents become Unknown", func(w *fixture) {
		lap := stopwatch(w.t)
		w.kubectl("-n", install.AgentAccount, "delete", "daemonset/autohealer-agent", "--cascade=foreground", "--timeout=60s")
		lap("the agents are gone")
		testkit.Must(w.t, w.is(w.first, "KernelDeadlock", corev1.ConditionFalse))
		// The default of six minutes is too long for a test.
		lease := "autohealer-agent-" + w.first.Name
		_, err := w.api.CoordinationV1().Leases(install.Namespace).Patch(w.t.Context(), lease, types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":1}}`), metav1.PatchOptions{})
		testkit.Must(w.t, err)
		w.becomes(w.first, "KernelDeadlock", corev1.ConditionUnknown, "AgentSilent")
		lap("the conditions are Unknown")
		testkit.Must(w.t, w.is(w.first, corev1.NodeReady, corev1.ConditionTrue))
		testkit.Must(w.t, w.isTainted(w.first, false))
		testkit.Must(w.t, install.Agents(w.t.Context(), w.Cluster, w.files, w.flags...))
		w.becomes(w.first, "KernelDeadlock", corev1.ConditionFalse, "KernelHasNoDeadlock")
		lap("the agents are back")
		w.eventually("the Lease to have its usual duration", func() error { return lasts(w.lease(lease)) })
	})
	w.run(t, "no container was restarted", func(w *fixture) {
		pods, err := w.api.CoreV1().Pods(metav1.NamespaceAll).List(w.t.Context(), metav1.ListOptions{})
		testkit.Must(w.t, err)
		for i := range pods.Items {
			for _, container := range pods.Items[i].Status.ContainerStatuses {
				if container.RestartCount > 0 {
					w.t.Errorf("container %s of %s was restarted %d times: %+v", container.Name, pods.Items[i].Name, container.RestartCount, container.LastTerminationState)
				}
			}
		}
	})
}

// kernelSays writes a line to the kernel's log.
func (w *fixture) kernelSays(words string) {
	w.t.Helper()
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	testkit.Must(w.t, err)
	defer kmsg.Close()
	_, err = kmsg.WriteString("<3>" + mark + " " + words + "\n")
	testkit.Must(w.t, err)
}

// worksOnlyOn waits until the only worker pod runs on a node.
func (w *fixture) worksOnlyOn(node *realnode.Node) {
	w.t.Helper()
	w.eventually("the worker on "+node.Name, func() error {
		pods, err := w.api.CoreV1().Pods("default").List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=worker"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		pod := &pods.Items[0]
		if pod.Spec.NodeName != node.Name || pod.DeletionTimestamp != nil || len(pod.Status.ContainerStatuses) != 1 || !pod.Status.ContainerStatuses[0].Ready {
			return fmt.Errorf("it is on %q and %s", pod.Spec.NodeName, pod.Status.Phase)
		}
		return nil
	})
}

// isTainted returns an error if a node does not have, or still has, the taint of the set.
func (w *fixture) isTainted(node *realnode.Node, want bool) error {
	for _, taint := range w.node(node).Spec.Taints {
		if taint.Key == "example.com/hung" {
			if want && taint.Effect == corev1.TaintEffectNoExecute {
				return nil
			}
			return fmt.Errorf("%s has %s", node.Name, taint.ToString())
		}
	}
	if want {
		return fmt.Errorf("%s has no taint", node.Name)
	}
	return nil
}

// is returns an error unless a condition has this status and reason.
func (w *fixture) is(node *realnode.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus) error {
	if c := w.condition(node, kind); c.Status != status {
		return fmt.Errorf("%s of %s is %q (%s: %s)", kind, node.Name, c.Status, c.Reason, c.Message)
	}
	return nil
}

func (w *fixture) lease(name string) *coordinationv1.Lease {
	w.t.Helper()
	lease, err := w.api.CoordinationV1().Leases(install.Namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	testkit.Must(w.t, err)
	return lease
}

// lasts returns an error unless a Lease has the agent's usual duration.
func lasts(lease *coordinationv1.Lease) error {
	if lease.Spec.LeaseDurationSeconds == nil || *lease.Spec.LeaseDurationSeconds != 360 {
		return errors.New("the duration is different")
	}
	return nil
}

// CI must not skip these tests.
func TestTheGateHasRealNodes(t *testing.T) {
	gate, err := os.ReadFile("../../.ci/run")
	testkit.Must(t, err)
	testkit.Check(t, strings.Contains(string(gate), "\nexport REAL_NODES=1\n"), ".ci/run does not enable real nodes: export REAL_NODES=1 there")
}
