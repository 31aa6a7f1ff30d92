package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	nodeCount = 10
	// sceneLimit is how long a scene may take before the demo gives up on it.
	sceneLimit = time.Minute
)

// rules are what a user of this cluster might write.
func rules() ([]triage.Rule, error) {
	deadlock, err := dialect.ConditionSet{
		Name: "kernel-deadlock", Effect: "NoExecute", TaintKey: "node.stakater.com/KernelDeadlock",
		Conditions: []dialect.SetCondition{{Type: "KernelDeadlock", Status: "true"}},
	}.Rule()
	if err != nil {
		return nil, err
	}
	healthCheck, err := dialect.NodeHealthCheck{
		Name: "workers",
		UnhealthyConditions: []dialect.UnhealthyCondition{
			{Type: "Ready", Status: "False", Duration: "5s"},
			{Type: "Ready", Status: "Unknown", Duration: "5s"},
		},
		Steps: []dialect.RemediationStep{{Template: "reboot"}},
	}.Rule()
	return []triage.Rule{deadlock, healthCheck}, err
}

// scene is one thing that happens, and what must come of it.
type scene struct {
	title string
	play  func(ctx context.Context) error
}

func run(ctx context.Context, out io.Writer, once bool) (err error) {
	fmt.Fprintln(out, "demo: starting etcd, kube-apiserver, kube-controller-manager and kwok")
	began := time.Now()
	cluster, err := testbed.Start(ctx, testbed.Config{
		ControllerManager: true,
		Kwok:              true,
		// A kubelet that is silent is noticed within seconds, not 50 of them.
		Flags: testbed.Flags{ControllerManager: []string{"--node-monitor-grace-period=10s", "--node-monitor-period=1s"}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	nodes, err := cluster.CreateNodes(ctx, testbed.Nodes{Count: nodeCount, Prefix: "worker"})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "demo: ready after %.1f s: %d nodes in 3 zones\n", time.Since(began).Seconds(), len(nodes))

	client, err := kubernetes.NewForConfig(cluster.AdminConfig())
	if err != nil {
		return err
	}
	written, err := rules()
	if err != nil {
		return err
	}
	watched, err := newWatcher(out, written)
	if err != nil {
		return err
	}
	stopWatching, err := watched.start(ctx, client)
	if err != nil {
		return err
	}
	defer stopWatching()
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	for i, s := range story(cluster, watched, names) {
		if !once {
			leaveTimeToRead(ctx)
		}
		watched.say("\n  %d. %s\n", i+1, s.title)
		scene, cancel := context.WithTimeoutCause(ctx, sceneLimit, fmt.Errorf("not within %s", sceneLimit))
		err := s.play(scene)
		cancel()
		if err != nil {
			return fmt.Errorf("scene %d: %w", i+1, err)
		}
	}
	watched.say("\ndemo: that was the story. The core decided and explained; this version writes nothing to the nodes.\n")
	if once {
		return nil
	}
	watched.say(`demo: the cluster stays until Ctrl-C. In another terminal:

  export KUBECONFIG=%s
  bin/testbed/kubectl get nodes
  bin/testbed/kubectl patch node %s --subresource=status --type=strategic -p \
    '{"status":{"conditions":[{"type":"KernelDeadlock","status":"True","reason":"DockerHung"}]}}'

and watch here what comes of it.
`, cluster.Kubeconfig(), names[4])
	<-ctx.Done()
	return context.Cause(ctx)
}

// leaveTimeToRead paces the story for a person.
func leaveTimeToRead(ctx context.Context) {
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
}

func story(cluster *testbed.Cluster, watched *watcher, names []string) []scene {
	set := func(ctx context.Context, status corev1.ConditionStatus, nodes ...string) error {
		for _, name := range nodes {
			condition := corev1.NodeCondition{Type: "KernelDeadlock", Status: status, Reason: "DockerHung"}
			if err := cluster.SetCondition(ctx, name, condition); err != nil {
				return err
			}
		}
		return nil
	}
	first, storm, quiet := names[0], names[1:6], names[9]
	return []scene{
		{"The kernel of " + first + " deadlocks. Its ConditionSet says NoExecute.", func(ctx context.Context) error {
			return errors.Join(set(ctx, corev1.ConditionTrue, first), watched.await(ctx, triage.Tainted, 1, first))
		}},
		{fmt.Sprintf("A storm: %s too. At most 49%% of the nodes may be emptied; the others only get no new work.", strings.Join(storm, ", ")), func(ctx context.Context) error {
			return errors.Join(set(ctx, corev1.ConditionTrue, storm...),
				watched.await(ctx, triage.Tainted, 3, storm...), watched.await(ctx, triage.FellBack, 2, storm...))
		}},
		{first + " recovers. Its place goes to the node that has waited longest.", func(ctx context.Context) error {
			return errors.Join(set(ctx, corev1.ConditionFalse, first),
				watched.await(ctx, triage.Healthy, 1, first), watched.await(ctx, triage.Tainted, 4, storm...))
		}},
		{"The storm is over.", func(ctx context.Context) error {
			return errors.Join(set(ctx, corev1.ConditionFalse, storm...), watched.await(ctx, triage.Healthy, len(storm), storm...))
		}},
		{"The kubelet of " + quiet + " goes silent. Kubernetes turns Ready to Unknown; the health check gives it 5 s.", func(ctx context.Context) error {
			return errors.Join(cluster.Silence(ctx, quiet), watched.await(ctx, triage.Treating, 1, quiet))
		}},
		{"It is heard again, and the remediation is called off.", func(ctx context.Context) error {
			return errors.Join(cluster.Wake(ctx, quiet), watched.await(ctx, triage.Healthy, 1, quiet))
		}},
	}
}
