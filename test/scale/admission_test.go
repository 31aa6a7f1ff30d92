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
)

// reviewRequest is a policy that is not stored, once such that no node matches it and it is
// let in, and once such that all do and it is refused.
type reviewRequest struct {
	path           string
	harmless, trap string
	refusal        string // what is said of the trap
	calls          int    // to the API server, for a verdict
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
// and a controller that leads and whose webhook the API server asks. In a crowd
// there are 96 more sets, which all ask for what the question asks for but for
// longer, and 10 ConfigMaps of 10 sets each. A follower is a second controller, which
// does not lead and is the one that is asked. On the busy one 33 nodes a second get
// new heartbeats meanwhile, as in a cluster whose kubelets report every five minutes.
//
// One operation is 200 creations of a set, or of a health check, with --dry-run=server,
// one after the other: half of them match no node and are let in, half match all 10,000
// and are refused with that number. p50-ms, p95-ms and max-ms are round trips through the API server,
// bare-p50-ms those of the same without a webhook. handler-ms is the mean that the
// webhook itself counts, handler-max-ms the bound below which all of its answers
// were, as its histogram tells, and over-50-ms how many took longer than that. That
// the controller asks nothing of the API server for a verdict on a set is asserted,
// and for one on a health check nothing but for its template.
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
				// It looks for the lease so seldom that no look is among what is counted.
				asked = d.run(b, install.Options{Webhook: true, Args: []string{
					"--leader-elect-lease-duration=3h", "--leader-elect-renew-deadline=2h", "--leader-elect-retry-period=1h",
				}})
			}
			askers := d.admissionClients(b, bench.question)
			var bare []time.Duration
			for range rounds {
				took, err := askers.ask(b.Context(), bench.question.harmless)
				if err != nil {
					b.Fatal(err)
				}
				bare = append(bare, took)
			}
			if err := install.UseWebhook(b.Context(), d.cluster, asked); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := install.RemoveWebhook(context.WithoutCancel(b.Context()), d.cluster); err != nil {
					b.Error(err)
				}
			})
			await(b, asked, "the controller to be at rest", quiet, func(measured) bool { return true })
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
				b.Errorf("the webhook was asked %v times, want %d", after.count, len(took))
			}
			if leads := d.leads(b, asked); leads == bench.follower {
				b.Errorf("the controller that was asked leads: %t", leads)
			}
			if got, want := d.work(b, asked).calls()-calls, bench.question.calls*len(took); got != want {
				b.Errorf("the controller asked the API server %d times for %d verdicts, want %d", got, len(took), want)
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

// rounds is how often each question is asked in one operation.
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
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	return admissionClients{about, client}
}

func (a admissionClients) ask(ctx context.Context, body string) (time.Duration, error) {
	begin := time.Now()
	err := a.client.CoreV1().RESTClient().Post().AbsPath(a.path).
		Param("dryRun", metav1.DryRunAll).Body([]byte(body)).Do(ctx).Error()
	return time.Since(begin), err
}

// round asks both questions in turn, and returns how long each took.
func (a admissionClients) round(b *testing.B) (took []time.Duration) {
	b.Helper()
	for range rounds {
		in, err := a.ask(b.Context(), a.harmless)
		if err != nil {
			b.Fatal(err)
		}
		out, err := a.ask(b.Context(), a.trap)
		if err == nil || !strings.Contains(err.Error(), a.refusal) {
			b.Fatalf("a policy that empties the cluster: %v", err)
		}
		took = append(took, in, out)
	}
	return took
}

// crowd stores more sets until the benchmark is over, and returns when the controller
// that leads follows them all.
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
	if _, err := d.cluster.KubectlApply(b.Context(), text.String()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx := context.WithoutCancel(b.Context())
		for _, kind := range []string{"conditionsets", "configmaps"} {
			if _, err := d.cluster.Kubectl(ctx, "delete", kind, "-n", install.Namespace, "-l", label); err != nil {
				b.Error(err)
			}
		}
	})
	await(b, leader, "every set to be followed", quiet, func(m measured) bool {
		return m.sum("autohealer_conditionset_accepted") >= stored+pinned*perMap
	})
}

// beat has nodes say that all is well, 33 a second, until it is stopped.
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

// leads says whether a controller does.
func (d *fixture) leads(b *testing.B, controller *install.Controller) bool {
	b.Helper()
	page, err := scrape(b.Context(), controller.Metrics)
	if err != nil {
		b.Fatal(err)
	}
	return page["autohealer_leading"] == 1
}

// answers are what a webhook has counted: how many, the time of all, and how many
// were within each bound of its histogram.
type answers struct {
	count, seconds float64
	within         map[float64]float64
}

var bucket = regexp.MustCompile(`le="([0-9.]+)"`)

func (d *fixture) answers(b *testing.B, controller *install.Controller) answers {
	b.Helper()
	page, err := scrape(b.Context(), controller.Metrics)
	if err != nil {
		b.Fatal(err)
	}
	const metric = "autohealer_admission_seconds"
	a := answers{within: map[float64]float64{}}
	for name, value := range page {
		switch text := string(name); {
		case strings.HasPrefix(text, metric+"_count{"):
			a.count += value
		case strings.HasPrefix(text, metric+"_sum{"):
			a.seconds += value
		case strings.HasPrefix(text, metric+"_bucket{"):
			if found := bucket.FindStringSubmatch(text); found != nil { // not that of all
				bound, err := strconv.ParseFloat(found[1], 64)
				if err != nil {
					b.Fatal(err)
				}
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

// bound returns the lowest bound that all answers were within.
func (a answers) bound() float64 {
	for _, bound := range slices.Sorted(maps.Keys(a.within)) {
		if a.within[bound] == a.count {
			return bound
		}
	}
	return math.Inf(1)
}
