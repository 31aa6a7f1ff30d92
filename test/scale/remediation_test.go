package scale

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// BenchmarkConditionToRemediation measures the time from a condition to its
// remediation object for nodes that become unhealthy one after the other.
//
// The fixture: 2,000 or 10,000 nodes of 15 KB, the controller manager, a health check
// of all nodes with a duration of 0s, and four ConditionSets that do not match; the
// nodes are drawn with seed (1, 2). One operation is 100 failures, five a second. Each
// is measured from before the write of the condition is sent until an informer has
// seen the object (p50-ms, p95-ms, max-ms) and, for comparison, from the response to that
// write (p95-ms-answered): in between the controller reads the node once more,
// acquires its lease and creates the object. Then all nodes recover. The benchmark
// asserts the requests to the API server: one read and four writes for each node.
func BenchmarkConditionToRemediation(b *testing.B) {
	const (
		failures = 100
		pace     = time.Second / 5
	)
	for _, bench := range []struct {
		name  string
		nodes int
	}{{"nodes=2000", 2000}, {"nodes=10000", 10000}} {
		b.Run(bench.name, func(b *testing.B) {
			c := healthCheckFixtureIn(b, fixtureOf(b, bench.nodes))
			controller := c.start(b)
			var strict, answered []time.Duration
			var cpu time.Duration
			var done asked
			var status int
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				names := c.pick(failures)
				seen, before, used, work := c.watcher.changes(), c.asked(b), use(b, controller), c.work(b, controller)
				b.StartTimer()
				sent, acknowledged := c.failOneByOne(b, names, unhealthyType, pace)
				err := c.objects.count(b.Context(), failures)
				b.StopTimer()
				testkit.Must(b, err)
				cpu = use(b, controller).cpu - used.cpu
				for i, name := range names {
					at := c.objects.seen(name)
					strict, answered = append(strict, at.Sub(sent[i])), append(answered, at.Sub(acknowledged[i]))
				}
				_, done = c.heal(b, names, before)
				c.assertTreated(b, seen, done, failures)
				status = c.work(b, controller).minus(work).statuses
				b.StartTimer()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(milliseconds(percentile(strict, 50)), "p50-ms")
			b.ReportMetric(milliseconds(percentile(strict, 95)), "p95-ms")
			b.ReportMetric(milliseconds(percentile(strict, 100)), "max-ms")
			b.ReportMetric(milliseconds(percentile(answered, 95)), "p95-ms-answered")
			b.ReportMetric(float64(done.writes())/failures, "writes/life")
			b.ReportMetric(float64(done.looks)/failures, "looks/life")
			b.ReportMetric(float64(status), "status-writes")
			b.ReportMetric(milliseconds(cpu)/failures, "cpu-ms/failure")
			c.report(b, controller)
		})
	}
}

// BenchmarkRemediationStorm measures the time until the last of 200 nodes that become
// unhealthy at once has its remediation object.
//
// The fixture is that of BenchmarkConditionToRemediation, at 2,000 nodes. One
// operation is one storm: 50 clients write the condition of the 200 as fast as the
// API server allows. s is measured from before the first write is sent until an
// informer has seen the last object, s-after-writes from the response to the last write.
// s-bare is the time of the same requests without a controller: the clients themselves
// read each node, acquire its lease and create its object after its condition. This is
// the limit of this API server on this machine. s-recovery is from before the first node
// is healed until the last object is deleted.
func BenchmarkRemediationStorm(b *testing.B) {
	const (
		nodes     = 2000
		unhealthy = 200
		atATime   = 50
	)
	b.Run("nodes=2000", func(b *testing.B) {
		c := healthCheckFixtureIn(b, fixtureOf(b, nodes))
		c.stormWithoutController(b, c.pick(atATime), atATime) // the first objects of a kind take longer
		bare := c.stormWithoutController(b, c.pick(unhealthy), atATime)
		controller := c.start(b)
		var whole, after, back, cpu time.Duration
		var done asked
		var status int
		b.ResetTimer()
		for b.Loop() {
			b.StopTimer()
			names := c.pick(unhealthy)
			seen, before, used, work := c.watcher.changes(), c.asked(b), use(b, controller), c.work(b, controller)
			took, late := c.storm(b, names, unhealthyType, atATime, c.objects.count, c.objects.latest)
			whole, after = max(whole, took), max(after, late)
			cpu = max(cpu, use(b, controller).cpu-used.cpu)
			healed, all := c.heal(b, names, before)
			back, done = max(back, healed), all
			c.assertTreated(b, seen, done, unhealthy)
			status = c.work(b, controller).minus(work).statuses
			b.StartTimer()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(whole.Seconds(), "s")
		b.ReportMetric(bare.Seconds(), "s-bare")
		b.ReportMetric(after.Seconds(), "s-after-writes")
		b.ReportMetric(back.Seconds(), "s-recovery")
		b.ReportMetric(float64(done.writes())/unhealthy, "writes/life")
		b.ReportMetric(float64(done.looks)/unhealthy, "looks/life")
		b.ReportMetric(float64(status), "status-writes")
		b.ReportMetric(milliseconds(cpu)/unhealthy, "cpu-ms/node")
		c.report(b, controller)
	})
}
