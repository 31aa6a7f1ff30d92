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
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestPools uses one cluster for many tests, each with its own NodePool.
func TestPools(t *testing.T) {
	t.Parallel()
	w := newFixture(t, karpenter.Config{Gates: map[string]bool{"NodeRepair": true}})
	testkit.Must(t, remediator.Install(t.Context(), w.Cluster))
	c := w.Start(t, install.Options{Webhook: true, Args: []string{readyTimeouts}})
	testkit.Must(t, install.UseWebhook(t.Context(), w.Cluster, c))
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *fixture, *install.Controller){
			"an unhealthy node is replaced by force":                                          testForceful,
			"an unhealthy node is replaced gracefully":                                        testGraceful,
			"a drain that hangs ends when the policy is changed to Forceful":                  testChangeToForceful,
			"a drain has its grace period":                                                    testGracePeriod,
			"ten unhealthy nodes are replaced within their bound":                             testStormUnderBound,
			"six unhealthy nodes are replaced within their budget":                            testStormUnderBudget,
			"six unhealthy nodes of six stay by default, and two of six are replaced":         testStormByDefault,
			"unhealthy nodes and nodes that never become ready share the bound of their pool": testStormOfBoth,
			"a node whose kubelet never reports is replaced":                                  testNeverReady(karpenter.StartsSilent, relabel(testbed.SilentLabel)),
			"a node that never becomes ready is replaced":                                     testNeverReady(karpenter.StartsUnready, relabel(testbed.UnreadyLabel)),
			"a node that keeps its startup taints is replaced":                                testNeverReady(karpenter.StartsTainted, wakeDaemon),
			"the ready timeout ignores a node that once was ready":                            testOnceReady,
			"a failing pool is paused":                                                        testHeld,
			"vetoes prevent repair":                                                           testVetoes,
			"a veto on the pool prevents repair":                                              testVetoedPool,
			"a drain that another client began ends by force, and not before":                 testAlreadyGoing,
			"the controller repairs a node before Karpenter":                                  testBeforeKarpenter,
			"a policy names a pool":                                                           testPolicy,
			"a policy selects nodes of two pools":                                             testSelected,
			"a policy selects plain nodes":                                                    testPlainNodes,
			"a mode, a pause and windows keep repairs from starting, except urgent ones":      testSwitches,
			"suspicious input causes a warning":                                               testWarnings,
			"invalid input is refused":                                                        testBadInput,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, w, c)
			})
		}
	})
	t.Run("repair blocks survive Karpenter's writes", func(t *testing.T) { testBlocksKept(t, w) })
	t.Run("every write kept the promises", func(t *testing.T) {
		w.judge(t, readyTimeoutsOn, history.Counts{Marks: 40, Terminations: 40, Forced: 1, PolicyStatuses: 10, Remediations: 2, Releases: 2})
	})
	t.Run("the RBAC rights were sufficient", func(t *testing.T) { testRights(t, w) })
}

// TestBesideKarpenter uses a cluster without pools that wait for nodes or count them.
// Karpenter launches nodes for any pending pod along with the replacements of its own
// disruptions, and gives up if one of those does not become ready. The tests may also kill
// Karpenter here, and apply its CRDs again.
func TestBesideKarpenter(t *testing.T) {
	t.Parallel()
	w := newFixture(t, karpenter.Config{Gates: map[string]bool{"NodeRepair": true}})
	c := w.Start(t, install.Options{Args: []string{readyTimeouts}})
	lost := w.createPool(t, karpenter.Pool{Name: "lost", Spec: object{"repair": repair("1s"), "disruption": budgets("100%")}}, 2)
	lost.fills(2)
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *fixture, *install.Controller){
			"Karpenter repairs a node, and the controller does not": testKarpentersRepair,
			"the repair block survives drift":                       testDrift,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, w, c)
			})
		}
	})
	t.Run("the repair block survives a restart of Karpenter", func(t *testing.T) { testRestart(t, w) })
	t.Run("repair blocks survive Karpenter's writes", func(t *testing.T) { testBlocksKept(t, w) })
	t.Run("every write kept the promises", func(t *testing.T) { w.judge(t, readyTimeoutsOn, history.Counts{Marks: 1, Terminations: 1}) })
	t.Run("the RBAC rights were sufficient", func(t *testing.T) { testRights(t, w) })
	t.Run("the schema of repair blocks is lost", func(t *testing.T) { testSchemaLost(lost.of(t), c) })
	t.Run("every later write kept the promises", func(t *testing.T) {
		repairs := readyTimeoutsOn
		repairs.SchemaLost, repairs.MayRestore = true, true
		w.judge(t, repairs, history.Counts{Terminations: 3, Restores: 1})
	})
}

// readyTimeoutsOn is the configuration of the checker if the ready timeout is enabled.
var readyTimeoutsOn = history.Repairs{ReadyTimeout: 10 * time.Minute}

// slow is the tolerated delay of a busy machine.
const slow = 20 * time.Second

// stubborn gives pods a long termination grace period.
func stubborn(grace time.Duration) func(*karpenter.Deployment) {
	return func(d *karpenter.Deployment) { d.GracePeriod = grace }
}

// protect forbids the eviction of the Deployment's pods.
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
	testkit.Must(p.t, err)
}

// since returns when a condition of a node began.
func (p *pool) since(node string, kind corev1.NodeConditionType) time.Time {
	p.t.Helper()
	for _, n := range p.nodes() {
		for _, condition := range n.Status.Conditions {
			if n.Name == node && condition.Type == kind {
				return condition.LastTransitionTime.Time
			}
		}
	}
	p.t.Fatalf("%s has no condition %s", node, kind)
	return time.Time{}
}

// notBefore checks that a claim was marked and deleted after its due time.
func (e *termination) notBefore(t *testing.T, due time.Time) {
	t.Helper()
	t.Logf("%s was due at %s, marked %s and deleted %s later, and gone after another %s", e.node,
		due.Format(time.TimeOnly), e.marked.Sub(due).Round(time.Millisecond), e.deleted.Sub(due).Round(time.Millisecond), e.claimGone.Sub(e.deleted).Round(time.Millisecond))
	if e.marked.Before(due) || e.deleted.Before(e.marked) {
		t.Errorf("%s was due at %s, but marked at %s and deleted at %s", e.node, due, e.marked, e.deleted)
	}
}

// within checks that the deadline of a claim was set this long after its mark.
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
	// These pods would take longer to stop than the test, and may not be evicted.
	p := w.createFilledPool(t, karpenter.Pool{Name: "forceful", Spec: object{"repair": repair(toleration.String())}}, 3, stubborn(5*time.Minute))
	p.protect()
	unhealthy := p.names()[0]
	claim := p.claimOf(unhealthy)
	p.makeUnhealthy(unhealthy)
	due := p.since(unhealthy, "BadDisk").Add(toleration)
	p.hasEvent("Node", unhealthy, "NodeRepairPending", "BadDisk")
	e := p.repaired(unhealthy).of(unhealthy)
	e.notBefore(t, due)
	e.within(t, 0)
	testkit.Check(t, e.rule == "Repair/NodePool/forceful", "it was repaired by %s", e.rule)
	p.hasEvent("Node", unhealthy, "NodeRepair", "BadDisk", claim.GetName(), "by force")
	p.hasEvent("NodeClaim", claim.GetName(), "NodeRepair", "by force")
	p.hasEvent("NodePool", p.name, "NodeRepair", "by force")
	p.measures(c, `autohealer_repairs_total{condition="BadDisk",mode="Forceful",nodepool="forceful",outcome="terminated",policy="forceful",policy_kind="NodePool"}`, "1")
}

func testGraceful(t *testing.T, w *fixture, c *install.Controller) {
	t.Helper()
	const grace = 12 * time.Second
	p := w.createFilledPool(t, karpenter.Pool{Name: "graceful", Spec: object{"repair": repair("1s", object{"termination": "Graceful"})}}, 3, stubborn(grace))
	unhealthy := p.names()[0]
	p.makeUnhealthy(unhealthy)
	e := p.repaired(unhealthy).of(unhealthy)
	testkit.Check(t, e.deadline == "", "the claim has a deadline: %s", e.deadline)
	if took := e.claimGone.Sub(e.deleted); took < grace {
		t.Errorf("its pods need %s to stop, but it was gone after %s", grace, took)
	}
	p.measures(c, `autohealer_repairs_total{condition="BadDisk",mode="Graceful",nodepool="graceful",outcome="terminated",policy="graceful",policy_kind="NodePool"}`, "1")
}

// A pod that may not be evicted keeps a drain for ever, until the policy is changed.
func testChangeToForceful(t *testing.T, w *fixture, c *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "hanging", Spec: object{"repair": repair("1s", object{"termination": "Graceful"})}}, 2)
	p.protect()
	unhealthy := p.names()[0]
	claim := p.claimOf(unhealthy)
	p.makeUnhealthy(unhealthy)
	p.hasEvent("NodeClaim", claim.GetName(), "NodeRepair", "gracefully")
	p.patch(object{"repair": repair("1s", object{"termination": "Forceful"})})
	p.repaired(unhealthy)
	p.hasEvent("NodeClaim", claim.GetName(), "NodeRepair", "Ending the drain of NodeClaim")
	p.measures(c, `autohealer_repairs_total{condition="BadDisk",mode="Forceful",nodepool="hanging",outcome="forced",policy="hanging",policy_kind="NodePool"}`, "1")
}

func testGracePeriod(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	const grace = 15 * time.Second
	block := repair("1s", object{"termination": "Graceful", "terminationGracePeriod": grace.String()})
	p := w.createFilledPool(t, karpenter.Pool{Name: "bounded", Spec: object{"repair": block}}, 2)
	p.protect()
	unhealthy := p.names()[0]
	p.makeUnhealthy(unhealthy)
	p.eventually("a claim that is being drained", func(context.Context) error {
		if p.claimOf(unhealthy).GetDeletionTimestamp() == nil {
			return fmt.Errorf("it is not being deleted")
		}
		return nil
	})
	e := p.repaired(unhealthy).of(unhealthy)
	e.within(t, grace)
	if took := e.claimGone.Sub(e.deleted); took < grace-2*time.Second {
		t.Errorf("its pods may not be evicted, but it was gone after %s", took)
	}
}
