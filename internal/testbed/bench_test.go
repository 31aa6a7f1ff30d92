package testbed

import (
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// BenchmarkStart measures the time of a start, and the memory of the parts.
func BenchmarkStart(b *testing.B) {
	for _, bench := range []struct {
		name string
		cfg  Config
	}{
		{"apiserver", Config{}},
		{"all", Config{ControllerManager: true, Scheduler: true, Kwok: true, Record: []schema.GroupVersionResource{NodesResource}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var memory int
			for b.Loop() {
				c := testkit.Value(Start(b.Context(), bench.cfg)).Must(b)
				b.StopTimer()
				memory = 0
				for _, part := range []*Part{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler, c.Kwok} {
					memory += residentMemory(part.PID())
				}
				testkit.Must(b, c.Stop())
				b.StartTimer()
			}
			b.ReportMetric(float64(memory)/1024, "MB")
		})
	}
}

// BenchmarkNodes measures the creation of 2,000 nodes, small ones and nodes of production
// size.
func BenchmarkNodes(b *testing.B) {
	const count = 2000
	c := New(b, Config{})
	for _, bench := range []struct {
		name  string
		nodes Nodes
	}{
		{"small", Nodes{Count: count}},
		{"real", RealNodes(count)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				testkit.Value(c.CreateNodes(b.Context(), bench.nodes)).Must(b)
				b.StopTimer()
				testkit.Must(b, c.client.CoreV1().Nodes().DeleteCollection(b.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
				b.StartTimer()
			}
			b.ReportMetric(count*float64(b.N)/b.Elapsed().Seconds(), "nodes/s")
		})
	}
}

// residentMemory returns the memory of a process in kilobytes, 0 for none.
func residentMemory(pid int) (kilobytes int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if _, rest, found := strings.Cut(string(status), "VmRSS:"); found {
		_, _ = fmt.Sscan(rest, &kilobytes)
	}
	return kilobytes
}
