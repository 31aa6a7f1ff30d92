package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestHealthChecks tests the features of health checks. One controller serves all parts,
// each with its own scope.
func TestHealthChecks(t *testing.T) {
	t.Parallel()
	w := newFixture(t, withManager)
	testkit.Must(t, remediator.Install(t.Context(), w.Cluster))
	w.scope(t, "all").start(install.Options{Args: []string{alone}})
	for _, part := range []part{
		{"an unhealthy node is remediated and recovers", "cycle", testCycle},
		{"the seed applies, and its kinds come later", "seed", testSeedCheck},
		{"too many unhealthy nodes close the gate", "gate", testGate},
		{"a bound above the number of nodes allows all", "wide", testWideBound},
		{"a failed remediation is followed by the next", "failed", testFailedStep},
		{"a remediation that takes too long is followed by the next", "slow", testSlowStep},
		{"a node must be healthy for a while, and a flap restarts the time", "delay", testHealthyDelay},
		{"a node waits for the confirmation of a user", "word", testByHand},
		{"after a storm nothing starts for a while", "storm", testStormCooldown},
		{"a pause stops only new treatments", "pause", testPause},
		{"a remediation waits for a window", "window", testCheckWindow},
		{"a mode and windows keep remediations from starting, except urgent ones", "switches", testCheckSwitches},
		{"an excluded node is left alone", "exclude", testExcluded},
		{"a node that another client has locked is left alone", "lease", testForeignLease},
		{"one node of the control plane at a time", "plane", testCheckedControlPlane},
		{"a node of two health checks is treated once", "twice", testTwoChecks},
		{"a node leaves the selector", "leaver", testLeaver},
		{"a node is deleted", "deleted", testDeletedNode},
		{"a remediator deletes the node", "replaced", testReplacedNode},
		{"a node is created again during a treatment", "again", testNodeMadeAgain},
		{"a health check is deleted", "dropped", testDroppedCheck},
		{"an invalid edit keeps the last valid version in force", "invalid", testInvalidEdit},
		{"a remediator deletes its object", "deleter", testDeleter},
		{"a finalizer hangs", "hanging", testHangingFinalizer},
		{"a remediator fences the node, as self-node-remediation does", "fenced", testFenced},
		{"a node that is being fenced is deleted, and created again", "unfenced", testFencedNodeGone},
		{"a template is edited, deleted, and created again", "edited", testTemplateEdited},
		{"an object of another client is left alone", "theirs", testForeignObject},
		{"several templates of one kind", "several", testSeveralTemplates},
		{"two templates of one kind that accept only one request", "names", testSameNames},
		{"a change from one unhealthy status to another does not restart the clock", "flip", testFlip},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			subscope := w.scope(t, part.subscope)
			part.test(subscope)
			subscope.deleteCheck()
		})
	}
}

func testCycle(w *scope) {
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 5})
	check := w.check("check")
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(5, 5, 0), condition(remediationv1alpha1.Disabled, metav1.ConditionFalse))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	object := w.tries(nodes[0], "quick")
	w.locked(nodes[0], "NodeHealthCheck-"+check.Name)
	node := testkit.Value(w.get(w.t.Context(), nodes[0])).Must(w.t)
	for what, pair := range map[string][2]any{
		"name":          {object.GetName(), nodes[0]},
		"namespace":     {object.GetNamespace(), metav1.NamespaceDefault},
		"part of":       {object.GetLabels()["app.kubernetes.io/part-of"], "node-healthcheck-controller"},
		"control plane": {len(object.GetLabels()), 1},
		"node":          {object.GetAnnotations()[nodeNameAnnotation], nodes[0]},
		"node's UID":    {object.GetAnnotations()["autohealer.resourcestack.com/node-uid"], string(node.UID)},
		"template":      {object.GetAnnotations()["remediation.medik8s.io/template-name"], w.name + "-quick"},
		"owner":         {object.GetOwnerReferences()[0].Kind + "/" + object.GetOwnerReferences()[0].Name, "NodeHealthCheck/" + check.Name},
		"owner's UID":   {object.GetOwnerReferences()[0].UID, check.UID},
	} {
		if pair[0] != pair[1] {
			w.t.Errorf("%s is %v, want %v", what, pair[0], pair[1])
		}
	}
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseRemediating, "1"), counted(5, 4, 1), row(nodes[0], "Treating", "Unhealthy=True since", "remediation is under way"))
	table := testkit.Value(w.Kubectl(w.t.Context(), "get", "nhc", check.Name)).Must(w.t)
	for _, word := range []string{"OBSERVED", "HEALTHY", "TREATED", "PHASE", "REASON", "Remediating"} {
		if !strings.Contains(table, word) {
			w.t.Errorf("%s is missing in\n%s", word, table)
		}
	}
	w.hasEvent("NodeHealthCheck", check.Name, "DetectedUnhealthy", nodes[0])
	w.hasEvent("NodeHealthCheck", check.Name, "RemediationCreated", nodes[0])
	w.hasEvent("Node", nodes[0], "RemediationCreated", "Unhealthy=True")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.tries(nodes[0])
	w.locked(nodes[0], "")
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(5, 5, 0))
	w.hasEvent("Node", nodes[0], "RemediationRemoved", "recovered")
}

// testSeedCheck applies the example health check before the kind of its template exists,
// and then its template.
func testSeedCheck(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 3, Labels: map[string]string{"seed": "yes"}})
	apply := func(yaml string) {
		w.t.Helper()
		testkit.Value(w.KubectlApply(w.t.Context(), yaml)).Must(w.t)
	}
	apply(`
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata:
  name: seed-sample
spec:
# mandatory
  remediationTemplate:
    kind: ProviderXRemediationTemplate
    apiVersion: medik8s.io/v1alpha1
    name: group-x
    namespace: default
  selector:
    matchLabels:
      seed: "yes"
  unhealthyConditions:
    - type: Unhealthy
      status: "True"
      duration: 1s
`)
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("sample", phase(remediationv1alpha1.PhaseDisabled, "ProviderXRemediationTemplate", "medik8s.io/v1alpha1"),
		condition(remediationv1alpha1.Disabled, metav1.ConditionTrue, "RemediationTemplateNotFound"), row(nodes[0], "OnHold"))
	w.hasEvent("NodeHealthCheck", "seed-sample", "Disabled", "ProviderXRemediationTemplate")
	for _, kind := range []string{"ProviderXRemediation", "ProviderXRemediationTemplate"} {
		plural := strings.ToLower(kind) + "s"
		apply(fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.medik8s.io}
spec:
  group: medik8s.io
  scope: Namespaced
  names: {kind: %[1]s, listKind: %[1]sList, plural: %[2]s, singular: %[3]s}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: %[2]s-ext-remediation
  labels: {rbac.ext-remediation/aggregate-to-ext-remediation: "true"}
rules:
- {apiGroups: [medik8s.io], resources: [%[2]s], verbs: [get, list, watch, create, update, patch, delete]}
`, kind, plural, strings.ToLower(kind)))
	}
	w.hasCheckStatus("sample", phase(remediationv1alpha1.PhaseDisabled, "there is no template", "default/group-x"))
	apply(`
apiVersion: medik8s.io/v1alpha1
kind: ProviderXRemediationTemplate
metadata:
  name: group-x
  namespace: default
spec:
  template:
    # whatever
    size: 42
`)
	w.eventually("the seed's object", func() error {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion("medik8s.io/v1alpha1")
		object.SetKind("ProviderXRemediation")
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "default", Name: nodes[0]}, object); err != nil {
			return err
		}
		size, _, err := unstructured.NestedInt64(object.Object, "spec", "size")
		if err == nil && size != 42 {
			err = fmt.Errorf("the size is %d", size)
		}
		return err
	})
	w.hasCheckStatus("sample", phase(remediationv1alpha1.PhaseRemediating), counted(3, 2, 1))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.hasCheckStatus("sample", phase(remediationv1alpha1.PhaseEnabled), counted(3, 3, 0))
}

func testGate(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 10}, atMost("40%"), func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.UnhealthyConditions[0].Duration = "2s" })
	w.makeUnhealthy(nodes[:5])
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled, "5 of 10 nodes unhealthy, at most 4 allowed: no new remediation starts"), counted(10, 5, 0),
		row(nodes[0], "GateClosed", "5 of 10 selected nodes are unhealthy, at most 4 may be"))
	for _, node := range nodes[:5] {
		testkit.Must(w.t, w.triesNow(node))
	}
	w.hasEvent("NodeHealthCheck", w.name+"-check", "RemediationSkipped", "at most 4 may be")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	for _, node := range nodes[1:5] {
		w.tries(node, "quick")
	}
	w.hasCheckStatus("check", counted(10, 6, 4))
	// A closed gate neither ends running treatments nor starts new ones.
	w.makeUnhealthy(nodes[5:7])
	w.hasCheckStatus("check", row(nodes[5], "GateClosed", "6 of 10"), counted(10, 4, 4))
	w.recover(nodes)
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(10, 10, 0))
}

func testWideBound(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 2}, atMost("7"))
	w.makeUnhealthy(nodes)
	for _, node := range nodes {
		w.tries(node, "quick")
	}
}

// several marks a template: its remediator accepts several requests for a node.
func several(template *unstructured.Unstructured) {
	template.SetAnnotations(map[string]string{severalAnnotation: "true"})
}

func testFailedStep(w *scope) {
	w.template("first", several)
	w.template("second", several)
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	w.check("check", w.steps("first", "second"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	first := w.tries(nodes[0], "first")
	w.replies(first, "Succeeded", metav1.ConditionFalse)
	w.tries(nodes[0], "first", "second")
	w.eventually("the first remediation to be marked as timed out", func() error {
		objects, err := w.objects(w.t.Context(), nodes[0])
		if err != nil {
			return err
		}
		if _, said := objects[0].GetAnnotations()[timedOutAnnotation]; !said {
			return fmt.Errorf("annotations are %v", objects[0].GetAnnotations())
		}
		return nil
	})
	objects := testkit.Value(w.objects(w.t.Context(), nodes[0])).Must(w.t)
	at := slices.IndexFunc(objects, func(u unstructured.Unstructured) bool {
		return u.GetAnnotations()["remediation.medik8s.io/template-name"] == w.name+"-second"
	})
	w.replies(&objects[at], "Succeeded", metav1.ConditionFalse)
	w.hasCheckStatus("check", row(nodes[0], "Exhausted", "nothing is left to try"))
	w.hasEvent("NodeHealthCheck", w.name+"-check", "NoTemplateLeft", nodes[0])
	w.locked(nodes[0], "")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.tries(nodes[0])
}

func testSlowStep(w *scope) {
	w.template("first", several)
	w.template("second", several)
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	w.check("check", w.steps("first", "second"), atMost("1"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	began := time.Now()
	w.tries(nodes[0], "first")
	w.makeUnhealthy(nodes[1:]) // this closes the gate, and stops no clock
	w.hasCheckStatus("check", row(nodes[1], "GateClosed"))
	w.eventually("the second step", func() error { return w.triesNow(nodes[0], "first", "second") })
	if took := time.Since(began); took < 59*time.Second {
		w.t.Errorf("the second step came after %s", took)
	}
}

func testHealthyDelay(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 3}, func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.HealthyDelay = "6s" })
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	object := w.tries(nodes[0], "quick")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.hasCheckStatus("check", row(nodes[0], "Recovering"), counted(3, 2, 1), func(s remediationv1alpha1.NodeHealthCheckStatus) error {
		if s.UnhealthyNodes[0].HealthyDelayed == nil || !*s.UnhealthyNodes[0].HealthyDelayed || s.UnhealthyNodes[0].ConditionsHealthyTimestamp == nil {
			return fmt.Errorf("its row is %+v", s.UnhealthyNodes[0])
		}
		return nil
	})
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(nodes[0], "Treating"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	again := time.Now()
	w.tries(nodes[0])
	if took := time.Since(again); took < 5*time.Second {
		w.t.Errorf("after a flap the remediation was removed within %s", took)
	}
	if object == nil {
		w.t.Error("there was no remediation")
	}
}

func testByHand(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 3}, func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.HealthyDelay = "-1s" })
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[0], "quick")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.hasCheckStatus("check", row(nodes[0], "Recovering", "confirm"))
	testkit.Must(w.t, w.triesNow(nodes[0], "quick"))
	w.mark(nodes[0], `{"annotations":{"`+confirmedAnnotation+`":""}}`)
	w.tries(nodes[0])
	w.eventually("the confirmation is removed from the node", func() error {
		node, err := w.get(w.t.Context(), nodes[0])
		if _, there := node.Annotations[confirmedAnnotation]; err == nil && there {
			err = fmt.Errorf("annotations are %v", node.Annotations)
		}
		return err
	})
}

func testStormCooldown(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 10}, atMost("2"), func(s *remediationv1alpha1.NodeHealthCheckSpec) {
		s.StormCooldownDuration = "4s"
		s.UnhealthyConditions[0].Duration = "1s"
	})
	w.makeUnhealthy(nodes[:3])
	w.hasCheckStatus("check", condition(remediationv1alpha1.StormActive, metav1.ConditionTrue), condition(remediationv1alpha1.StormCooldownActive, metav1.ConditionFalse))
	w.hasEvent("NodeHealthCheck", w.name+"-check", "StormRecoveryStarted", "3 of 10") // the third starts it
	w.makeUnhealthy(nodes[3:4])
	w.recover(nodes[:2])
	calm := time.Now()
	w.hasCheckStatus("check", condition(remediationv1alpha1.StormActive, metav1.ConditionTrue), condition(remediationv1alpha1.StormCooldownActive, metav1.ConditionTrue), row(nodes[2], "CoolingDown"),
		phase(remediationv1alpha1.PhaseEnabled, "2 nodes due; "))
	w.tries(nodes[2], "quick")
	if took := time.Since(calm); took < 3*time.Second {
		w.t.Errorf("after the storm it took %s until a treatment started", took)
	}
	w.hasCheckStatus("check", condition(remediationv1alpha1.StormActive, metav1.ConditionFalse), condition(remediationv1alpha1.StormCooldownActive, metav1.ConditionFalse))
	w.hasEvent("NodeHealthCheck", w.name+"-check", "StormRecoveryEnded")
	// A storm also ends if no node is unhealthy any longer.
	w.makeUnhealthy(nodes[4:8])
	w.hasCheckStatus("check", condition(remediationv1alpha1.StormActive, metav1.ConditionTrue))
	w.recover(nodes)
	w.hasCheckStatus("check", condition(remediationv1alpha1.StormActive, metav1.ConditionFalse), counted(10, 10, 0))
}

func testPause(w *scope) {
	nodes, _ := w.treating(5)
	w.change("check", func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.PauseRequests = []string{"an upgrade"} })
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhasePaused, "an upgrade"))
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(nodes[1], "OnHold", "an upgrade"), counted(5, 3, 1))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.tries(nodes[0])
	w.hasCheckStatus("check", counted(5, 4, 0))
	testkit.Must(w.t, w.triesNow(nodes[1]))
	w.change("check", func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.PauseRequests = nil })
	w.tries(nodes[1], "quick")
}

func testExcluded(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 5})
	w.mark(nodes[0], `{"labels":{"`+excludeLabel+`":"true"}}`)
	w.mark(nodes[1], `{"labels":{"`+excludeLabel+`":""}}`)
	w.makeUnhealthy(nodes[:2])
	w.tries(nodes[1], "quick")
	w.hasCheckStatus("check", row(nodes[0], "Vetoed", excludeLabel))
	testkit.Must(w.t, w.triesNow(nodes[0]))
	w.hasEvent("NodeHealthCheck", w.name+"-check", "RemediationSkipped", nodes[0], excludeLabel)
	w.hasEvent("Node", nodes[1], "InvalidNodeLabel", excludeLabel)
	w.mark(nodes[0], `{"labels":{"`+excludeLabel+`":null}}`)
	w.tries(nodes[0], "quick")
}

func testForeignLease(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 5})
	w.lock(nodes[0], "maintenance", time.Hour)
	w.lock(nodes[1], "maintenance", 5*time.Second)
	w.makeUnhealthy(nodes[:2])
	w.hasCheckStatus("check", row(nodes[0], "Vetoed", "maintenance", "Lease"))
	w.tries(nodes[1], "quick") // after the lease has expired
	testkit.Must(w.t, w.triesNow(nodes[0]))
	testkit.Must(w.t, w.api.Delete(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "node-" + nodes[0]}}))
	w.tries(nodes[0], "quick")
	w.locked(nodes[0], "NodeHealthCheck-"+w.name+"-check")
}

func testCheckedControlPlane(w *scope) {
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 6, Labels: map[string]string{controlPlaneLabel: ""}})
	half := func(value string) checkOption {
		return func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.Selector.MatchLabels["half"] = value }
	}
	for i, node := range nodes {
		w.mark(node, fmt.Sprintf(`{"labels":{"half":"%d"}}`, i%2))
	}
	w.check("even", half("0"), atMost("100%"))
	w.check("odd", half("1"), atMost("100%"))
	w.makeUnhealthy(nodes)
	treated := func() []string {
		w.t.Helper()
		var names []string
		for _, node := range nodes {
			found := testkit.Value(w.strategies(node)).Must(w.t)
			if len(found) > 0 {
				names = append(names, node)
			}
		}
		return names
	}
	for range nodes { // one after the other
		var now []string
		w.eventually("one node in treatment", func() error {
			if now = treated(); len(now) != 1 {
				return fmt.Errorf("%v are", now)
			}
			return nil
		})
		object := testkit.Value(w.objects(w.t.Context(), now[0])).Must(w.t)
		if _, labelled := object[0].GetLabels()["remediation.medik8s.io/isControlPlaneNode"]; !labelled {
			w.t.Errorf("labels are %v", object[0].GetLabels())
		}
		w.setCondition(now[0], "Unhealthy", corev1.ConditionFalse)
		w.eventually("the end of the treatment", func() error { return w.triesNow(now[0]) })
	}
	w.hasCheckStatus("even", counted(3, 3, 0))
	w.hasCheckStatus("odd", counted(3, 3, 0))
}

func testTwoChecks(w *scope) {
	w.template("quick")
	w.template("other")
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	w.check("one")
	w.check("two", func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.RemediationTemplate = new(w.reference("other")) })
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[0], "quick") // the first by name
	w.hasCheckStatus("two", row(nodes[0], "Busy", "NodeHealthCheck/"+w.name+"-one"))
	testkit.Must(w.t, w.triesNow(nodes[0], "quick"))
}

func testLeaver(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 4, Labels: map[string]string{"pool": "a"}}, func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.Selector.MatchLabels["pool"] = "a" })
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[0], "quick")
	w.mark(nodes[0], `{"labels":{"pool":"b"}}`)
	w.tries(nodes[0])
	w.locked(nodes[0], "")
	w.hasCheckStatus("check", counted(3, 3, 0))
}

func testDeletedNode(w *scope) {
	nodes, _ := w.treating(4)
	w.removeNode(nodes[0])
	w.tries(nodes[0])
	w.locked(nodes[0], "")
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(3, 3, 0))
	// The same holds if both are deleted at once.
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	object := w.tries(nodes[1], "quick")
	w.removeNode(nodes[1])
	testkit.Must(w.t, client.IgnoreNotFound(w.api.Delete(w.t.Context(), object)))
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(2, 2, 0))
}

func testReplacedNode(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 4}, atMost("1"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	object := w.tries(nodes[0], "quick")
	w.replies(object, "PermanentNodeDeletionExpected", metav1.ConditionTrue)
	w.removeNode(nodes[0])
	w.hasCheckStatus("check", counted(3, 3, 1), row(nodes[0], "NodeGone"))
	testkit.Must(w.t, w.triesNow(nodes[0], "quick"))
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.awaitsReplacement(nodes[1])
	testkit.Must(w.t, w.reports(object, map[string]metav1.ConditionStatus{"PermanentNodeDeletionExpected": metav1.ConditionTrue, "Succeeded": metav1.ConditionTrue}))
	w.tries(nodes[0])
	w.hasCheckStatus("check", counted(3, 2, 0))
	w.awaitsReplacement(nodes[1])
	w.createNodes(testbed.Nodes{Count: 1, First: 100})
	w.tries(nodes[1], "quick")
	w.hasCheckStatus("check", counted(4, 3, 1))
}

func testNodeMadeAgain(w *scope) {
	nodes, before := w.treating(4)
	w.removeNode(nodes[0])
	w.createNodes(testbed.Nodes{Count: 1})
	w.eventually("the end of the old remediation", func() error {
		objects, err := w.objects(w.t.Context(), nodes[0])
		if err == nil && len(objects) > 0 && objects[0].GetUID() == before.GetUID() {
			err = fmt.Errorf("it exists")
		}
		return err
	})
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	after := w.tries(nodes[0], "quick")
	if before.GetUID() == after.GetUID() {
		w.t.Error("the new node has the old one's remediation")
	}
}

func testDroppedCheck(w *scope) {
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 4})
	check := w.check("check")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[0], "quick")
	testkit.Must(w.t, w.api.Delete(w.t.Context(), check))
	w.tries(nodes[0])
	w.locked(nodes[0], "")
}

func testInvalidEdit(w *scope) {
	nodes, _ := w.treating(4)
	w.change("check", func(s *remediationv1alpha1.NodeHealthCheckSpec) {
		s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
	})
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseRemediating, "Near", "the last accepted version stays in force"), counted(4, 3, 1),
		condition(remediationv1alpha1.Ready, metav1.ConditionFalse, "Invalid"))
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[1], "quick")
	testkit.Must(w.t, w.triesNow(nodes[0], "quick"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.tries(nodes[0])
	w.change("check", func(s *remediationv1alpha1.NodeHealthCheckSpec) { s.Selector.MatchExpressions = nil })
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseRemediating), condition(remediationv1alpha1.Ready, metav1.ConditionTrue, "Remediating"))
}

func testDeleter(w *scope) {
	nodes, first := w.treating(4)
	testkit.Must(w.t, w.api.Delete(w.t.Context(), first))
	gone := time.Now()
	w.hasCheckStatus("check", row(nodes[0], "Treating", "another component deleted"))
	second := w.tries(nodes[0], "quick")
	if took := time.Since(gone); took < 2*time.Second {
		w.t.Errorf("it was created again after %s", took)
	}
	if first.GetUID() == second.GetUID() {
		w.t.Error("it was never deleted")
	}
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue) // other nodes do not wait
	w.tries(nodes[1], "quick")
}

func testHangingFinalizer(w *scope) {
	nodes, object := w.treating(4)
	w.hold(object, `["example.com/hangs"]`)
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.hasCheckStatus("check", row(nodes[0], "Recovered", "example.com/hangs"), counted(4, 3, 1))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(nodes[0], "Treating", "is being deleted"))
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[1], "quick")
	w.hold(object, `null`)
	w.eventually("its own remediation", func() error {
		objects, err := w.objects(w.t.Context(), nodes[0])
		if err == nil && (len(objects) != 1 || objects[0].GetUID() == object.GetUID()) {
			err = fmt.Errorf("there are %d", len(objects))
		}
		return err
	})
}

// fences plays the start of a fencing: the remediator keeps its object and taints the node.
func (w *scope) fences(node string, object *unstructured.Unstructured) {
	w.t.Helper()
	w.hold(object, `["example.com/fences"]`)
	w.taints(node, `[{"key":"example.com/fenced","effect":"NoSchedule"}]`)
	testkit.Must(w.t, w.reports(object, map[string]metav1.ConditionStatus{"Processing": metav1.ConditionTrue, "Succeeded": metav1.ConditionUnknown}))
}

// taints replaces the taints of a node.
func (w *scope) taints(node, taints string) {
	w.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":`+taints+`}}`))
	testkit.Must(w.t, w.api.Patch(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch))
}

// testFenced repeats the steps of self-node-remediation, in their order.
func testFenced(w *scope) {
	nodes, object := w.treating(4)
	w.fences(nodes[0], object)
	testkit.Must(w.t, w.reports(object, map[string]metav1.ConditionStatus{"Processing": metav1.ConditionFalse, "Succeeded": metav1.ConditionTrue}))
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	w.tries(nodes[1], "quick") // by now the controller has seen the answer
	if now := w.tries(nodes[0], "quick"); now.GetDeletionTimestamp() != nil {
		w.t.Error("the remediation ends before the node is healthy")
	}
	w.recover(nodes[:2])
	w.hasCheckStatus("check", row(nodes[0], "Recovered", "example.com/fences"), counted(4, 3, 1))
	w.locked(nodes[0], "NodeHealthCheck-"+w.name+"-check")
	if _, told := w.tries(nodes[0], "quick").GetAnnotations()[timedOutAnnotation]; told {
		w.t.Error("the remediator of a healthy node is told to stop")
	}
	w.taints(nodes[0], "null")
	w.hold(object, "null")
	w.tries(nodes[0])
	w.locked(nodes[0], "")
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(4, 4, 0))
}

// testFencedNodeGone deletes a node that is being fenced. Self-node-remediation then keeps
// its object until it is told to stop. Otherwise it fences the next node of that name.
func testFencedNodeGone(w *scope) {
	nodes, object := w.treating(4)
	w.fences(nodes[0], object)
	w.removeNode(nodes[0])
	w.toldToStop(nodes[0])
	w.hasCheckStatus("check", row(nodes[0], "NodeGone", "example.com/fences"), counted(3, 3, 1))
	w.hold(object, "null")
	w.tries(nodes[0])
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(3, 3, 0))
	// The same holds if another node has the name.
	w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
	object = w.tries(nodes[1], "quick")
	w.fences(nodes[1], object)
	w.removeNode(nodes[1])
	w.createNodes(testbed.Nodes{Count: 1, First: 2})
	w.toldToStop(nodes[1])
	w.hold(object, "null")
	w.tries(nodes[1])
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseEnabled), counted(3, 3, 0))
}

// toldToStop waits until the remediator of a node is told to stop, and its object is being
// deleted.
func (w *scope) toldToStop(node string) {
	w.t.Helper()
	w.eventually("the annotation for the remediator of "+node, func() error {
		objects, err := w.objects(w.t.Context(), node)
		switch {
		case err != nil:
			return err
		case len(objects) != 1:
			return fmt.Errorf("there are %d objects", len(objects))
		}
		if _, told := objects[0].GetAnnotations()[timedOutAnnotation]; !told || objects[0].GetDeletionTimestamp() == nil {
			return fmt.Errorf("told: %t, being deleted since: %v", told, objects[0].GetDeletionTimestamp())
		}
		return nil
	})
}

func testTemplateEdited(w *scope) {
	nodes, object := w.treating(4)
	template := &unstructured.Unstructured{}
	template.SetGroupVersionKind(remediator.TemplateKind)
	template.SetNamespace(metav1.NamespaceDefault)
	template.SetName(w.name + "-quick")
	testkit.Must(w.t, w.api.Patch(w.t.Context(), template.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"template":{"spec":{"strategy":"changed"}}}}`))))
	w.eventually("the next object from the current template", func() error {
		w.setCondition(nodes[1], "Unhealthy", corev1.ConditionTrue)
		var found []string
		w.eventually("a remediation of "+nodes[1], func() (err error) {
			if found, err = w.strategies(nodes[1]); err == nil && len(found) == 0 {
				err = errors.New("there is none")
			}
			return err
		})
		if slices.Equal(found, []string{"changed"}) {
			return nil
		}
		w.setCondition(nodes[1], "Unhealthy", corev1.ConditionFalse) // the watch was behind
		w.tries(nodes[1])
		return fmt.Errorf("it is %v", found)
	})
	if now := w.tries(nodes[0], "quick"); now.GetUID() != object.GetUID() {
		w.t.Error("the running treatment was started again")
	}
	testkit.Must(w.t, w.api.Delete(w.t.Context(), template))
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseDisabled, "there is no template"), counted(4, 2, 2))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.tries(nodes[0]) // needs no template
	w.setCondition(nodes[2], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(nodes[2], "OnHold", "there is no template"))
	w.template("quick")
	w.tries(nodes[2], "quick")
}

func testForeignObject(w *scope) {
	w.template("quick")
	nodes := w.createNodes(testbed.Nodes{Count: 4})
	theirs := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"strategy": "theirs"}}}
	theirs.SetGroupVersionKind(remediator.Kind)
	theirs.SetNamespace(metav1.NamespaceDefault)
	theirs.SetName(nodes[0])
	theirs.SetAnnotations(map[string]string{nodeNameAnnotation: nodes[0]})
	testkit.Must(w.t, w.api.Create(w.t.Context(), theirs))
	w.check("check")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", row(nodes[0], "Vetoed", "no health check owns it"), counted(4, 3, 0))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.hasCheckStatus("check", counted(4, 4, 0))
	testkit.Must(w.t, w.triesNow(nodes[0], "theirs"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	testkit.Must(w.t, w.api.Delete(w.t.Context(), theirs))
	w.tries(nodes[0], "quick")
}

func testSeveralTemplates(w *scope) {
	w.template("first", several)
	w.template("second", several)
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	w.check("check", w.steps("first", "second"))
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	object := w.tries(nodes[0], "first")
	if object.GetGenerateName() != nodes[0]+"-" || !strings.HasPrefix(object.GetName(), nodes[0]+"-") {
		w.t.Errorf("its name is %s, made from %s", object.GetName(), object.GetGenerateName())
	}
	w.replies(object, "Succeeded", metav1.ConditionFalse)
	w.tries(nodes[0], "first", "second")
}

// testSameNames creates the templates after their health check, so that the webhook cannot
// refuse them.
func testSameNames(w *scope) {
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	w.check("check", atMost("2"), w.steps("quick", "slow"))
	w.template("quick", several)
	w.template("slow")
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionTrue)
	w.hasCheckStatus("check", phase(remediationv1alpha1.PhaseDisabled, "have the same kind", severalAnnotation),
		condition(remediationv1alpha1.Disabled, metav1.ConditionTrue, "RemediationTemplateInvalid"), row(nodes[0], "OnHold"))
	template := &unstructured.Unstructured{}
	template.SetGroupVersionKind(remediator.TemplateKind)
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: w.name + "-slow"}, template))
	several(template)
	testkit.Must(w.t, w.api.Update(w.t.Context(), template))
	w.tries(nodes[0], "quick")
}

// testFlip changes from one unhealthy status to the other, again and again, for longer than
// the duration of either.
func testFlip(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 3}, func(s *remediationv1alpha1.NodeHealthCheckSpec) {
		s.UnhealthyConditions = []remediationv1alpha1.UnhealthyCondition{
			{Type: "Well", Status: corev1.ConditionFalse, Duration: "6s"}, {Type: "Well", Status: corev1.ConditionUnknown, Duration: "6s"},
		}
	})
	w.setCondition(nodes[0], "Well", corev1.ConditionTrue)
	ctx, cancel := context.WithCancel(w.t.Context())
	end := w.meanwhile(func() error {
		for i := 0; ctx.Err() == nil; i++ {
			status := []corev1.ConditionStatus{corev1.ConditionUnknown, corev1.ConditionFalse}[i%2]
			if err := w.ReportCondition(ctx, nodes[0], "Well", status); err != nil && ctx.Err() == nil {
				return err
			}
			select {
			case <-time.After(2 * time.Second):
			case <-ctx.Done():
			}
		}
		return nil
	})
	w.tries(nodes[0], "quick")
	cancel()
	end()
}

// reports has a remediator set several conditions of an object at once.
func (w *scope) reports(object *unstructured.Unstructured, conditions map[string]metav1.ConditionStatus) error {
	current := object.DeepCopy()
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(object), current); err != nil {
		return err
	}
	var list []metav1.Condition
	for kind, status := range conditions {
		meta.SetStatusCondition(&list, metav1.Condition{Type: kind, Status: status, Reason: "TestSaysSo"})
	}
	var rows []any
	for _, c := range list {
		rows = append(rows, map[string]any{"type": c.Type, "status": string(c.Status), "reason": c.Reason, "message": "", "lastTransitionTime": c.LastTransitionTime.UTC().Format(time.RFC3339)})
	}
	if err := unstructured.SetNestedSlice(current.Object, rows, "status", "conditions"); err != nil {
		return err
	}
	return w.api.Status().Update(w.t.Context(), current)
}
