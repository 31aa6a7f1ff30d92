package scale

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

const (
	// unhealthyType is the condition that the health check benchmarks make true. No set
	// reads it.
	unhealthyType = "CorruptDockerOverlay2"
	// checkName is the health check with that condition.
	checkName = "overlay"
	// resource is the resource of its remediation objects.
	resource = "exampleremediations"
)

// healthCheck selects every node, and remediates unhealthy nodes at once.
const healthCheck = `
apiVersion: remediator.example.com/v1
kind: ExampleRemediationTemplate
metadata: {name: overlay, namespace: default}
spec: {template: {spec: {strategy: reboot}}}
---
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata: {name: overlay}
spec:
  maxUnhealthy: 49%
  unhealthyConditions:
  - {type: CorruptDockerOverlay2, status: "True", duration: 0s}
  remediationTemplate:
    apiVersion: remediator.example.com/v1
    kind: ExampleRemediationTemplate
    name: overlay
    namespace: default
`

// healthCheckFixture is a fixture with a health check, and a remediator that does nothing.
type healthCheckFixture struct {
	*fixture
	objects *objectWatcher
	server  kubernetes.Interface
}

// healthCheckFixtureIn adds a health check to a fixture until the end of the benchmark.
func healthCheckFixtureIn(b *testing.B, d *fixture) *healthCheckFixture {
	b.Helper()
	testkit.Must(b, remediator.Install(b.Context(), d.cluster))
	testkit.Value(d.cluster.KubectlApply(b.Context(), healthCheck)).Must(b)
	b.Cleanup(func() {
		if _, err := d.cluster.Kubectl(context.WithoutCancel(b.Context()), "delete", "nodehealthcheck", checkName); err != nil {
			b.Error(err)
		}
	})
	server := testkit.Value(kubernetes.NewForConfig(d.cluster.AdminConfig())).Must(b)
	return &healthCheckFixture{fixture: d, objects: watchRemediations(b, d), server: server}
}

// start runs a controller until the end of the benchmark, and returns when the health check
// counts every node.
func (c *healthCheckFixture) start(b *testing.B) *install.Controller {
	b.Helper()
	controller := c.fixture.start(b)
	ready := sample(`autohealer_policy_ready{policy="` + checkName + `",policy_kind="NodeHealthCheck"}`)
	await(b, controller, "the health check to count every node", quiet, func(m measured) bool {
		return m.nodesOf("NodeHealthCheck", checkName) == len(c.nodes) && m[ready] == 1
	})
	return controller
}

// asked counts the API server's requests for treatments, of any client and with any
// response.
type asked struct {
	looks    int // reads of single nodes
	locked   int // leases created
	relocked int // leases updated, including the leaders'
	begun    int // remediation objects created
	noted    int // remediation objects changed
	ended    int // remediation objects deleted
	unlocked int // leases deleted
	lists    int // of any of these, or of health checks
	looked   int // lists of leases, which also find agents
	versions int // lists of nodes, which also show that the store was not restored
	at       time.Time
}

// listsEvery is the minimal interval between two lists of agent leases, and between two
// lists of one node that read the version of the store. Neither depends on the number of
// treated nodes.
const listsEvery = 5 * time.Second

// tooMany returns how many of n lists within d are more than listsEvery allows.
func tooMany(n int, d time.Duration) int { return max(0, n-int(d/listsEvery)-1) }

// asked returns the counts so far. The API server counts: the controller's own metrics
// would be no proof.
func (c *healthCheckFixture) asked(b *testing.B) asked {
	b.Helper()
	page := metricsOf(b, c.server)
	count := func(verb, resource string) int {
		return page.sum("apiserver_request_total", `verb="`+verb+`"`, `resource="`+resource+`"`)
	}
	a := asked{
		looks:    count("GET", "nodes"),
		locked:   count("POST", "leases"),
		relocked: count("PUT", "leases"),
		begun:    count("POST", resource),
		noted:    count("PATCH", resource) + count("PUT", resource),
		ended:    count("DELETE", resource),
		unlocked: count("DELETE", "leases"),
		looked:   count("LIST", "leases"),
		versions: count("LIST", "nodes"), at: time.Now(),
	}
	for _, listed := range []string{resource, "nodehealthchecks"} {
		a.lists += count("LIST", listed)
	}
	return a
}

// minus returns the requests in between. It counts only lists of leases and nodes beyond
// those at intervals.
func (a asked) minus(before asked) asked {
	passed := a.at.Sub(before.at)
	lists := a.lists - before.lists + tooMany(a.looked-before.looked, passed) + tooMany(a.versions-before.versions, passed)
	return asked{
		looks: a.looks - before.looks, locked: a.locked - before.locked, relocked: a.relocked - before.relocked,
		begun: a.begun - before.begun, noted: a.noted - before.noted, ended: a.ended - before.ended,
		unlocked: a.unlocked - before.unlocked, lists: lists,
	}
}

// writes returns the writes of treatments. Leaders renew their leases by updates, so
// updates of node leases cannot be distinguished; none is due for minutes.
func (a asked) writes() int { return a.locked + a.begun + a.noted + a.ended + a.unlocked }

// heal makes nodes healthy, and returns the time until the last object is deleted and all
// requests since before. It waits until no more requests arrive.
func (c *healthCheckFixture) heal(b *testing.B, names []string, before asked) (took time.Duration, done asked) {
	b.Helper()
	begin := time.Now()
	err := c.setProblems(b.Context(), names, unhealthyType, corev1.ConditionFalse, 16)
	if err == nil {
		err = c.objects.count(b.Context(), 0)
	}
	testkit.Must(b, err)
	took = c.objects.latest(names).Sub(begin)
	ticker := time.NewTicker(quiet / 4)
	defer ticker.Stop()
	since := time.Now()
	for done.unlocked < len(names) || time.Since(since) < quiet {
		<-ticker.C
		now := c.asked(b).minus(before)
		if now.writes() != done.writes() {
			since = time.Now()
		}
		if done = now; time.Since(begin) > maxWait {
			b.Fatalf("waiting for the nodes to be unlocked: the requests to the API server are %+v", done)
		}
	}
	return took, done
}

// assertTreated checks the requests of complete treatments: every node was read, locked,
// remediated and unlocked once, and nothing was listed.
func (c *healthCheckFixture) assertTreated(b *testing.B, changesBefore int, done asked, unhealthy int) {
	b.Helper()
	done.relocked = 0 // the leaders'
	if want := (asked{looks: unhealthy, locked: unhealthy, begun: unhealthy, ended: unhealthy, unlocked: unhealthy}); done != want {
		b.Errorf("%d nodes were treated with the requests %+v, want %+v", unhealthy, done, want)
	}
	if got := c.watcher.changes() - changesBefore; got != 2*unhealthy {
		b.Errorf("%d nodes were treated, and nodes were written to %d times: want two conditions each", unhealthy, got)
	}
}

// stormWithoutController has the clients send all requests of clients and controller for
// every node, one after the other. It returns the time until the last object was seen, and
// restores the nodes.
func (c *healthCheckFixture) stormWithoutController(b *testing.B, names []string, atATime int) time.Duration {
	b.Helper()
	api, err := client.New(c.cluster.AdminConfig(), client.Options{})
	testkit.Must(b, err)
	write := treat.NewWriter(api)
	template := testkit.Value(write.GetTemplate(b.Context(), remediation.Template{
		GroupVersionKind: remediator.TemplateKind, Namespace: metav1.NamespaceDefault, Name: checkName,
	})).Must(b)
	check := &metav1.PartialObjectMetadata{}
	check.SetGroupVersionKind(schema.FromAPIVersionAndKind(remediation.CheckAPIVersion, remediation.CheckKind))
	testkit.Must(b, api.Get(b.Context(), client.ObjectKey{Name: checkName}, check))
	begin := time.Now()
	err = each(b.Context(), names, atATime, func(ctx context.Context, name string) error {
		if err := c.setProblem(ctx, name, unhealthyType, corev1.ConditionTrue); err != nil {
			return err
		}
		node, err := write.Fetch(ctx, name)
		if err != nil {
			return err
		}
		if _, err := write.ObtainLease(ctx, nodelease.Take(nil, node, nodelease.HolderOf(checkName), time.Minute, time.Now())); err != nil {
			return err
		}
		object, err := remediation.Make(template, node, remediation.Owner{Kind: remediation.CheckKind, Name: check.Name, UID: check.UID})
		if err != nil {
			return err
		}
		_, err = write.CreateRemediation(ctx, object)
		return err
	})
	if err == nil {
		err = c.objects.count(b.Context(), len(names))
	}
	testkit.Must(b, err)
	took := c.objects.latest(names).Sub(begin)
	if err = each(b.Context(), names, atATime, func(ctx context.Context, name string) error {
		if err := c.setProblem(ctx, name, unhealthyType, corev1.ConditionFalse); err != nil {
			return err
		}
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(remediator.Kind)
		object.SetNamespace(metav1.NamespaceDefault)
		object.SetName(name)
		if err := api.Delete(ctx, object); err != nil {
			return err
		}
		lease, err := write.FetchLease(ctx, name)
		if err != nil {
			return err
		}
		return write.ReleaseLease(ctx, lease)
	}); err == nil {
		err = c.objects.count(b.Context(), 0)
	}
	testkit.Must(b, err)
	return took
}

// objectWatcher watches remediation objects through an informer, like a remediator, and
// stores when it saw them.
type objectWatcher struct {
	mu    sync.Mutex
	since map[string]time.Time // by name: when the object was created or deleted
	there int
}

// watchRemediations watches until the end of the benchmark.
func watchRemediations(b *testing.B, d *fixture) *objectWatcher {
	b.Helper()
	o := &objectWatcher{since: map[string]time.Time{}}
	note := func(object any, by int) {
		now := time.Now()
		if last, unseen := object.(cache.DeletedFinalStateUnknown); unseen {
			object = last.Obj
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.since[object.(*metav1.PartialObjectMetadata).Name] = now
		o.there += by
	}
	watchObjects(b, d, remediator.GroupVersion.WithResource(resource), cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { note(object, 1) },
		DeleteFunc: func(object any) { note(object, -1) },
	})
	return o
}

// count waits until exactly this number of objects exists.
func (o *objectWatcher) count(ctx context.Context, want int) error {
	return awaitCount(ctx, fmt.Sprintf("%d remediation objects", want), func() int {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.there
	}, func(there int) bool { return there == want })
}

// seen returns when the object of a node was created or deleted.
func (o *objectWatcher) seen(name string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since[name]
}

// latest returns the last of these times for some nodes.
func (o *objectWatcher) latest(names []string) (at time.Time) {
	for _, name := range names {
		if seen := o.seen(name); seen.After(at) {
			at = seen
		}
	}
	return at
}
