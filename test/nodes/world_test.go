package nodes

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/rig"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/realnode"
)

const (
	// patience bounds every wait: long enough for two busy cores.
	patience = 90 * time.Second
	// glance is the time between two looks.
	glance = 100 * time.Millisecond
)

// world is a cluster of two real nodes with the product installed.
type world struct {
	*testbed.Cluster
	t             *testing.T
	api           kubernetes.Interface // as the admin
	first, second *realnode.Node
	mark          string // of the lines in the kernel's log that are for us
	files         map[string]string
}

// newWorld returns when all pods of the product are ready.
func newWorld(t *testing.T) *world {
	t.Helper()
	lap := stopwatch(t)
	images, err := rig.Images(t.Context(), t.TempDir(), "pause", "autohealer-agent", "autohealer-controller")
	must(t, err)
	lap("the images are built")
	w := &world{t: t, mark: fmt.Sprintf("autohealer-nodes-%d", time.Now().UnixNano())}
	w.Cluster = testbed.New(t, testbed.Config{
		ControllerManager: true, Scheduler: true,
		Flags: testbed.Flags{ControllerManager: []string{"--node-monitor-period=1s", "--node-monitor-grace-period=12s"}},
	})
	w.api, err = kubernetes.NewForConfig(w.AdminConfig())
	must(t, err)
	nodes := realnode.New(t, w.Cluster, realnode.Config{Names: []string{"first", "second"}, Images: images})
	w.first, w.second = nodes[0], nodes[1]
	t.Cleanup(w.lastWords)
	lap("two nodes are Ready")
	// The two have one kernel, in whose log others write as well: so only the agent of
	// the first reads it, and what is for us has a mark.
	w.files = map[string]string{"kernel-monitor.json": fmt.Sprintf(`{
		"plugin": "kmsg", "logPath": "/dev/kmsg", "lookback": "5m", "source": "kernel-monitor", "nodeSelector": "kubernetes.io/hostname=first",
		"conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"}],
		"rules": [{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung",
			"pattern": "%[1]s task dockerd?:\\w+ blocked .*", "clearPattern": "%[1]s goes on"}]}`, w.mark)}
	must(t, rig.Whole(t.Context(), w.Cluster, w.files))
	w.rolledOut()
	lap("the product is installed")
	return w
}

// rolledOut returns when all pods of the product are ready.
func (w *world) rolledOut() {
	w.t.Helper()
	w.kubectl("-n", rig.AgentAccount, "rollout", "status", "daemonset/autohealer-agent", "--timeout=90s")
	w.kubectl("-n", rig.Namespace, "rollout", "status", "deployment/autohealer-controller", "--timeout=90s")
}

// checks says whether the agents of the manifests have built-in checks.
func checks(t *testing.T) bool {
	t.Helper()
	manifest, err := deploy.Manifests.ReadFile(rig.AgentManifest)
	must(t, err)
	return strings.Contains(string(manifest), "--config.check-monitor")
}

// part runs a part of the story, and says how long it took.
func (w *world) part(name string, f func(w *world)) {
	w.t.Helper()
	w.t.Run(name, func(t *testing.T) {
		in := *w
		in.t = t
		f(&in)
	})
	if w.t.Failed() {
		w.t.FailNow() // what follows stands on it
	}
}

func (w *world) kubectl(args ...string) string {
	w.t.Helper()
	out, err := w.Kubectl(w.t.Context(), args...)
	must(w.t, err)
	return out
}

func (w *world) apply(manifest string) {
	w.t.Helper()
	_, err := w.KubectlApply(w.t.Context(), manifest)
	must(w.t, err)
}

// kernelSays writes a line into the kernel's log.
func (w *world) kernelSays(words string) {
	w.t.Helper()
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	must(w.t, err)
	defer kmsg.Close()
	_, err = kmsg.WriteString("<3>" + w.mark + " " + words + "\n")
	must(w.t, err)
}

// condition returns one of a node; its type is empty if there is none.
func (w *world) condition(node *realnode.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	w.t.Helper()
	for _, condition := range w.node(node).Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

func (w *world) node(node *realnode.Node) *corev1.Node {
	w.t.Helper()
	found, err := w.api.CoreV1().Nodes().Get(w.t.Context(), node.Name, metav1.GetOptions{})
	must(w.t, err)
	return found
}

// becomes waits until a condition is so.
func (w *world) becomes(node *realnode.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s of %s to be %s (%s)", kind, node.Name, status, reason), func() error {
		if c := w.condition(node, kind); c.Status != status || reason != "" && c.Reason != reason {
			return fmt.Errorf("it is %q (%s: %s)", c.Status, c.Reason, c.Message)
		}
		return nil
	})
}

func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	look := time.NewTicker(glance)
	defer look.Stop()
	for deadline := time.Now().Add(patience); ; <-look.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not after %s: %v", what, patience, err)
		}
	}
}

// lastWords tells what a failure leaves.
func (w *world) lastWords() {
	if !w.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 30*time.Second)
	defer cancel()
	for _, args := range [][]string{
		{"get", "nodes", "-o", "custom-columns=NAME:.metadata.name,TAINTS:.spec.taints[*].key,CONDITIONS:.status.conditions[*].type,ARE:.status.conditions[*].status"},
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"-n", rig.AgentAccount, "logs", "--tail=20", "--prefix", "-l", "app.kubernetes.io/name=autohealer-agent"},
		{"-n", rig.Namespace, "logs", "--tail=20", "--prefix", "-l", "app.kubernetes.io/name=autohealer-controller"},
	} {
		out, err := w.Kubectl(ctx, args...)
		w.t.Logf("kubectl %s (%v):\n%s", strings.Join(args, " "), err, out)
	}
}

// stopwatch logs what was reached, and how long after the one before.
func stopwatch(t *testing.T) (lap func(what string)) {
	t.Helper()
	last := time.Now()
	return func(what string) {
		t.Helper()
		t.Logf("%s after %s", what, time.Since(last).Round(10*time.Millisecond))
		last = time.Now()
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
