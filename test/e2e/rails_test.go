package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestGuardrails checks the limits on all policies together. They count all nodes of the
// cluster, so each part has the cluster to itself.
func TestGuardrails(t *testing.T) {
	t.Parallel()
	runGuardrails(t, []part{
		{"a detector that is wrong on every node closes less than half of them", "detector", testWrongDetector},
		{"policies share the limit on nodes in treatment", "together", testPoliciesTogether},
		{"the topology limits a zone, and the pace limits the cluster", "pace", testTopologyAndPace},
		{"a zone that fails is not treated until it is released", "zone", testZoneFails},
		{"a hold ends after longestHold, and the Cluster Autoscaler may remove its nodes", "longest", testLongestHold},
		{"nothing starts on a paused node, and no treatment on a cordoned node", "pause", testNodePause},
	})
}

// TestAttempts has a cluster of its own: nodes that were deleted in treatment count for a while.
func TestAttempts(t *testing.T) {
	t.Parallel()
	runGuardrails(t, []part{
		{"a node that fails again and again is given up, and so is the replacement of a replacement", "attempts", testAttempts},
	})
}

func runGuardrails(t *testing.T, parts []part) {
	t.Helper()
	w := newFixture(t, withManager, func(cfg *testbed.Config) {
		cfg.Record = history.Resources(remediations...)
		// The lifecycle controller removes the not-ready taint of new nodes. No kubelet renews their
		// Leases.
		cfg.Flags.ControllerManager[0] += ",node-lifecycle-controller"
		cfg.Flags.ControllerManager = append(cfg.Flags.ControllerManager, "--node-monitor-grace-period=1h")
	})
	testkit.Must(t, remediator.Install(t.Context(), w.Cluster))
	deleteGuardrails := func() {
		testkit.Must(t, w.api.Delete(context.WithoutCancel(t.Context()), &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName}}))
	}
	deleteGuardrails()
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			subscope := w.scope(t, part.subscope)
			defer func() {
				subscope.deleteNodes()
				deleteGuardrails()
			}()
			part.test(subscope)
		})
	}
	t.Run("every write kept the promises", w.judgeRails)
}

// judgeRails checks the recorded history of the whole cluster for violations of Guardrails, also while
// there is no object.
func (w *fixture) judgeRails(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	report := testkit.Value(history.Check(testkit.Value(w.Recording(ctx)).Must(t), history.Config{
		Us: history.User(install.User), FieldManager: fieldManager, Ledger: types.NamespacedName{Namespace: install.Namespace, Name: ledgerName},
		Remediation: remediations, DefaultMode: v1alpha1.Enforce, Lag: lag, AnyTurn: true, Unfinished: true,
	})).Must(t)
	// A part deletes its nodes while its controller still writes to them. The audit log may not tell
	// the two apart.
	report.Violations = slices.DeleteFunc(report.Violations, func(v history.Violation) bool { return v.Kind == history.UnknownAuthor })
	testkit.Check(t, len(report.Violations) == 0 && report.Railed > 0, "the history of the cluster: %s", report)
}

// createGuardrails creates guardrails with the default limits, without a pace and a topology, and
// with many attempts, because the nodes of a part inherit those of earlier parts. Correlated failures
// count by these keys.
func (w *scope) createGuardrails(keys ...v1alpha1.DomainKey) {
	w.t.Helper()
	rails := &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName}}
	rails.Spec.Pace.Max = new(intstr.FromInt32(1000))
	rails.Spec.Topology = []v1alpha1.TopologyLimit{}
	rails.Spec.MaxAttempts.Limit = 1000
	rails.Spec.CorrelatedFailure.Keys = append([]v1alpha1.DomainKey{}, keys...)
	testkit.Must(w.t, w.api.Create(w.t.Context(), rails))
}

// setMode changes the mode, and returns when it is in force.
func (w *scope) setMode(mode v1alpha1.Mode) {
	w.t.Helper()
	w.patchGuardrails(`{"spec":{"mode":%q}}`, mode)
	w.guardrails("mode "+string(mode), func(s v1alpha1.GuardrailsStatus) bool { return s.Mode == mode })
}

func (w *scope) patchGuardrails(patch string, args ...any) {
	w.t.Helper()
	rails := &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName}}
	testkit.Must(w.t, w.api.Patch(w.t.Context(), rails, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, patch, args...))))
}

// guardrails waits for a status of the guardrails.
func (w *scope) guardrails(what string, is func(v1alpha1.GuardrailsStatus) bool) v1alpha1.GuardrailsStatus {
	w.t.Helper()
	rails := &v1alpha1.Guardrails{}
	w.eventually(what+" in the status of the guardrails", func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: v1alpha1.GuardrailsName}, rails); err != nil {
			return err
		}
		if rails.Status.ObservedGeneration != rails.Generation || !is(rails.Status) {
			return fmt.Errorf("the status of generation %d is %+v", rails.Generation, rails.Status)
		}
		return nil
	})
	return rails.Status
}

func testWrongDetector(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 10})
	// There is no object: the defaults apply in the mode of the flag.
	controller := w.start(install.Options{Args: []string{alone, "--default-mode=Observe"}})
	w.createSet("disk")
	w.makeUnhealthy(nodes)
	w.hasStatus("disk", saysOf(nodes[0], "OnHold", "there is no Guardrails cluster, and --default-mode is Observe"))
	w.counts(w.key("disk"), 0, 0)
	w.kill(controller)
	controller = w.start(install.Options{})
	w.counts(w.key("disk"), 0, 4)
	w.createGuardrails()
	status := w.guardrails("6 held nodes", func(s v1alpha1.GuardrailsStatus) bool {
		return s.Unschedulable == 4 && s.Held == 6 && s.Unhealthy == 10
	})
	ready := status.Conditions[slices.IndexFunc(status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.Ready })]
	testkit.Same(w.t, ready.Message, "maxUnschedulable (4 of 4) holds 6", "the message of Ready")
	columns := testkit.Value(w.Kubectl(w.t.Context(), "get", "guardrails", "--no-headers")).Must(w.t)
	testkit.Check(w.t, strings.HasPrefix(strings.Join(strings.Fields(columns), " "), "cluster Enforce 10 10 0 6 maxUnschedulable (4 of 4) holds 6 "), "kubectl prints %s", columns)

	w.kill(controller)
	controller = w.start(install.Options{Args: []string{alone}})
	w.guardrails("6 held nodes", func(s v1alpha1.GuardrailsStatus) bool { return s.Held == 6 })

	// While everything is paused, the controller restarts and two nodes recover: no other node takes
	// their place.
	w.setMode(v1alpha1.Paused)
	paused := time.Now()
	w.kill(controller)
	tainted := w.tainted(w.key("disk"))
	w.recover(tainted[:2])
	w.start(install.Options{Args: []string{alone}})
	w.guardrails("2 closed nodes", func(s v1alpha1.GuardrailsStatus) bool {
		return s.Unschedulable == 2 && s.Unhealthy == 8 && s.Held == 6
	})
	w.counts(w.key("disk"), 0, 2)
	resumed := time.Now()
	w.setMode(v1alpha1.Enforce)
	w.counts(w.key("disk"), 0, 4)

	w.neverMoreThan(4, func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == w.key("disk") })
	}, paused, resumed)
}

// testPoliciesTogether has a set with NoExecute and a health check, each with a bound of all
// nodes.
func testPoliciesTogether(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 9}, atMost("100%"))
	controller := w.start(install.Options{})
	w.createGuardrails()
	w.guardrails("9 nodes", func(s v1alpha1.GuardrailsStatus) bool { return s.Nodes == 9 })
	w.createSet("kernel", effect(corev1.TaintEffectNoExecute), func(s *v1alpha1.ConditionSetSpec) {
		s.MaxUnhealthy = &everyone
		s.Conditions = map[string]v1alpha1.SetCondition{"KernelDeadlock": stand}
	})
	for _, node := range nodes[:3] {
		w.setCondition(node, "KernelDeadlock", corev1.ConditionTrue)
	}
	w.counts(w.key("kernel"), 3, 0)
	for _, node := range nodes[3:] {
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	}
	status := w.guardrails("5 held nodes", func(s v1alpha1.GuardrailsStatus) bool { return s.InTreatment == 4 && s.Held == 5 })
	at := slices.IndexFunc(status.Rails, func(r v1alpha1.RailStatus) bool { return r.Name == "maxInTreatment" })
	testkit.Equal(w.t, "the rail", v1alpha1.RailStatus{Name: "maxInTreatment", Limit: 4, Used: 4, Held: 5}, status.Rails[at])
	w.eventually("metrics with the numbers of the status", func() error { // some change with time
		rails := &v1alpha1.Guardrails{}
		page, err := install.Scrape(w.t, controller.Metrics)
		if err := cmp.Or(err, w.api.Get(w.t.Context(), client.ObjectKey{Name: v1alpha1.GuardrailsName}, rails)); err != nil {
			return err
		}
		for _, rail := range rails.Status.Rails {
			if rail.Name == "lastNode" {
				continue // it has no number
			}
			for metric, n := range map[string]int32{"limit": rail.Limit, "used": rail.Used, "held": rail.Held} {
				if line := fmt.Sprintf("autohealer_guardrail_%s{domain=%q,rail=%q} %d\n", metric, rail.Domain, rail.Name, n); !strings.Contains(page, line) {
					return fmt.Errorf("the metrics lack %s", line)
				}
			}
		}
		return nil
	})
	w.remediates(1)

	// A recovered node frees a place. Nothing takes it in mode Observe, nor while enforce does not list
	// the stage; the taints stay.
	w.setMode(v1alpha1.Observe)
	w.setCondition(nodes[0], "KernelDeadlock", corev1.ConditionFalse)
	w.counts(w.key("kernel"), 2, 0)
	w.hasCheckStatus("check", row(w.waiting(nodes[3:]), "OnHold", "Guardrails cluster has mode Observe"))
	w.patchGuardrails(`{"spec":{"mode":"Enforce","enforce":["Taint","Repair"]}}`)
	w.hasCheckStatus("check", row(w.waiting(nodes[3:]), "OnHold", "Guardrails cluster does not enforce Remediate"))
	w.counts(w.key("kernel"), 2, 0)
	w.remediates(1)
	w.patchGuardrails(`{"spec":{"enforce":["Remediate"]}}`)
	w.guardrails("another node in treatment", func(s v1alpha1.GuardrailsStatus) bool { return s.InTreatment == 4 })
	w.remediates(2)
	w.counts(w.key("kernel"), 2, 0)
	w.noneRemediated(nodes)
}

// noneRemediated has all nodes recover, because nodes that are deleted in treatment count in the next
// parts.
func (w *scope) noneRemediated(nodes []string) {
	w.t.Helper()
	w.recover(nodes)
	w.remediates(0)
}

// remediates waits until so many nodes are remediated: the numbers of the guardrails count a
// remediation before its object exists.
func (w *scope) remediates(want int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d remediated nodes", want), func() error {
		if n := w.treated(); n != want {
			return fmt.Errorf("%d nodes are remediated", n)
		}
		return nil
	})
}

// waiting returns the first of the nodes that is not remediated.
func (w *scope) waiting(nodes []string) string {
	w.t.Helper()
	at := slices.IndexFunc(nodes, func(node string) bool { return w.triesNow(node) == nil })
	testkit.Require(w.t, at >= 0, "all of %s are remediated", nodes)
	return nodes[at]
}

// testTopologyAndPace has unhealthy nodes in two zones. One node of a zone may be in treatment, and
// two treatments more may begin in an hour.
func testTopologyAndPace(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 8, Zones: []string{"a", "b"}}, atMost("100%"))
	w.start(install.Options{})
	w.createGuardrails()
	w.patchGuardrails(`{"spec":{"pace":{"period":"1h"},"topology":[{"key":%q,"max":"49%%"}]}}`, corev1.LabelTopologyZone)
	// Treatments of earlier parts count.
	status := w.guardrails("8 nodes", func(s v1alpha1.GuardrailsStatus) bool { return s.Nodes == 8 })
	before := status.Rails[slices.IndexFunc(status.Rails, func(r v1alpha1.RailStatus) bool { return r.Name == "pace" })].Used
	w.patchGuardrails(`{"spec":{"pace":{"max":%d}}}`, before+2)
	has := func(rail string, domain string, limit, used, held int32) func(v1alpha1.GuardrailsStatus) bool {
		return func(s v1alpha1.GuardrailsStatus) bool {
			return slices.Contains(s.Rails, v1alpha1.RailStatus{Name: rail, Domain: domain, Limit: limit, Used: used, Held: held})
		}
	}
	zone := []string{nodes[0], nodes[2], nodes[4]}
	w.makeUnhealthy(zone)
	w.guardrails("two held nodes of the zone", has("topology", corev1.LabelTopologyZone+"=a", 1, 1, 2))
	w.remediates(1)
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue) // in the other zone
	w.tries(nodes[1], "quick")

	first := zone[slices.IndexFunc(zone, func(node string) bool { return w.triesNow(node) != nil })]
	w.setCondition(first, "Unhealthy", corev1.ConditionFalse)
	w.guardrails("two nodes held by the pace", has("pace", "", before+2, before+2, 2))
	w.remediates(1)
	w.patchGuardrails(`{"spec":{"pace":{"max":%d}}}`, before+3)
	w.guardrails("one node more in treatment", has("topology", corev1.LabelTopologyZone+"=a", 1, 1, 1))
	w.noneRemediated(nodes)
}

// testZoneFails has a zone whose nodes are all unhealthy, and a node of another zone.
func testZoneFails(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 8, Zones: []string{"a", "b"}}, atMost("100%"))
	for _, node := range []string{nodes[0], nodes[2], nodes[4], nodes[6], nodes[1]} { // 1 is in zone b
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	}
	w.createGuardrails(corev1.LabelTopologyZone)
	w.start(install.Options{})
	w.tries(nodes[1], "quick")
	const domain = corev1.LabelTopologyZone + "=a"
	isHeld := func(s v1alpha1.GuardrailsStatus) bool {
		return slices.Contains(s.Rails, v1alpha1.RailStatus{Name: "correlatedFailure", Domain: domain, Limit: 2, Used: 4, Held: 4}) && s.InTreatment == 1
	}
	w.guardrails("a failed zone", isHeld)

	release := func(until string) {
		w.t.Helper()
		w.patchGuardrails(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ReleaseHoldAnnotation, until)
	}
	release("for ever")
	w.guardrails("the problem of the annotation", func(s v1alpha1.GuardrailsStatus) bool {
		return slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1alpha1.Ready && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, v1alpha1.ReleaseHoldAnnotation)
		}) && isHeld(s)
	})
	release("until=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	w.guardrails("3 of 4 nodes in treatment", func(s v1alpha1.GuardrailsStatus) bool { return s.InTreatment == 3 && s.Held == 2 })
}

// testLongestHold has a zone that failed two minutes ago, and a node that the Cluster Autoscaler is
// removing. A longestHold of a minute ends a hold that longestHold of an hour continues.
func testLongestHold(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 10, Zones: []string{"a", "b"}}, atMost("100%"))
	zone, removed := []string{nodes[0], nodes[2], nodes[4]}, nodes[1]
	for _, node := range append(zone, removed) {
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue, func(c *corev1.NodeCondition) {
			c.LastTransitionTime = metav1.NewTime(time.Now().Add(-2 * time.Minute))
		})
	}
	w.taints(removed, `[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]`)
	w.createGuardrails(corev1.LabelTopologyZone)
	w.patchGuardrails(`{"spec":{"correlatedFailure":{"longestHold":"1h"}}}`)
	w.start(install.Options{})
	isHeld := v1alpha1.RailStatus{Name: "correlatedFailure", Domain: corev1.LabelTopologyZone + "=a", Limit: 2, Used: 3, Held: 3}
	w.guardrails("a failed zone", func(s v1alpha1.GuardrailsStatus) bool { return slices.Contains(s.Rails, isHeld) })
	w.hasCheckStatus("check", row(removed, "Vetoed", "held by respect.clusterAutoscaler of Guardrails", "ToBeDeletedByClusterAutoscaler"))
	for _, node := range nodes {
		testkit.Must(w.t, w.triesNow(node))
	}
	w.patchGuardrails(`{"spec":{"correlatedFailure":{"longestHold":"1m"}}}`)
	for _, node := range zone {
		w.tries(node, "quick")
	}
	testkit.Must(w.t, w.triesNow(removed))
	w.taints(removed, "null")
	w.tries(removed, "quick")
	w.noneRemediated(nodes)
}

// testAttempts has a node that fails again after every remediation, and a pool whose replacements fail.
// The controller restarts in between.
func testAttempts(w *scope) {
	w.createGuardrails()
	w.patchGuardrails(`{"spec":{"maxAttempts":{"limit":3}}}`)
	nodes := w.checked(testbed.Nodes{Count: 6}, atMost("100%"))
	controller := w.start(install.Options{Args: []string{alone}})
	isGivenUp := func(node string, all int32) {
		w.t.Helper()
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
		w.guardrails("a node that is given up", func(s v1alpha1.GuardrailsStatus) bool {
			return s.GivenUp == all && slices.Contains(s.Rails, v1alpha1.RailStatus{Name: "maxAttempts", Limit: 3, Used: 3, Held: all})
		})
		const words = "held by maxAttempts of Guardrails: 3 treatments of this node, or of nodes that it replaces, began within 24h0m0s, at most 3 may"
		w.hasCheckStatus("check", row(node, "GivenUp", words))
		w.hasEvent("Node", node, "GivenUp", words)
		testkit.Must(w.t, w.triesNow(node))
	}
	again := func() {
		w.kill(controller)
		controller = w.start(install.Options{Args: []string{alone}})
	}
	for try := range 3 {
		w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
		w.tries(nodes[0], "quick")
		if try < 2 { // also without a restart
			again()
		}
		w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
		w.tries(nodes[0])
	}
	isGivenUp(nodes[0], 1)

	pool := map[string]string{"eks.amazonaws.com/nodegroup": "blue"}
	for try := range 3 {
		node := w.createNodes(testbed.Nodes{Count: 1, First: 10 + try, Labels: pool})[0]
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
		w.tries(node, "quick")
		if try == 1 { // the node goes while no process leads
			w.kill(controller)
		}
		w.removeNode(node)
		if try == 1 {
			controller = w.start(install.Options{Args: []string{alone}})
		}
		w.tries(node)
	}
	last := w.createNodes(testbed.Nodes{Count: 1, First: 20, Labels: pool})[0]
	isGivenUp(last, 2)
	w.eventually("the inherited attempts on the node", func() error {
		node, err := w.get(w.t.Context(), last)
		if err == nil {
			err = contains("the annotation", node.Annotations["autohealer.resourcestack.com/attempts"], []string{`"replaces":`, w.node(10), w.node(11), w.node(12)})
		}
		return err
	})

	w.mark(last, `{"annotations":{"autohealer.resourcestack.com/attempts":null}}`)
	w.tries(last, "quick")
	again()
	w.setCondition(last, "Unhealthy", corev1.ConditionFalse)
	w.tries(last)
	testkit.Must(w.t, w.triesNow(nodes[0]))
}

// tainted lists the nodes with a taint.
func (w *scope) tainted(key string) (names []string) {
	w.t.Helper()
	for _, node := range testkit.Value(w.all(w.t.Context())).Must(w.t) {
		if slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key }) {
			names = append(names, node.Name)
		}
	}
	return names
}

// neverMoreThan checks in the recording that at most this many nodes ever had a property at
// once, and that no node got it within a pause.
func (w *scope) neverMoreThan(most int, has func(*corev1.Node) bool, paused, resumed time.Time) {
	w.t.Helper()
	now, peak := map[string]bool{}, 0
	for _, change := range w.recording() {
		if change.GVR != testbed.NodesResource || !strings.HasPrefix(change.Name, w.name+"-") {
			continue
		}
		var node corev1.Node
		testkit.Must(w.t, runtime.DefaultUnstructuredConverter.FromUnstructured(change.Object.Object, &node))
		was := now[change.Name]
		if now[change.Name] = change.Type != watch.Deleted && has(&node); !now[change.Name] {
			delete(now, change.Name)
		}
		if !was && now[change.Name] && change.Time.After(paused) && change.Time.Before(resumed) {
			w.t.Errorf("%s: a step began on %s while everything was paused", change.Time.Format(time.StampMilli), change.Name)
		}
		peak = max(peak, len(now))
	}
	testkit.Same(w.t, peak, most, "nodes at once")
}
