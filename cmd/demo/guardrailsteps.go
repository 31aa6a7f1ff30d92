package main

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/triage"
)

// defaultRails are Guardrails with all defaults.
const defaultRails = `{apiVersion: autohealer.resourcestack.com/v1alpha1, kind: Guardrails, metadata: {name: cluster}, spec: {}}`

func (s *demoCluster) failedZone(ctx context.Context) error {
	s.printer.resetClock()
	s.printer.line("user", "kubectl apply -f guardrails.yaml (kind: Guardrails, name: cluster, spec: {})")
	if _, err := s.KubectlApply(ctx, defaultRails); err != nil {
		return err
	}
	// The nodes of the zone become Unknown one after the other, on a busy machine within seconds.
	const patch = `{"spec": {"maxUnhealthy": "49%", "unhealthyConditions": [{"type": "Ready", "status": "Unknown", "duration": "8s"}]}}`
	if err := s.kubectl(ctx, "patch", "nhc", kubeletCheck, "--type=merge", "-p", patch); err != nil {
		return err
	}
	zone, before := s.nodesOfZone("zone-b"), s.remediationsSoFar()
	if err := s.killKubelets(ctx, zone...); err != nil {
		return err
	}
	if err := s.await(ctx, readyStatus(corev1.ConditionUnknown, zone...), waits(triage.CorrelatedFailed, zone...),
		railsSay(int32(len(zone)), "correlatedFailure topology.kubernetes.io/zone=zone-b"), remediationTotal(before)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "guardrails"); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "nhc", kubeletCheck, "-o", "jsonpath={.status.unhealthyNodes[0].message}"); err != nil {
		return err
	}
	if err := s.reviveKubelets(ctx, zone...); err != nil {
		return err
	}
	return s.await(ctx, readyStatus(corev1.ConditionTrue, zone...), checkStatus(workers+1, workers+1, 0), remediationTotal(before),
		railsSay(0, "nothing is held back"), podsRun(podsAfterScaling))
}

func (s *demoCluster) wrongDetector(ctx context.Context) error {
	if err := s.report(ctx, deadlocked(), workerRange(1, workers)...); err != nil {
		return err
	}
	if err := s.await(ctx, closedNodes(4), railsSay(4, "maxUnschedulable (4 of 4) holds 5")); err != nil {
		return err
	}
	return s.show(ctx, "get", "guardrails")
}

func (s *demoCluster) pause(ctx context.Context) error {
	setMode := func(mode string) error {
		return s.kubectl(ctx, "patch", "guardrails", "cluster", "--type=merge", "-p", `{"spec":{"mode":"`+mode+`"}}`)
	}
	if err := setMode("Paused"); err != nil {
		return err
	}
	if err := s.await(ctx, railsSay(4, "mode Paused: nothing new starts")); err != nil {
		return err
	}
	closed := append(s.emptied(), s.heldBack()...)
	if err := s.report(ctx, notDeadlocked(), closed[:2]...); err != nil {
		return err
	}
	if err := s.await(ctx, closedNodes(2), railsSay(2, "mode Paused")); err != nil {
		return err
	}
	if err := setMode("Enforce"); err != nil {
		return err
	}
	if err := s.await(ctx, closedNodes(4), railsSay(4, "maxUnschedulable (4 of 4) holds 3")); err != nil {
		return err
	}
	if err := s.report(ctx, notDeadlocked(), workerRange(1, workers)...); err != nil {
		return err
	}
	if err := s.await(ctx, closedNodes(0), railsSay(0, "nothing is held back"), podsRun(podsAfterScaling)); err != nil {
		return err
	}
	return install.Unlimit(ctx, s.Cluster) // the next steps show the bound of one policy
}

// closedNodes expects this number of nodes with a taint of kernelSet.
func closedNodes(want int) expectation {
	return func(s *state) string {
		closed := append(s.nodesWithTaint(kernelKey, noExecute), s.nodesWithTaint(kernelKey, noSchedule)...)
		if len(closed) == want {
			return ""
		}
		return kernelKey + " is on [" + joinNames(closed) + "]"
	}
}

// nodesOfZone returns the nodes of a zone, sorted.
func (s *demoCluster) nodesOfZone(zone string) []string {
	return ask(s.watcher, func(s *state) (names []string) {
		for name, node := range s.nodes {
			if node.Labels[corev1.LabelTopologyZone] == zone {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	})
}
