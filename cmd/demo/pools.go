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

// The pools: one with a repair block of its own, one that a RepairPolicy speaks for,
// and one whose image is bad.
const (
	shopPool   = "shop"
	batchPool  = "batch"
	renderPool = "render"

	batchPolicy = "batch-nodes"

	// shopNodes, batchNodes and renderNodes are how many nodes Karpenter makes for what
	// runs there.
	shopNodes, batchNodes, renderNodes = 3, 1, 4

	// shopGrace is how long the pods of the shop take to stop: far longer than a node
	// takes to go that goes by force.
	shopGrace = 5 * time.Minute

	// tries is how many nodes of a pool in a row may fail to become ready.
	tries = 3
)

var (
	//go:embed shop.yaml
	shop string
	//go:embed batch.yaml
	batch string
	//go:embed render.yaml
	render string
)

// installKarpenter runs Karpenter, whose NodePools get to know the repair block.
func (s *stage) installKarpenter(ctx context.Context) (err error) {
	if s.karpenter, err = karpenter.Start(ctx, s.Cluster, karpenter.Config{}); err != nil {
		return err
	}
	_, err = s.Kubectl(ctx, "patch", "crd", "nodepools.karpenter.sh", "--type=json", "-p", string(deploy.NodePoolPatch()))
	return err
}

// poolStory is the scenes with Karpenter, in their order.
func (s *stage) poolStory() []scene {
	return s.eachAnew([]scene{
		{"A node of a NodePool falls sick. The pool says how long that is tolerated: after that the machine is replaced, and the workload is whole again.", s.sickMachine},
		{"A machine comes up and never gets ready. A RepairPolicy says how long that may take, and then there is another.", s.lateMachine},
		{"A bad image: no machine of a pool gets ready. After three tries the pool is held, for one more would not cure it.", s.badPool},
		{"The image is mended: the next machine gets ready, and what has waited for it runs.", s.mendedPool},
	})
}

func readonly() corev1.NodeCondition {
	return corev1.NodeCondition{Type: "ReadonlyFilesystem", Status: corev1.ConditionTrue, Reason: "FilesystemIsReadOnly"}
}

// shopSickens is what somebody types to let a node of the shop be sick.
func shopSickens() string {
	return fmt.Sprintf(`kubectl patch $(kubectl get nodes -l %s=%s -o name | head -n 1) \
    --subresource=status --type=strategic -p \
    '{"status":{"conditions":[{"type":"%s","status":"%s","reason":"%s",
      "lastTransitionTime":"'$(date -u +%%FT%%TZ)'"}]}}'`, testbed.PoolLabel, shopPool, readonly().Type, readonly().Status, readonly().Reason)
}

func (s *stage) sickMachine(ctx context.Context) error {
	if err := s.openPool(ctx, shopPool, shop, "spec.repair: ReadonlyFilesystem=True is tolerated for 6s"); err != nil {
		return err
	}
	if err := s.deploy(ctx, shopPool, shopNodes, shopGrace); err != nil {
		return err
	}
	if err := s.await(ctx, staffed(shopPool, shopNodes), podsRun(pods+shopNodes*karpenter.PodsPerNode)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "nodepool", shopPool, "-o", "jsonpath={.spec.repair.policies[1]}"); err != nil {
		return err
	}
	sick := s.nodesOfPool(shopPool)[0]
	if err := s.report(ctx, readonly(), sick); err != nil {
		return err
	}
	if err := s.await(ctx, told("NodeRepairPending", sick), told("NodeRepair", sick), away(sick),
		staffed(shopPool, shopNodes), podsRun(pods+shopNodes*karpenter.PodsPerNode)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "deployment", shopPool); err != nil {
		return err
	}
	return s.show(ctx, "events", "--for", "nodepool/"+shopPool, "--types=Warning")
}

func (s *stage) lateMachine(ctx context.Context) error {
	if err := s.openPool(ctx, batchPool, batch, "RepairPolicy "+batchPolicy+": readyTimeout: 10s"); err != nil {
		return err
	}
	if err := s.deploy(ctx, batchPool, batchNodes, 0); err != nil {
		return err
	}
	if err := s.await(ctx, unready(batchPool), governed(batchPolicy, batchNodes)); err != nil {
		return err
	}
	late := s.nodesOfPool(batchPool)[0]
	// Only this machine is a bad one.
	if _, err := s.Kubectl(ctx, goodMachines(batchPool)...); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "repairpolicies"); err != nil {
		return err
	}
	if err := s.await(ctx, told("NodeReadyTimeoutRecovery", late), away(late), staffed(batchPool, batchNodes), governed(batchPolicy, batchNodes), calm(batchPolicy),
		podsRun(pods+(shopNodes+batchNodes)*karpenter.PodsPerNode)); err != nil {
		return err
	}
	return s.show(ctx, "events", "--for", "repairpolicy/"+batchPolicy)
}

func (s *stage) badPool(ctx context.Context) error {
	if err := s.openPool(ctx, renderPool, render, "spec.repair: readyTimeout: 15s"); err != nil {
		return err
	}
	if err := s.deploy(ctx, renderPool, renderNodes, 0); err != nil {
		return err
	}
	if err := s.await(ctx, toldOf("NodeReadyTimeoutRecovery", tries), told("NodePoolHeld", renderPool),
		toldOf("NodeRepairBlocked", renderNodes-tries)); err != nil {
		return err
	}
	return s.show(ctx, "get", "nodes", "-l", testbed.PoolLabel+"="+renderPool)
}

func (s *stage) mendedPool(ctx context.Context) error {
	stuck := s.nodesOfPool(renderPool)
	s.tell.begin()
	s.tell.line("somebody", "mends the image of NodePool %s", renderPool)
	if _, err := s.Kubectl(ctx, goodMachines(renderPool)...); err != nil {
		return err
	}
	if err := s.kubectl(ctx, "delete", "nodeclaims", "-l", testbed.PoolLabel+"="+renderPool, "--wait=false"); err != nil {
		return err
	}
	return s.await(ctx, away(stuck...), staffed(shopPool, shopNodes), staffed(batchPool, batchNodes), staffed(renderPool, renderNodes),
		podsRun(pods+(shopNodes+batchNodes+renderNodes)*karpenter.PodsPerNode))
}

// openPool makes a pool as somebody would, and waits until Karpenter finds it ready:
// pods that come before are looked at again ten seconds later.
func (s *stage) openPool(ctx context.Context, name, manifests, words string) error {
	s.tell.begin()
	s.tell.line("somebody", "kubectl apply -f %s.yaml (NodePool %s, %s)", name, name, words)
	if _, err := s.KubectlApply(ctx, manifests); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=30s", "nodepool/"+name)
	return err
}

// deploy has pods wait for as many nodes of a pool.
func (s *stage) deploy(ctx context.Context, pool string, nodes int, grace time.Duration) error {
	replicas := nodes * karpenter.PodsPerNode
	s.tell.begin()
	s.tell.line("somebody", "deploys %d pods that only nodes of NodePool %s will do for, %d on each", replicas, pool, karpenter.PodsPerNode)
	return s.karpenter.Deploy(ctx, karpenter.Deployment{Name: pool, Pool: pool, Replicas: replicas, GracePeriod: grace})
}

// goodMachines are the words by which the next machines of a pool get ready.
func goodMachines(pool string) []string {
	return []string{"patch", "nodepool", pool, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{%q:null}}}}}`, testbed.UnreadyLabel)}
}

func (s *stage) nodesOfPool(pool string) []string {
	return ask(s.onlooker, func(s *sight) []string {
		names, _ := s.nodesOf(pool)
		return names
	})
}
