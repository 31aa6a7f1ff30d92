package scale

import (
	"fmt"
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

// BenchmarkPause measures how long after the write of mode Paused the last taint is placed.
//
// The fixture: that of BenchmarkStorm. One operation: 500 nodes become unhealthy at once, and
// the Guardrails are paused when a watcher has seen the taint on 50 of them. ms is measured
// from the answer to the write of the mode until the watcher sees the last taint, ms-sent from
// before this write. placed is how many nodes have the taint then. The rest get it after the
// mode is Enforce again.
func BenchmarkPause(b *testing.B) {
	const nodes, unhealthy, before, atATime = 2000, 500, 50, 50
	d := fixtureOf(b, nodes)
	d.start(b)
	scheme := runtime.NewScheme()
	testkit.Must(b, v1alpha1.AddToScheme(scheme))
	api := testkit.Value(client.New(d.cluster.AdminConfig(), client.Options{Scheme: scheme})).Must(b)
	set := func(mode v1alpha1.Mode) {
		b.Helper()
		rails := &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName}}
		testkit.Must(b, api.Patch(b.Context(), rails, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"mode":%q}}`, mode))))
	}
	var stored, sent time.Duration
	most := 0
	for b.Loop() {
		names := d.pick(unhealthy)
		written := make(chan error, 1)
		go func() { written <- d.setProblems(b.Context(), names, problem, corev1.ConditionTrue, atATime) }()
		testkit.Must(b, d.watcher.wait(b.Context(), "the first taints", func(v *view) bool { return v.tainted >= before }))
		begin := time.Now()
		set(v1alpha1.Paused)
		answered := time.Now()
		testkit.Must(b, <-written)
		var placed int
		testkit.Must(b, d.watcher.wait(b.Context(), "a pause in all writes", func(v *view) bool {
			placed = v.tainted
			return time.Since(v.latest) > quiet
		}))
		if placed == unhealthy {
			b.Fatalf("all %d nodes had the taint before the mode was in force: there was nothing to stop", unhealthy)
		}
		for _, name := range names {
			if d.watcher.has(name) {
				at := d.watcher.since(name)
				stored, sent = max(stored, at.Sub(answered)), max(sent, at.Sub(begin))
			}
		}
		most = max(most, placed)
		set(v1alpha1.Enforce)
		testkit.Must(b, d.watcher.allTainted(b.Context(), unhealthy))
		d.recover(b, names)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(stored), "ms")
	b.ReportMetric(milliseconds(sent), "ms-sent")
	b.ReportMetric(float64(most), "placed")
}
