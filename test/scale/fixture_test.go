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
)

const (
	// problem is the condition that the benchmarks of taints make true.
	problem = "KernelDeadlock"
	// setName and taintKey are of the set that reads it.
	setName  = "kernel-deadlock"
	taintKey = "node.stakater.com/KernelDeadlock"

	// noAgentSilent keeps the controller manager from calling nodes Unknown
	// that have no kubelet.
	noAgentSilent = "--node-monitor-grace-period=24h"

	// ttlNote is what the controller manager notes on every node; it depends on
	// how many there are.
	ttlNote = "node.alpha.kubernetes.io/ttl"

	// patience bounds every wait. What takes longer hangs.
	patience = 5 * time.Minute
	// quiet is how long nothing must happen for a cluster to count as settled.
	// It is longer than statuses are held back.
	quiet = 2 * time.Second
	// glance is the time between two looks. No figure depends on it.
	glance = 20 * time.Millisecond
)

// sets are what the controller follows: the one that will match, with the
// default bound of 49%, and some that read the same nodes and never do.
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

// fixture is a cluster of real nodes that all runs at one size share.
type fixture struct {
	cluster  *testbed.Cluster
	nodes    []string
	write    metadata.Getter
	watcher  *watcher
	random   *rand.Rand
	starters int // controllers that were started
}

// sharedFixture holds the bed that is made. There is one at a time: another cluster
// beside it would be in the figures.
type sharedFixture struct {
	mu      sync.Mutex
	fixture *fixture
}

var shared sharedFixture

// fixtureOf returns the bed of that size, and makes it when it is not there.
func fixtureOf(b *testing.B, size int) *fixture {
	b.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.fixture != nil && len(shared.fixture.nodes) == size {
		return shared.fixture
	}
	if err := shared.clear(); err != nil {
		b.Fatal(err)
	}
	// The bed outlives the benchmark that makes it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), patience)
	defer cancel()
	begin := time.Now()
	made, err := newFixture(ctx, size)
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%d nodes of 15 KB ready after %s and %d writes of others", size, time.Since(begin).Round(time.Second), made.watcher.changes())
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

// joined returns nodes that have been in the cluster for a while: what the
// controller manager notes on a new one stands on them already. Three writes to
// each of 10,000 nodes take longer than all that is measured here.
func joined(size int) testbed.Nodes {
	nodes := testbed.RealNodes(size)
	nodes.Labels = map[string]string{
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
		"karpenter.sh/nodepool": poolName, "karpenter.sh/initialized": "true", // which mean nothing without Karpenter
	}
	nodes.Annotations = map[string]string{ttlNote: "300"} // above 2,000 nodes
	if size <= 2000 {
		nodes.Annotations[ttlNote] = "60"
	}
	return nodes
}

// newFixture returns a cluster whose nodes nobody writes to any more. The nodes are
// made while the controller manager is down, so that it finds them all at once:
// one that sees a cluster grow keeps writing to nodes long after, because what
// it notes on them depends on how many there are.
func newFixture(ctx context.Context, size int) (_ *fixture, err error) {
	cluster, err := testbed.Start(ctx, testbed.Config{
		ControllerManager: true,
		Flags: testbed.Flags{
			ControllerManager: []string{noAgentSilent},
			APIServer:         []string{"--disable-admission-plugins=TaintNodesByCondition"}, // it taints what is new
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

// settle waits until the controller manager has noted on the nodes what it
// notes on new ones.
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
		for _, name := range behind { // any write makes it look again
			if err := d.heartbeat(ctx, name); err != nil {
				return err
			}
		}
	}
}

// behind returns the nodes on which the controller manager's note is not the
// one that most have.
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

// start runs a controller until the benchmark is over, and returns when it
// leads, knows every node and has said so.
func (d *fixture) start(b *testing.B) *install.Controller {
	b.Helper()
	return d.startWith(b, install.Options{})
}

func (d *fixture) startWith(b *testing.B, o install.Options) *install.Controller {
	b.Helper()
	controller := d.run(b, o)
	selected := sample(`autohealer_conditionset_nodes{conditionset="` + setName + `",state="selected"}`)
	await(b, controller, "the controller to know every node", quiet, func(m measured) bool {
		return int(m[selected]) == len(d.nodes)
	})
	return controller
}

// run runs a controller until the benchmark is over, and returns when it is ready.
func (d *fixture) run(b *testing.B, o install.Options) *install.Controller {
	b.Helper()
	d.starters++
	o.Name = "controller-" + strconv.Itoa(d.starters)
	controller, err := install.Start(b.Context(), d.cluster, o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), patience)
		defer cancel()
		if err := controller.Stop(ctx); err != nil {
			b.Error(err)
		}
	})
	return controller
}

// condition is one of a status, as a patch names it.
type condition struct {
	Type       string                 `json:"type"`
	Status     corev1.ConditionStatus `json:"status,omitempty"`
	Reason     string                 `json:"reason,omitempty"`
	Message    string                 `json:"message,omitempty"`
	Heartbeat  metav1.Time            `json:"lastHeartbeatTime"`
	Transition *metav1.Time           `json:"lastTransitionTime,omitempty"`
}

// setProblem writes a condition as an agent on the node would.
func (d *fixture) setProblem(ctx context.Context, node, problem string, status corev1.ConditionStatus) error {
	now := metav1.Now()
	return d.patch(ctx, node, condition{
		Type: problem, Status: status, Reason: "Benchmark", Message: "this is a benchmark", Heartbeat: now, Transition: &now,
	})
}

// heartbeat says of every condition that it still holds. It names them in the
// order in which the node has them, as a kubelet does; another would change it.
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

// setTaint writes what the controller writes: a list of taints and a note.
func (d *fixture) setTaint(ctx context.Context, node, taints string) error {
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{"scale/note":%q}},"spec":{"taints":%s}}`, strings.Repeat("x", len(taints)), taints)
	return d.send(ctx, node, types.MergePatchType, body)
}

// send asks only for metadata back: the writer must not be what is measured.
func (d *fixture) send(ctx context.Context, node string, kind types.PatchType, body []byte, subresources ...string) error {
	if _, err := d.write.Patch(ctx, node, kind, body, metav1.PatchOptions{FieldManager: "scale"}, subresources...); err != nil {
		return fmt.Errorf("patching node %s: %w", node, err)
	}
	return nil
}

// setProblems writes a condition of many nodes, some at a time, and returns when
// the last was answered.
func (d *fixture) setProblems(ctx context.Context, names []string, problem string, status corev1.ConditionStatus, atATime int) error {
	return each(ctx, names, atATime, func(ctx context.Context, name string) error { return d.setProblem(ctx, name, problem, status) })
}

// each does something for every node, some at a time.
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
