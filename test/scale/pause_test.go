package scale

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// pauseCase is a kind of step that mode Paused stops.
type pauseCase struct {
	nodes, before int                         // so many nodes become unhealthy; the pause comes after so many steps
	condition     string                      // that makes a node unhealthy
	begun         func(node string) time.Time // when a watcher saw the step on a node; zero or an earlier time for none
	recover       func(names []string)        // ends the steps; nil if they do not end
}

// BenchmarkPause measures how long after the write of mode Paused the last step begins: a taint, a
// remediation or the termination of a NodeClaim.
//
// The fixture: that of BenchmarkStorm, with the health check of BenchmarkRemediationStorm or the NodePool
// of BenchmarkConditionToTermination. One operation: nodes become unhealthy at once, and the
// Guardrails are paused when a watcher has seen the first steps. ms is measured from the answer to the
// write of the mode until the watcher sees the last step, ms-sent from before this write. begun is how
// many steps there are then. The rest begins after the mode is Enforce again.
func BenchmarkPause(b *testing.B) {
	const nodes = 2000
	b.Run("taints", func(b *testing.B) {
		d := fixtureOf(b, nodes)
		d.start(b)
		d.pauses(b, pauseCase{nodes: 500, before: 50, condition: problem, begun: func(node string) (at time.Time) {
			if d.watcher.has(node) {
				at = d.watcher.since(node)
			}
			return at
		}, recover: func(names []string) { d.recover(b, names) }})
	})
	b.Run("remediations", func(b *testing.B) {
		c := healthCheckFixtureIn(b, fixtureOf(b, nodes))
		c.start(b)
		c.pauses(b, pauseCase{nodes: 500, before: 50, condition: unhealthyType, begun: c.objects.seen, recover: func(names []string) {
			testkit.Must(b, c.setProblems(b.Context(), names, unhealthyType, corev1.ConditionFalse, 16))
			testkit.Must(b, c.objects.count(b.Context(), 0))
		}})
	})
	b.Run("terminations", func(b *testing.B) {
		p := poolFixtureIn(b, fixtureOf(b, nodes))
		testkit.Value(p.cluster.Kubectl(b.Context(), "patch", "nodepool", poolName, "--type=merge", "-p", `{"spec":{"disruption":{"budgets":[{"nodes":"2000"}]},"repair":{"maxConcurrent":2000}}}`)).Must(b)
		p.start(b)
		p.pauses(b, pauseCase{nodes: 300, before: 30, condition: decay, begun: p.claims.seen})
	})
}

func (d *fixture) pauses(b *testing.B, of pauseCase) {
	b.Helper()
	const atATime = 50
	scheme := runtime.NewScheme()
	testkit.Must(b, v1alpha1.AddToScheme(scheme))
	api := testkit.Value(client.New(d.cluster.AdminConfig(), client.Options{Scheme: scheme})).Must(b)
	set := func(mode v1alpha1.Mode) {
		b.Helper()
		rails := &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName}}
		testkit.Must(b, api.Patch(b.Context(), rails, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"mode":%q}}`, mode))))
	}
	used := map[string]bool{} // by steps that do not end
	var stored, sent time.Duration
	most := 0
	for b.Loop() {
		names := slices.DeleteFunc(d.pick(len(d.nodes)), func(name string) bool { return used[name] })[:of.nodes]
		for _, name := range names {
			used[name] = of.recover == nil
		}
		start := time.Now()
		steps := func() (count int, last time.Time) {
			for _, name := range names {
				if at := of.begun(name); at.After(start) {
					count++
					if at.After(last) {
						last = at
					}
				}
			}
			return count, last
		}
		await := func(what string, want func(count int, last time.Time) bool) {
			b.Helper()
			testkit.Must(b, awaitCount(b.Context(), what, func() int { count, _ := steps(); return count }, func(int) bool { return want(steps()) }))
		}
		written := make(chan error, 1)
		go func(ctx context.Context) {
			written <- d.setProblems(ctx, names, of.condition, corev1.ConditionTrue, atATime)
		}(b.Context())
		await("the first steps", func(count int, _ time.Time) bool { return count >= of.before })
		begin := time.Now()
		set(v1alpha1.Paused)
		answered := time.Now()
		testkit.Must(b, <-written)
		allWritten := time.Now()
		await("no more steps", func(_ int, last time.Time) bool { return time.Since(last) > quiet && time.Since(allWritten) > quiet })
		count, last := steps()
		if count == of.nodes {
			b.Fatalf("all %d steps had begun before the mode was in force: there was nothing to stop", count)
		}
		stored, sent, most = max(stored, last.Sub(answered)), max(sent, last.Sub(begin)), max(most, count)
		set(v1alpha1.Enforce)
		await("the other steps", func(count int, _ time.Time) bool { return count == of.nodes })
		if of.recover != nil {
			of.recover(names)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(stored), "ms")
	b.ReportMetric(milliseconds(sent), "ms-sent")
	b.ReportMetric(float64(most), "begun")
}
