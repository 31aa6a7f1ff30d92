package pools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// fault is a part of a test that injects a fault into a pool of its own.
type fault struct {
	name, pool string
	startup    karpenter.Startup
	test       func(*pool)
	nodes      int
	bound      int
	policy     bool // the rules are in a RepairPolicy, and not on the pool
}

// TestFaults injects faults while terminations are in flight. Its parts share a cluster and
// run in sequence, each with its own controllers.
func TestFaults(t *testing.T) {
	t.Parallel()
	w := newFixture(t, karpenter.Config{})
	testkit.Must(t, remediator.Install(t.Context(), w.Cluster))
	// The ready timeout is not enabled in this cluster.
	never := w.createPool(t, karpenter.Pool{Name: "gate-off", Startup: karpenter.StartsUnready, Spec: object{"repair": object{"readyTimeout": "1s"}}}, 1)
	bad := never.first()
	w.runFaults(t, []fault{
		{"the controller is killed during every write", "killed", karpenter.StartsTainted, testKilled, 6, 2, false},
		{"a late deletion does not delete a recovered node", "cancelled", karpenter.StartsReady, testLateDeletion, 2, 1, false},
		{"a late mark counts for the next controller, which removes it", "late-mark", karpenter.StartsReady, testLateMark, 2, 1, true},
		{"the leader is paused with a request in flight", "paused", karpenter.StartsReady, testPaused, 6, 2, true},
		{"requests and responses are lost and refused", "random-faults", karpenter.StartsReady, testRandomFaults, 10, 3, true},
	})
	t.Run("the controller is killed during writes for a node without a NodeClaim", func(t *testing.T) { testPlainKilled(t, w) })
	t.Run("without the feature gate no node that is not ready is replaced", func(t *testing.T) {
		p := never.of(t)
		if nodes := p.names(); len(nodes) != 1 || nodes[0] != bad.Name {
			t.Errorf("the nodes are %v, want %s", nodes, bad.Name)
		}
		p.untouched(p.account(), bad.Name)
	})
	t.Run("every write kept the promises", func(t *testing.T) {
		w.judge(t, history.Repairs{}, history.Counts{Marks: 24, Terminations: 21, Unmarks: 4, Remediations: 4, Releases: 4})
	})
	t.Run("the controller is killed during a ready timeout, and while a pool is paused", func(t *testing.T) { testKilledOverTimeout(never.of(t)) })
	t.Run("every later write kept the promises", func(t *testing.T) {
		w.judge(t, readyTimeoutsOn, history.Counts{Marks: 28, Terminations: 25, Unmarks: 4, Remediations: 4, Releases: 4})
	})
}

// TestOutages stops the API server. That takes longer than any other fault, so it has its
// own cluster and runs in parallel.
func TestOutages(t *testing.T) {
	t.Parallel()
	w := newFixture(t, karpenter.Config{})
	w.runFaults(t, []fault{
		{"the API server is killed and restarted", "outage", karpenter.StartsReady, testOutage, 6, 2, false},
	})
	t.Run("every write kept the promises", func(t *testing.T) {
		w.judge(t, history.Repairs{}, history.Counts{Marks: 6, Terminations: 6})
	})
}

// runFaults injects the faults one after the other. It creates all pools at once, so that
// the later ones fill during the first faults.
func (w *fixture) runFaults(t *testing.T, faults []fault) {
	t.Helper()
	pools := make([]*pool, len(faults))
	for i, fault := range faults {
		spec := object{"disruption": budgets("100%")}
		if !fault.policy {
			spec["repair"] = repair("1s", object{"maxConcurrent": fault.bound})
		}
		pools[i] = w.createPool(t, karpenter.Pool{Name: fault.pool, Startup: fault.startup, Spec: spec}, fault.nodes)
		if fault.policy {
			pools[i].policy(fault.pool, "1s", func(s *v1alpha1.RepairPolicySpec) { s.Repair.MaxConcurrent = new(intstr.FromInt(fault.bound)) })
		}
	}
	for i, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			p := pools[i].of(t)
			if fault.startup == karpenter.StartsTainted {
				p.startAll(func(*corev1.Node) bool { return !p.isHeldUp.Load() })
			}
			p.fills(fault.nodes)
			fault.test(p)
		})
	}
}

// testKilledOverTimeout has a pool of which no node becomes ready. It kills the controller
// during every write that replaces the first node, and again when the pool is paused. The
// next controller must pause it for as long.
func testKilledOverTimeout(p *pool) {
	const timeout = 6 * time.Second
	p.patch(object{"repair": object{"readyTimeout": timeout.String(), "maxConcurrent": 10}})
	k := p.newFaultRunner(readyTimeouts)
	k.over(namesClaim, "names the claim in the ledger", never)
	k.over(marks, "marks the claim", never)
	k.over(deletes, "deletes the claim", never)
	k.launch()
	p.hasEvent("NodePool", p.name, "NodePoolHeld", "3 nodes in a row have not become ready")
	testkit.Must(p.t, k.controller.Kill())
	k.launch()
	p.measures(k.controller, fmt.Sprintf(`autohealer_nodepool_held{nodepool=%[1]q,policy=%[1]q,policy_kind="ReadyTimeout"}`, p.name), "1")
	p.triesOnce(timeout)
	testkit.Must(p.t, k.controller.Kill())
}

// run starts a controller for this part of the test only.
func (p *pool) run(o install.Options) *install.Controller {
	p.t.Helper()
	return p.Start(p.t, o)
}

// times returns how often a message is in a controller's log.
func (p *pool) times(c *install.Controller, message string) int {
	p.t.Helper()
	text, err := c.Log()
	testkit.Must(p.t, err)
	return strings.Count(text, " msg="+message+" ")
}

// settled waits until all of these nodes are replaced. Then it checks that no termination
// is unfinished, that no node was replaced twice, and that the bound was kept.
func (p *pool) settled(bound int, nodes ...string) *account {
	p.t.Helper()
	a := p.repaired(nodes...)
	p.eventually("no marks", func(ctx context.Context) error {
		claims, err := p.karpenter.Claims(ctx, p.name)
		if err != nil {
			return err
		}
		for i := range claims {
			if on := claims[i].GetAnnotations(); claims[i].GetDeletionTimestamp() == nil && (on[markAnnotation] != "" || on[deadlineAnnotation] != "") {
				return fmt.Errorf("%s has %v", claims[i].GetName(), on)
			}
		}
		return nil
	})
	a.atMost(p.t, bound)
	gone := map[string]int{}
	for _, e := range a.terminations {
		switch {
		case !e.deleted.IsZero():
			gone[e.node]++
		case e.unmarked.IsZero():
			p.t.Errorf("%s was marked, and then neither unmarked nor deleted", e.claim)
		}
	}
	for _, node := range nodes {
		if gone[node] != 1 {
			p.t.Errorf("%s was terminated %d times", node, gone[node])
		}
	}
	if len(gone) != len(nodes) || len(a.others) > 0 {
		p.t.Errorf("terminated %v, and %d by other clients; unhealthy were %v", gone, len(a.others), nodes)
	}
	return a
}

// delivery says what happens to the write during which the controller is killed.
type delivery string

const (
	never delivery = "before the API server receives it"
	late  delivery = "and it arrives after the next controller has started"
	after delivery = "after the API server has stored it"
)

// faultRunner kills one controller after the other, each during another write.
type faultRunner struct {
	p          *pool
	proxy      proxy
	args       []string
	controller *install.Controller
	slow       []*heldRequest // delivered after the next controller has started
}

func (p *pool) newFaultRunner(args ...string) *faultRunner {
	p.t.Helper()
	return &faultRunner{p: p, proxy: p.newProxy(), args: append(args, alone)}
}

// launch starts the next controller.
func (k *faultRunner) launch() {
	k.p.t.Helper()
	if k.controller == nil {
		k.controller = k.p.run(install.Options{Args: k.proxy.Args(k.args...)})
	} else {
		testkit.Must(k.p.t, k.controller.Restart(k.p.t.Context()))
	}
}

// deliver delivers the delayed requests.
func (k *faultRunner) deliver() {
	k.p.t.Helper()
	k.p.deliver(k.slow, 0)
	k.slow = nil
}

// over starts a controller, and kills it during a write. It returns that write.
func (k *faultRunner) over(match func(*heldRequest) bool, what string, is delivery) *heldRequest {
	k.p.t.Helper()
	k.p.t.Logf("killed during the write that %s, %s", what, is)
	holding := k.proxy.hold(match)
	k.launch()
	first := holding.wait(k.p)[0]
	k.deliver()
	if is == after {
		k.p.deliver(holding.wait(k.p), 0)
	}
	testkit.Must(k.p.t, k.controller.Kill())
	if kept := holding.Close(); is == late {
		k.slow = kept
	}
	return first
}

// testKilled runs one long scenario. Each controller continues where the previous one was
// killed, and is killed during its own write.
func testKilled(p *pool) {
	k := p.newFaultRunner()
	nodes := p.names()
	// No replacement becomes ready while no controller runs. A new controller does not
	// count replacements from before its start, and would keep the place for 15 minutes.
	p.isHeldUp.Store(true)
	p.makeUnhealthy(nodes[:4]...)
	for _, is := range []delivery{never, after, late} {
		k.over(namesClaim, "names the claim in the ledger", is)
	}
	for _, is := range []delivery{never, late, after} {
		k.over(marks, "marks the claim", is)
	}
	for _, is := range []delivery{never, late, after} {
		k.over(deletes, "deletes the claim", is)
	}
	before := p.times(k.controller, "loaded")
	k.launch()
	p.eventually("the next controller to load everything", func(context.Context) error {
		if p.times(k.controller, "loaded") == before {
			return errors.New("it has not loaded everything")
		}
		return nil
	})
	p.isHeldUp.Store(false)
	p.repaired(nodes[:4]...)
	testkit.Must(p.t, k.controller.Kill())
	// The last two nodes recover just before their deletion.
	unmarked := nodes[4:]
	for i, is := range []delivery{after, late} {
		p.makeUnhealthy(unmarked[i])
		over := k.over(func(l *heldRequest) bool { return deletes(l) && isAbout(p, l, unmarked[i]) }, "deletes a claim whose node recovers", never)
		p.setCondition("BadDisk", corev1.ConditionFalse, unmarked[i])
		k.over(func(l *heldRequest) bool { return unmarks(l) && l.Path == over.Path }, "removes the mark", is)
	}
	k.launch()
	k.deliver()
	a := p.settled(2, nodes[:4]...)
	there := p.names()
	for _, node := range unmarked {
		if !strings.Contains(strings.Join(there, " "), node) {
			p.t.Errorf("%s has recovered, but is gone", node)
		}
		if e := a.of(node); e == nil || e.unmarked.IsZero() {
			p.t.Errorf("the mark of %s was not removed: %+v", node, e)
		}
	}
}

// isAbout reports whether a request is about the claim of a node.
func isAbout(p *pool, l *heldRequest, node string) bool {
	return strings.HasSuffix(l.Path, "/"+p.claimOf(node).GetName())
}

// testLateDeletion delays a deletion until its node has recovered and the next controller
// has removed the mark.
func testLateDeletion(p *pool) {
	c := p.newProxy()
	holding := c.hold(deletes)
	first := p.run(install.Options{Args: c.Args(alone)})
	unhealthy := p.names()[0]
	claim := p.claimOf(unhealthy)
	p.makeUnhealthy(unhealthy)
	kept := holding.wait(p)
	var options metav1.DeleteOptions
	testkit.Must(p.t, json.Unmarshal(kept[0].Body, &options))
	marked := p.claimOf(unhealthy)
	if only := options.Preconditions; only == nil || only.UID == nil || *only.UID != claim.GetUID() || only.ResourceVersion == nil || *only.ResourceVersion != marked.GetResourceVersion() {
		p.t.Errorf("the deletion has no precondition on the claim's version, %s of %s: %s", marked.GetResourceVersion(), claim.GetUID(), kept[0].Body)
	}
	if on := marked.GetAnnotations(); on[markAnnotation] == "" || on[deadlineAnnotation] == "" {
		p.t.Errorf("the claim has the annotations %v when its deletion is sent", on)
	}
	testkit.Must(p.t, first.Kill())
	p.setCondition("BadDisk", corev1.ConditionFalse, unhealthy)
	p.run(install.Options{Args: []string{alone}})
	p.hasEvent("Node", unhealthy, "NodeRepairCancelled", claim.GetName())
	p.deliver(kept, http.StatusConflict)
	if on := p.claimOf(unhealthy).GetAnnotations(); on[markAnnotation] != "" || on[deadlineAnnotation] != "" {
		p.t.Errorf("the mark was removed, but the claim has the annotations %v", on)
	}
	p.settled(1)
}

// testLateMark delays a mark until its node has recovered and another node is unhealthy.
// The next controller cannot know whether the mark will arrive.
func testLateMark(p *pool) {
	c := p.newProxy()
	holding := c.hold(marks)
	first := p.run(install.Options{Args: c.Args(alone)})
	nodes := p.names()
	p.makeUnhealthy(nodes[0])
	kept := holding.wait(p)
	testkit.Must(p.t, first.Kill())
	p.setCondition("BadDisk", corev1.ConditionFalse, nodes[0])
	p.makeUnhealthy(nodes[1])
	p.run(install.Options{Args: []string{alone}})
	p.hasEvent("Node", nodes[1], "NodeRepairBlocked", "at most 1 of 2")
	p.deliver(kept, http.StatusOK)
	p.settled(1, nodes[1])
	p.hasEvent("Node", nodes[0], "NodeRepairCancelled")
}

// expireLease lets the next replica take over from a leader that the test killed or paused.
func (p *pool) expireLease() {
	p.t.Helper()
	testkit.Must(p.t, install.ExpireLease(p.t.Context(), p.Cluster))
}

// testPaused lets another replica become leader while the old leader is paused.
func testPaused(p *pool) {
	c := p.newProxy()
	holding := c.hold(func(l *heldRequest) bool { return marks(l) || deletes(l) })
	leader := p.run(install.Options{Args: c.Args(install.Elected()...)})
	p.eventually("a leader", func(context.Context) error {
		if p.times(leader, "leading") == 0 {
			return errors.New("it does not lead")
		}
		return nil
	})
	next := p.run(install.Options{Args: install.Elected()})
	nodes := p.names()
	p.makeUnhealthy(nodes...)
	holding.wait(p)
	if p.times(next, "leading") > 0 {
		p.t.Errorf("two lead\n%s", p.LogTail())
	}
	testkit.Must(p.t, leader.Pause())
	p.expireLease()
	p.eventually("a termination by the next leader", func(context.Context) error {
		if a := p.account(); len(a.terminations) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	holding.Release()
	leader.Expect()
	testkit.Must(p.t, leader.Resume())
	select {
	case <-leader.Ended():
	case <-time.After(maxWait):
		p.t.Fatalf("the old leader continues, although another replica leads\n%s", p.LogTail())
	}
	p.settled(2, nodes...)
}

// everyNth matches every n-th of the matching requests.
func everyNth(first, n int64, match func(testbed.Request) bool) func(testbed.Request) bool {
	var seen atomic.Int64
	return func(r testbed.Request) bool { return match(r) && seen.Add(1)%n == first%n }
}

func testRandomFaults(p *pool) {
	proxy, err := p.Proxy()
	testkit.Must(p.t, err)
	var rules []*testbed.Rule
	for _, storm := range []struct {
		match  func(testbed.Request) bool
		faults []testbed.Fault
		among  int64
	}{
		{testbed.On("patch", "nodeclaims"), []testbed.Fault{testbed.CutResponse(), testbed.Conflict(), testbed.CutRequest(), testbed.InternalError()}, 5},
		{testbed.On("delete", "nodeclaims"), []testbed.Fault{testbed.CutRequest(), testbed.CutResponse(), testbed.TooManyRequests(0), testbed.Conflict()}, 5},
		{testbed.On("update", "configmaps"), []testbed.Fault{testbed.CutResponse(), testbed.InternalError()}, 4},
		{testbed.On("get", "nodes"), []testbed.Fault{testbed.InternalError(), testbed.CutResponse()}, 5},
	} {
		for i, fault := range storm.faults {
			// A request that fails again and again is retried only after minutes.
			rules = append(rules, proxy.Inject(everyNth(int64(i), storm.among, storm.match), fault, 2))
		}
	}
	p.run(install.Options{Through: proxy, Args: []string{alone}})
	nodes := p.names()
	p.makeUnhealthy(nodes...)
	for _, many := range []int{1, 4, 7} {
		p.eventually(fmt.Sprintf("%d terminations", many), func(context.Context) error {
			if a := p.account(); len(a.terminations) < many {
				return fmt.Errorf("there were %d", len(a.terminations))
			}
			return nil
		})
		p.eventually("watches to be dropped", func(context.Context) error {
			if proxy.DropWatches() == 0 {
				return errors.New("there are none")
			}
			return nil
		})
	}
	p.settled(3, nodes...)
	failed := 0
	for _, rule := range rules {
		failed += rule.Hits()
	}
	if p.t.Logf("%d requests failed", failed); failed < 10 {
		p.t.Error("fewer than 10 requests failed")
	}
}

// testOutage stops the API server during a storm, twice.
func testOutage(p *pool) {
	proxy, err := p.Proxy()
	testkit.Must(p.t, err)
	held := proxy.Inject(testbed.On("delete", "nodeclaims"), testbed.Hold(), 0)
	p.run(install.Options{Through: proxy, Args: []string{alone}})
	nodes := p.names()
	p.makeUnhealthy(nodes...)
	for _, down := range []func() error{p.APIServer.Kill, func() error { return p.APIServer.Stop(p.t.Context()) }} {
		ctx, cancel := context.WithTimeout(p.t.Context(), maxWait)
		defer cancel()
		testkit.Must(p.t, held.Wait(ctx, 1))
		testkit.Must(p.t, down())
		next := proxy.Inject(testbed.On("delete", "nodeclaims"), testbed.Hold(), 0)
		held.Lift()
		testkit.Must(p.t, p.APIServer.Restart(p.t.Context()))
		held = next
	}
	// After an outage kwok sometimes starts no pods on new nodes. A new process lists them.
	testkit.Must(p.t, p.Kwok.Restart(p.t.Context()))
	held.Lift()
	p.settled(2, nodes...)
}
