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

	// pods is how many the workloads have at first.
	pods = 24

	// missedAfter is how long a kubelet says nothing before it is missed.
	missedAfter = 6 * time.Second
)

// The condition sets are those of the first design of Autohealer, as written.
//
//go:embed conditionsets.yaml
var conditionSets string

//go:embed workloads.yaml
var workloads string

// The health check is shorter of patience than one in production should be: nobody
// needs to watch a dead kubelet for five minutes.
//
//go:embed healthcheck.yaml
var healthCheck string

// The trap is the one that the same design warns of.
//
//go:embed out-of-disk.yaml
var trap string

// enoughDisk is what every healthy node of the demo says.
var enoughDisk = corev1.NodeCondition{Type: "OutOfDisk", Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientDisk"}

// controlPlaneTaint keeps workloads off the control plane, as in most clusters.
var controlPlaneTaint = corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}

// stage is the cluster that the story is played on.
type stage struct {
	*testbed.Cluster
	controller *install.Controller
	agent      *install.Agent
	kernelLog  kernelLog
	diskWatch  *testbed.Part
	badBlocks  badBlocks
	*onlooker
	remediator *healer
	karpenter  *karpenter.Karpenter // nil without it
}

// build starts the cluster, with workloads that run, a controller that leads and an agent.
// The stage that it returns is to be struck, also if there is an error.
func build(ctx context.Context, tell *teller, d demo) (*stage, error) {
	began := time.Now()
	parts := []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}
	if d.karpenter {
		parts = append(parts, "Karpenter")
	}
	tell.say("starting %s", list(parts))
	cluster, err := testbed.Start(ctx, testbed.Config{
		ControllerManager: true, Scheduler: true, Kwok: true,
		// A kubelet that says nothing is missed sooner than after the usual 50 s.
		Flags: testbed.Flags{
			ControllerManager: []string{"--node-monitor-grace-period=" + missedAfter.String(), "--node-monitor-period=500ms"},
			Kwok:              []string{"--node-lease-duration-seconds=4"}, // renewed every second
		},
	})
	if err != nil {
		return nil, err
	}
	s := &stage{Cluster: cluster}
	if err := s.populate(ctx, tell, d); err != nil {
		return s, fmt.Errorf("setting up the cluster: %w", err)
	}
	tell.say("%d nodes in 3 zones and %d pods run after %s", workers+1, pods, span(time.Since(began)))
	if err := s.install(ctx, d); err != nil {
		return s, fmt.Errorf("installing Autohealer: %w", err)
	}
	if err := s.installAgent(ctx, d); err != nil {
		return s, fmt.Errorf("installing the agent: %w", err)
	}
	tell.say("Autohealer is installed and at work after %s", span(time.Since(began)))
	tell.say("%s has an agent, which reads %s and hears %s", probed, s.kernelLog.path, diskWatchSource)
	return s, s.introduce(ctx)
}

// strike ends everything that build began.
func (s *stage) strike() error {
	if s == nil {
		return nil
	}
	if s.remediator != nil {
		s.remediator.stop()
	}
	if s.onlooker != nil {
		s.stop()
	}
	return s.Stop()
}

// populate makes the nodes and lets the workloads run on them.
func (s *stage) populate(ctx context.Context, tell *teller, d demo) error {
	if _, err := s.CreateNodes(ctx, testbed.Nodes{Count: 1, Prefix: "control", Labels: map[string]string{controlPlaneTaint.Key: ""}, Conditions: []corev1.NodeCondition{enoughDisk}}); err != nil {
		return err
	}
	if _, err := s.CreateNodes(ctx, testbed.Nodes{Count: workers, Prefix: "worker", Conditions: []corev1.NodeCondition{enoughDisk}}); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "taint", "node", controlPlane, controlPlaneTaint.ToString()); err != nil {
		return err
	}
	if err := install.Install(ctx, s.Cluster); err != nil { // what is watched must be defined
		return err
	}
	if err := remediator.Install(ctx, s.Cluster); err != nil {
		return err
	}
	if d.karpenter {
		if err := s.installKarpenter(ctx); err != nil {
			return err
		}
		tell.say("Karpenter runs, and its NodePools may have a repair block")
	}
	var err error
	if s.onlooker, err = watchCluster(ctx, s.AdminConfig(), tell, d.karpenter); err != nil {
		return err
	}
	s.remediator = startHealer(ctx, s.onlooker, s.Wake)
	// Pods that come before the nodes are ready would be put off for seconds.
	if err := s.await(ctx, onlyTaints(map[string]string{controlPlane: controlPlaneTaint.ToString()})); err != nil {
		return err
	}
	if _, err := s.KubectlApply(ctx, workloads); err != nil {
		return err
	}
	return s.await(ctx, podsRun(pods))
}

// install runs the controller, and returns when it follows the policies.
func (s *stage) install(ctx context.Context, d demo) error {
	for _, policies := range []string{conditionSets, healthCheck} {
		if _, err := s.KubectlApply(ctx, policies); err != nil {
			return err
		}
	}
	// A successor of a leader that was killed waits until the lease has run out. Nobody
	// needs to watch that for 15 s.
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
	return s.await(ctx, followed(pairSet), followed(kernelSet), checked(workers+1, workers+1, 0))
}

// report writes a condition to nodes, all at once, as agents on them would. The
// clock of the story starts with it.
func (s *stage) report(ctx context.Context, condition corev1.NodeCondition, nodes ...string) error {
	s.tell.begin()
	s.tell.line(subject(nodes), "%s=%s (%s)", condition.Type, condition.Status, condition.Reason)
	return atOnce(nodes, func(node string) error { return s.SetCondition(ctx, node, condition) })
}

// silence has the kubelets of nodes die, all at once, and wake has them heard again
// without anybody's help.
func (s *stage) silence(ctx context.Context, nodes ...string) error {
	s.tell.begin()
	s.tell.line(subject(nodes), "the kubelet dies: no heartbeat from now on")
	return atOnce(nodes, func(node string) error { return s.Silence(ctx, node) })
}

func (s *stage) wake(ctx context.Context, nodes ...string) error {
	s.tell.begin()
	s.tell.line(subject(nodes), "the kubelet is heard again, by itself")
	return atOnce(nodes, func(node string) error { return s.Wake(ctx, node) })
}

// atOnce does the same to several nodes.
func atOnce(nodes []string, do func(node string) error) error {
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, node := range nodes {
		all.Go(func() { errs[i] = do(node) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// kubectl runs a command that somebody could have typed, and shows it.
func (s *stage) kubectl(ctx context.Context, args ...string) error {
	s.tell.begin()
	s.tell.line("somebody", "kubectl %s", strings.Join(args, " "))
	_, err := s.Kubectl(ctx, args...)
	return err
}

// show runs a command that only looks, and shows what it prints.
func (s *stage) show(ctx context.Context, args ...string) error {
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
	s.tell.line("somebody", "kubectl %s", strings.Join(typed, " "))
	s.tell.output(out)
	return nil
}

// worker returns the name of a worker, counted from 1.
func worker(n int) string { return fmt.Sprintf("worker-%04d", n) }

// workerRange returns the names of several.
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
