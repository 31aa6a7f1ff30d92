package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func poolNode(name, pool string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpenter.NodePoolLabel: pool}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func poolClaim(name, pool string) *karpenter.NodeClaim {
	return &karpenter.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpenter.NodePoolLabel: pool}}}
}

func repairPolicy(status v1alpha1.RepairPolicyStatus) *v1alpha1.RepairPolicy {
	return &v1alpha1.RepairPolicy{ObjectMeta: metav1.ObjectMeta{Name: batchPolicy}, Status: status}
}

// With Karpenter the demo has other steps and other commands for the interactive mode.
func TestDemoRunsAllPoolStepsAndStaysInteractive(t *testing.T) {
	folder := tempFolder(t)
	var s *demoCluster
	ctx, out, interrupt := startDemo(t, demo{karpenter: true, steps: func(built *demoCluster) []step { s = built; return s.poolSteps() }})
	out.await(ctx, t, "stays until Ctrl-C", "Disable the repair of this NodePool")
	steps, invitation, _ := strings.Cut(out.take(), "The cluster stays")
	checkOutput(t, steps,
		"kwok and Karpenter", "24 pods run after", "6 started on shop-",
		`{"conditionStatus":"True","conditionType":"ReadonlyFilesystem","toleration":"6s"}`,
		"NodeRepairPending: ReadonlyFilesystem=True", "by spec.repair of NodePool shop: the node is repaired at",
		"is being deleted, its pods have no time left", "NodeRepair: Deleting NodeClaim shop-", "2 left shop-", "shop 6/6 6 6", "Warning NodeRepair NodePool/shop",
		"batch-nodes batch Enforce 1 0 0 0 True", "NodeReadyTimeoutRecovery: Node failed to become ready within 10s, triggering recovery", "2 started on batch-",
		"Warning NodeReadyTimeoutRecovery RepairPolicy/batch-nodes",
		"NodePoolHeld: NodePool render is held: 3 nodes in a row have not become ready",
		"NodeRepairBlocked: readyTimeout of NodePool render: Ready=False", "8 started on render-",
		"4 steps in",
	)
	if t.Failed() {
		return
	}

	// Run a printed command in a shell, as a user would.
	command := exec.CommandContext(ctx, "sh", "-c", breakShopNode())
	if !strings.Contains(invitation, "  "+breakShopNode()+"\n") {
		t.Fatalf("the output does not contain the command %s:\n%s", breakShopNode(), invitation)
	}
	programs, err := filepath.Abs("../../bin/testbed")
	testkit.Must(t, err)
	command.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(), "PATH="+programs+":"+os.Getenv("PATH"))
	if printed, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	out.await(ctx, t, "ReadonlyFilesystem=True", "NodeRepair: Deleting NodeClaim shop-", "is gone", "2 left shop-")

	testkit.Must(t, syscall.Kill(s.karpenter.PID(), syscall.SIGKILL))
	out.await(ctx, t, "The Karpenter exited and is restarted.")

	checkAllGone := s.recordProcesses(t, folder)
	interrupt()
	checkAllGone()
}

func TestDisplayNameOfKarpenterNodesIsTheClaim(t *testing.T) {
	for node, want := range map[string]string{
		"kwok-shop-49gmp-flyrust-3-5vasnuq14e-1224833089": "shop-49gmp",
		"worker-0001": "worker-0001",
		"kwok-shop":   "kwok-shop",
	} {
		if got := displayName(node); got != want {
			t.Errorf("display name of %s is %s, want %s", node, got, want)
		}
	}
}

func TestHealthyNodesDoNotChangePolicyCounts(t *testing.T) {
	set := func(selected, matched, bound int32) *v1alpha1.ConditionSet {
		return kernelPolicy(v1alpha1.ConditionSetStatus{Selected: selected, Matched: matched, MaxTainted: &bound})
	}
	for _, c := range []struct {
		name    string
		was, is *v1alpha1.ConditionSet
		want    bool
	}{
		{"nothing", set(10, 1, 4), set(10, 1, 4), false},
		{"another_healthy_node", set(10, 1, 4), set(11, 1, 5), false},
		{"another_match", set(10, 1, 4), set(10, 2, 4), true},
		{"another_unhealthy_node", set(10, 1, 4), set(11, 2, 5), true},
		{"another_bound", set(10, 1, 4), set(10, 1, 1), true},
	} {
		t.Run("set_"+c.name, func(t *testing.T) {
			if got := countsChanged(c.was, c.is); got != c.want {
				t.Errorf("countsChanged is %t, want %t", got, c.want)
			}
		})
	}

	var out strings.Builder
	w := &watcher{printer: newPrinter(&out), state: newState(), changed: make(chan struct{})}
	w.printer.startStep("A step.")
	check := func(observed, healthy int) *remediationv1alpha1.NodeHealthCheck {
		return kubeletPolicy(remediationv1alpha1.NodeHealthCheckStatus{
			ObservedNodes: &observed, HealthyNodes: &healthy, InTreatment: new(0), Phase: remediationv1alpha1.PhaseEnabled,
		})
	}
	w.seeCheck(check(10, 10), check(11, 11))
	if strings.Contains(out.String(), kubeletCheck) {
		t.Errorf("the output contains a new healthy node:\n%s", out.String())
	}
	w.seeCheck(check(11, 11), check(12, 11))
	if !strings.Contains(out.String(), "11 of 12 nodes healthy") {
		t.Errorf("the output does not contain a new unhealthy node:\n%s", out.String())
	}
}

func TestClaimChangesArePrinted(t *testing.T) {
	var out strings.Builder
	w := &watcher{printer: newPrinter(&out), state: newState(), changed: make(chan struct{})}
	w.printer.startStep("A step.")
	claim := poolClaim("shop-49gmp", shopPool)
	w.seeClaim(nil, claim)
	ending := claim.DeepCopy()
	ending.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 11, 15, 6, 1, 36, 0, time.UTC)}
	w.seeClaim(claim, ending)
	w.seeClaim(ending, ending)
	w.seeClaim(ending, nil)
	checkOutput(t, out.String(), "shop NodeClaim shop-49gmp was created", "NodeClaim shop-49gmp is being deleted", "NodeClaim shop-49gmp is gone")
	if got := strings.Count(out.String(), "NodeClaim"); got != 3 || len(w.state.claims) != 0 {
		t.Errorf("%d lines, and %d claims are left:\n%s", got, len(w.state.claims), out.String())
	}
	for at, want := range map[string]string{
		"":                     "",
		"2026-11-15T06:01:35Z": ", its pods have no time left",
		"2026-11-15T06:01:36Z": ", its pods have no time left",
		"2026-11-15T07:01:36Z": ", its pods have time until 2026-11-15T07:01:36Z",
	} {
		ending.Annotations = map[string]string{karpenter.TerminationTimestampAnnotation: at}
		if got := deadline(ending); got != want {
			t.Errorf("with the deadline %s the text is %q, want %q", at, got, want)
		}
	}
}
