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

	"github.com/resourcestack/autohealer/internal/rig"
)

// BenchmarkAgents measures what it costs the controller to listen to agents.
//
// The fixture: 10 nodes that say nothing, and 1,000 Leases of agents. One operation
// is one minute in which as many are renewed as by 10,000 agents that do so every two
// minutes: 83 a second, in order. What the controller costs in 20 seconds before, when
// nobody renews, is subtracted. That it writes nothing but its own lease is asserted,
// and that it has heard everybody.
func BenchmarkAgents(b *testing.B) {
	const (
		agents   = 1000
		every    = 2 * time.Minute / 10000
		span     = time.Minute
		renewals = int(span / every)
		parts    = 3 // of the minute, for one of which nobody renews
		before   = span / parts
	)
	d := bedOf(b, 10)
	leases := kubernetes.NewForConfigOrDie(d.cluster.AdminConfig()).CoordinationV1().Leases(rig.Namespace)
	name := func(i int) string { return fmt.Sprintf("autohealer-agent-node-%05d", i) }
	pace(b, agents, time.Millisecond, func(ctx context.Context, i int) error {
		_, err := leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{"app.kubernetes.io/name": "autohealer-agent"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod-1"), LeaseDurationSeconds: new(int32(360)), RenewTime: new(metav1.NowMicro())},
		}, metav1.CreateOptions{})
		return err
	})
	b.Cleanup(func() {
		if err := leases.DeleteCollection(context.WithoutCancel(b.Context()), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=autohealer-agent"}); err != nil {
			b.Error(err)
		}
	})
	controller := d.start(b)
	await(b, controller, "all agents to be heard", before, func(m measured) bool { return m.sum("autohealer_agents", `state="heard"`) == agents })
	var share, perRenewal float64
	for b.Loop() {
		b.StopTimer()
		idle, done := use(b, controller).cpu, d.work(b, controller)
		time.Sleep(before) //nolint:forbidigo // how much it costs that time passes is the question
		used := use(b, controller).cpu
		idle = (used - idle) * parts
		b.StartTimer()
		pace(b, renewals, every, func(ctx context.Context, i int) error {
			patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			_, err := leases.Patch(ctx, name(i%agents), types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
		b.StopTimer()
		cpu := use(b, controller).cpu - used - idle
		share, perRenewal = max(share, 100*cpu.Seconds()/span.Seconds()), max(perRenewal, 1000*milliseconds(cpu)/float64(renewals))
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
