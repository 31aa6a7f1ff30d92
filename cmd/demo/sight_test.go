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

func leaving(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.DeletionTimestamp = &metav1.Time{}
	return pod
}

func webDeployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
}

func TestTaintChanges(t *testing.T) {
	execute, schedule := kernelTaint(noExecute), kernelTaint(noSchedule)
	theirs := corev1.Taint{Key: kernelKey, Value: "hands-off", Effect: noSchedule}
	for _, c := range []struct {
		name    string
		was, is []corev1.Taint
		want    []string
	}{
		{"nothing", []corev1.Taint{execute}, []corev1.Taint{execute}, nil},
		{"comes", nil, []corev1.Taint{execute}, []string{"taint " + kernelKey + ":NoExecute"}},
		{"goes", []corev1.Taint{execute}, nil, []string{"taint " + kernelKey + ":NoExecute is gone"}},
		{"grows_stronger", []corev1.Taint{schedule}, []corev1.Taint{execute}, []string{"taint " + kernelKey + ":NoExecute, was NoSchedule"}},
		{"comes_beside_one_of_others", []corev1.Taint{theirs}, []corev1.Taint{theirs, execute}, []string{"taint " + kernelKey + ":NoExecute"}},
		{"takes_the_place_of_one_of_others", []corev1.Taint{theirs}, []corev1.Taint{schedule},
			[]string{"taint " + kernelKey + ":NoSchedule", "taint " + kernelKey + "=hands-off:NoSchedule is gone"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, taintChanges(c.was, c.is)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMovesAreToldWhenAllPodsHaveArrived(t *testing.T) {
	s := newSight()
	update(s.deployments, nil, webDeployment(2))
	first, second := podOn("first", "worker-0001", corev1.PodRunning), podOn("second", "worker-0002", corev1.PodRunning)
	s.setPod(nil, first)
	if moves := s.takeMoves(); moves != "" {
		t.Errorf("one of two pods runs, and %q is told", moves)
	}
	s.setPod(nil, second)
	if want, moves := "2 started on worker-0001 and worker-0002", s.takeMoves(); moves != want {
		t.Errorf("told %q, want %q", moves, want)
	}
	s.setPod(first, leaving(first))
	third := podOn("third", "worker-0002", corev1.PodPending)
	s.setPod(nil, third)
	s.setPod(third, podOn("third", "worker-0002", corev1.PodRunning))
	if moves := s.takeMoves(); moves != "" {
		t.Errorf("a pod is on its way out, and %q is told", moves)
	}
	s.setPod(leaving(first), nil)
	if want, moves := "1 left worker-0001, 1 started on worker-0002", s.takeMoves(); moves != want {
		t.Errorf("told %q, want %q", moves, want)
	}
	if moves := s.takeMoves(); moves != "" {
		t.Errorf("%q is told twice", moves)
	}
}

func TestTheRemediatorIsAskedOnceForEveryObject(t *testing.T) {
	s, first := newSight(), remediationOf("worker-0001")
	s.setRemediation(nil, first)
	s.setRemediation(first, first)
	s.setRemediation(nil, remediationOf("worker-0002"))
	if s.asks != 2 || !slices.Equal(s.inTreatment(), []string{"worker-0001", "worker-0002"}) {
		t.Errorf("it was asked %d times, and about %v", s.asks, s.inTreatment())
	}
	s.setRemediation(first, nil)
	if s.asks != 2 || !slices.Equal(s.inTreatment(), []string{"worker-0002"}) {
		t.Errorf("one is gone; it was asked %d times, and about %v", s.asks, s.inTreatment())
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
			t.Errorf("it is told %q, want %q", got, want)
		}
	}
}

func TestABoundThatIsExceededForAMomentIsNotForgiven(t *testing.T) {
	o := &onlooker{tell: newTeller(&strings.Builder{}), sight: newSight(), changed: make(chan struct{})}
	o.seeSet(nil, kernelPolicy(v1alpha1.ConditionSetStatus{MaxTainted: new(int32(1))}))
	healthy, sick := taintedNode("worker-0002"), taintedNode("worker-0002", kernelTaint(noExecute))
	o.seeNode(nil, taintedNode("worker-0001", kernelTaint(noExecute)))
	o.seeNode(nil, healthy)
	if err := o.await(t.Context()); err != nil {
		t.Errorf("one node of one is tainted: %v", err)
	}
	o.seeNode(healthy, sick)
	o.seeNode(sick, healthy)
	if err := o.await(t.Context()); err == nil || !strings.Contains(err.Error(), "2 nodes carry the NoExecute taint of ConditionSet conditionset-2 at once, at most 1 may") {
		t.Errorf("two nodes were tainted where one may be: %v", err)
	}
}

func TestAwaitSaysEverythingThatIsMissing(t *testing.T) {
	o := &onlooker{tell: newTeller(&strings.Builder{}), sight: newSight(), changed: make(chan struct{})}
	o.seeNode(nil, taintedNode("worker-0001", kernelTaint(noSchedule)))
	late := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(late)
	err := o.await(ctx, tainted(kernelKey, noSchedule, "worker-0001"), tainted(kernelKey, noExecute, "worker-0001"), told("Tainted", "worker-0001"))
	if !errors.Is(err, late) {
		t.Fatalf("error is %v, want that it was %v", err, late)
	}
	if want := "taint " + kernelKey + ":NoExecute is on [], want it on [worker-0001]; no Event has said Tainted of worker-0001: too late"; err.Error() != want {
		t.Errorf("error is %s\nwant %s", err, want)
	}
}

// Every look must be able to miss what it looks for.
func TestEveryLookCanMiss(t *testing.T) {
	full := newSight()
	update(full.nodes, nil, taintedNode("worker-0001", kernelTaint(noExecute)))
	update(full.nodes, nil, taintedNode("worker-0002", kernelTaint(noSchedule)))
	update(full.deployments, nil, webDeployment(1))
	full.setPod(nil, podOn("pod", "worker-0002", corev1.PodRunning))
	full.words[word{"worker-0001", "Tainted"}]++
	update(full.sets, nil, kernelPolicy(v1alpha1.ConditionSetStatus{
		Matched: 2, Tainted: 1, HeldBack: 1,
		Nodes: []v1alpha1.MatchedNode{{Name: "worker-0001", Reason: "Tainted"}},
		Conditions: []metav1.Condition{
			{Type: v1alpha1.Accepted, Status: metav1.ConditionTrue},
			{Type: v1alpha1.HeldBack, Status: metav1.ConditionTrue, Message: "at most 1 may"},
		},
	}))
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

	other := newSight()
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

	for name, l := range map[string]look{
		"tainted":    tainted(kernelKey, noExecute, "worker-0001"),
		"stormed":    stormed(1, 1),
		"onlyTaints": onlyTaints(map[string]string{"worker-0001": kernelKey + ":NoExecute", "worker-0002": kernelKey + ":NoSchedule"}),
		"noRecords":  noRecords,
		"podsRun":    podsRun(1),
		"empty":      empty("worker-0001"),
		"busy":       busy("worker-0002"),
		"unmoved":    unmoved(had, "worker-0002"),
		"told":       told("Tainted", "worker-0001"),
		"counted":    counted(kernelSet, 2, 1, 1),
		"explained":  explained(kernelSet, "at most 1 may"),
		"listed":     listed(kernelSet, "worker-0001", "Tainted"),
		"followed":   followed(kernelSet),
		"heard":      heard(corev1.ConditionUnknown, "worker-0001"),
		"reported":   reported("KernelDeadlock", corev1.ConditionTrue, "worker-0001"),
		"treated":    treated("worker-0001"),
		"askedInAll": askedInAll(1),
		"checked":    checked(3, 1, 1),
		"held":       held("worker-0002"),
		"staffed":    staffed(shopPool, 1),
		"unready":    unready(batchPool),
		"away":       away("worker-0003"),
		"toldOf":     toldOf("Tainted", 1),
		"governed":   governed(batchPolicy, 1),
		"calm":       calm(batchPolicy),
	} {
		t.Run(name, func(t *testing.T) {
			if missing := l(&full); missing != "" {
				t.Errorf("it is there, and the look says: %s", missing)
			}
			if l(&other) == "" {
				t.Error("it is not there, and the look does not say so")
			}
			if nothing := newSight(); l(&nothing) == "" && !slices.Contains([]string{"noRecords", "empty", "away"}, name) {
				t.Error("nothing is there, and the look does not say so")
			}
		})
	}
	if nothing := newSight(); begun(&full) != "" || begun(&nothing) == "" {
		t.Error("begun looks for any node")
	}
}
