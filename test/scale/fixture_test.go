package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// problem is the condition that the taint benchmarks make true.
	problem = "KernelDeadlock"
	// setName and taintKey belong to the set with that condition.
	setName  = "kernel-deadlock"
	taintKey = "node.stakater.com/KernelDeadlock"

	// noAgentSilent keeps the controller manager from setting nodes without a kubelet to
	// Unknown.
	noAgentSilent = "--node-monitor-grace-period=24h"

	// ttlNote is an annotation of the controller manager on every node; its value depends
	// on the number of nodes.
	ttlNote = "node.alpha.kubernetes.io/ttl"

	// maxWait bounds every wait. Longer means that it hangs.
	maxWait = 5 * time.Minute
	// quiet is how long nothing must happen until a cluster counts as settled. It is longer
	// than the delay of statuses.
	quiet = 2 * time.Second
	// pollInterval is the time between two checks. No result depends on it.
	pollInterval = 20 * time.Millisecond
)

// sets are the controller's ConditionSets: one set that will match, with the default bound of
// 49%, and some that read the same nodes and never match.
const sets = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: kernel-deadlock}
spec:
  type: KernelDeadlock
  effect: NoExecute
  taintKey: node.stakater.com/KernelDeadlock
  conditions:
    KernelDeadlock: {status: true}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: deadlock-and-readonly}
spec:
  type: DeadlockAndReadonly
  effect: NoExecute
  taintKey: node.stakater.com/DeadlockAndReadonly
  conditions:
    KernelDeadlock: {status: true}
    ReadonlyFilesystem: {status: true}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: restarts}
spec:
  type: Restarts
  effect: NoSchedule
  taintKey: node.stakater.com/Restarts
  conditions:
    FrequentKubeletRestart: {status: true, duration: 1m}
    FrequentContainerdRestart: {status: true, duration: 1m}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: clock}
spec:
  type: Clock
  effect: PreferNoSchedule
  taintKey: node.stakater.com/Clock
  conditions:
    NTPProblem: {status: unknown}
`

// fixture is a cluster of realistic nodes that all runs of one size share.
type fixture struct {
	cluster  *testbed.Cluster
	nodes    []string
	write    metadata.Getter
	watcher  *watcher
	random   *rand.Rand
	starters int // the number of started controllers
}

// sharedFixture has the current fixture. There is one at a time: a second cluster would
// distort the results.
type sharedFixture struct {
	mu      sync.Mutex
	fixture *fixture
}

var shared sharedFixture

// fixtureOf returns the fixture of that size, and creates it if necessary.
func fixtureOf(b *testing.B, size int) *fixture {
	b.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.fixture != nil && len(shared.fixture.nodes) == size {
		return shared.fixture
	}
	testkit.Must(b, shared.clear())
	// The fixture outlives the benchmark that creates it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), maxWait)
	defer cancel()
	begin := time.Now()
	made := testkit.Value(newFixture(ctx, size)).Must(b)
	b.Logf("%d nodes of 15 KB ready after %s and %d writes of other clients", size, time.Since(begin).Round(time.Second), made.watcher.changes())
	shared.fixture = made
	return made
}

// clear stops the cluster.
func (s *sharedFixture) clear() error {
	if s.fixture == nil {
		return nil
	}
	s.fixture.watcher.stop()
	err := s.fixture.cluster.Stop()
	s.fixture = nil
	return err
}

// joined returns nodes that joined a while ago: they already have the controller manager's
// annotations. Three writes to each of 10,000 nodes would take longer than all
// measurements.
func joined(size int) testbed.Nodes {
	nodes := testbed.RealNodes(size)
	nodes.Labels = map[string]string{
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
		"karpenter.sh/nodepool": poolName, "karpenter.sh/initialized": "true", // have no meaning without Karpenter
	}
	nodes.Annotations = map[string]string{ttlNote: "300"} // for more than 2,000 nodes
	if size <= 2000 {
		nodes.Annotations[ttlNote] = "60"
	}
	return nodes
}

// newFixture returns a cluster whose nodes no other client writes. The nodes are created
// while the controller manager is down, so that it finds all of them at once. In a growing
// cluster it would keep writing to nodes long after, because its annotation depends on the
// number of nodes.
func newFixture(ctx context.Context, size int) (_ *fixture, err error) {
	cluster, err := testbed.Start(ctx, testbed.Config{
		ControllerManager: true,
		Flags: testbed.Flags{
			ControllerManager: []string{noAgentSilent},
			APIServer:         []string{"--disable-admission-plugins=TaintNodesByCondition"}, // it taints new nodes
		},
	})
	if err != nil {
		return nil, err
	}
	made := &fixture{cluster: cluster, random: rand.New(rand.NewPCG(1, 2))}
	defer func() {
		if err != nil {
			if made.watcher != nil {
				made.watcher.stop()
			}
			_ = cluster.Stop()
		}
	}()
	if err := install.Install(ctx, cluster); err != nil {
		return nil, err
	}
	if err := install.Unlimit(ctx, cluster); err != nil {
		return nil, err
	}
	if _, err := cluster.KubectlApply(ctx, sets); err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(cluster.AdminConfig())
	if err != nil {
		return nil, err
	}
	made.write = client.Resource(testbed.NodesResource)
	if err := cluster.ControllerManager.Stop(ctx); err != nil {
		return nil, err
	}
	nodes, err := cluster.CreateNodes(ctx, joined(size))
	if err != nil {
		return nil, err
	}
	for _, node := range nodes {
		made.nodes = append(made.nodes, node.Name)
	}
	if made.watcher, err = watchNodes(ctx, cluster.AdminConfig(), nodes); err != nil {
		return nil, err
	}
	if err := cluster.ControllerManager.Restart(ctx); err != nil {
		return nil, err
	}
	return made, made.settle(ctx)
}

// settle waits until the controller manager has annotated all nodes.
func (d *fixture) settle(ctx context.Context) error {
	for {
		if err := d.watcher.wait(ctx, "the controller manager to leave the nodes alone", func(v *view) bool {
			return v.foreign == 0 && time.Since(v.latest) > quiet
		}); err != nil {
			return err
		}
		behind, err := d.behind(ctx)
		if err != nil || len(behind) == 0 {
			return err
		}
		for _, name := range behind { // any write makes it check again
			if err := d.heartbeat(ctx, name); err != nil {
				return err
			}
		}
	}
}

// behind returns the nodes whose annotation of the controller manager differs from most
// others.
func (d *fixture) behind(ctx context.Context) (names []string, err error) {
	all, err := d.write.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	counts, most := map[string]int{}, ""
	for _, node := range all.Items {
		note := node.Annotations[ttlNote]
		if counts[note]++; counts[note] > counts[most] {
			most = note
		}
	}
	for _, node := range all.Items {
		if node.Annotations[ttlNote] != most {
			names = append(names, node.Name)
		}
	}
	return names, nil
}

// pick returns some nodes at random.
func (d *fixture) pick(count int) []string {
	names := make([]string, count)
	for i, at := range d.random.Perm(len(d.nodes))[:count] {
		names[i] = d.nodes[at]
	}
	return names
}

// start runs a controller until the end of the benchmark, and returns when it leads, knows
// every node and has written its statuses.
func (d *fixture) start(b *testing.B) *install.Controller {
	b.Helper()
	return d.startWith(b, install.Options{})
}

func (d *fixture) startWith(b *testing.B, o install.Options) *install.Controller {
	b.Helper()
	controller := d.run(b, o)
	await(b, controller, "the controller to know every node", quiet, func(m measured) bool {
		return m.nodesOf("ConditionSet", setName) == len(d.nodes)
	})
	return controller
}

// nodesOf returns how many nodes a policy selects.
func (m measured) nodesOf(kind, policy string) int {
	return m.sum("autohealer_policy_nodes", `policy_kind="`+kind+`"`, `policy="`+policy+`"`)
}

// run runs a controller until the end of the benchmark, and returns when it is ready.
func (d *fixture) run(b *testing.B, o install.Options) *install.Controller {
	b.Helper()
	d.starters++
	o.Name = "controller-" + strconv.Itoa(d.starters)
	controller := testkit.Value(install.Start(b.Context(), d.cluster, o)).Must(b)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), maxWait)
		defer cancel()
		if err := controller.Stop(ctx); err != nil {
			b.Error(err)
		}
	})
	return controller
}

// condition is a condition of a status in a patch.
type condition struct {
	Type       string                 `json:"type"`
	Status     corev1.ConditionStatus `json:"status,omitempty"`
	Reason     string                 `json:"reason,omitempty"`
	Message    string                 `json:"message,omitempty"`
	Heartbeat  metav1.Time            `json:"lastHeartbeatTime"`
	Transition *metav1.Time           `json:"lastTransitionTime,omitempty"`
}

// setProblem writes a condition like an agent on the node.
func (d *fixture) setProblem(ctx context.Context, node, problem string, status corev1.ConditionStatus) error {
	now := metav1.Now()
	return d.patch(ctx, node, condition{
		Type: problem, Status: status, Reason: "Benchmark", Message: "this is a benchmark", Heartbeat: now, Transition: &now,
	})
}

// heartbeat refreshes every condition. It keeps their order on the node, like a kubelet;
// another order would be a change.
func (d *fixture) heartbeat(ctx context.Context, node string) error {
	now := metav1.Now()
	conditions := []condition{
		{Type: string(corev1.NodeMemoryPressure)}, {Type: string(corev1.NodeDiskPressure)},
		{Type: string(corev1.NodePIDPressure)}, {Type: string(corev1.NodeReady)},
	}
	for _, c := range testbed.RealNodes(1).Conditions {
		conditions = append(conditions, condition{Type: string(c.Type)})
	}
	for i := range conditions {
		conditions[i].Heartbeat = now
	}
	return d.patch(ctx, node, conditions...)
}

func (d *fixture) patch(ctx context.Context, node string, conditions ...condition) error {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	return d.send(ctx, node, types.StrategicMergePatchType, body, "status")
}

// setTaint writes what the controller writes: a list of taints and a record.
func (d *fixture) setTaint(ctx context.Context, node, taints string) error {
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{"scale/note":%q}},"spec":{"taints":%s}}`, strings.Repeat("x", len(taints)), taints)
	return d.send(ctx, node, types.MergePatchType, body)
}

// send requests only metadata in the response, so that the writer does not distort the
// results.
func (d *fixture) send(ctx context.Context, node string, kind types.PatchType, body []byte, subresources ...string) error {
	if _, err := d.write.Patch(ctx, node, kind, body, metav1.PatchOptions{FieldManager: "scale"}, subresources...); err != nil {
		return fmt.Errorf("patching node %s: %w", node, err)
	}
	return nil
}

// setProblems writes a condition of many nodes concurrently, and returns after the last
// response.
func (d *fixture) setProblems(ctx context.Context, names []string, problem string, status corev1.ConditionStatus, atATime int) error {
	return each(ctx, names, atATime, func(ctx context.Context, name string) error { return d.setProblem(ctx, name, problem, status) })
}

// each runs a function for every node concurrently.
func each(ctx context.Context, names []string, atATime int, do func(ctx context.Context, name string) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan string)
	var wg sync.WaitGroup
	for range atATime {
		wg.Go(func() {
			for name := range next {
				if err := do(ctx, name); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, name := range names {
		next <- name
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}
