package report_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// BenchmarkTake measures adding an Event of a flood of one reason while nothing can be sent.
// All Events but a few are merged.
func BenchmarkTake(b *testing.B) {
	r, err := report.New(report.Config{API: noAPI{}, Node: "n"})
	testkit.Must(b, err)
	found := finding.Report{Source: "kernel-monitor", Events: []finding.Event{{ID: "0123456789abcdef", Severity: finding.Warn, Time: time.Now(), Reason: "OOMKilling", Message: "Out of memory: Killed process 1234 (stress)"}}}
	b.ReportAllocs()
	for b.Loop() {
		r.Take(found)
	}
	if r.Counts().EventsTaken == 0 {
		b.Error("no Event was added")
	}
}

// noAPI is an API that the benchmark never calls.
type noAPI struct{ report.API }

// BenchmarkConditionSeenByAWatcher measures the time from a changed condition to the watch
// event of another client: the agent writes five conditions to a Node of 15 KB on a real API
// server. Changes are 1.1 s apart, so the write limit has no effect.
func BenchmarkConditionSeenByAWatcher(b *testing.B) {
	cluster := testbed.New(b, testbed.Config{})
	made, err := cluster.CreateNodes(b.Context(), testbed.RealNodes(1))
	testkit.Must(b, err)
	admin, err := kubernetes.NewForConfig(cluster.AdminConfig())
	testkit.Must(b, err)
	w := &fixture{TB: b, cluster: cluster, admin: admin, node: made[0].Name, config: cluster.AdminConfig()}
	a := w.agent(func(c *report.Config) { c.LeaseNamespace, c.LookEvery = "", 0 },
		is("Mine", catalog.False, "Fine"), is("B", catalog.False, "Fine"), is("C", catalog.False, "Fine"), is("D", catalog.False, "Fine"), is("E", catalog.False, "Fine"))
	watch, err := admin.CoreV1().Nodes().Watch(b.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + w.node})
	testkit.Must(b, err)
	defer watch.Stop()
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		<-time.After(1100 * time.Millisecond)
		reason := fmt.Sprint("Change", len(took))
		b.StartTimer()
		began := time.Now()
		a.Take(finding.Report{Conditions: []finding.Condition{is("Mine", catalog.True, reason)}})
		for event := range watch.ResultChan() {
			node, ok := event.Object.(*corev1.Node)
			if ok && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "Mine" && c.Reason == reason }) {
				break
			}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "ms-p95")
}
