package conditionset

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// fixture is a policy and its host. The host has a core and nodes, and carries out
// no plan.
type fixture struct {
	*Policy
	t        *testing.T
	log      strings.Builder
	events   []treat.Event
	core     *triage.Core
	nodes    map[string]*engine.Node
	queued   map[string]bool // nodes that differ from their plan
	loaded   bool
	posts    chan func(now time.Time)
	requests sync.WaitGroup
	metrics  *engine.Metrics
	statuses *status.Writer // it writes nothing unless a test replaces it
}

// newFixture returns a fixture without sets.
func newFixture(t *testing.T, cfg Config) *fixture {
	t.Helper()
	c := &fixture{t: t, core: triage.New(), nodes: map[string]*engine.Node{}, queued: map[string]bool{}, posts: make(chan func(time.Time), 10), metrics: engine.NewMetrics(), statuses: &status.Writer{}}
	cfg.Event = func(event treat.Event) { c.events = append(c.events, event) }
	cfg.Wrote, cfg.Taints = func(string, treat.Outcome) {}, c
	cfg.Metrics, cfg.Logger = NewMetrics(), slog.New(slog.NewTextHandler(&c.log, nil))
	c.Policy = newPolicy(c, cfg)
	return c
}

// open runs a test with a fixture in a synctest bubble.
func open(t *testing.T, test func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, Config{})
		c.configMaps.hasRevisions = true
		test(c)
	})
}

// Core returns the core of the fixture, as the other methods of [engine.Host] do.
func (c *fixture) Core() *triage.Core                             { return c.core }
func (c *fixture) Node(name string) *engine.Node                  { return c.nodes[name] }
func (c *fixture) Nodes() iter.Seq2[string, *engine.Node]         { return maps.All(c.nodes) }
func (c *fixture) IsLoaded() bool                                 { return c.loaded }
func (c *fixture) Statuses() *status.Writer                       { return c.statuses }
func (c *fixture) PolicyMetrics() *engine.PolicyMetrics           { return c.metrics.Policies }
func (c *fixture) Retire(time.Time, triage.RuleID)                {}
func (c *fixture) Revive(triage.RuleID)                           {}
func (c *fixture) Post(_ context.Context, handle func(time.Time)) { c.posts <- handle }

func (c *fixture) CurrentReason(_ string, reason triage.Reason) triage.Reason { return reason }

func (c *fixture) Problem(*engine.Node, triage.RuleID) (refusal, delay string) { return "", "" }

func (c *fixture) Reconcile(now time.Time, n *engine.Node) {
	c.queued[n.Object.Name] = treat.Prepare(n.Object, c.planOf(n), now) != nil
}

func (c *fixture) Do(ctx context.Context, request func(context.Context) func(time.Time)) {
	c.requests.Go(func() { c.posts <- request(ctx) })
}

// planOf returns the plan of a node as the engine does.
func (c *fixture) planOf(n *engine.Node) triage.Plan {
	plan, _ := c.core.Plan(n.Object.Name)
	plan.Initialized = false // no ready timeout applies
	return plan
}

// round runs a round as the engine does.
func (c *fixture) round(ctx context.Context, now time.Time) (due time.Time) {
	if !c.loaded && !c.Ready(now) {
		return time.Time{}
	}
	c.Take(now)
	due = c.SetRules(ctx, now)
	if !c.loaded {
		c.loaded = true
		c.core.Loaded(now)
	}
	for _, n := range c.nodes {
		c.Reconcile(now, n)
	}
	return due
}

// reconcileWoken reconciles the nodes whose plan may have changed, as the engine does.
func (c *fixture) reconcileWoken() {
	for name, ok := c.core.NextWoken(); ok; name, ok = c.core.NextWoken() {
		if n := c.nodes[name]; n != nil {
			c.Reconcile(time.Now(), n)
		}
	}
}

// upsertNode delivers a version of a node.
func (c *fixture) upsertNode(object *corev1.Node) {
	n := c.nodes[object.Name]
	if n == nil {
		n = &engine.Node{}
		c.nodes[object.Name] = n
	}
	facts, _ := observe.Node(object) // an unreadable record proves nothing
	n.Object, n.Taints = object, facts.Taints
	c.NodeChanged(n, nil, object)
	c.core.Observe(time.Now(), facts)
}

// removeNode delivers the deletion of a node.
func (c *fixture) removeNode(name string) {
	n := c.nodes[name]
	c.core.Forget(time.Now(), name)
	delete(c.nodes, name)
	c.NodeChanged(n, n.Object, nil)
}

func (c *fixture) lines(message string) int {
	return strings.Count(c.log.String(), fmt.Sprintf("msg=%q", message))
}

func named(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// pass advances the clock of the synctest bubble.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // it advances the clock of the bubble

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
