package scale

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/rig"
)

// question is a set that is not stored: one that matches what is asked for.
const question = `{"apiVersion": "autohealer.resourcestack.com/v1alpha1", "kind": "ConditionSet", "metadata": {"name": "question"},
	"spec": {"type": "Question", "effect": "NoExecute", "taintKey": "example.com/question", "maxUnhealthy": "10%%", "conditions": {%s}}}`

// BenchmarkAdmission measures how long the writer of a policy waits for the
// verdict.
//
// The fixture: 10,000 nodes of 15 KB, the controller manager, four ConditionSets,
// and a controller that leads and whose webhook the API server asks. One operation
// is 200 creations of a set with --dry-run=server, one after the other: half of
// them match no node and are let in, half match all 10,000 and are refused with
// that number. p50-ms and p95-ms are round trips through the API server,
// bare-p50-ms those of the same without a webhook. handler-ms is the mean that the
// webhook itself counts, and over-50-ms how many of its answers took longer.
func BenchmarkAdmission(b *testing.B) {
	const (
		nodes  = 10000
		rounds = 100
	)
	b.Run("nodes=10000", func(b *testing.B) {
		d := bedOf(b, nodes)
		controller := d.startWith(b, rig.Options{Webhook: true})
		config := d.cluster.AdminConfig()
		config.WarningHandlerWithContext = rest.NoWarnings{}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			b.Fatal(err)
		}
		harmless, trap := fmt.Sprintf(question, `"NTPProblem": {"status": true}`), fmt.Sprintf(question, `"Ready": {"status": true}`)
		ask := func(ctx context.Context, body string) (time.Duration, error) {
			begin := time.Now()
			err := client.RESTClient().Post().AbsPath("/apis/autohealer.resourcestack.com/v1alpha1/conditionsets").
				Param("dryRun", metav1.DryRunAll).Body([]byte(body)).Do(ctx).Error()
			return time.Since(begin), err
		}
		var bare []time.Duration
		for range rounds {
			took, err := ask(b.Context(), harmless)
			if err != nil {
				b.Fatal(err)
			}
			bare = append(bare, took)
		}
		if err := rig.Ask(b.Context(), d.cluster, controller); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := rig.StopAsking(context.WithoutCancel(b.Context()), d.cluster); err != nil {
				b.Error(err)
			}
		})
		var took []time.Duration
		var mean float64
		var slow int
		b.ResetTimer()
		for b.Loop() {
			before := d.answers(b, controller)
			for range rounds {
				in, err := ask(b.Context(), harmless)
				if err != nil {
					b.Fatal(err)
				}
				out, err := ask(b.Context(), trap)
				if err == nil || !strings.Contains(err.Error(), "10000 of 10000 selected nodes") {
					b.Fatalf("a set that empties the cluster: %v", err)
				}
				took = append(took, in, out)
			}
			after := d.answers(b, controller)
			if got := after.count - before.count; got != 2*rounds {
				b.Errorf("the webhook was asked %v times, want %d", got, 2*rounds)
			}
			mean = 1000 * (after.seconds - before.seconds) / (2 * rounds)
			slow += int(after.count-before.count) - int(after.fast-before.fast)
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(milliseconds(percentile(took, 50)), "p50-ms")
		b.ReportMetric(milliseconds(percentile(took, 95)), "p95-ms")
		b.ReportMetric(milliseconds(percentile(took, 100)), "max-ms")
		b.ReportMetric(milliseconds(percentile(bare, 50)), "bare-p50-ms")
		b.ReportMetric(mean, "handler-ms")
		b.ReportMetric(float64(slow), "over-50-ms")
		d.report(b, controller)
	})
}

// answers are what a webhook has counted: how many, how many of them within 50 ms,
// and the time of all.
type answers struct{ count, fast, seconds float64 }

func (d *bed) answers(b *testing.B, controller *rig.Controller) (a answers) {
	b.Helper()
	page, err := scrape(b.Context(), controller.Metrics)
	if err != nil {
		b.Fatal(err)
	}
	const metric = "autohealer_admission_seconds"
	for name, value := range page {
		switch text := string(name); {
		case strings.HasPrefix(text, metric+"_count{"):
			a.count += value
		case strings.HasPrefix(text, metric+"_sum{"):
			a.seconds += value
		case strings.HasPrefix(text, metric+"_bucket{") && strings.Contains(text, `le="0.05"`):
			a.fast += value
		}
	}
	return a
}
