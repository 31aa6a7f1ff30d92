package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

func taintedNode(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints}}
}

func kernelTaint(effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: kernelKey, Effect: effect}
}

func kernelPolicy(status v1alpha1.ConditionSetStatus) *v1alpha1.ConditionSet {
	return &v1alpha1.ConditionSet{
		ObjectMeta: metav1.ObjectMeta{Name: kernelSet},
		Spec:       v1alpha1.ConditionSetSpec{TaintKey: kernelKey}, Status: status,
	}
}

func kubeletPolicy(status remediationv1alpha1.NodeHealthCheckStatus) *remediationv1alpha1.NodeHealthCheck {
	return &remediationv1alpha1.NodeHealthCheck{ObjectMeta: metav1.ObjectMeta{Name: kubeletCheck}, Status: status}
}

func remediationOf(node string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: node, UID: types.UID(node), Annotations: map[string]string{remediation.NodeNameAnnotation: node},
	}}
}

func podOn(name, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Namespace: "default", OwnerReferences: []metav1.OwnerReference{{}}},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
	}
}

func terminating(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.DeletionTimestamp = &metav1.Time{}
	return pod
}

func webDeployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
}

func TestTaintChanges(t *testing.T) {
	execute, schedule := kernelTaint(noExecute), kernelTaint(noSchedule)
	foreign := corev1.Taint{Key: kernelKey, Value: "hands-off", Effect: noSchedule}
	for _, c := range []struct {
		name    string
		was, is []corev1.Taint
		want    []string
	}{
		{"nothing", []corev1.Taint{execute}, []corev1.Taint{execute}, nil},
		{"added", nil, []corev1.Taint{execute}, []string{"taint " + kernelKey + ":NoExecute"}},
		{"removed", []corev1.Taint{execute}, nil, []string{"taint " + kernelKey + ":NoExecute is gone"}},
		{"stronger_effect", []corev1.Taint{schedule}, []corev1.Taint{execute}, []string{"taint " + kernelKey + ":NoExecute, was NoSchedule"}},
		{"added_beside_a_foreign_taint", []corev1.Taint{foreign}, []corev1.Taint{foreign, execute}, []string{"taint " + kernelKey + ":NoExecute"}},
		{"replaces_a_foreign_taint", []corev1.Taint{foreign}, []corev1.Taint{schedule},
			[]string{"taint " + kernelKey + ":NoSchedule", "taint " + kernelKey + "=hands-off:NoSchedule is gone"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, taintChanges(c.was, c.is)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMovesArePrintedWhenAllPodsRun(t *testing.T) {
	s := newState()
	update(s.deployments, nil, webDeployment(2))
	first, second := podOn("first", "worker-0001", corev1.PodRunning), podOn("second", "worker-0002", corev1.PodRunning)
	s.setPod(nil, first)
	if moves := s.takeMoves(); moves != "" {
		t.Errorf("one of two pods runs, and the moves are %q", moves)
	}
	s.setPod(nil, second)
	if want, moves := "2 started on worker-0001 and worker-0002", s.takeMoves(); moves != want {
		t.Errorf("moves are %q, want %q", moves, want)
	}
	s.setPod(first, terminating(first))
	third := podOn("third", "worker-0002", corev1.PodPending)
	s.setPod(nil, third)
	s.setPod(third, podOn("third", "worker-0002", corev1.PodRunning))
	if moves := s.takeMoves(); moves != "" {
		t.Errorf("a pod is terminating, and the moves are %q", moves)
	}
	s.setPod(terminating(first), nil)
	if want, moves := "1 left worker-0001, 1 started on worker-0002", s.takeMoves(); moves != want {
		t.Errorf("moves are %q, want %q", moves, want)
	}
	if moves := s.takeMoves(); moves != "" {
		t.Errorf("%q is returned twice", moves)
	}
}

func TestEachRemediationIsCountedOnce(t *testing.T) {
	s, first := newState(), remediationOf("worker-0001")
	s.setRemediation(nil, first)
	s.setRemediation(first, first)
	s.setRemediation(nil, remediationOf("worker-0002"))
	if s.remediationCount != 2 || !slices.Equal(s.inTreatment(), []string{"worker-0001", "worker-0002"}) {
		t.Errorf("%d remediations, of %v", s.remediationCount, s.inTreatment())
	}
	s.setRemediation(first, nil)
	if s.remediationCount != 2 || !slices.Equal(s.inTreatment(), []string{"worker-0002"}) {
		t.Errorf("after a deletion: %d remediations, of %v", s.remediationCount, s.inTreatment())
	}
}

func TestPolicyChange(t *testing.T) {
	was, is := kubeletPolicy(remediationv1alpha1.NodeHealthCheckStatus{}), kubeletPolicy(remediationv1alpha1.NodeHealthCheckStatus{})
	is.Generation++
	for want, got := range map[string]string{
		"the health check is new":      policyChange("health check", nil, is),
		"the health check was changed": policyChange("health check", was, is),
		"the health check is gone":     policyChange("health check", is, nil),
		"":                             policyChange("health check", is, is),
	} {
		if got != want {
			t.Errorf("the change is %q, want %q", got, want)
		}
	}
}

func TestAnExceededBoundIsReportedLater(t *testing.T) {
	w := &watcher{printer: newPrinter(&strings.Builder{}), state: newState(), changed: make(chan struct{})}
	w.seeSet(nil, kernelPolicy(v1alpha1.ConditionSetStatus{MaxTainted: new(int32(1))}))
	healthy, unhealthy := taintedNode("worker-0002"), taintedNode("worker-0002", kernelTaint(noExecute))
	w.seeNode(nil, taintedNode("worker-0001", kernelTaint(noExecute)))
	w.seeNode(nil, healthy)
	if err := w.await(t.Context()); err != nil {
		t.Errorf("one node is tainted and one may be: %v", err)
	}
	w.seeNode(healthy, unhealthy)
	w.seeNode(unhealthy, healthy)
	if err := w.await(t.Context()); err == nil || !strings.Contains(err.Error(), "2 nodes carry the NoExecute taint of ConditionSet conditionset-2 at once, at most 1 may") {
		t.Errorf("two nodes were tainted and one may be: %v", err)
	}
}

func TestAwaitNamesEverythingMissing(t *testing.T) {
	w := &watcher{printer: newPrinter(&strings.Builder{}), state: newState(), changed: make(chan struct{})}
	w.seeNode(nil, taintedNode("worker-0001", kernelTaint(noSchedule)))
	late := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(late)
	err := w.await(ctx, tainted(kernelKey, noSchedule, "worker-0001"), tainted(kernelKey, noExecute, "worker-0001"), eventSeen("Tainted", "worker-0001"))
	if !errors.Is(err, late) {
		t.Fatalf("error is %v, want %v", err, late)
	}
	if want := "taint " + kernelKey + ":NoExecute is on [], want it on [worker-0001]; no Event with reason Tainted about worker-0001: too late"; err.Error() != want {
		t.Errorf("error is %s\nwant %s", err, want)
	}
}

// Every expectation must be able to fail.
func TestEveryExpectationCanFail(t *testing.T) {
	full := newState()
	update(full.nodes, nil, taintedNode("worker-0001", kernelTaint(noExecute)))
	update(full.nodes, nil, taintedNode("worker-0002", kernelTaint(noSchedule)))
	update(full.deployments, nil, webDeployment(1))
	full.setPod(nil, podOn("pod", "worker-0002", corev1.PodRunning))
	full.events[eventKey{"worker-0001", "Tainted"}]++
	update(full.sets, nil, kernelPolicy(v1alpha1.ConditionSetStatus{
		Matched: 2, Tainted: 1, HeldBack: 1,
		Nodes: []v1alpha1.MatchedNode{{Name: "worker-0001", Reason: "Tainted"}},
		Conditions: []metav1.Condition{
			{Type: v1alpha1.Accepted, Status: metav1.ConditionTrue},
			{Type: v1alpha1.HeldBack, Status: metav1.ConditionTrue, Message: "at most 1 may"},
		},
	}))
	full.guardrails = &v1alpha1.Guardrails{Status: v1alpha1.GuardrailsStatus{Unschedulable: 2, Conditions: []metav1.Condition{{Type: v1alpha1.Ready, Message: "pace holds 1"}}}}
	had := map[string][]types.UID{"worker-0002": {"pod"}}
	full.nodes["worker-0001"].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}, {Type: "KernelDeadlock", Status: corev1.ConditionTrue}}
	full.setRemediation(nil, remediationOf("worker-0001"))
	update(full.checks, nil, kubeletPolicy(remediationv1alpha1.NodeHealthCheckStatus{
		ObservedNodes: new(3), HealthyNodes: new(1), InTreatment: new(1), Phase: remediationv1alpha1.PhaseRemediating,
		UnhealthyNodes: []remediationv1alpha1.UnhealthyNode{{Name: "worker-0002", Reason: "GateClosed"}},
	}))

	update(full.nodes, nil, poolNode("shop-1", shopPool, corev1.ConditionTrue))
	update(full.claims, nil, poolClaim("shop-1", shopPool))
	update(full.nodes, nil, poolNode("batch-1", batchPool, corev1.ConditionFalse))
	update(full.claims, nil, poolClaim("batch-1", batchPool))
	update(full.policies, nil, repairPolicy(v1alpha1.RepairPolicyStatus{Nodes: 1}))

	other := newState()
	update(other.nodes, nil, poolNode("shop-1", shopPool, corev1.ConditionFalse))
	update(other.claims, nil, poolClaim("shop-1", shopPool))
	update(other.nodes, nil, poolNode("batch-1", batchPool, corev1.ConditionTrue))
	update(other.claims, nil, poolClaim("batch-1", batchPool))
	update(other.policies, nil, repairPolicy(v1alpha1.RepairPolicyStatus{Nodes: 2, Repairing: 1}))
	update(other.nodes, nil, taintedNode("worker-0003", kernelTaint(noExecute)))
	other.nodes["worker-0003"].Annotations = map[string]string{ownership.Annotation: "{}"}
	other.nodes["worker-0003"].Status.Conditions = full.nodes["worker-0001"].Status.Conditions
	other.setRemediation(nil, remediationOf("worker-0002"))
	other.setRemediation(nil, remediationOf("worker-0003"))
	update(other.checks, nil, kubeletPolicy(remediationv1alpha1.NodeHealthCheckStatus{
		ObservedNodes: new(3), HealthyNodes: new(1), InTreatment: new(1), Phase: remediationv1alpha1.PhasePaused,
		UnhealthyNodes: []remediationv1alpha1.UnhealthyNode{{Name: "worker-0002", Reason: "Pending"}},
	}))
	other.setPod(nil, podOn("elsewhere", "worker-0001", corev1.PodPending))

	for name, expect := range map[string]expectation{
		"tainted":          tainted(kernelKey, noExecute, "worker-0001"),
		"taintCounts":      taintCounts(1, 1),
		"onlyTaints":       onlyTaints(map[string]string{"worker-0001": kernelKey + ":NoExecute", "worker-0002": kernelKey + ":NoSchedule"}),
		"noRecords":        noRecords,
		"podsRun":          podsRun(1),
		"noPods":           noPods("worker-0001"),
		"hasPods":          hasPods("worker-0002"),
		"podsUnmoved":      podsUnmoved(had, "worker-0002"),
		"eventSeen":        eventSeen("Tainted", "worker-0001"),
		"setCounts":        setCounts(kernelSet, 2, 1, 1),
		"heldBackMessage":  heldBackMessage(kernelSet, "at most 1 may"),
		"nodeListed":       nodeListed(kernelSet, "worker-0001", "Tainted"),
		"setAccepted":      setAccepted(kernelSet),
		"readyStatus":      readyStatus(corev1.ConditionUnknown, "worker-0001"),
		"conditionIs":      conditionIs("KernelDeadlock", corev1.ConditionTrue, "worker-0001"),
		"inRemediation":    inRemediation("worker-0001"),
		"remediationTotal": remediationTotal(1),
		"checkStatus":      checkStatus(3, 1, 1),
		"waits":            waits(triage.GateClosed, "worker-0002"),
		"railsSay":         railsSay(2, "holds 1"),
		"closedNodes":      closedNodes(2),
		"poolReady":        poolReady(shopPool, 1),
		"poolUnready":      poolUnready(batchPool),
		"nodesGone":        nodesGone("worker-0003"),
		"eventSeenTimes":   eventSeenTimes("Tainted", 1),
		"policyNodes":      policyNodes(batchPolicy, 1),
		"policyIdle":       policyIdle(batchPolicy),
	} {
		t.Run(name, func(t *testing.T) {
			if missing := expect(&full); missing != "" {
				t.Errorf("the expectation is met, and returns %q", missing)
			}
			if expect(&other) == "" {
				t.Error("the expectation is not met, and returns nothing")
			}
			if nothing := newState(); expect(&nothing) == "" && !slices.Contains([]string{"noRecords", "noPods", "nodesGone"}, name) {
				t.Error("the state is empty, and the expectation returns nothing")
			}
		})
	}
	if nothing := newState(); anyTainted(&full) != "" || anyTainted(&nothing) == "" {
		t.Error("anyTainted does not look at all nodes")
	}
}
