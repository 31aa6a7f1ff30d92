package nodes

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/realnode"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// maxWait bounds every wait. It suits two busy cores.
const maxWait = 90 * time.Second

// fixture is a cluster of two real nodes with Autohealer installed.
type fixture struct {
	*testbed.Cluster
	t             testing.TB
	api           kubernetes.Interface // with the rights of an admin
	first, second *realnode.Node
	files         map[string]string // of the agents, replacing files with the same names
	flags         []string          // flags that name further files
}

// newFixture returns when all pods of Autohealer are ready.
func newFixture(tb testing.TB, files map[string]string, flags ...string) *fixture {
	tb.Helper()
	lap := stopwatch(tb)
	images, err := install.Images(tb.Context(), tb.TempDir(), "pause", "autohealer-agent", "autohealer-controller")
	testkit.Must(tb, err)
	lap("the images are built")
	w := &fixture{t: tb, files: files, flags: flags}
	w.Cluster = testbed.New(tb, testbed.Config{
		ControllerManager: true, Scheduler: true,
		Flags: testbed.Flags{ControllerManager: []string{"--node-monitor-period=1s", "--node-monitor-grace-period=12s"}},
	})
	w.api, err = kubernetes.NewForConfig(w.AdminConfig())
	testkit.Must(tb, err)
	nodes := realnode.New(tb, w.Cluster, realnode.Config{Names: []string{"first", "second"}, Images: images})
	w.first, w.second = nodes[0], nodes[1]
	tb.Cleanup(w.logTail)
	lap("two nodes are Ready")
	testkit.Must(tb, install.Everything(tb.Context(), w.Cluster, w.files, w.flags...))
	w.rolledOut()
	lap("Autohealer is installed")
	return w
}

// rolledOut returns when all pods of Autohealer are ready.
func (w *fixture) rolledOut() {
	w.t.Helper()
	w.kubectl("-n", install.AgentAccount, "rollout", "status", "daemonset/autohealer-agent", "--timeout=90s")
	w.kubectl("-n", install.Namespace, "rollout", "status", "deployment/autohealer-controller", "--timeout=90s")
}

// run runs a part of the scenario, and logs its duration.
func (w *fixture) run(t *testing.T, name string, f func(w *fixture)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		in := *w
		in.t = t
		f(&in)
	})
	if t.Failed() {
		t.FailNow() // the next parts depend on it
	}
}

func (w *fixture) kubectl(args ...string) string {
	w.t.Helper()
	out, err := w.Kubectl(w.t.Context(), args...)
	testkit.Must(w.t, err)
	return out
}

func (w *fixture) apply(manifest string) {
	w.t.Helper()
	_, err := w.KubectlApply(w.t.Context(), manifest)
	testkit.Must(w.t, err)
}

// condition returns a condition of a node; its type is empty if there is none.
func (w *fixture) condition(node *realnode.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	w.t.Helper()
	for _, condition := range w.node(node).Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

func (w *fixture) node(node *realnode.Node) *corev1.Node {
	w.t.Helper()
	found, err := w.api.CoreV1().Nodes().Get(w.t.Context(), node.Name, metav1.GetOptions{})
	testkit.Must(w.t, err)
	return found
}

// becomes waits until a condition has this status and reason.
func (w *fixture) becomes(node *realnode.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s of %s to be %s (%s)", kind, node.Name, status, reason), func() error {
		if c := w.condition(node, kind); c.Status != status || reason != "" && c.Reason != reason {
			return fmt.Errorf("it is %q (%s: %s)", c.Status, c.Reason, c.Message)
		}
		return nil
	})
}

func (w *fixture) eventually(what string, check func() error) {
	w.t.Helper()
	testkit.Wait{Limit: maxWait}.Eventually(w.t, what, check)
}

// logTail logs the state after a failure.
func (w *fixture) logTail() {
	if !w.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 30*time.Second)
	defer cancel()
	for _, args := range [][]string{
		{"get", "nodes", "-o", "custom-columns=NAME:.metadata.name,TAINTS:.spec.taints[*].key,CONDITIONS:.status.conditions[*].type,ARE:.status.conditions[*].status"},
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"-n", install.AgentAccount, "logs", "--tail=20", "--prefix", "-l", "app.kubernetes.io/name=autohealer-agent"},
		{"-n", install.Namespace, "logs", "--tail=20", "--prefix", "-l", "app.kubernetes.io/name=autohealer-controller"},
	} {
		out, err := w.Kubectl(ctx, args...)
		w.t.Logf("kubectl %s (%v):\n%s", strings.Join(args, " "), err, out)
	}
}

// stopwatch logs each step with its duration.
func stopwatch(tb testing.TB) (lap func(what string)) {
	tb.Helper()
	last := time.Now()
	return func(what string) {
		tb.Helper()
		tb.Logf("%s after %s", what, time.Since(last).Round(10*time.Millisecond))
		last = time.Now()
	}
}
