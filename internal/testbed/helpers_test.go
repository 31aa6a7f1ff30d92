package testbed

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// limit bounds the waits of the tests. It suits two busy cores.
const limit = maxWait

// etcdAlone returns a cluster in which only etcd runs, which starts fast.
func etcdAlone(tb testing.TB, cfg Config) *Cluster {
	tb.Helper()
	c := testkit.Value(prepare(cfg)).Must(tb)
	tb.Cleanup(func() { _ = c.Stop() })
	testkit.Must(tb, c.Etcd.start(within(tb, limit)))
	return c
}

// within returns a context for one step of a test.
func within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}

func clientFor(tb testing.TB, config *rest.Config) kubernetes.Interface {
	tb.Helper()
	return testkit.Value(kubernetes.NewForConfig(config)).Must(tb)
}

// createNode creates a node with a unique name.
func createNode(tb testing.TB, c *Cluster, prefix string) *corev1.Node {
	tb.Helper()
	return testkit.Value(c.CreateNodes(tb.Context(), Nodes{Count: 1, Prefix: prefix})).Must(tb)[0]
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// hasCondition checks one condition of a node.
func hasCondition(tb testing.TB, c *Cluster, name string, kind corev1.NodeConditionType, status corev1.ConditionStatus) func() error {
	tb.Helper()
	return func() error {
		node, err := c.client.CoreV1().Nodes().Get(tb.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := condition(node, kind).Status; got != status {
			return fmt.Errorf("%s of %s is %q, not %q", kind, name, got, status)
		}
		return nil
	}
}

// about returns the changes of one object.
func (r Recording) about(name string) Recording {
	var found Recording
	for _, change := range r {
		if change.Name == name {
			found = append(found, change)
		}
	}
	return found
}

// processesOf returns the command lines of all processes that name the folder. A zombie
// process has no command line.
func processesOf(folder string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && bytes.Contains(line, []byte(folder+"/")) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func noProcessOf(folder string) error {
	if running := processesOf(folder); len(running) > 0 {
		return fmt.Errorf("still there: %q", running)
	}
	return nil
}
