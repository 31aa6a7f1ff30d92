package pools

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
)

// TestPools has one cluster for many: each part has a NodePool for itself.
func TestPools(t *testing.T) {
	t.Parallel()
	w := newFixture(t, karpenter.Config{Gates: map[string]bool{"NodeRepair": true}})
	if err := remediator.Install(t.Context(), w.Cluster); err != nil {
		t.Fatal(err)
	}
	c := w.start(t, install.Options{Webhook: true, Args: []string{readyTimeouts}})
	if err := install.UseWebhook(t.Context(), w.Cluster, c); err != nil {
		t.Fatal(err)
	}
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *fixture, *install.Controller){
			"a sick node is replaced by force":                        testForceful,
			"a sick node is replaced gracefully":                      testGraceful,
			"a drain has its time":                                    testGracePeriod,
			"ten sick nodes are replaced under their bound":           testStormUnderBound,
			"six sick nodes are replaced under their budget":          testStormUnderBudget,
			"three sick nodes are replaced one by one by default":     testStormByDefault,
			"two kinds of trouble in one pool share its bound":        testStormOfBoth,
			"a node that is never heard of is replaced":               testNeverReady(karpenter.StartsSilent, relabel(testbed.SilentLabel)),
			"a node that never gets ready is replaced":                testNeverReady(karpenter.StartsUnready, relabel(testbed.UnreadyLabel)),
			"a node that keeps its startup taints is replaced":        testNeverReady(karpenter.StartsTainted, wakeDaemon),
			"a node that once was ready is not for the ready timeout": testOnceReady,
			"a bad pool is held":                                      testHeld,
			"vetoes are heard":                                        testVetoes,
			"a veto on the pool is heard":                             testVetoedPool,
			"a claim that is being deleted is left alone":             testAlreadyGoing,
			"we repair a node, and Karpenter does not":                testBeforeKarpenter,
			"a policy names a pool":                                   testPolicy,
			"a policy selects nodes of two pools":                     testSelected,
			"a policy selects plain nodes":                            testPlainNodes,
			"what looks wrong is warned of":                           testWarnings,
			"bad input is refused":                                    testBadInput,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, w, c)
			})
		}
	})
	t.Run("blocks survive what Karpenter writes", func(t *testing.T) { testBlocksKept(t, w) })
	t.Run("all was lawful", func(t *testing.T) {
		w.judge(t, readyTimeoutsOn, history.Counts{Marks: 40, Terminations: 40, PolicyStatuses: 10, Remediations: 2, Releases: 2})
	})
	t.Run("no right was missing", func(t *testing.T) { testRights(t, w) })
}

// TestBesideKarpenter has a cluster in which there is no pool that waits for its nodes,
// and none that counts them: Karpenter launches whatever any pending pod needs along with
// the replacements of its own disruptions, and gives up if one of those does not become
// ready. And here it may be killed, and its CRDs applied again.
func TestBesideKarpenter(t *testing.T) {
	t.Parallel()
	w := newFixture(t, karpenter.Config{Gates: map[string]bool{"NodeRepair": true}})
	c := w.start(t, install.Options{Args: []string{readyTimeouts}})
	lost := w.createPool(t, karpenter.Pool{Name: "lost", Spec: object{"repair": repair("1s"), "disruption": budgets("100%")}}, 2)
	lost.fills(2)
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *fixture, *install.Controller){
			"Karpenter repairs a node, and nobody else does": testKarpentersRepair,
			"the block survives drift":                       testDrift,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, w, c)
			})
		}
	})
	t.Run("the block survives a restart of Karpenter", func(t *testing.T) { testRestart(t, w) })
	t.Run("blocks survive what Karpenter writes", func(t *testing.T) { testBlocksKept(t, w) })
	t.Run("all was lawful", func(t *testing.T) { w.judge(t, readyTimeoutsOn, history.Counts{Marks: 1, Terminations: 1}) })
	t.Run("no right was missing", func(t *testing.T) { testRights(t, w) })
	t.Run("the schema is lost", func(t *testing.T) { testSchemaLost(lost.of(t), c) })
	t.Run("all was lawful also then", func(t *testing.T) {
		repairs := readyTimeoutsOn
		repairs.SchemaLost, repairs.MayRestore = true, true
		w.judge(t, repairs, history.Counts{Terminations: 3, Restores: 1})
	})
}

// readyTimeoutsOn is what the judge is told where nodes are replaced that do not become
// ready.
var readyTimeoutsOn = history.Repairs{ReadyTimeout: 10 * time.Minute}

// slow is how late a busy machine may be.
const slow = 20 * time.Second

// stubborn makes pods take so long to stop.
func stubborn(grace time.Duration) func(*karpenter.Deployment) {
	return func(d *karpenter.Deployment) { d.GracePeriod = grace }
}

// protect forbids that pods of the Deployment are evicted.
func (p *pool) protect() {
	p.t.Helper()
	_, err := p.KubectlApply(p.t.Context(), fmt.Sprintf(`
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: %[1]s, namespace: default}
spec:
  maxUnavailable: 0
  selector: {matchLabels: {app: %[1]s}}
`, p.name))
	p.must(err)
}

// since returns when a condition of a node has begun.
func (p *pool) since(node string, kind corev1.NodeConditionType) time.Time {
	p.t.Helper()
	for _, n := range p.nodes() {
		for _, condition := range n.Status.Conditions {
			if n.Name == node && condition.Type == kind {
				return condition.LastTransitionTime.Time
			}
		}
	}
	p.t.Fatalf("%s says nothing of %s", node, kind)
	return time.Time{}
}

// notBefore says that a claim was marked and deleted when its time had come, and not
// before.
func (e *termination) notBefore(t *testing.T, due time.Time) {
	t.Helper()
	t.Logf("%s was due at %s, marked %s and deleted %s later, and gone after another %s", e.node,
		due.Format(time.TimeOnly), e.marked.Sub(due).Round(time.Millisecond), e.deleted.Sub(due).Round(time.Millisecond), e.claimGone.Sub(e.deleted).Round(time.Millisecond))
	if e.marked.Before(due) || e.deleted.Before(e.marked) {
		t.Errorf("%s was due at %s, but marked at %s and deleted at %s", e.node, due, e.marked, e.deleted)
	}
}

// within says that the deadline of a claim was set for a while after its mark.
func (e *termination) within(t *testing.T, grace time.Duration) {
	t.Helper()
	deadline, err := time.Parse(time.RFC3339, e.deadline)
	if after := deadline.Sub(e.marked.Truncate(time.Second)); err != nil || after > grace || after < grace-slow {
		t.Errorf("%s was marked at %s and has its deadline at %q, want %s later", e.claim, e.marked, e.deadline, grace)
	}
}

func testForceful(t *testing.T, w *fixture, c *install.Controller) {
	t.Helper()
	const toleration = 6 * time.Second
	// Pods that would take longer to stop than the test has time, and may not be evicted.
	p := w.createFilledPool(t, karpenter.Pool{Name: "forceful", Spec: object{"repair": repair(toleration.String())}}, 3, stubborn(5*time.Minute))
	p.protect()
	sick := p.names()[0]
	claim := p.claimOf(sick)
	p.makeUnhealthy(sick)
	due := p.since(sick, "BadDisk").Add(toleration)
	p.hasEvent("Node", sick, "NodeRepairPending", "BadDisk")
	e := p.repaired(sick).of(sick)
	e.notBefore(t, due)
	e.within(t, 0)
	if e.rule != "Repair/NodePool/forceful" {
		t.Errorf("it was repaired by %s", e.rule)
	}
	p.hasEvent("Node", sick, "NodeRepair", "BadDisk", claim.GetName(), "by force")
	p.hasEvent("NodeClaim", claim.GetName(), "NodeRepair", "by force")
	p.hasEvent("NodePool", p.name, "NodeRepair", "by force")
	p.measures(c, `autohealer_repairs_total{condition="BadDisk",mode="Forceful",nodepool="forceful",outcome="terminated"}`, "1")
}

func testGraceful(t *testing.T, w *fixture, c *install.Controller) {
	t.Helper()
	const grace = 12 * time.Second
	p := w.createFilledPool(t, karpenter.Pool{Name: "graceful", Spec: object{"repair": repair("1s", object{"termination": "Graceful"})}}, 3, stubborn(grace))
	sick := p.names()[0]
	p.makeUnhealthy(sick)
	e := p.repaired(sick).of(sick)
	if e.deadline != "" {
		t.Errorf("there is a deadline: %s", e.deadline)
	}
	if took := e.claimGone.Sub(e.deleted); took < grace {
		t.Errorf("its pods need %s to stop, but it was gone after %s", grace, took)
	}
	p.measures(c, `autohealer_repairs_total{condition="BadDisk",mode="Graceful",nodepool="graceful",outcome="terminated"}`, "1")
}

func testGracePeriod(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	const grace = 15 * time.Second
	block := repair("1s", object{"termination": "Graceful", "terminationGracePeriod": grace.String()})
	p := w.createFilledPool(t, karpenter.Pool{Name: "bounded", Spec: object{"repair": block}}, 2)
	p.protect()
	sick := p.names()[0]
	p.makeUnhealthy(sick)
	p.eventually("a claim that is drained", func(context.Context) error {
		if p.claimOf(sick).GetDeletionTimestamp() == nil {
			return fmt.Errorf("it is not deleted")
		}
		return nil
	})
	e := p.repaired(sick).of(sick)
	e.within(t, grace)
	if took := e.claimGone.Sub(e.deleted); took < grace-2*time.Second {
		t.Errorf("nobody may evict its pods, but it was gone after %s", took)
	}
}
