package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
)

const (
	workers      = 9
	controlPlane = "control-0001"

	// pods is the initial number of pods of the workloads.
	pods = 24

	// missedAfter is how long a kubelet may be silent before its node becomes Unknown.
	missedAfter = 6 * time.Second
)

// conditionSets are the ConditionSets of the first design of Autohealer, unchanged.
//
//go:embed conditionsets.yaml
var conditionSets string

//go:embed workloads.yaml
var workloads string

// healthCheck has a shorter duration than a health check in production should have, so that
// the demo does not wait for five minutes.
//
//go:embed healthcheck.yaml
var healthCheck string

// harmfulSet is the mistake that the same design warns of.
//
//go:embed out-of-disk.yaml
var harmfulSet string

// enoughDisk is a condition that every healthy node of the demo reports.
var enoughDisk = corev1.NodeCondition{Type: "OutOfDisk", Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientDisk"}

// controlPlaneTaint keeps workloads off the control plane, as in most clusters.
var controlPlaneTaint = corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}

// demoCluster is the cluster of the demo, with Autohealer installed.
type demoCluster struct {
	*testbed.Cluster
	controller *install.Controller
	agent      *install.Agent
	kernelLog  kernelLog
	diskWatch  *testbed.Part
	badBlocks  badBlocks
	*watcher
	remediator *fakeRemediator
	karpenter  *karpenter.Karpenter // nil without -karpenter
}

// build starts the cluster, the workloads, the controller and the agent. The caller shuts
// the returned cluster down, also after an error.
func build(ctx context.Context, printer *printer, d demo) (*demoCluster, error) {
	began := time.Now()
	parts := []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}
	if d.karpenter {
		parts = append(parts, "Karpenter")
	}
	printer.say("starting %s", joinNames(parts))
	cluster, err := testbed.Start(ctx, testbed.Config{
		ControllerManager: true, Scheduler: true, Kwok: true,
		// A silent kubelet becomes Unknown sooner than after the default of 50 s.
		Flags: testbed.Flags{
			ControllerManager: []string{"--node-monitor-grace-period=" + missedAfter.String(), "--node-monitor-period=500ms"},
			Kwok:              []string{"--node-lease-duration-seconds=4"}, // renewed every second
		},
	})
	if err != nil {
		return nil, err
	}
	s := &demoCluster{Cluster: cluster}
	if err := s.populate(ctx, printer, d); err != nil {
		return s, fmt.Errorf("setting up the cluster: %w", err)
	}
	printer.say("%d nodes in 3 zones and %d pods run after %s", workers+1, pods, formatDuration(time.Since(began)))
	if err := s.install(ctx, d); err != nil {
		return s, fmt.Errorf("installing Autohealer: %w", err)
	}
	if err := s.installAgent(ctx, d); err != nil {
		return s, fmt.Errorf("installing the agent: %w", err)
	}
	printer.say("Autohealer is installed and at work after %s", formatDuration(time.Since(began)))
	printer.say("%s has an agent, which reads %s and hears %s", agentNode, s.kernelLog.path, diskWatchSource)
	return s, s.introduce(ctx)
}

// shutDown ends everything that build started.
func (s *demoCluster) shutDown() error {
	if s == nil {
		return nil
	}
	if s.remediator != nil {
		s.remediator.stop()
	}
	if s.watcher != nil {
		s.stop()
	}
	return s.Stop()
}

// populate creates the nodes and starts the workloads on them.
func (s *demoCluster) populate(ctx context.Context, printer *printer, d demo) error {
	if _, err := s.CreateNodes(ctx, testbed.Nodes{Count: 1, Prefix: "control", Labels: map[string]string{controlPlaneTaint.Key: ""}, Conditions: []corev1.NodeCondition{enoughDisk}}); err != nil {
		return err
	}
	if _, err := s.CreateNodes(ctx, testbed.Nodes{Count: workers, Prefix: "worker", Conditions: []corev1.NodeCondition{enoughDisk}}); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "taint", "node", controlPlane, controlPlaneTaint.ToString()); err != nil {
		return err
	}
	if err := install.Install(ctx, s.Cluster); err != nil { // CRDs must exist before they are watched
		return err
	}
	if err := install.Unlimit(ctx, s.Cluster); err != nil {
		return err
	}
	if err := remediator.Install(ctx, s.Cluster); err != nil {
		return err
	}
	if d.karpenter {
		if err := s.installKarpenter(ctx); err != nil {
			return err
		}
		printer.say("Karpenter runs, and its NodePools accept a repair block")
	}
	var err error
	if s.watcher, err = watchCluster(ctx, s.AdminConfig(), printer, demoKinds(d.karpenter)); err != nil {
		return err
	}
	s.remediator = startRemediator(ctx, s.watcher, s.Wake)
	// The scheduler retries pods that come before the nodes are Ready only after seconds.
	if err := s.await(ctx, onlyTaints(map[string]string{controlPlane: controlPlaneTaint.ToString()})); err != nil {
		return err
	}
	if _, err := s.KubectlApply(ctx, workloads); err != nil {
		return err
	}
	return s.await(ctx, podsRun(pods))
}

// install starts the controller, and returns when the controller applies the policies.
func (s *demoCluster) install(ctx context.Context, d demo) error {
	for _, policies := range []string{conditionSets, healthCheck} {
		if _, err := s.KubectlApply(ctx, policies); err != nil {
			return err
		}
	}
	// The successor of a killed leader waits until the Lease expires, by default 15 s.
	args := []string{"--leader-elect-lease-duration=6s", "--leader-elect-renew-deadline=5s", "--leader-elect-retry-period=500ms"}
	if d.karpenter {
		args = append(args, "--feature-gates=NodeReadyTimeoutRecovery=true")
	}
	var err error
	s.controller, err = install.Start(ctx, s.Cluster, install.Options{Program: d.controller, Webhook: true, Args: args})
	if err != nil {
		return err
	}
	if err := install.UseWebhook(ctx, s.Cluster, s.controller); err != nil {
		return err
	}
	return s.await(ctx, setAccepted(combinationSet), setAccepted(kernelSet), checkStatus(workers+1, workers+1, 0))
}

// report resets the clock and writes a condition to several nodes in parallel, as their
// agents would.
func (s *demoCluster) report(ctx context.Context, condition corev1.NodeCondition, nodes ...string) error {
	s.printer.resetClock()
	s.printer.line(subject(nodes), "%s=%s (%s)", condition.Type, condition.Status, condition.Reason)
	return forEachNode(nodes, func(node string) error { return s.SetCondition(ctx, node, condition) })
}

// killKubelets stops the kubelets of several nodes in parallel.
func (s *demoCluster) killKubelets(ctx context.Context, nodes ...string) error {
	s.printer.resetClock()
	s.printer.line(subject(nodes), "the kubelet dies: no heartbeat from now on")
	return forEachNode(nodes, func(node string) error { return s.Silence(ctx, node) })
}

// reviveKubelets lets the kubelets of several nodes heartbeat again, without a remediation.
func (s *demoCluster) reviveKubelets(ctx context.Context, nodes ...string) error {
	s.printer.resetClock()
	s.printer.line(subject(nodes), "the kubelet sends heartbeats again, by itself")
	return forEachNode(nodes, func(node string) error { return s.Wake(ctx, node) })
}

// forEachNode calls do for all nodes in parallel.
func forEachNode(nodes []string, do func(node string) error) error {
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, node := range nodes {
		all.Go(func() { errs[i] = do(node) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// kubectl resets the clock, prints a command and runs it.
func (s *demoCluster) kubectl(ctx context.Context, args ...string) error {
	s.printer.resetClock()
	s.printer.line("user", "kubectl %s", strings.Join(args, " "))
	_, err := s.Kubectl(ctx, args...)
	return err
}

// show prints a read-only command and its output.
func (s *demoCluster) show(ctx context.Context, args ...string) error {
	out, err := s.Kubectl(ctx, args...)
	if err != nil {
		return err
	}
	typed := make([]string, len(args))
	for i, arg := range args {
		if typed[i] = arg; strings.ContainsAny(arg, "{}[]") {
			typed[i] = "'" + arg + "'"
		}
	}
	s.printer.line("user", "kubectl %s", strings.Join(typed, " "))
	s.printer.output(out)
	return nil
}

// worker returns the name of worker n, counted from 1.
func worker(n int) string { return fmt.Sprintf("worker-%04d", n) }

// workerRange returns the names of the workers first to last.
func workerRange(first, last int) []string {
	var names []string
	for n := first; n <= last; n++ {
		names = append(names, worker(n))
	}
	return names
}

func without(names []string, left ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(left, name) })
}
