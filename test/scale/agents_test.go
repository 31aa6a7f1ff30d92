package scale

import (
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/install"
)

// BenchmarkAgents measures the controller's cost of observing agents.
//
// The fixture: 10 idle nodes, and the Leases of 10,000 agents without owners: the nodes
// do not exist, and the garbage collector would delete the Leases.
// One operation is two minutes in which every agent renews once, 83 a second, in order.
// The controller's cost in the minute before there is any Lease is subtracted, twice.
// It runs without leader election, so that a busy machine does not end it. The benchmark
// asserts that it writes nothing, and that it has seen all Leases.
func BenchmarkAgents(b *testing.B) {
	const (
		agents = 10000
		span   = 2 * time.Minute
		every  = span / agents
	)
	d := fixtureOf(b, 10)
	config := d.cluster.AdminConfig()
	config.QPS = -1
	leases := kubernetes.NewForConfigOrDie(config).CoordinationV1().Leases(install.Namespace)
	name := func(i int) string { return fmt.Sprintf("autohealer-agent-node-%05d", i) }
	controller := d.startWith(b, install.Options{Args: []string{"--leader-elect=false"}})
	idle := use(b, controller).cpu
	time.Sleep(span / 2) //nolint:forbidigo // the benchmark measures the cost of passing time
	idle = 2 * (use(b, controller).cpu - idle)
	b.Cleanup(func() {
		var err error
		for range 5 { // a request times out after a minute, and this many may take longer
			if err = leases.DeleteCollection(context.WithoutCancel(b.Context()), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=autohealer-agent"}); err == nil {
				return
			}
		}
		b.Error(err)
	})
	pace(b, agents, 4*time.Millisecond, func(ctx context.Context, i int) error {
		_, err := leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{"app.kubernetes.io/name": "autohealer-agent"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod-1"), LeaseDurationSeconds: new(int32(360)), RenewTime: new(metav1.NowMicro())},
		}, metav1.CreateOptions{})
		return err
	})
	await(b, controller, "all Leases to be observed", 0, func(m measured) bool { return m.sum("autohealer_agents", `state="alive"`) == agents })
	var share, perRenewal float64
	for b.Loop() {
		b.StopTimer()
		done, used := d.work(b, controller), use(b, controller).cpu
		b.StartTimer()
		pace(b, agents, every, func(ctx context.Context, i int) error {
			patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			_, err := leases.Patch(ctx, name(i), types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
		b.StopTimer()
		cpu := use(b, controller).cpu - used - idle
		share, perRenewal = max(share, 100*cpu.Seconds()/span.Seconds()), max(perRenewal, 1000*milliseconds(cpu)/agents)
		if written := d.work(b, controller).minus(done).writes(); written != 0 {
			b.Errorf("it wrote %d times", written)
		}
		b.StartTimer()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(share, "%core")
	b.ReportMetric(perRenewal, "cpu-µs/renewal")
	d.report(b, controller)
}
