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
)

// The policies, by what the story needs of them.
const (
	pairSet   = "conditionset-1"
	pairKey   = "node.stakater.com/KubeletContainerRuntimeUnhealthy"
	kernelSet = "conditionset-2"
	kernelKey = "node.stakater.com/KernelDeadlock"
	trapSet   = "out-of-disk"

	kubeletCheck = "silent-kubelet"

	noExecute  = corev1.TaintEffectNoExecute
	noSchedule = corev1.TaintEffectNoSchedule
)

// story is the scenes in their order. Each leaves the cluster as the next one
// expects it.
func (s *stage) story() []scene {
	return s.eachAnew([]scene{
		{"The kernel of one node deadlocks. The set says NoExecute: no new work, and what runs there moves.", s.deadlock},
		{"The node recovers: the taint goes, and it takes work again.", s.recovery},
		{"A storm: five nodes at once, then a sixth. 49% may be emptied, the others only get no new work.", s.storm},
		{"The control plane deadlocks too. It is never emptied, unless a set asks for control-plane nodes.", s.controlPlaneToo},
		{"One node recovers. Its place goes to the one that has waited longest.", s.succession},
		{"The storm is over.", s.calm},
		{"Somebody writes a policy that would hurt: OutOfDisk=False is what every healthy node says. It never gets in.", s.trap},
		{"A combination: one of its two conditions alone does nothing, both do.", s.pair},
		{"Somebody has put up a taint with the same key. Ours comes and goes, theirs stays.", s.foreign},
		{"So far the demo has played the agents. " + probed + " has a real one: a line of its log says that docker hangs, another that it goes on.", s.logLine},
		{"Others may report too: " + diskWatchSource + ", a daemon of examples, tells that agent of a bad block, is killed, and comes back.", s.daemon},
		{"A kubelet dies. Kubernetes misses it, the health check waits whether it comes back, and then has the node started anew.", s.silentKubelet},
		{"Five kubelets die at once. The fault is hardly in the nodes, and at most 2 may be sick: nothing is begun.", s.silentKubelets},
		{"Three of them are heard again by themselves. The two that are left are within the bound, and are helped.", s.lastSilentKubelets},
		{"kill -9 to the controller in the middle of a storm, which goes on while nobody leads.", s.crash},
		{"All is well again: nothing is left on any node.", s.clean},
	})
}

// eachAnew has every scene count only the Events of its own.
func (s *stage) eachAnew(scenes []scene) []scene {
	for i, scene := range scenes {
		scenes[i].play = func(ctx context.Context) error {
			s.forgetWords()
			return scene.play(ctx)
		}
	}
	return scenes
}

func deadlocked() corev1.NodeCondition {
	return corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionTrue, Reason: "DockerHung"}
}

func alive() corev1.NodeCondition {
	return corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse, Reason: "KernelHasNoDeadlock"}
}

// lone is the node of the first scenes, and grown what the workloads have after
// them.
const (
	lone  = "worker-0009"
	grown = pods + 4
)

func (s *stage) deadlock(ctx context.Context) error {
	if err := s.report(ctx, deadlocked(), lone); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute, lone), told("Tainted", lone),
		empty(lone), podsRun(pods), counted(kernelSet, 1, 1, 0))
}

func (s *stage) recovery(ctx context.Context) error {
	if err := s.report(ctx, alive(), lone); err != nil {
		return err
	}
	if err := s.await(ctx, tainted(kernelKey, noExecute), told("Recovered", lone), counted(kernelSet, 0, 0, 0)); err != nil {
		return err
	}
	if err := s.kubectl(ctx, "scale", "deployment", "web", "--replicas=14"); err != nil {
		return err
	}
	return s.await(ctx, podsRun(grown), busy(lone))
}

// sixth is the last node of the storm.
const sixth = "worker-0006"

func (s *stage) storm(ctx context.Context) error {
	had, firstFive := s.podsOf(workerRange(1, 6)...), workerRange(1, 5)
	if err := s.report(ctx, deadlocked(), firstFive...); err != nil {
		return err
	}
	if err := s.await(ctx, stormed(4, 1), podsRun(grown), counted(kernelSet, 5, 4, 1)); err != nil {
		return err
	}
	emptied, waiting := s.emptied(), append(s.heldBack(), sixth)
	if err := s.report(ctx, deadlocked(), sixth); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute, emptied...), tainted(kernelKey, noSchedule, waiting...),
		empty(emptied...), unmoved(had, waiting...), podsRun(grown),
		told("Tainted", emptied...), told("FellBack", waiting...),
		counted(kernelSet, 6, 4, 2), explained(kernelSet, "4 placed or under way, at most 4 of 10 selected nodes may have it"))
}

func (s *stage) controlPlaneToo(ctx context.Context) error {
	emptied, waiting := s.emptied(), s.heldBack()
	if err := s.report(ctx, deadlocked(), controlPlane); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute, emptied...), tainted(kernelKey, noSchedule, append(waiting, controlPlane)...),
		told("FellBack", controlPlane), counted(kernelSet, 7, 4, 3))
}

func (s *stage) succession(ctx context.Context) error {
	emptied, waiting := s.emptied(), without(s.heldBack(), controlPlane, sixth)
	if len(waiting) != 1 {
		return fmt.Errorf("%v waited before %s did, want one", waiting, sixth)
	}
	recovers, next := emptied[0], waiting[0]
	if err := s.report(ctx, alive(), recovers); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute, append(emptied[1:], next)...), tainted(kernelKey, noSchedule, sixth, controlPlane),
		told("Recovered", recovers), told("Tainted", next), empty(next), podsRun(grown), counted(kernelSet, 6, 4, 2))
}

func (s *stage) calm(ctx context.Context) error {
	sick := append(s.emptied(), s.heldBack()...)
	if err := s.report(ctx, alive(), sick...); err != nil {
		return err
	}
	return s.await(ctx, tainted(kernelKey, noExecute), tainted(kernelKey, noSchedule), told("Recovered", sick...), counted(kernelSet, 0, 0, 0))
}

// refusal is what the API server says before the webhook's own words.
var refusal = regexp.MustCompile(`(?s)^.*admission webhook "[^"]*" denied the request: `)

func (s *stage) trap(ctx context.Context) error {
	s.tell.begin()
	s.tell.line("somebody", "kubectl apply -f out-of-disk.yaml (effect: NoExecute, OutOfDisk: status: false)")
	_, err := s.KubectlApply(ctx, trap)
	if err == nil {
		return errors.New("the set was accepted")
	}
	words := refusal.ReplaceAllString(err.Error(), "")
	if words == err.Error() {
		return fmt.Errorf("the webhook did not refuse the set: %w", err)
	}
	s.tell.line("API server", "refused: %s", words)
	all := workers + 1
	for _, want := range []string{fmt.Sprintf("%d of %d selected nodes", all, all), fmt.Sprintf("evict the pods of %d", all*49/100)} {
		if !strings.Contains(words, want) {
			return fmt.Errorf("the refusal does not tell of %q: %s", want, words)
		}
	}
	s.tell.line("somebody", "kubectl apply -f out-of-disk.yaml (now with status: true)")
	if _, err := s.KubectlApply(ctx, strings.Replace(trap, "status: false", "status: true", 1)); err != nil {
		return err
	}
	if err := s.await(ctx, followed(trapSet), onlyTaints(map[string]string{controlPlane: controlPlaneTaint.ToString()}), podsRun(grown)); err != nil {
		return err
	}
	s.tell.line("nodes", "not one has a taint: none is out of disk")
	return s.kubectl(ctx, "delete", "conditionset", trapSet)
}

func (s *stage) pair(ctx context.Context) error {
	node := worker(6)
	kubelet := corev1.NodeCondition{Type: "KubeletUnhealthy", Status: corev1.ConditionTrue, Reason: "NoAnswer"}
	if err := s.report(ctx, kubelet, node); err != nil {
		return err
	}
	if err := s.await(ctx, listed(pairSet, node, "Partial"), tainted(pairKey, noExecute), counted(pairSet, 0, 0, 0)); err != nil {
		return err
	}
	if err := s.report(ctx, corev1.NodeCondition{Type: "ContainerRuntimeUnhealthy", Status: corev1.ConditionUnknown, Reason: "NoAnswer"}, node); err != nil {
		return err
	}
	if err := s.await(ctx, tainted(pairKey, noExecute, node), told("Tainted", node), empty(node), podsRun(grown), counted(pairSet, 1, 1, 0)); err != nil {
		return err
	}
	kubelet.Status, kubelet.Reason = corev1.ConditionFalse, "KubeletIsHealthy"
	if err := s.report(ctx, kubelet, node); err != nil {
		return err
	}
	return s.await(ctx, tainted(pairKey, noExecute), told("Recovered", node), counted(pairSet, 0, 0, 0))
}

func (s *stage) foreign(ctx context.Context) error {
	node, taint := worker(8), kernelKey+"=hands-off:NoSchedule"
	if err := s.kubectl(ctx, "taint", "node", node, taint); err != nil {
		return err
	}
	if err := s.report(ctx, deadlocked(), node); err != nil {
		return err
	}
	if err := s.await(ctx, tainted(kernelKey, noExecute, node), told("Tainted", node), empty(node), podsRun(grown), counted(kernelSet, 1, 1, 0)); err != nil {
		return err
	}
	if err := s.report(ctx, alive(), node); err != nil {
		return err
	}
	if err := s.await(ctx, onlyTaints(map[string]string{node: taint, controlPlane: controlPlaneTaint.ToString()}),
		told("Recovered", node), counted(kernelSet, 0, 0, 0)); err != nil {
		return err
	}
	return s.kubectl(ctx, "taint", "node", node, taint+"-")
}

func (s *stage) logLine(ctx context.Context) error {
	if err := s.kernelSays(hung); err != nil {
		return err
	}
	if err := s.await(ctx, reported(deadlocked().Type, corev1.ConditionTrue, probed), tainted(kernelKey, noExecute, probed),
		told(hungReason, probed), told("Tainted", probed), empty(probed), podsRun(grown), counted(kernelSet, 1, 1, 0)); err != nil {
		return err
	}
	if err := s.kernelSays(goesOn); err != nil {
		return err
	}
	return s.await(ctx, reported(alive().Type, corev1.ConditionFalse, probed), tainted(kernelKey, noExecute),
		told(alive().Reason, probed), told("Recovered", probed), counted(kernelSet, 0, 0, 0))
}

// quiet is the node whose kubelet dies alone.
const quiet = "worker-0003"

func (s *stage) silentKubelet(ctx context.Context) error {
	begin := s.remediator.hold() // so that there is time to look at what it is asked
	defer begin()
	if err := s.silence(ctx, quiet); err != nil {
		return err
	}
	if err := s.await(ctx, heard(corev1.ConditionUnknown, quiet), treated(quiet), checked(workers+1, workers, 1),
		told("DetectedUnhealthy", quiet), told("RemediationCreated", quiet)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "nhc"); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "exampleremediation", quiet, "-o", "yaml"); err != nil {
		return err
	}
	s.tell.begin()
	begin()
	if err := s.await(ctx, heard(corev1.ConditionTrue, quiet), treated(), checked(workers+1, workers+1, 0),
		told("RemediationRemoved", quiet)); err != nil {
		return err
	}
	return s.show(ctx, "events", "--for", "nhc/"+kubeletCheck)
}

func (s *stage) silentKubelets(ctx context.Context) error {
	dead, before := workerRange(1, 5), s.asked()
	if err := s.silence(ctx, dead...); err != nil {
		return err
	}
	if err := s.await(ctx, heard(corev1.ConditionUnknown, dead...), held(dead...), askedInAll(before),
		told("DetectedUnhealthy", dead...), told("RemediationSkipped", kubeletCheck), checked(workers+1, workers+1-len(dead), 0)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "nhc"); err != nil {
		return err
	}
	return s.show(ctx, "get", "nhc", kubeletCheck, "-o", "jsonpath={.status.unhealthyNodes[0].message}")
}

func (s *stage) lastSilentKubelets(ctx context.Context) error {
	dead, before := workerRange(1, 5), s.asked()
	back, left := dead[:3], dead[3:]
	if err := s.wake(ctx, back...); err != nil {
		return err
	}
	return s.await(ctx, told("RemediationCreated", left...), told("RemediationRemoved", left...), askedInAll(before+len(left)), treated(),
		heard(corev1.ConditionTrue, dead...), checked(workers+1, workers+1, 0),
		onlyTaints(map[string]string{controlPlane: controlPlaneTaint.ToString()}), podsRun(grown))
}

func (s *stage) crash(ctx context.Context) error {
	before, after := workerRange(4, 6), workerRange(1, 3)
	if err := s.report(ctx, deadlocked(), before...); err != nil {
		return err
	}
	if err := s.await(ctx, begun); err != nil {
		return err
	}
	if err := s.controller.Kill(); err != nil {
		return err
	}
	s.tell.line("controller", "killed, with %d of %d nodes tainted", len(s.emptied()), len(before))
	if err := s.report(ctx, deadlocked(), after...); err != nil {
		return err
	}
	s.tell.line("controller", "started again; the lease of the one before has to run out")
	if err := s.controller.Restart(ctx); err != nil {
		return err
	}
	if err := s.await(ctx, stormed(4, 2), counted(kernelSet, 6, 4, 2)); err != nil {
		return err
	}
	return s.await(ctx, empty(s.emptied()...), podsRun(grown), told("FellBack", s.heldBack()...))
}

func (s *stage) clean(ctx context.Context) error {
	sick := append(s.emptied(), s.heldBack()...)
	if err := s.report(ctx, alive(), sick...); err != nil {
		return err
	}
	return s.await(ctx, onlyTaints(map[string]string{controlPlane: controlPlaneTaint.ToString()}), noRecords, podsRun(grown),
		told("Recovered", sick...), counted(kernelSet, 0, 0, 0), counted(pairSet, 0, 0, 0),
		treated(), checked(workers+1, workers+1, 0))
}

// emptied and heldBack are the nodes that have the kernel set's taint with its
// own effect, and with the weaker one.
func (s *stage) emptied() []string  { return s.carrying(noExecute) }
func (s *stage) heldBack() []string { return s.carrying(noSchedule) }

func (s *stage) carrying(effect corev1.TaintEffect) []string {
	return ask(s.onlooker, func(s *sight) []string { return s.carriers(kernelKey, effect) })
}

// asked counts how often the remediator was asked.
func (s *stage) asked() int { return ask(s.onlooker, func(s *sight) int { return s.asks }) }

// podsOf returns the pods of nodes as they are now.
func (s *stage) podsOf(nodes ...string) map[string][]types.UID {
	return ask(s.onlooker, func(s *sight) map[string][]types.UID {
		had := map[string][]types.UID{}
		for _, node := range nodes {
			had[node] = slices.Clone(s.podsOn(node))
		}
		return had
	})
}
