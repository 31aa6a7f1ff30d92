package chaos

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/faultproxy"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// wait is for all waits. It suits two busy cores.
var wait = testkit.Wait{Limit: 3 * time.Minute, First: 50 * time.Millisecond, Longest: 500 * time.Millisecond}

// remediations are the resources of the remediator.
var remediations = []schema.GroupVersionResource{
	remediator.GroupVersion.WithResource("exampleremediations"),
	remediator.GroupVersion.WithResource("exampleremediationtemplates"),
}

// readyTimeout is how long a new node of a NodePool may take to become ready.
const readyTimeout = 20 * time.Second

// election has a short lease, so that a leader that is paused or cut off loses it soon. The
// replicas of a busy machine sometimes lose it without a fault, and are started again.
var election = []string{"--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=4s", "--leader-elect-retry-period=500ms"}

// policies has every kind of policy. Together they ask for more than Guardrails allow. Each
// NodePool has its policy in another place.
const policies = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: Guardrails
metadata: {name: cluster}
spec:
  maxInTreatment: 10%
  maxUnschedulable: 30%
  pace: {max: 10%, atLeast: 2, period: 1m}
  topology:
  - {key: topology.kubernetes.io/zone, max: 20%}
  correlatedFailure: {threshold: 60%, minNodes: 3, window: 1m, keys: [topology.kubernetes.io/zone]}
  maxAttempts: {limit: 1000, window: 1m}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: kernel, annotations: {autohealer.resourcestack.com/accept-impact: "true"}}
spec:
  type: Kernel
  effect: NoExecute
  taintKey: example.com/kernel
  maxUnhealthy: 20%
  conditions: {KernelDeadlock: {status: "True"}}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: runtime, annotations: {autohealer.resourcestack.com/accept-impact: "true"}}
spec:
  type: Runtime
  effect: NoExecute
  taintKey: example.com/runtime
  maxUnhealthy: 5
  conditions: {RuntimeDown: {status: "True", duration: 2s}}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: disk, annotations: {autohealer.resourcestack.com/accept-impact: "true"}}
spec:
  type: Disk
  effect: NoSchedule
  taintKey: example.com/disk
  conditions: {SlowDisk: {status: "True"}}
---
apiVersion: remediator.example.com/v1
kind: ExampleRemediationTemplate
metadata: {name: reboot, namespace: default, annotations: {remediation.medik8s.io/multiple-templates-support: "true"}}
spec: {template: {spec: {strategy: reboot}}}
---
apiVersion: remediator.example.com/v1
kind: ExampleRemediationTemplate
metadata: {name: replace, namespace: default, annotations: {remediation.medik8s.io/multiple-templates-support: "true"}}
spec: {template: {spec: {strategy: replace}}}
---
apiVersion: remediator.example.com/v1
kind: ExampleRemediationTemplate
metadata: {name: plain, namespace: default}
spec: {template: {spec: {strategy: repair}}}
---
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata: {name: workers, annotations: {autohealer.resourcestack.com/windows: "* * * * * for 30s"}}
spec:
  selector: {matchLabels: {example.com/group: static}}
  maxUnhealthy: 40%
  unhealthyConditions:
  - {type: Unhealthy, status: "True", duration: 1s}
  escalatingRemediations:
  - {order: 1, timeout: 1m, remediationTemplate: {apiVersion: remediator.example.com/v1, kind: ExampleRemediationTemplate, namespace: default, name: reboot}}
  - {order: 2, timeout: 1m, remediationTemplate: {apiVersion: remediator.example.com/v1, kind: ExampleRemediationTemplate, namespace: default, name: replace}}
---
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata: {name: control-plane}
spec:
  selector: {matchLabels: {example.com/group: control-plane}}
  maxUnhealthy: 3
  unhealthyConditions:
  - {type: Unhealthy, status: "True", duration: 1s}
  remediationTemplate: {apiVersion: remediator.example.com/v1, kind: ExampleRemediationTemplate, namespace: default, name: reboot}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: RepairPolicy
metadata: {name: green}
spec:
  nodePool: green
  repair:
    maxUnhealthy: 20%
    readyTimeout: 20s
    policies: [{conditionType: BadDisk, conditionStatus: "True", toleration: 2s}]
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: RepairPolicy
metadata: {name: plain}
spec:
  selector: {matchLabels: {example.com/group: plain}}
  repair:
    maxUnhealthy: 30%
    policies: [{conditionType: BadDisk, conditionStatus: "True", toleration: 2s}]
  remediationTemplate: {apiVersion: remediator.example.com/v1, kind: ExampleRemediationTemplate, namespace: default, name: plain}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: blue}
spec:
  disruption: {budgets: [{nodes: 30%}]}
  repair:
    maxUnhealthy: 20%
    readyTimeout: 20s
    policies: [{conditionType: BadDisk, conditionStatus: "True", toleration: 2s}]
  template: {spec: {nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}, requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]}}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: green}
spec:
  disruption: {budgets: [{nodes: 30%}]}
  template: {spec: {nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}, requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]}}
---
# No controller manager aggregates the rights of the remediator: its garbage collector would
# not survive a restored etcd.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: chaos-remediator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: remediator.example.com-ext-remediation}
subjects: [{kind: ServiceAccount, name: autohealer-controller, namespace: autohealer-system}]
`

// cluster is a control plane with policies, nodes, replicas of the controller and faults.
type cluster struct {
	*install.Fixture
	t        *testing.T
	random   *rand.Rand // of the faults
	small    bool       // only faults that take little time
	sim      *simulator
	replicas []*replica

	kills     int
	killed    atomic.Int64   // kills, for the progress
	fault     atomic.Value   // the latest fault, for the progress
	injected  map[string]int // by fault
	restore   func() error   // restores a copy of etcd; nil if there is none
	restoreAt int            // the number of kills after which the copy is restored
}

// replica is a replica of the controller behind two proxies: one injects faults into requests,
// and the other can deliver requests of a killed replica late.
type replica struct {
	*install.Controller
	proxy *testbed.Proxy
	late  *faultproxy.Proxy
	clock string // a file, see setClock
}

// newCluster starts a cluster with policies and nodes.
func newCluster(t *testing.T, o options) *cluster {
	t.Helper()
	installed := install.NewFixture(t, wait, testbed.Config{
		Record:   history.Resources(remediations...),
		RecordIn: history.Namespaces(),
	}, v1alpha1.AddToScheme, remediationv1alpha1.AddToScheme)
	ctx := t.Context()
	testkit.Must(t, remediator.Install(ctx, installed.Cluster))
	testkit.Must(t, karpenter.InstallCRDs(ctx, installed.Cluster))
	testkit.Value(installed.Kubectl(ctx, "patch", "crd", deploy.NodePoolCRD, "--type=json", "-p", string(deploy.NodePoolPatch()))).Must(t)
	w := &cluster{Fixture: installed, t: t, random: newRandom(o.seed, 1), small: o.small, injected: map[string]int{}}
	w.fault.Store("no fault yet")
	w.sim = newSimulator(installed, newRandom(o.seed, 2))
	testkit.Must(t, w.sim.createNodes(ctx, o.nodes))
	w.Eventually(t, "the policies to be accepted", func() error { // the API server serves a patched schema a moment later
		_, err := installed.KubectlApply(ctx, policies)
		return err
	})
	return w
}

// startReplicas starts a replica of each program. An empty path means the program of this source.
func (w *cluster) startReplicas(programs [2]string) {
	w.t.Helper()
	for i, program := range programs {
		name := fmt.Sprintf("replica-%d", i+1)
		r := &replica{proxy: testkit.Value(w.Proxy()).Must(w.t), clock: filepath.Join(w.t.TempDir(), name)}
		r.late = faultproxy.StartThrough(w.t, w.Cluster, name+"-proxy", r.proxy)
		r.setClock(w.t, 0)
		args := append([]string{"--feature-gates=NodeReadyTimeoutRecovery=true", "--node-ready-timeout=" + readyTimeout.String()}, election...)
		r.Controller = w.Start(w.t, install.Options{Name: name, Program: program, Args: r.late.Args(args...), Env: []string{skewVariable + "=" + r.clock}})
		r.Expect() // it may lose its lease
		w.replicas = append(w.replicas, r)
	}
	w.leader()
}

// leader waits for a leader.
func (w *cluster) leader() (leader *replica) {
	w.t.Helper()
	w.Eventually(w.t, "a leader", func() error {
		for _, r := range w.replicas {
			w.revive(r)
		}
		for _, r := range w.replicas {
			if w.leads(r) {
				leader = r
				return nil
			}
		}
		return fmt.Errorf("no replica leads")
	})
	return leader
}

// leads reports whether a replica says that it leads.
func (w *cluster) leads(r *replica) bool {
	_, page, err := testkit.Get(w.t.Context(), "http://"+r.Metrics+"/metrics")
	return err == nil && strings.Contains(page, `leader_election_master_status{name="autohealer-controller"} 1`)
}

// revive starts a replica again that has ended, with another clock.
func (w *cluster) revive(r *replica) {
	w.t.Helper()
	if r.PID() != 0 {
		return
	}
	r.setClock(w.t, w.random.IntN(2*maxSkew+1)-maxSkew)
	testkit.Must(w.t, r.Restart(w.t.Context()))
	r.Expect()
}

// maxSkew is by how many seconds the clock of a replica may be wrong.
const maxSkew = 3
