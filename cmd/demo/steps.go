package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/triage"
)

// Names and taint keys of the policies.
const (
	combinationSet = "conditionset-1"
	combinationKey = "node.stakater.com/KubeletContainerRuntimeUnhealthy"
	kernelSet      = "conditionset-2"
	kernelKey      = "node.stakater.com/KernelDeadlock"
	harmfulSetName = "out-of-disk"

	kubeletCheck = "silent-kubelet"

	noExecute  = corev1.TaintEffectNoExecute
	noSchedule = corev1.TaintEffectNoSchedule
)

// steps returns the steps in their order. Each leaves the cluster in the state that the
// next one expects.
func (s *demoCluster) steps() []step {
	return s.countEventsPerStep([]step{
		{"The kernel of one node deadlocks. The ConditionSet taints it with NoExecute: no new pods, and its pods move.", s.deadlock},
		{"The node recovers. The controller removes the taint, and the node gets pods again.", s.recovery},
		{"A storm: five nodes fail at once, then a sixth. 49% may get NoExecute, the others get NoSchedule.", s.storm},
		{"A control-plane node deadlocks too. It gets no NoExecute unless a set includes control-plane nodes.", s.controlPlaneToo},
		{"One node recovers. Its slot goes to the node that has waited longest.", s.freedSlot},
		{"The storm is over.", s.stormEnds},
		{"A user writes a harmful policy: every healthy node reports OutOfDisk=False. The webhook refuses it.", s.harmfulPolicy},
		{"A combination of two conditions: one alone changes nothing, both place the taint.", s.combination},
		{"A user adds a taint with the same key. The controller adds and removes its own taint and keeps the user's.", s.foreignTaint},
		{"So far the demo wrote the conditions. " + agentNode + " runs a real agent: one log line says that docker hangs, another that it goes on.", s.logLine},
		{"Daemons can report too: " + diskWatchSource + " from examples reports a bad block to the agent, is killed, and is started again.", s.reportingDaemon},
		{"A kubelet dies. Ready becomes Unknown, the health check waits for its duration, and a remediator restarts the node.", s.silentKubelet},
		{"Five kubelets die at once, and at most 2 nodes may be unhealthy. The controller starts no remediation.", s.silentKubelets},
		{"Three kubelets come back by themselves. The other two are within the bound and get a remediation.", s.lastSilentKubelets},
		{"A user sets the default Guardrails. A zone fails: a reboot of its nodes cannot help, so none starts.", s.failedZone},
		{"A detector is wrong on every node. All policies together close 49% of the nodes and no more.", s.wrongDetector},
		{"An operator pauses everything. Two nodes recover, and no other takes their place until the operator resumes.", s.pause},
		{"kill -9 to the controller during a storm, which continues without a leader.", s.crash},
		{"All nodes recover. No taint and no annotation of Autohealer is left.", s.clean},
	})
}

// countEventsPerStep makes every step count only its own Events.
func (s *demoCluster) countEventsPerStep(steps []step) []step {
	for i, step := range steps {
		steps[i].run = func(ctx context.Context) error {
			s.resetEvents()
			return step.run(ctx)
		}
	}
	return steps
}

func deadlocked() corev1.NodeCondition {
	return corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionTrue, Reason: "DockerHung"}
}

func notDeadlocked() corev1.NodeCondition {
	return corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse, Reason: "KernelHasNoDeadlock"}
}

// firstNode is the node of the first steps. podsAfterScaling is the number of pods after them.
const (
	firstNode        = "worker-0009"
	podsAfterScaling = pods + 4
)

func (s *demoCluster) deadlock(ctx context.Context) error {
	if err := s.report(ctx, deadlocked(), firstNode); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute, firstNode), eventSeen("Tainted", firstNode),
		noPods(firstNode), podsRun(pods), setCounts(kernelSet, 1, 1, 0))
}

func (s *demoCluster) recovery(ctx context.Context) error {
	if err := s.report(ctx, notDeadlocked(), firstNode); err != nil {
		return err
	}
	if err := s.await(ctx, tainted(kernelKey, noExecute), eventSeen("Recovered", firstNode), setCounts(kernelSet, 0, 0, 0)); err != nil {
		return err
	}
	if err := s.kubectl(ctx, "scale", "deployment", "web", "--replicas=14"); err != nil {
		return err
	}
	return s.await(ctx, podsRun(podsAfterScaling), hasPods(firstNode))
}

// sixthNode is the last node of the storm.
const sixthNode = "worker-0006"

func (s *demoCluster) storm(ctx context.Context) error {
	had, firstFive := s.podsOf(workerRange(1, 6)...), workerRange(1, 5)
	if err := s.report(ctx, deadlocked(), firstFive...); err != nil {
		return err
	}
	if err := s.await(ctx, taintCounts(4, 1), podsRun(podsAfterScaling), setCounts(kernelSet, 5, 4, 1)); err != nil {
		return err
	}
	emptied, waiting := s.emptied(), append(s.heldBack(), sixthNode)
	if err := s.report(ctx, deadlocked(), sixthNode); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute, emptied...), tainted(kernelKey, noSchedule, waiting...),
		noPods(emptied...), podsUnmoved(had, waiting...), podsRun(podsAfterScaling),
		eventSeen("Tainted", emptied...), eventSeen("FellBack", waiting...),
		setCounts(kernelSet, 6, 4, 2), heldBackMessage(kernelSet, "4 placed or under way, at most 4 of 10 selected nodes may have it"))
}

func (s *demoCluster) controlPlaneToo(ctx context.Context) error {
	emptied, waiting := s.emptied(), s.heldBack()
	if err := s.report(ctx, deadlocked(), controlPlane); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute, emptied...), tainted(kernelKey, noSchedule, append(waiting, controlPlane)...),
		eventSeen("FellBack", controlPlane), setCounts(kernelSet, 7, 4, 3))
}

func (s *demoCluster) freedSlot(ctx context.Context) error {
	emptied, waiting := s.emptied(), without(s.heldBack(), controlPlane, sixthNode)
	if len(waiting) != 1 {
		return fmt.Errorf("%v waited before %s did, want one node", waiting, sixthNode)
	}
	recovers, next := emptied[0], waiting[0]
	if err := s.report(ctx, notDeadlocked(), recovers); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute, append(emptied[1:], next)...), tainted(kernelKey, noSchedule, sixthNode, controlPlane),
		eventSeen("Recovered", recovers), eventSeen("Tainted", next), noPods(next), podsRun(podsAfterScaling), setCounts(kernelSet, 6, 4, 2))
}

func (s *demoCluster) stormEnds(ctx context.Context) error {
	unhealthy := append(s.emptied(), s.heldBack()...)
	if err := s.report(ctx, notDeadlocked(), unhealthy...); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute), tainted(kernelKey, noSchedule), eventSeen("Recovered", unhealthy...), setCounts(kernelSet, 0, 0, 0))
}

// refusal matches the API server's text before the message of the webhook.
var refusal = regexp.MustCompile(`(?s)^.*admission webhook "[^"]*" denied the request: `)

func (s *demoCluster) harmfulPolicy(ctx context.Context) error {
	s.printer.resetClock()
	s.printer.line("user", "kubectl apply -f out-of-disk.yaml (effect: NoExecute, OutOfDisk: status: false)")
	_, err := s.KubectlApply(ctx, harmfulSet)
	if err == nil {
		return errors.New("the set was accepted")
	}
	words := refusal.ReplaceAllString(err.Error(), "")
	if words == err.Error() {
		return fmt.Errorf("the webhook did not refuse the set: %w", err)
	}
	s.printer.line("API server", "refused: %s", words)
	all := workers + 1
	for _, want := range []string{fmt.Sprintf("%d of %d selected nodes", all, all), fmt.Sprintf("evict the pods of %d", all*49/100)} {
		if !strings.Contains(words, want) {
			return fmt.Errorf("the refusal does not contain %q: %s", want, words)
		}
	}
	s.printer.line("user", "kubectl apply -f out-of-disk.yaml (now with status: true)")
	if _, err := s.KubectlApply(ctx, strings.Replace(harmfulSet, "status: false", "status: true", 1)); err != nil {
		return err
	}
	if err := s.await(ctx, setAccepted(harmfulSetName), onlyTaints(map[string]string{controlPlane: controlPlaneTaint.ToString()}), podsRun(podsAfterScaling)); err != nil {
		return err
	}
	s.printer.line("nodes", "no node has a taint: no node is out of disk")
	return s.kubectl(ctx, "delete", "conditionset", harmfulSetName)
}

func (s *demoCluster) combination(ctx context.Context) error {
	node := worker(6)
	kubelet := corev1.NodeCondition{Type: "KubeletUnhealthy", Status: corev1.ConditionTrue, Reason: "NoAnswer"}
	if err := s.report(ctx, kubelet, node); err != nil {
		return err
	}
	if err := s.await(ctx, nodeListed(combinationSet, node, "Partial"), tainted(combinationKey, noExecute), setCounts(combinationSet, 0, 0, 0)); err != nil {
		return err
	}
	if err := s.report(ctx, corev1.NodeCondition{Type: "ContainerRuntimeUnhealthy", Status: corev1.ConditionUnknown, Reason: "NoAnswer"}, node); err != nil {
		return err
	}
	if err := s.await(ctx, tainted(combinationKey, noExecute, node), eventSeen("Tainted", node), noPods(node), podsRun(podsAfterScaling), setCounts(combinationSet, 1, 1, 0)); err != nil {
		return err
	}
	kubelet.Status, kubelet.Reason = corev1.ConditionFalse, "KubeletIsHealthy"
	if err := s.report(ctx, kubelet, node); err != nil {
		return err
	}
	return s.await(ctx, tainted(combinationKey, noExecute), eventSeen("Recovered", node), setCounts(combinationSet, 0, 0, 0))
}

func (s *demoCluster) foreignTaint(ctx context.Context) error {
	node, taint := worker(8), kernelKey+"=hands-off:NoSchedule"
	if err := s.kubectl(ctx, "taint", "node", node, taint); err != nil {
		return err
	}
	if err := s.report(ctx, deadlocked(), node); err != nil {
		return err
	}
	if err := s.await(ctx, tainted(kernelKey, noExecute, node), eventSeen("Tainted", node), noPods(node), podsRun(podsAfterScaling), setCounts(kernelSet, 1, 1, 0)); err != nil {
		return err
	}
	if err := s.report(ctx, notDeadlocked(), node); err != nil {
		return err
	}
	if err := s.await(ctx, onlyTaints(map[string]string{node: taint, controlPlane: controlPlaneTaint.ToString()}),
		eventSeen("Recovered", node), setCounts(kernelSet, 0, 0, 0)); err != nil {
		return err
	}
	return s.kubectl(ctx, "taint", "node", node, taint+"-")
}

func (s *demoCluster) logLine(ctx context.Context) error {
	if err := s.writeKernelLine(hangLine); err != nil {
		return err
	}
	if err := s.await(ctx, conditionIs(deadlocked().Type, corev1.ConditionTrue, agentNode), tainted(kernelKey, noExecute, agentNode),
		eventSeen(hangReason, agentNode), eventSeen("Tainted", agentNode), noPods(agentNode), podsRun(podsAfterScaling), setCounts(kernelSet, 1, 1, 0)); err != nil {
		return err
	}
	if err := s.writeKernelLine(resumeLine); err != nil {
		return err
	}
	return s.await(ctx, conditionIs(notDeadlocked().Type, corev1.ConditionFalse, agentNode), tainted(kernelKey, noExecute),
		eventSeen(notDeadlocked().Reason, agentNode), eventSeen("Recovered", agentNode), setCounts(kernelSet, 0, 0, 0))
}

// silentNode is the node whose kubelet dies first.
const silentNode = "worker-0003"

func (s *demoCluster) silentKubelet(ctx context.Context) error {
	begin := s.remediator.hold() // leaves time to show the remediation
	defer begin()
	if err := s.killKubelets(ctx, silentNode); err != nil {
		return err
	}
	if err := s.await(ctx, readyStatus(corev1.ConditionUnknown, silentNode), inRemediation(silentNode), checkStatus(workers+1, workers, 1),
		eventSeen("DetectedUnhealthy", silentNode), eventSeen("RemediationCreated", silentNode)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "nhc"); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "exampleremediation", silentNode, "-o", "yaml"); err != nil {
		return err
	}
	s.printer.resetClock()
	begin()
	if err := s.await(ctx, readyStatus(corev1.ConditionTrue, silentNode), inRemediation(), checkStatus(workers+1, workers+1, 0),
		eventSeen("RemediationRemoved", silentNode)); err != nil {
		return err
	}
	return s.show(ctx, "events", "--for", "nhc/"+kubeletCheck)
}

func (s *demoCluster) silentKubelets(ctx context.Context) error {
	dead, before := workerRange(1, 5), s.remediationsSoFar()
	if err := s.killKubelets(ctx, dead...); err != nil {
		return err
	}
	if err := s.await(ctx, readyStatus(corev1.ConditionUnknown, dead...), waits(triage.GateClosed, dead...), remediationTotal(before),
		eventSeen("DetectedUnhealthy", dead...), eventSeen("RemediationSkipped", kubeletCheck), checkStatus(workers+1, workers+1-len(dead), 0)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "nhc"); err != nil {
		return err
	}
	return s.show(ctx, "get", "nhc", kubeletCheck, "-o", "jsonpath={.status.unhealthyNodes[0].message}")
}

func (s *demoCluster) lastSilentKubelets(ctx context.Context) error {
	dead, before := workerRange(1, 5), s.remediationsSoFar()
	back, left := dead[:3], dead[3:]
	if err := s.reviveKubelets(ctx, back...); err != nil {
		return err
	}
	return s.await(ctx, eventSeen("RemediationCreated", left...), eventSeen("RemediationRemoved", left...), remediationTotal(before+len(left)), inRemediation(),
		readyStatus(corev1.ConditionTrue, dead...), checkStatus(workers+1, workers+1, 0),
		onlyTaints(map[string]string{controlPlane: controlPlaneTaint.ToString()}), podsRun(podsAfterScaling))
}

func (s *demoCluster) crash(ctx context.Context) error {
	before, after := workerRange(4, 6), workerRange(1, 3)
	if err := s.report(ctx, deadlocked(), before...); err != nil {
		return err
	}
	if err := s.await(ctx, anyTainted); err != nil {
		return err
	}
	if err := s.controller.Kill(); err != nil {
		return err
	}
	s.printer.line("controller", "killed, with %d of %d nodes tainted", len(s.emptied()), len(before))
	if err := s.report(ctx, deadlocked(), after...); err != nil {
		return err
	}
	s.printer.line("controller", "started again; the Lease of the killed controller must expire first")
	if err := s.controller.Restart(ctx); err != nil {
		return err
	}
	if err := s.await(ctx, taintCounts(4, 2), setCounts(kernelSet, 6, 4, 2)); err != nil {
		return err
	}
	return s.await(ctx, noPods(s.emptied()...), podsRun(podsAfterScaling), eventSeen("FellBack", s.heldBack()...))
}

func (s *demoCluster) clean(ctx context.Context) error {
	unhealthy := append(s.emptied(), s.heldBack()...)
	if err := s.report(ctx, notDeadlocked(), unhealthy...); err != nil {
		return err
	}
	return s.await(ctx, onlyTaints(map[string]string{controlPlane: controlPlaneTaint.ToString()}), noRecords, podsRun(podsAfterScaling),
		eventSeen("Recovered", unhealthy...), setCounts(kernelSet, 0, 0, 0), setCounts(combinationSet, 0, 0, 0),
		inRemediation(), checkStatus(workers+1, workers+1, 0))
}

// emptied and heldBack return the nodes with the taint of kernelSet: with NoExecute, and
// with NoSchedule.
func (s *demoCluster) emptied() []string  { return s.nodesWithEffect(noExecute) }
func (s *demoCluster) heldBack() []string { return s.nodesWithEffect(noSchedule) }

func (s *demoCluster) nodesWithEffect(effect corev1.TaintEffect) []string {
	return ask(s.watcher, func(s *state) []string { return s.nodesWithTaint(kernelKey, effect) })
}

// remediationsSoFar returns how many remediations were created.
func (s *demoCluster) remediationsSoFar() int {
	return ask(s.watcher, func(s *state) int { return s.remediationCount })
}

// podsOf returns the current pods of nodes.
func (s *demoCluster) podsOf(nodes ...string) map[string][]types.UID {
	return ask(s.watcher, func(s *state) map[string][]types.UID {
		had := map[string][]types.UID{}
		for _, node := range nodes {
			had[node] = slices.Clone(s.podsOn(node))
		}
		return had
	})
}
