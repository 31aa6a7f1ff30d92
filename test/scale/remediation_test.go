package scale

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkConditionToRemediation measures the time from a condition to its
// remediation object for nodes that fall sick one after the other.
//
// The fixture: 2,000 or 10,000 nodes of 15 KB, the controller manager, a health check
// of all nodes with a duration of 0s, and four ConditionSets that do not match; the
// nodes are drawn with seed (1, 2). One operation is 100 failures, five a second. Each
// is counted from before the write of the condition is sent until an informer has
// seen the object (p50-ms, p95-ms, max-ms) and, for comparison, from the answer to that
// write (p95-ms-answered): in between the controller looks at the node once more,
// takes its lease and makes the object. Then all nodes recover. What the API server
// was asked for the whole of it is asserted: a look and four writes for each node.
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
				if err != nil {
					b.Fatal(err)
				}
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

// BenchmarkRemediationStorm measures how long it takes until the last of 200 nodes
// that fall sick at once has its remediation object.
//
// The fixture is that of BenchmarkConditionToRemediation, at 2,000 nodes. One
// operation is one storm: 50 clients write the condition of the 200 as fast as the
// API server lets them. s is counted from before the first write is sent until an
// informer has seen the last object, s-after-writes from the answer to the last write.
// s-bare is what the same takes without a controller, the clients themselves looking
// at each node, taking its lease and making its object after its condition: what this
// API server on this machine can do, and nothing can be faster. s-recovery is from
// before the first node is healed until the last object is gone.
func BenchmarkRemediationStorm(b *testing.B) {
	const (
		nodes   = 2000
		sick    = 200
		atATime = 50
	)
	b.Run("nodes=2000", func(b *testing.B) {
		c := healthCheckFixtureIn(b, fixtureOf(b, nodes))
		c.stormWithoutController(b, c.pick(atATime), atATime) // the first objects of a kind take longer
		bare := c.stormWithoutController(b, c.pick(sick), atATime)
		controller := c.start(b)
		var whole, after, back, cpu time.Duration
		var done asked
		var status int
		b.ResetTimer()
		for b.Loop() {
			b.StopTimer()
			names := c.pick(sick)
			seen, before, used, work := c.watcher.changes(), c.asked(b), use(b, controller), c.work(b, controller)
			b.StartTimer()
			begin := time.Now()
			err := c.setProblems(b.Context(), names, unhealthyType, corev1.ConditionTrue, atATime)
			answered := time.Now()
			if err == nil {
				err = c.objects.count(b.Context(), sick)
			}
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			last := c.objects.latest(names)
			whole, after = max(whole, last.Sub(begin)), max(after, last.Sub(answered))
			cpu = max(cpu, use(b, controller).cpu-used.cpu)
			healed, all := c.heal(b, names, before)
			back, done = max(back, healed), all
			c.assertTreated(b, seen, done, sick)
			status = c.work(b, controller).minus(work).statuses
			b.StartTimer()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(whole.Seconds(), "s")
		b.ReportMetric(bare.Seconds(), "s-bare")
		b.ReportMetric(after.Seconds(), "s-after-writes")
		b.ReportMetric(back.Seconds(), "s-recovery")
		b.ReportMetric(float64(done.writes())/sick, "writes/life")
		b.ReportMetric(float64(done.looks)/sick, "looks/life")
		b.ReportMetric(float64(status), "status-writes")
		b.ReportMetric(milliseconds(cpu)/sick, "cpu-ms/node")
		c.report(b, controller)
	})
}
