package scale

import (
	"context"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// reviewRequest is a policy that is not stored. In the first form it matches no node and is
// admitted. In the second form it matches all nodes and is refused.
type reviewRequest struct {
	path           string
	harmless, trap string
	refusal        string // part of the refusal
	calls          int    // requests to the API server for a verdict
}

func ask(path, format, harmless, trap, refusal string, calls int) reviewRequest {
	return reviewRequest{path, fmt.Sprintf(format, harmless), fmt.Sprintf(format, trap), refusal, calls}
}

var (
	aboutSet = ask("/apis/autohealer.resourcestack.com/v1alpha1/conditionsets",
		`{"apiVersion": "autohealer.resourcestack.com/v1alpha1", "kind": "ConditionSet", "metadata": {"name": "question"},
	"spec": {"type": "Question", "effect": "NoExecute", "taintKey": "example.com/question", "maxUnhealthy": "10%%", "conditions": {%s}}}`,
		`"NTPProblem": {"status": true}`, `"Ready": {"status": true}`, "10000 of 10000 selected nodes", 0)
	aboutCheck = ask("/apis/remediation.medik8s.io/v1alpha1/nodehealthchecks",
		`{"apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "metadata": {"name": "question"},
	"spec": {"selector": {}, "unhealthyConditions": [{%s, "duration": "0s"}],
	"remediationTemplate": {"apiVersion": "example.com/v1", "kind": "NoSuchTemplate", "namespace": "default", "name": "none"}}}`,
		`"type": "NTPProblem", "status": "True"`, `"type": "Ready", "status": "True"`, "10000 of 10000 selected nodes", 1) // for the template
)

// BenchmarkAdmission measures how long the writer of a policy waits for the
// verdict.
//
// The fixture: 10,000 nodes of 15 KB, the controller manager, four ConditionSets,
// and a leading controller whose webhook is registered. In a crowd there are 96 more
// sets with the same conditions and longer durations, and 10 ConfigMaps of 10 sets
// each. A follower is a second controller, which does not lead and whose webhook is
// registered. In the busy case 33 nodes a second get new heartbeats meanwhile, as in a
// cluster whose kubelets report every five minutes.
//
// One operation is 200 creations of a set, or of a health check, with --dry-run=server,
// one after the other: half of them match no node and are admitted, half match all 10,000
// and are refused with that number. p50-ms, p95-ms and max-ms are round trips through the
// API server, bare-p50-ms the same without a webhook. handler-ms is the webhook's own
// mean, handler-max-ms the histogram bound of its slowest answer, and over-50-ms how
// many took longer than 50 ms. The benchmark asserts that the controller sends no request
// to the API server for a verdict on a set, and only one for the template of a health check.
func BenchmarkAdmission(b *testing.B) {
	const nodes = 10000
	for _, bench := range []struct {
		name            string
		question        reviewRequest
		crowd, follower bool
		busy            bool
	}{
		{name: "nodes=10000", question: aboutSet},
		{name: "nodes=10000,crowd,follower", question: aboutSet, crowd: true, follower: true},
		{name: "nodes=10000,crowd,busy", question: aboutSet, crowd: true, busy: true},
		{name: "nodes=10000,healthcheck", question: aboutCheck},
		{name: "nodes=10000,healthcheck,busy", question: aboutCheck, busy: true},
	} {
		b.Run(bench.name, func(b *testing.B) {
			d := fixtureOf(b, nodes)
			asked := d.startWith(b, install.Options{Webhook: true})
			if bench.crowd {
				d.crowd(b, asked)
			}
			if bench.follower {
				// It checks the lease so rarely that no check is in the counts.
				asked = d.run(b, install.Options{Webhook: true, Args: []string{
					"--leader-elect-lease-duration=3h", "--leader-elect-renew-deadline=2h", "--leader-elect-retry-period=1h",
				}})
			}
			askers := d.admissionClients(b, bench.question)
			var bare []time.Duration
			for range rounds {
				took := testkit.Value(askers.ask(b.Context(), bench.question.harmless)).Must(b)
				bare = append(bare, took)
			}
			testkit.Must(b, install.UseWebhook(b.Context(), d.cluster, asked))
			b.Cleanup(func() {
				if err := install.RemoveWebhook(context.WithoutCancel(b.Context()), d.cluster); err != nil {
					b.Error(err)
				}
			})
			await(b, asked, "the controller to be idle", quiet, func(measured) bool { return true })
			stop := func() {}
			if bench.busy {
				stop = d.beat(b)
			}
			var took []time.Duration
			before, calls := d.answers(b, asked), d.work(b, asked).calls()
			b.ResetTimer()
			for b.Loop() {
				took = append(took, askers.round(b)...)
			}
			b.StopTimer()
			stop()
			after := d.answers(b, asked).minus(before)
			if after.count != float64(len(took)) {
				b.Errorf("the webhook was called %v times, want %d", after.count, len(took))
			}
			if leads := d.leads(b, asked); leads == bench.follower {
				b.Errorf("the called controller leads: %t", leads)
			}
			if got, want := d.work(b, asked).calls()-calls, bench.question.calls*len(took); got != want {
				b.Errorf("the controller sent %d requests to the API server for %d verdicts, want %d", got, len(took), want)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(milliseconds(percentile(took, 50)), "p50-ms")
			b.ReportMetric(milliseconds(percentile(took, 95)), "p95-ms")
			b.ReportMetric(milliseconds(percentile(took, 100)), "max-ms")
			b.ReportMetric(milliseconds(percentile(bare, 50)), "bare-p50-ms")
			b.ReportMetric(1000*after.seconds/after.count, "handler-ms")
			b.ReportMetric(1000*after.bound(), "handler-max-ms")
			b.ReportMetric(after.count-after.within[0.05], "over-50-ms")
			d.report(b, asked)
		})
	}
}

// rounds is how often each request is sent in one operation.
const rounds = 100

// admissionClients write policies that are not stored.
type admissionClients struct {
	reviewRequest
	client kubernetes.Interface
}

func (d *fixture) admissionClients(b *testing.B, about reviewRequest) admissionClients {
	b.Helper()
	config := d.cluster.AdminConfig()
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client := testkit.Value(kubernetes.NewForConfig(config)).Must(b)
	return admissionClients{about, client}
}

func (a admissionClients) ask(ctx context.Context, body string) (time.Duration, error) {
	begin := time.Now()
	err := a.client.CoreV1().RESTClient().Post().AbsPath(a.path).
		Param("dryRun", metav1.DryRunAll).Body([]byte(body)).Do(ctx).Error()
	return time.Since(begin), err
}

// round sends both requests in turn, and returns their durations.
func (a admissionClients) round(b *testing.B) (took []time.Duration) {
	b.Helper()
	for range rounds {
		in, err := a.ask(b.Context(), a.harmless)
		testkit.Must(b, err)
		out, err := a.ask(b.Context(), a.trap)
		if err == nil || !strings.Contains(err.Error(), a.refusal) {
			b.Fatalf("a policy that evicts the whole cluster: %v", err)
		}
		took = append(took, in, out)
	}
	return took
}

// crowd stores more sets until the end of the benchmark, and returns when the leading
// controller applies all of them.
func (d *fixture) crowd(b *testing.B, leader *install.Controller) {
	b.Helper()
	const stored, pinned, perMap, label = 96, 10, 10, "scale/crowd=true"
	var text strings.Builder
	for i := range stored {
		fmt.Fprintf(&text, `---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: crowd-%[1]d, labels: {scale/crowd: "true"}}
spec: {type: Crowd%[1]d, effect: NoSchedule, taintKey: example.com/crowd-%[1]d, conditions: {NTPProblem: {status: true, duration: %[2]dm}}}
`, i, i+1)
	}
	for i := range pinned {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: ConfigMap
metadata: {name: crowd-%d, namespace: %s, labels: {scale/crowd: "true", %s: "%s"}}
data:
  sets.yaml: |
    type: ConditionSets
    conditionSets:
`, i, install.Namespace, configmaps.Label, configmaps.LabelValue)
		for k := range perMap {
			fmt.Fprintf(&text, "    - {type: Pinned%[1]d, effect: NoSchedule, taintKey: example.com/pinned-%[1]d, conditions: [{ConditionType: NTPProblem, conditionStatus: true, duration: %[2]dm}]}\n",
				i*perMap+k, 1000+i*perMap+k)
		}
	}
	testkit.Value(d.cluster.KubectlApply(b.Context(), text.String())).Must(b)
	b.Cleanup(func() {
		ctx := context.WithoutCancel(b.Context())
		for _, kind := range []string{"conditionsets", "configmaps"} {
			if _, err := d.cluster.Kubectl(ctx, "delete", kind, "-n", install.Namespace, "-l", label); err != nil {
				b.Error(err)
			}
		}
	})
	await(b, leader, "every set to be accepted", quiet, func(m measured) bool {
		return m.sum("autohealer_policy_ready", `policy_kind="ConditionSet"`) >= stored+pinned*perMap
	})
}

// beat sends healthy heartbeats, 33 nodes a second, until it is stopped.
func (d *fixture) beat(b *testing.B) (stop func()) {
	b.Helper()
	const every = 5 * time.Minute / 10000
	names := d.pick(len(d.nodes))
	ctx, cancel := context.WithCancel(b.Context())
	var beating sync.WaitGroup
	beating.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			if err := d.heartbeat(ctx, names[i%len(names)]); err != nil && ctx.Err() == nil {
				b.Error(err)
			}
		}
	})
	return func() {
		cancel()
		beating.Wait()
	}
}

// leads reports whether a controller is the leader.
func (d *fixture) leads(b *testing.B, controller *install.Controller) bool {
	b.Helper()
	page := testkit.Value(scrape(b.Context(), controller.Metrics)).Must(b)
	return page["autohealer_leading"] == 1
}

// answers are a webhook's counters: the number of answers, their total time, and the
// histogram.
type answers struct {
	count, seconds float64
	within         map[float64]float64
}

var bucket = regexp.MustCompile(`le="([0-9.]+)"`)

func (d *fixture) answers(b *testing.B, controller *install.Controller) answers {
	b.Helper()
	page := testkit.Value(scrape(b.Context(), controller.Metrics)).Must(b)
	const metric = "autohealer_admission_duration_seconds"
	a := answers{within: map[float64]float64{}}
	for name, value := range page {
		switch text := string(name); {
		case strings.HasPrefix(text, metric+"_count{"):
			a.count += value
		case strings.HasPrefix(text, metric+"_sum{"):
			a.seconds += value
		case strings.HasPrefix(text, metric+"_bucket{"):
			if found := bucket.FindStringSubmatch(text); found != nil { // without the +Inf bucket
				bound := testkit.Value(strconv.ParseFloat(found[1], 64)).Must(b)
				a.within[bound] += value
			}
		}
	}
	return a
}

func (a answers) minus(before answers) answers {
	since := answers{count: a.count - before.count, seconds: a.seconds - before.seconds, within: map[float64]float64{}}
	for bound, count := range a.within {
		since.within[bound] = count - before.within[bound]
	}
	return since
}

// bound returns the lowest histogram bound that includes all answers.
func (a answers) bound() float64 {
	for _, bound := range slices.Sorted(maps.Keys(a.within)) {
		if a.within[bound] == a.count {
			return bound
		}
	}
	return math.Inf(1)
}
