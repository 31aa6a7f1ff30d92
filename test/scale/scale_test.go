package scale

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// BenchmarkStorm measures the time until the last of 500 nodes that become unhealthy at
// once has its taint.
//
// The fixture: 2,000 nodes of 15 KB, the controller manager, four ConditionSets
// of which one matches, with the default bound of 49% (980 nodes); the 500 are
// drawn with seed (1, 2). An operation is a storm: 50 clients write the
// condition of the 500 as fast as the API server allows, and the controller
// writes the ledger and the taints. s is measured from before the first write is
// sent until a watcher has seen the last taint, s-after-writes from the response
// to the last write. s-bare is the time of the same writes without a controller: the
// clients themselves write each taint after its condition. This is the limit of this
// API server on this machine.
func BenchmarkStorm(b *testing.B) {
	const (
		nodes     = 2000
		unhealthy = 500
		atATime   = 50
	)
	b.Run("nodes=2000", func(b *testing.B) {
		d := fixtureOf(b, nodes)
		bare := d.stormWithoutController(b, d.pick(unhealthy), atATime)
		controller := d.start(b)
		var whole, after, back time.Duration
		var done work
		var cpu time.Duration
		b.ResetTimer()
		for b.Loop() {
			b.StopTimer()
			names := d.pick(unhealthy)
			seen, before, used := d.watcher.changes(), d.work(b, controller), use(b, controller)
			took, late := d.storm(b, names, problem, atATime, d.watcher.allTainted, d.watcher.latest)
			whole, after = max(whole, took), max(after, late)
			cpu = max(cpu, use(b, controller).cpu-used.cpu)
			// Events of a storm arrive late, so await does not wait for them.
			done = await(b, controller, "the responses to all writes", 0, wrote(before.nodes+unhealthy)).minus(before)
			d.assertTouched(b, seen, done, unhealthy)
			back = max(back, d.recover(b, names))
			b.StartTimer()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(whole.Seconds(), "s")
		b.ReportMetric(bare.Seconds(), "s-bare")
		b.ReportMetric(after.Seconds(), "s-after-writes")
		b.ReportMetric(back.Seconds(), "s-recovery")
		b.ReportMetric(float64(done.nodes), "node-writes")
		b.ReportMetric(float64(done.wasted), "wasted")
		b.ReportMetric(float64(done.ledger), "ledger-writes")
		b.ReportMetric(float64(done.statuses), "status-writes")
		b.ReportMetric(milliseconds(cpu)/unhealthy, "cpu-ms/node")
		d.report(b, controller)
	})
}

// BenchmarkConditionToTaint measures the time from a condition to its taint for
// nodes that become unhealthy in sequence.
//
// The fixture: 2,000 or 10,000 nodes of 15 KB, the controller manager, four
// ConditionSets of which one matches; the nodes are drawn with seed (1, 2). An
// operation is 100 failures, five a second. Each is measured from before the
// write of the condition is sent until a watcher has seen the taint (p50-ms,
// p95-ms, max-ms) and, for comparison, from the response to that write
// (p95-ms-answered): in between are two writes of the controller, the ledger
// and the node.
func BenchmarkConditionToTaint(b *testing.B) {
	const (
		failures = 100
		pace     = time.Second / 5
	)
	for _, bench := range []struct {
		name  string
		nodes int
	}{{"nodes=2000", 2000}, {"nodes=10000", 10000}} {
		b.Run(bench.name, func(b *testing.B) {
			d := fixtureOf(b, bench.nodes)
			controller := d.start(b)
			loaded := use(b, controller)
			var strict, answered []time.Duration
			var cpu time.Duration
			var done work
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				names := d.pick(failures)
				seen, before, used := d.watcher.changes(), d.work(b, controller), use(b, controller)
				b.StartTimer()
				sent, acknowledged := d.failOneByOne(b, names, problem, pace)
				err := d.watcher.allTainted(b.Context(), failures)
				b.StopTimer()
				testkit.Must(b, err)
				for i, name := range names {
					at := d.watcher.since(name)
					strict, answered = append(strict, at.Sub(sent[i])), append(answered, at.Sub(acknowledged[i]))
				}
				done = await(b, controller, "an Event for every taint", quiet, wrote(before.nodes+failures)).minus(before)
				cpu = use(b, controller).cpu - used.cpu
				d.assertTouched(b, seen, done, failures)
				d.recover(b, names)
				b.StartTimer()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(milliseconds(percentile(strict, 50)), "p50-ms")
			b.ReportMetric(milliseconds(percentile(strict, 95)), "p95-ms")
			b.ReportMetric(milliseconds(percentile(strict, 100)), "max-ms")
			b.ReportMetric(milliseconds(percentile(answered, 95)), "p95-ms-answered")
			b.ReportMetric(float64(done.calls())/failures, "calls/failure")
			b.ReportMetric(float64(done.wasted)/failures, "wasted/failure")
			b.ReportMetric(milliseconds(cpu)/failures, "cpu-ms/failure")
			b.ReportMetric(float64(loaded.resident)/1024, "loaded-MB")
			d.report(b, controller)
		})
	}
}

// BenchmarkSteadyState measures the cost of the controller in a healthy cluster.
//
// The fixture: 10,000 healthy nodes of 15 KB, the controller manager, four
// ConditionSets. An operation is a minute of a cluster whose kubelets and
// agents report every five minutes: 33 nodes a second, in an order drawn with seed
// (1, 2), get new heartbeats in all of their ten conditions. The benchmark asserts
// that the controller writes nothing but its lease. With the webhook the controller
// also serves it, and keeps the data for a verdict; no client calls it. With a health
// check, a health check selects every node, in addition to the sets.
func BenchmarkSteadyState(b *testing.B) {
	const (
		nodes = 10000
		every = 5 * time.Minute
		span  = time.Minute
		beats = int(nodes * span / every)
	)
	steady := func(b *testing.B, start func(d *fixture) *install.Controller) {
		b.Helper()
		d := fixtureOf(b, nodes)
		controller := start(d)
		var share, perBeat float64
		var done work
		b.ResetTimer()
		for b.Loop() {
			b.StopTimer()
			names := d.pick(beats)
			seen, before, versions, used := d.watcher.changes(), d.work(b, controller), d.versions(b), use(b, controller)
			b.StartTimer()
			begin := time.Now()
			pace(b, len(names), every/nodes, func(ctx context.Context, i int) error { return d.heartbeat(ctx, names[i]) })
			testkit.Must(b, d.watcher.wait(b.Context(), "every heartbeat", func(v *view) bool { return v.changes >= seen+beats }))
			b.StopTimer()
			cpu := use(b, controller).cpu - used.cpu
			share = max(share, 100*cpu.Seconds()/time.Since(begin).Seconds())
			perBeat = max(perBeat, milliseconds(cpu)/float64(beats))
			done = d.work(b, controller).minus(before)
			if done.writes() != 0 {
				b.Errorf("a healthy cluster was written to: %+v", done)
			}
			if got := d.watcher.changes() - seen; got != beats {
				b.Errorf("nodes were written to %d times, %d of them heartbeats", got, beats)
			}
			for name, version := range d.versions(b) {
				if version != versions[name] {
					b.Errorf("%s was written to", name)
				}
			}
			b.StartTimer()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(share, "%core")
		b.ReportMetric(1000*perBeat, "cpu-µs/heartbeat")
		b.ReportMetric(float64(done.writes()), "writes")
		b.ReportMetric(float64(done.reads), "reads")
		b.ReportMetric(float64(done.renewals), "lease-renewals")
		d.report(b, controller)
	}
	b.Run("nodes=10000", func(b *testing.B) {
		steady(b, func(d *fixture) *install.Controller { return d.start(b) })
	})
	b.Run("nodes=10000,webhook", func(b *testing.B) {
		steady(b, func(d *fixture) *install.Controller { return d.startWith(b, install.Options{Webhook: true}) })
	})
	b.Run("nodes=10000,healthcheck", func(b *testing.B) {
		steady(b, func(d *fixture) *install.Controller { return healthCheckFixtureIn(b, d).start(b) })
	})
	b.Run("nodes=10000,pool", func(b *testing.B) { // last, because it makes the fixture unusable
		steady(b, func(d *fixture) *install.Controller { return poolFixtureIn(b, d).start(b) })
	})
}

// pace calls a function at an even pace, without waiting for earlier calls, and returns
// when all calls have.
func pace(b *testing.B, count int, every time.Duration, do func(ctx context.Context, i int) error) {
	b.Helper()
	ctx, cancel := context.WithCancelCause(b.Context())
	defer cancel(nil)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			if err := do(ctx, i); err != nil {
				cancel(err)
			}
		})
		<-ticker.C
	}
	wg.Wait()
	if ctx.Err() != nil {
		b.Fatal(context.Cause(ctx))
	}
}

// failOneByOne makes nodes unhealthy in sequence, and returns for each when the
// write of the condition was sent and answered.
func (d *fixture) failOneByOne(b *testing.B, names []string, problem string, every time.Duration) (sent, answered []time.Time) {
	b.Helper()
	sent, answered = make([]time.Time, len(names)), make([]time.Time, len(names))
	pace(b, len(names), every, func(ctx context.Context, i int) error {
		sent[i] = time.Now()
		err := d.setProblem(ctx, names[i], problem, corev1.ConditionTrue)
		answered[i] = time.Now()
		return err
	})
	return sent, answered
}

// recover heals nodes and returns the time until the last taint is removed.
func (d *fixture) recover(b *testing.B, names []string) time.Duration {
	b.Helper()
	begin := time.Now()
	err := d.setProblems(b.Context(), names, problem, corev1.ConditionFalse, 16)
	if err == nil {
		err = d.watcher.allTainted(b.Context(), 0)
	}
	testkit.Must(b, err)
	return d.watcher.latest(names).Sub(begin)
}

// storm makes the nodes unhealthy at once and waits until all of them are treated. It returns when
// the last treatment was seen, from before the first write and from the response to the last.
func (d *fixture) storm(b *testing.B, names []string, problem string, atATime int, wait func(context.Context, int) error, latest func([]string) time.Time) (whole, after time.Duration) {
	b.Helper()
	b.StartTimer()
	begin := time.Now()
	err := d.setProblems(b.Context(), names, problem, corev1.ConditionTrue, atATime)
	answered := time.Now()
	if err == nil {
		err = wait(b.Context(), len(names))
	}
	b.StopTimer()
	testkit.Must(b, err)
	last := latest(names)
	return last.Sub(begin), last.Sub(answered)
}

// stormWithoutController has the clients write the condition of every node and then its taint. It returns the time until the last taint was seen, and restores the nodes.
func (d *fixture) stormWithoutController(b *testing.B, names []string, atATime int) time.Duration {
	b.Helper()
	begin := time.Now()
	err := each(b.Context(), names, atATime, func(ctx context.Context, name string) error {
		if err := d.setProblem(ctx, name, problem, corev1.ConditionTrue); err != nil {
			return err
		}
		return d.setTaint(ctx, name, `[{"key":"`+taintKey+`","effect":"NoExecute"}]`)
	})
	if err == nil {
		err = d.watcher.allTainted(b.Context(), len(names))
	}
	testkit.Must(b, err)
	took := d.watcher.latest(names).Sub(begin)
	if err = each(b.Context(), names, atATime, func(ctx context.Context, name string) error {
		if err := d.setProblem(ctx, name, problem, corev1.ConditionFalse); err != nil {
			return err
		}
		return d.setTaint(ctx, name, "null")
	}); err == nil {
		err = d.watcher.allTainted(b.Context(), 0)
	}
	testkit.Must(b, err)
	return took
}

// wrote reports whether this number of nodes was written.
func wrote(nodes int) func(measured) bool {
	return func(m measured) bool { return m.work().nodes >= nodes }
}

// assertTouched checks the controller's writes: it wrote every unhealthy node once, and no
// other.
func (d *fixture) assertTouched(b *testing.B, changesBefore int, done work, unhealthy int) {
	b.Helper()
	if done.nodes != unhealthy {
		b.Errorf("%d nodes are unhealthy, but the controller has made %d writes to nodes", unhealthy, done.nodes)
	}
	if got := d.watcher.changes() - changesBefore; got != 2*unhealthy {
		b.Errorf("%d nodes are unhealthy, but nodes were written %d times: want a condition and a taint each", unhealthy, got)
	}
}

// work returns the controller's requests to the API server so far.
func (d *fixture) work(b *testing.B, controller *install.Controller) work {
	b.Helper()
	page := testkit.Value(scrape(b.Context(), controller.Metrics)).Must(b)
	return page.work()
}

// versions returns the versions of all objects that the controller may write, except nodes
// and its lease.
func (d *fixture) versions(b *testing.B) map[string]string {
	b.Helper()
	client := testkit.Value(metadata.NewForConfig(d.cluster.AdminConfig())).Must(b)
	versions := map[string]string{}
	page, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(install.Namespace).Get(b.Context(), ledger.Name, metav1.GetOptions{})
	testkit.Must(b, err)
	versions["the ledger"] = page.ResourceVersion
	for kind, resource := range map[string]schema.GroupVersionResource{
		"ConditionSet":    {Group: "autohealer.resourcestack.com", Version: "v1alpha1", Resource: "conditionsets"},
		"NodeHealthCheck": {Group: "remediation.medik8s.io", Version: "v1alpha1", Resource: "nodehealthchecks"},
	} {
		all := testkit.Value(client.Resource(resource).List(b.Context(), metav1.ListOptions{})).Must(b)
		for _, policy := range all.Items {
			versions[kind+" "+policy.Name] = policy.ResourceVersion
		}
	}
	if len(versions) < 2 {
		b.Fatal("there is no ConditionSet: the benchmark proves nothing")
	}
	return versions
}

// report adds the common metrics of all benchmarks.
func (d *fixture) report(b *testing.B, controller *install.Controller) {
	b.Helper()
	u := use(b, controller)
	b.ReportMetric(float64(u.resident)/1024, "resident-MB")
	b.ReportMetric(float64(u.peak)/1024, "peak-MB")
	if broken := d.watcher.broken(); broken > 0 {
		b.Logf("the watcher's stream broke %d times since the cluster was created", broken)
	}
}
