package scale

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// BenchmarkClosingGate measures how many remediations begin after the gate of their
// health check has closed, and how long after.
//
// The fixture: 100 nodes, of which 49 may be unhealthy; 40 are, and are remediated. One
// operation: nine more become unhealthy at once, which the gate allows, and right after
// them five more, which closes it; then all fourteen recover. The order of writes is
// that of etcd: late/op are the objects that were stored after the write of the first
// condition that was one too many, and max-ms is how long after that write was sent the
// last of them was seen.
func BenchmarkClosingGate(b *testing.B) {
	const nodes, before, allowed, more = 100, 40, 9, 5
	c := healthCheckFixtureIn(b, fixtureOf(b, nodes))
	c.start(b)
	api := testkit.Value(client.New(c.cluster.AdminConfig(), client.Options{})).Must(b)
	names := c.pick(before + allowed + more)
	standing, names := names[:before], names[before:]
	testkit.Must(b, c.setProblems(b.Context(), standing, unhealthyType, corev1.ConditionTrue, 16))
	testkit.Must(b, c.objects.count(b.Context(), before))
	begun, late := 0, 0
	var latest time.Duration
	for b.Loop() {
		testkit.Must(b, c.setProblems(b.Context(), names[:allowed], unhealthyType, corev1.ConditionTrue, allowed))
		closing := time.Now()
		testkit.Must(b, c.setProblems(b.Context(), names[allowed:], unhealthyType, corev1.ConditionTrue, more))
		var first int
		for _, name := range names[allowed:] {
			node := testkit.Value(c.server.CoreV1().Nodes().Get(b.Context(), name, metav1.GetOptions{})).Must(b)
			if version := versionOf(b, node.ResourceVersion); first == 0 || version < first {
				first = version
			}
		}
		c.rests(b) // all writes in flight have arrived by then
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(remediator.Kind)
		testkit.Must(b, api.List(b.Context(), list))
		begun += len(list.Items) - before
		for i := range list.Items {
			if object := &list.Items[i]; versionOf(b, object.GetResourceVersion()) > first {
				late++
				latest = max(latest, c.objects.seen(object.GetName()).Sub(closing))
			}
		}
		testkit.Must(b, c.setProblems(b.Context(), names, unhealthyType, corev1.ConditionFalse, len(names)))
		testkit.Must(b, c.objects.count(b.Context(), before))
		c.rests(b) // the Leases are released by then
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(begun)/float64(b.N), "begun/op")
	b.ReportMetric(float64(late)/float64(b.N), "late/op")
	b.ReportMetric(milliseconds(latest), "max-ms")
}

// rests waits until the API server has received no writes for a while.
func (c *healthCheckFixture) rests(b *testing.B) {
	b.Helper()
	ticker := time.NewTicker(quiet / 4)
	defer ticker.Stop()
	begin, since, done := time.Now(), time.Now(), c.asked(b)
	for time.Since(since) < quiet {
		<-ticker.C
		now := c.asked(b)
		if now.writes() != done.writes() {
			done, since = now, time.Now()
		}
		if time.Since(begin) > maxWait {
			b.Fatalf("waiting for the controller to be idle: the requests to the API server are %+v", done)
		}
	}
}

func versionOf(b *testing.B, text string) int {
	b.Helper()
	return testkit.Value(strconv.Atoi(text)).Must(b)
}
