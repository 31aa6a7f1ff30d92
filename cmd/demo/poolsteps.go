package main

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
)

// The pools: one with a repair block, one with a RepairPolicy, and one with a bad image.
const (
	shopPool   = "shop"
	batchPool  = "batch"
	renderPool = "render"

	batchPolicy = "batch-nodes"

	// shopNodes, batchNodes and renderNodes are the numbers of nodes that Karpenter creates
	// for the pods.
	shopNodes, batchNodes, renderNodes = 3, 1, 4

	// shopGrace is the grace period of the shop's pods: far longer than a forced
	// termination takes.
	shopGrace = 5 * time.Minute

	// maxFailures is how many nodes in a row may fail to become Ready before the pool is
	// held.
	maxFailures = 3
)

var (
	//go:embed shop.yaml
	shop string
	//go:embed batch.yaml
	batch string
	//go:embed render.yaml
	render string
)

// installKarpenter starts Karpenter and adds the repair block to the NodePool CRD.
func (s *demoCluster) installKarpenter(ctx context.Context) (err error) {
	if s.karpenter, err = karpenter.Start(ctx, s.Cluster, karpenter.Config{}); err != nil {
		return err
	}
	_, err = s.Kubectl(ctx, "patch", "crd", "nodepools.karpenter.sh", "--type=json", "-p", string(deploy.NodePoolPatch()))
	return err
}

// poolSteps returns the steps with Karpenter, in their order.
func (s *demoCluster) poolSteps() []step {
	return s.countEventsPerStep([]step{
		{"A node of a NodePool becomes unhealthy. After the toleration of the pool the node is replaced, and all pods run again.", s.unhealthyNode},
		{"A node starts and never becomes Ready. After the readyTimeout of a RepairPolicy it is replaced.", s.slowNode},
		{"A bad image: no node of a pool becomes Ready. After three failures the controller holds the pool, because another node would fail too.", s.failingPool},
		{"The image is fixed: the controller replaces the last node that failed, the next nodes become Ready, and the waiting pods run.", s.fixedPool},
	})
}

func readonly() corev1.NodeCondition {
	return corev1.NodeCondition{Type: "ReadonlyFilesystem", Status: corev1.ConditionTrue, Reason: "FilesystemIsReadOnly"}
}

// breakShopNode returns the shell command that makes a node of the shop unhealthy.
func breakShopNode() string {
	return fmt.Sprintf(`kubectl patch $(kubectl get nodes -l %s=%s -o name | head -n 1) \
    --subresource=status --type=strategic -p \
    '{"status":{"conditions":[{"type":"%s","status":"%s","reason":"%s",
      "lastTransitionTime":"'$(date -u +%%FT%%TZ)'"}]}}'`, testbed.PoolLabel, shopPool, readonly().Type, readonly().Status, readonly().Reason)
}

func (s *demoCluster) unhealthyNode(ctx context.Context) error {
	if err := s.createPool(ctx, shopPool, shop, "spec.repair: ReadonlyFilesystem=True is tolerated for 6s"); err != nil {
		return err
	}
	if err := s.deploy(ctx, shopPool, shopNodes, shopGrace); err != nil {
		return err
	}
	if err := s.await(ctx, poolReady(shopPool, shopNodes), podsRun(pods+shopNodes*karpenter.PodsPerNode)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "nodepool", shopPool, "-o", "jsonpath={.spec.repair.policies[1]}"); err != nil {
		return err
	}
	unhealthy := s.nodesOfPool(shopPool)[0]
	if err := s.report(ctx, readonly(), unhealthy); err != nil {
		return err
	}
	if err := s.await(ctx, eventSeen("NodeRepairPending", unhealthy), eventSeen("NodeRepair", unhealthy), nodesGone(unhealthy),
		poolReady(shopPool, shopNodes), podsRun(pods+shopNodes*karpenter.PodsPerNode)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "deployment", shopPool); err != nil {
		return err
	}
	return s.show(ctx, "events", "--for", "nodepool/"+shopPool, "--types=Warning")
}

func (s *demoCluster) slowNode(ctx context.Context) error {
	if err := s.createPool(ctx, batchPool, batch, "RepairPolicy "+batchPolicy+": readyTimeout: 10s"); err != nil {
		return err
	}
	if err := s.deploy(ctx, batchPool, batchNodes, 0); err != nil {
		return err
	}
	if err := s.await(ctx, poolUnready(batchPool), policyNodes(batchPolicy, batchNodes)); err != nil {
		return err
	}
	late := s.nodesOfPool(batchPool)[0]
	// Only the first node fails.
	if _, err := s.Kubectl(ctx, fixPoolArgs(batchPool)...); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "repairpolicies"); err != nil {
		return err
	}
	if err := s.await(ctx, eventSeen("NodeReadyTimeoutRecovery", late), nodesGone(late), poolReady(batchPool, batchNodes), policyNodes(batchPolicy, batchNodes), policyIdle(batchPolicy),
		podsRun(pods+(shopNodes+batchNodes)*karpenter.PodsPerNode)); err != nil {
		return err
	}
	return s.show(ctx, "events", "--for", "repairpolicy/"+batchPolicy)
}

func (s *demoCluster) failingPool(ctx context.Context) error {
	if err := s.createPool(ctx, renderPool, render, "spec.repair: readyTimeout: 15s"); err != nil {
		return err
	}
	if err := s.deploy(ctx, renderPool, renderNodes, 0); err != nil {
		return err
	}
	if err := s.await(ctx, eventSeenTimes("NodeReadyTimeoutRecovery", maxFailures), eventSeen("NodePoolHeld", renderPool),
		eventSeenTimes("NodeRepairBlocked", renderNodes-maxFailures)); err != nil {
		return err
	}
	return s.show(ctx, "get", "nodes", "-l", testbed.PoolLabel+"="+renderPool)
}

func (s *demoCluster) fixedPool(ctx context.Context) error {
	stuck := s.nodesOfPool(renderPool)
	s.printer.resetClock()
	s.printer.line("user", "fixes the image of NodePool %s", renderPool)
	if _, err := s.Kubectl(ctx, fixPoolArgs(renderPool)...); err != nil {
		return err
	}
	return s.await(ctx, nodesGone(stuck...), poolReady(shopPool, shopNodes), poolReady(batchPool, batchNodes), poolReady(renderPool, renderNodes),
		podsRun(pods+(shopNodes+batchNodes+renderNodes)*karpenter.PodsPerNode))
}

// createPool creates a pool and waits until it is Ready. Karpenter looks at earlier pods
// again only after ten seconds.
func (s *demoCluster) createPool(ctx context.Context, name, manifests, note string) error {
	s.printer.resetClock()
	s.printer.line("user", "kubectl apply -f %s.yaml (NodePool %s, %s)", name, name, note)
	if _, err := s.KubectlApply(ctx, manifests); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=30s", "nodepool/"+name)
	return err
}

// deploy creates pods for this number of nodes of a pool.
func (s *demoCluster) deploy(ctx context.Context, pool string, nodes int, grace time.Duration) error {
	replicas := nodes * karpenter.PodsPerNode
	s.printer.resetClock()
	s.printer.line("user", "deploys %d pods for nodes of NodePool %s, %d on each", replicas, pool, karpenter.PodsPerNode)
	return s.karpenter.Deploy(ctx, karpenter.Deployment{Name: pool, Pool: pool, Replicas: replicas, GracePeriod: grace})
}

// fixPoolArgs returns the arguments of kubectl that make the next nodes of a pool become
// Ready.
func fixPoolArgs(pool string) []string {
	return []string{"patch", "nodepool", pool, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{%q:null}},"spec":{"startupTaints":null}}}}`, testbed.UnreadyLabel)}
}

func (s *demoCluster) nodesOfPool(pool string) []string {
	return ask(s.watcher, func(s *state) []string {
		names, _ := s.nodesOf(pool)
		return names
	})
}
