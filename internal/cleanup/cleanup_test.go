package cleanup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/agentlease"
	"github.com/resourcestack/autohealer/internal/cleanup"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testbed"
	installed "github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

const (
	namespace = "autohealer-system"
	leader    = "autohealer-controller"
)

// fixture is a cluster with objects of a controller and of others.
type fixture struct {
	*testing.T
	cluster    *testbed.Cluster
	api        client.Client // as the admin
	restricted client.Client // with the permissions of deploy/cleanup.yaml
}

func newSite(t *testing.T) *fixture {
	t.Helper()
	s := &fixture{T: t, cluster: testbed.New(t, testbed.Config{})}
	for _, args := range [][]string{
		{"create", "namespace", namespace},
		{"create", "namespace", "medik8s-leases"},
		{"apply", "-f", "../../deploy/chart/crds", "-f", "../../deploy/cleanup.yaml", "--validate=strict"},
		{"wait", "--for=condition=Established", "--timeout=30s", "crd/conditionsets.autohealer.resourcestack.com"},
	} {
		testkit.Value(s.cluster.Kubectl(t.Context(), args...)).Must(s)
	}
	testkit.Must(s, installed.InstallCRDs(t.Context(), s.cluster))
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, karpenter.AddToScheme, v1alpha1.AddToScheme, remediationv1alpha1.AddToScheme} {
		testkit.Must(s, add(scheme))
	}
	var err error
	s.api, err = client.New(s.cluster.AdminConfig(), client.Options{Scheme: scheme})
	testkit.Must(s, err)
	config, err := s.cluster.ServiceAccountConfig(t.Context(), namespace, "autohealer-cleanup")
	testkit.Must(s, err)
	s.restricted, err = client.New(config, client.Options{Scheme: scheme})
	testkit.Must(s, err)
	return s
}

// busyClient has a kubelet write to the first node that the cleanup writes to, in the moment before.
type busyClient struct {
	client.Client
	kubelet client.Client
	once    sync.Once
}

// Patch patches an object.
func (c *busyClient) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	if object.GetObjectKind().GroupVersionKind().Kind == "Node" {
		c.once.Do(func() {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: object.GetName()}}
			_ = c.kubelet.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"written":"meanwhile"}}}`)))
		})
	}
	return c.Client.Patch(ctx, object, patch, options...)
}

// run cleans up with the shipped permissions only.
func (s *fixture) run(dryRun bool) (cleanup.Result, string, error) {
	s.Helper()
	var out bytes.Buffer
	result, err := cleanup.Run(s.Context(), cleanup.Config{Client: &busyClient{Client: s.restricted, kubelet: s.api}, Namespace: namespace, AgentNamespace: namespace, LeaseName: leader, DryRun: dryRun, Out: &out})
	return result, out.String(), err
}

// leavesOurs creates what a controller and its agents leave.
func (s *fixture) leavesOurs() (things int) {
	s.Helper()
	added := time.Now().UTC().Truncate(time.Second)
	note := ownership.Record{Taints: []ownership.Taint{{
		Rule: ownership.Rule{Kind: policykind.ConditionSet, Name: "unhealthy"}, Key: "example.com/Unhealthy", Effect: corev1.TaintEffectNoExecute, Added: added,
	}}}
	text, _ := note.Encode()
	for i := range 3 {
		testkit.Must(s, s.api.Create(s.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Annotations: map[string]string{ownership.Annotation: text, "other": "one"}},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{
				note.Taints[0].Taint(), {Key: "theirs", Value: "1", Effect: corev1.TaintEffectNoSchedule},
			}},
		}))
		things += 2
	}
	mark := ownership.Mark{Rule: ownership.Rule{Kind: policykind.Repair, Name: "NodePool/default"}, Node: "n0", NodeUID: "u", Since: added, Deadline: treat.Deadline(added), Before: "2030-01-01T00:00:00Z"}
	claim := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeClassRef": map[string]any{"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
		"requirements": []any{map[string]any{"key": "kubernetes.io/os", "operator": "In", "values": []any{"linux"}}},
	}}}
	claim.SetGroupVersionKind(karpenter.GroupVersion.WithKind("NodeClaim"))
	claim.SetName("marked")
	claim.SetAnnotations(map[string]string{ownership.MarkAnnotation: mark.Encode(), karpenter.TerminationTimestampAnnotation: mark.Deadline})
	testkit.Must(s, s.api.Create(s.Context(), claim))
	testkit.Must(s, s.api.Create(s.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "autohealer-agent-n0", Labels: agentlease.LeaseLabels()}}))
	testkit.Must(s, s.api.Create(s.Context(), nodeLease("node-n0", nodelease.HolderOf("check")), client.FieldOwner(treat.FieldManager)))
	for i, label := range []string{configmaps.RevisionLabel, repairblock.RevisionLabel} {
		testkit.Must(s, s.api.Create(s.Context(), &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("kept-%d", i), Labels: map[string]string{label: "x"}},
			Revision:   1, Data: runtime.RawExtension{Raw: []byte(`{}`)},
		}))
	}
	testkit.Must(s, s.api.Create(s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ledger.Name}}))
	testkit.Must(s, s.api.Create(s.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: leader}}))
	mirror := map[string]string{v1alpha1.MirrorLabel: "x"}
	testkit.Must(s, s.api.Create(s.Context(), &v1alpha1.RepairPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nodepool-default", Labels: mirror}, Spec: v1alpha1.RepairPolicySpec{NodePool: "default"}}))
	testkit.Must(s, s.api.Create(s.Context(), setNamed("configmap-policies-sets-yaml-set", mirror)))
	return things + 1 + 1 + 1 + 2 + 1 + 1 + 2
}

func setNamed(name string, labels map[string]string) *v1alpha1.ConditionSet {
	return &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: v1alpha1.ConditionSetSpec{
		Type: name, Effect: corev1.TaintEffectNoSchedule, TaintKey: "example.com/Unhealthy",
		Conditions: map[string]v1alpha1.SetCondition{"Unhealthy": {Status: "true"}},
	}}
}

func nodeLease(name, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: nodelease.Namespace, Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
}

// leavesDoubtful creates objects that look like Autohealer's, with the command to print.
func (s *fixture) leavesDoubtful() (commands []string) {
	s.Helper()
	testkit.Must(s, s.api.Create(s.Context(), setNamed("unhealthy", nil)))
	testkit.Must(s, s.api.Create(s.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "unclear"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.com/Unhealthy", Effect: corev1.TaintEffectNoExecute}}},
	}))
	// Keys that no stored set has: of a set in a ConfigMap, of its revision in force, and of
	// a deleted set. Each is on a node that has lost its record.
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "policies", Labels: map[string]string{configmaps.Label: configmaps.LabelValue}},
		Data:       map[string]string{"sets.yaml": setsWith("example.com/Kept")},
	}
	testkit.Must(s, s.api.Create(s.Context(), configMap))
	version, err := configmaps.Read(configMap)
	testkit.Must(s, err)
	_, err = configmaps.NewRevisionStore(s.api, namespace).Store(s.Context(), configmaps.Stored{}, version)
	testkit.Must(s, err)
	configMap.Data["sets.yaml"] = setsWith("example.com/Written")
	testkit.Must(s, s.api.Update(s.Context(), configMap))
	deleted := ownership.Record{Taints: []ownership.Taint{{
		Rule: ownership.Rule{Kind: policykind.ConditionSet, Name: "gone"}, Key: "example.com/Gone", Effect: corev1.TaintEffectNoExecute, Added: time.Now().UTC().Truncate(time.Second),
	}, {Rule: ownership.Rule{Kind: policykind.ConditionSet, Name: "forged"}, Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}}}
	text, _ := deleted.Encode()
	testkit.Must(s, s.api.Create(s.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "of-deleted", Annotations: map[string]string{ownership.Annotation: text}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{deleted.Taints[0].Taint()}},
	}))
	testkit.Must(s, s.api.Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "lost"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: "example.com/Gone", Effect: corev1.TaintEffectNoExecute}, {Key: "example.com/Kept", Effect: corev1.TaintEffectNoSchedule},
		{Key: "example.com/Written", Effect: corev1.TaintEffectNoSchedule}, {Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute},
	}}}))
	testkit.Must(s, s.api.Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unreadable", Annotations: map[string]string{ownership.Annotation: "?"}}}))
	testkit.Must(s, s.api.Create(s.Context(), nodeLease("node-n1", nodelease.HolderOf("theirs")), client.FieldOwner("manager")))
	return []string{
		"kubectl taint node lost example.com/Gone:NoExecute-",
		"kubectl taint node lost example.com/Kept:NoSchedule-",
		"kubectl taint node lost example.com/Written:NoSchedule-",
		"kubectl taint node unclear example.com/Unhealthy:NoExecute-",
		"kubectl annotate node unreadable " + ownership.Annotation + "-",
		"kubectl -n medik8s-leases delete lease node-n1",
	}
}

// leavesRemediations creates the health check of a controller that was stopped, and one that medik8s'
// controller follows.
func (s *fixture) leavesRemediations() {
	s.Helper()
	for name, standsBack := range map[string]metav1.ConditionStatus{"ours": metav1.ConditionFalse, "theirs": metav1.ConditionTrue} {
		template := &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "default", Name: "reboot"}
		check := &remediationv1alpha1.NodeHealthCheck{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: remediationv1alpha1.NodeHealthCheckSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": name}}, RemediationTemplate: template,
		}}
		testkit.Must(s, s.api.Create(s.Context(), check))
		check.Status.UnhealthyNodes = []remediationv1alpha1.UnhealthyNode{{Name: "n0", Remediations: []remediationv1alpha1.Remediation{{
			Resource: corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "Reboot", Namespace: "default", Name: "n0-abcde"}, Started: metav1.Now(),
		}}}}
		check.Status.Conditions = []metav1.Condition{{Type: remediationv1alpha1.StandingBack, Status: standsBack, Reason: "Test", LastTransitionTime: metav1.Now()}}
		testkit.Must(s, s.api.Status().Update(s.Context(), check))
	}
	for i, name := range []string{"idle", "repairing"} {
		policy := &v1alpha1.RepairPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RepairPolicySpec{
			Selector:            &metav1.LabelSelector{MatchLabels: map[string]string{"a": name}},
			RemediationTemplate: &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "default", Name: "reboot"},
			Repair:              v1alpha1.RepairSpec{Policies: []v1alpha1.ConditionRepair{{ConditionType: "Ready", ConditionStatus: "False", Toleration: "10m"}}},
		}}
		testkit.Must(s, s.api.Create(s.Context(), policy))
		policy.Status.Repairing, policy.Status.Tolerations, policy.Status.UnhealthyNodes, policy.Status.Conditions = int32(i), []v1alpha1.ConditionRepair{}, []v1alpha1.UnhealthyNode{}, []metav1.Condition{}
		testkit.Must(s, s.api.Status().Update(s.Context(), policy))
	}
}

func setsWith(key string) string {
	return "type: ConditionSets\nconditionSets:\n- type: Set\n  effect: NoSchedule\n  taintKey: " + key + "\n  conditions:\n  - {ConditionType: A, conditionStatus: true}\n"
}

func TestCleanup(t *testing.T) {
	s := newSite(t)
	ours := s.leavesOurs() + 3 // plus a taint with its record, and a stored revision
	commands := s.leavesDoubtful()
	s.leavesRemediations()
	testkit.Must(s, s.api.Create(s.Context(), nodeLease("node-n2", "node-maintenance")))
	testkit.Must(s, s.api.Create(s.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "theirs"}}))

	t.Run("fails_while_a_controller_is_the_leader", func(t *testing.T) {
		lease := &coordinationv1.Lease{}
		testkit.Must(s, s.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: leader}, lease))
		renew := func(seconds int32) error {
			lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("pod-1"), RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(seconds)}
			return s.api.Update(t.Context(), lease)
		}
		testkit.Must(s, renew(3600))
		ctx, stop := context.WithCancel(t.Context())
		renewed := make(chan error, 1)
		go func() {
			every := time.NewTicker(50 * time.Millisecond)
			defer every.Stop()
			for {
				select {
				case <-every.C:
				case <-ctx.Done():
					renewed <- nil
					return
				}
				if err := renew(3600); err != nil {
					renewed <- err
					return
				}
			}
		}()
		result, _, err := s.run(false)
		stop()
		testkit.Must(s, <-renewed)
		if !errors.Is(err, cleanup.ErrLeaderActive) || !strings.Contains(err.Error(), "pod-1") || result != (cleanup.Result{}) {
			t.Errorf("%+v, %v", result, err)
		}
		// The Lease of a controller that was killed expires.
		testkit.Must(s, renew(2))
		if _, out, err := s.run(true); err != nil || !strings.Contains(out, "waiting until pod-1 no longer holds Lease") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	want := cleanup.Result{Removed: ours, Left: len(commands)}
	t.Run("lists_what_it_would_remove_on_a_dry_run", func(t *testing.T) {
		for range 2 {
			if result, out, err := s.run(true); result != want || err != nil {
				t.Errorf("%+v, want %+v (%v):\n%s", result, want, err, out)
			}
		}
	})
	t.Run("removes_our_objects_and_reports_doubtful_ones", func(t *testing.T) {
		result, out, err := s.run(false)
		testkit.Check(t, result == want && err == nil, "%+v, want %+v (%v):\n%s", result, want, err, out)
		for _, command := range commands {
			testkit.Check(t, strings.Contains(out, command+"\n"), "it does not tell %q:\n%s", command, out)
		}
		const told = "NodeHealthCheck ours: node n0 still has Reboot n0-abcde, which medik8s' controller can continue; to end it: kubectl delete Reboot.v1.example.com n0-abcde -n default\n"
		testkit.Check(t, strings.Contains(out, told) && !strings.Contains(out, "NodeHealthCheck theirs"), "it does not tell only %q:\n%s", told, out)
		const repairs = "RepairPolicy repairing: nodes may still have a Reboot that is owned by the policy; to see them: kubectl get Reboot.v1.example.com -n default\n"
		testkit.Check(t, strings.Contains(out, repairs) && !strings.Contains(out, "RepairPolicy idle"), "it does not tell only %q:\n%s", repairs, out)
		s.hasOnlyTheirs()
		sets := &v1alpha1.ConditionSetList{}
		testkit.Must(s, s.api.List(t.Context(), sets))
		testkit.Check(t, len(sets.Items) == 1 && sets.Items[0].Name == "unhealthy", "the sets are %+v", sets.Items)
	})
	t.Run("does_nothing_the_second_time", func(t *testing.T) {
		// Two keys were known only from a record and from a stored revision.
		if result, out, err := s.run(false); result != (cleanup.Result{Left: len(commands) - 2}) || err != nil {
			t.Errorf("%+v (%v):\n%s", result, err, out)
		}
	})
	t.Run("does_nothing_without_our_CRDs", func(t *testing.T) {
		if _, err := s.cluster.Kubectl(t.Context(), "delete", "--wait=true", "crd", "conditionsets.autohealer.resourcestack.com", "nodehealthchecks.remediation.medik8s.io", "nodeclaims.karpenter.sh"); err != nil {
			t.Fatal(err)
		}
		if _, out, err := s.run(false); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
	})
}

// hasOnlyTheirs checks what is left.
func (s *fixture) hasOnlyTheirs() {
	s.Helper()
	for i := range 3 {
		node := &corev1.Node{}
		testkit.Must(s, s.api.Get(s.Context(), client.ObjectKey{Name: fmt.Sprintf("n%d", i)}, node))
		isTheirs := func(t corev1.Taint) bool { return t.Key == "theirs" || strings.HasPrefix(t.Key, "node.kubernetes.io/") }
		if _, noted := node.Annotations[ownership.Annotation]; noted || node.Annotations["other"] != "one" || !slices.ContainsFunc(node.Spec.Taints, isTheirs) ||
			slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return !isTheirs(t) }) {
			s.Errorf("node %s has %v and %v", node.Name, node.Annotations, node.Spec.Taints)
		}
	}
	claim := &karpenter.NodeClaim{}
	testkit.Must(s, s.api.Get(s.Context(), client.ObjectKey{Name: "marked"}, claim))
	if _, marked := claim.Annotations[ownership.MarkAnnotation]; marked || claim.Annotations[karpenter.TerminationTimestampAnnotation] != "2030-01-01T00:00:00Z" {
		s.Errorf("the NodeClaim has %v", claim.Annotations)
	}
	leases := &coordinationv1.LeaseList{}
	testkit.Must(s, s.api.List(s.Context(), leases))
	var names []string
	for i := range leases.Items {
		if in := leases.Items[i].Namespace; in == namespace || in == nodelease.Namespace {
			names = append(names, leases.Items[i].Name)
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"node-n1", "node-n2", "theirs"}) {
		s.Errorf("the Leases %v are left", names)
	}
	revisions := &appsv1.ControllerRevisionList{}
	testkit.Must(s, s.api.List(s.Context(), revisions))
	if len(revisions.Items) > 0 {
		s.Errorf("%d revisions are left", len(revisions.Items))
	}
	if err := s.api.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: ledger.Name}, &corev1.ConfigMap{}); client.IgnoreNotFound(err) != nil || err == nil {
		s.Errorf("the ledger is left: %v", err)
	}
}
