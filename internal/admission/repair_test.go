package admission

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// repairFixture creates handlers for repairs with the data of a test.
type repairFixture struct {
	people      fakeNodes
	policies    []*v1alpha1.RepairPolicy
	policiesErr error
	pools       []*karpenter.NodePool
	poolsErr    error
	template    error
}

func newRepairFixture() *repairFixture {
	w := &repairFixture{}
	w.people.ready.Store(true)
	return w
}

func (w *repairFixture) config() RepairConfig {
	return RepairConfig{
		Nodes: &w.people,
		Statements: func() dialect.Statements {
			return dialect.Statements{Pools: []dialect.RepairStatement{{Type: "Ready", Status: "False", Toleration: "30m"}}}
		},
		Policies: func(context.Context) ([]*v1alpha1.RepairPolicy, error) { return w.policies, w.policiesErr },
		Pools:    func(context.Context) ([]*karpenter.NodePool, error) { return w.pools, w.poolsErr },
		Template: func(_ context.Context, template remediation.Template) (*unstructured.Unstructured, error) {
			object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
			object.SetGroupVersionKind(template.GroupVersionKind)
			object.SetName(template.Name)
			return object, w.template
		},
		Metrics: NewMetrics(), Logger: discard,
	}
}

func (w *repairFixture) policyKind(tb testing.TB) *RepairPolicies {
	tb.Helper()
	return testkit.Value(NewRepairPolicies(w.config())).Must(tb)
}

func (w *repairFixture) poolKind(tb testing.TB) *NodePools {
	tb.Helper()
	return testkit.Value(NewNodePools(w.config())).Must(tb)
}

// policy returns a valid policy with the changes applied.
func policy(changes ...func(*v1alpha1.RepairPolicy)) *v1alpha1.RepairPolicy {
	p := &v1alpha1.RepairPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "RepairPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: "policy"},
		Spec:       v1alpha1.RepairPolicySpec{NodePool: "default", Repair: v1alpha1.RepairSpec{DefaultTolerationDuration: "30m", UnhealthyThreshold: new(intstr.FromString("50%"))}},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func negative(p *v1alpha1.RepairPolicy)  { p.Spec.Repair.DefaultTolerationDuration = "-30m" }
func off(p *v1alpha1.RepairPolicy)       { p.Spec.Repair.Enabled = new(false) }
func labelled(p *v1alpha1.RepairPolicy)  { p.Labels = map[string]string{"a": "b"} }
func longer(p *v1alpha1.RepairPolicy)    { p.Spec.Repair.DefaultTolerationDuration = "40m" }
func repairing(p *v1alpha1.RepairPolicy) { p.Status.Repairing = 2 }
func selecting(p *v1alpha1.RepairPolicy) {
	p.Spec.NodePool, p.Spec.Selector = "", &metav1.LabelSelector{}
	p.Spec.RemediationTemplate = &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Name: "quick"}
}

// pool returns a NodePool with many fields that the package does not use.
func pool(repair string) []byte {
	if repair != "" {
		repair = `, "repair": ` + repair
	}
	return []byte(`{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"}, "spec": {"template": {"spec": {"requirements": []}}` + repair + `}, "status": {"nodes": 3}}`)
}

const (
	goodBlock = `{"defaultTolerationDuration": "30m", "unhealthyThreshold": "50%", "policies": [{"conditionType": "Ready", "toleration": "45m"}]}`
	badBlock  = `{"policies": [{"conditionType": "Ready", "toleration": "-45m"}]}`
)

func TestRepairAnswers(t *testing.T) {
	const create, update, remove = admissionv1.Create, admissionv1.Update, admissionv1.Delete
	unread := func(w *repairFixture) { w.policiesErr, w.poolsErr = errors.New("gone"), errors.New("away") }
	toStatus := func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }
	answers(t, newRepairFixture, (*repairFixture).policyKind, map[string]request[*repairFixture]{
		"lets a new policy in":                                    {operation: create, new: policy(), warns: "3 of 10 selected nodes (30%) match now (n0, n1 and n2): the policy will repair them, no more than 2 at once, when the condition has lasted for 30m"},
		"refuses a new policy":                                    {operation: create, new: policy(negative), refuses: `spec.repair.defaultTolerationDuration: "-30m": want a duration like 90s, 5m or 1h30m that is not negative, or Never`},
		"refuses a change of a policy":                            {operation: update, old: policy(), new: policy(negative), refuses: "negative"},
		"takes a change of a policy":                              {operation: update, old: policy(), new: policy(longer), warns: "lasted for 40m"},
		"lets metadata of a policy pass":                          {operation: update, old: policy(negative), new: policy(negative, labelled)},
		"lets a bad policy be switched off":                       {operation: update, old: policy(negative), new: policy(negative, off), warns: "negative"},
		"lets the status of a policy pass":                        {operation: update, old: policy(), new: policy(negative), change: toStatus},
		"only warns about the stored problem in a dry run":        {operation: update, old: policy(negative), new: policy(negative), change: asDryRun, warns: "negative"},
		"refuses a new problem in a dry run":                      {operation: create, new: policy(negative), change: asDryRun, refuses: "negative"},
		"does without the others":                                 {operation: create, new: policy(), setup: unread, warns: "the NodePools could not be read (away)"},
		"does without the policies":                               {operation: create, new: policy(), setup: unread, warns: "the RepairPolicies could not be read (gone)"},
		"warns of a pool that there is not":                       {operation: create, new: policy(), setup: func(w *repairFixture) { w.pools = []*karpenter.NodePool{} }, warns: "there is no NodePool default"},
		"says nothing about pools in a cluster without NodePools": {operation: create, new: policy(), warns: "3 of 10"},
		"warns of another policy": {operation: create, new: policy(), setup: func(w *repairFixture) {
			w.policies = []*v1alpha1.RepairPolicy{policy(), policy(func(p *v1alpha1.RepairPolicy) { p.Name = "a"; p.CreationTimestamp = metav1.Unix(1, 0) })}
		}, warns: "which go before this policy: RepairPolicy a (10, the first is n0); it reports Conflict"},
		"warns of a template":                         {operation: create, new: policy(selecting), setup: func(w *repairFixture) { w.template = errors.New("no answer") }, warns: "spec.remediationTemplate: no answer"},
		"lets a policy go":                            {operation: remove, old: policy(negative)},
		"tells what goes with it":                     {operation: remove, old: policy(selecting, repairing), warns: "this policy is repairing 2 nodes"},
		"keeps quiet of what goes on":                 {operation: remove, old: policy(repairing)},
		"allows the deletion of an unreadable policy": {operation: remove},
		"refuses what is none":                        {operation: create, new: []byte(`[]`), refuses: "reading the RepairPolicy"},
		"refuses what cannot be read":                 {operation: create, new: []byte(`{"spec": {"nodePool": 3}}`), refuses: "spec.repair: cannot be read"},
		"refuses two pools and no pool":               {operation: create, new: policy(func(p *v1alpha1.RepairPolicy) { p.Spec.Selector = &metav1.LabelSelector{} }), refuses: "spec.nodePool: \"default\": give either"},
	})
	answers(t, newRepairFixture, (*repairFixture).poolKind, map[string]request[*repairFixture]{
		"lets a pool in without a block":           {operation: create, new: pool("")},
		"lets a pool in with a block":              {operation: create, new: pool(goodBlock), warns: "the block will repair them"},
		"refuses a pool with a bad block":          {operation: create, new: pool(badBlock), refuses: `spec.repair.policies[0].toleration: "-45m": want a duration like 90s, 5m or 1h30m that is not negative, or Never`},
		"refuses a change of a block":              {operation: update, old: pool(goodBlock), new: pool(badBlock), refuses: "negative"},
		"refuses a first block":                    {operation: update, old: pool(""), new: pool(badBlock), refuses: "negative"},
		"lets a bad block be changed for good":     {operation: update, old: pool(badBlock), new: pool(goodBlock), warns: "3 of 10"},
		"lets a bad block be taken away":           {operation: update, old: pool(badBlock), new: pool(""), warns: "without it no node of this pool is repaired"},
		"lets everything else of a pool pass":      {operation: update, old: pool(badBlock), new: []byte(strings.ReplaceAll(string(pool(badBlock)), `"requirements": []`, `"requirements": [{}]`))},
		"refuses a block that cannot be read":      {operation: update, old: pool(""), new: pool(`{"policies": 3}`), refuses: "spec.repair: cannot be read"},
		"lets a block pass that stays unreadable":  {operation: update, old: pool(`{"policies": 3}`), new: pool(`{"policies": 3}`)},
		"refuses another that cannot be read":      {operation: update, old: pool(`{"policies": 3}`), new: pool(`{"policies": 4}`), refuses: "cannot be read"},
		"lets the status of a pool pass":           {operation: update, old: pool(goodBlock), new: pool(badBlock), change: toStatus},
		"lets a pool go":                           {operation: remove, old: pool(badBlock)},
		"judges a pool without the others":         {operation: create, new: pool(goodBlock), setup: unread, warns: "could not be read (gone)"},
		"takes a pool's block away without others": {operation: update, old: pool(goodBlock), new: pool(""), setup: unread, warns: "without it no node"},
	})
}

func TestOnlyNodePoolsAreAllowedBeforeTheNodesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRepairFixture()
		w.people.ready.Store(false)
		policies, pools := w.policyKind(t), w.poolKind(t)
		if policies.Ready() == nil || pools.Ready() != nil {
			t.Errorf("ready: policies %v, pools %v", policies.Ready(), pools.Ready())
		}
		lasts(t, waitTimeout, func() {
			if answer := ask(t, policies, admissionv1.Create, nil, policy()); answer.Allowed || answer.Result.Code != http.StatusServiceUnavailable {
				t.Errorf("a policy: %+v", answer.Result)
			}
		})
		lasts(t, 0, func() {
			allowed(t, map[string]admission.Response{
				"a policy that is off":   ask(t, policies, admissionv1.Create, nil, policy(off)),
				"a policy that goes":     ask(t, policies, admissionv1.Delete, policy(), nil),
				"a pool":                 ask(t, pools, admissionv1.Create, nil, pool(goodBlock)),
				"a pool without a block": ask(t, pools, admissionv1.Create, nil, pool("")),
			})
			if answer := ask(t, pools, admissionv1.Create, nil, pool(badBlock)); answer.Allowed {
				t.Error("a pool that is wrong anyway is let in")
			}
		})
		w.people.ready.Store(true)
		if err := policies.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// Reads must end before the timeout of the API server, and sooner for NodePools.
func TestReadsForRepairsTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := newRepairFixture().config()
		config.Pools = func(ctx context.Context) ([]*karpenter.NodePool, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		policies := testkit.Value(NewRepairPolicies(config)).Must(t)
		pools := testkit.Value(NewNodePools(config)).Must(t)
		lasts(t, readTimeout, func() {
			allowed(t, map[string]admission.Response{"a policy": ask(t, policies, admissionv1.Create, nil, policy())})
		})
		lasts(t, waitTimeout, func() {
			allowed(t, map[string]admission.Response{"a pool": ask(t, pools, admissionv1.Create, nil, pool(goodBlock))})
		})
	})
}

func TestRepairAnswersAreCounted(t *testing.T) {
	config := newRepairFixture().config()
	policies := testkit.Value(NewRepairPolicies(config)).Must(t)
	pools := testkit.Value(NewNodePools(config)).Must(t)
	ask(t, policies, admissionv1.Create, nil, policy())         // warned
	ask(t, policies, admissionv1.Create, nil, policy(negative)) // refused
	ask(t, pools, admissionv1.Create, nil, pool(badBlock))      // refused
	ask(t, pools, admissionv1.Create, nil, pool(""))            // allowed
	if got := testutil.CollectAndCount(config.Metrics); got != 4 {
		t.Errorf("%d kinds of answers were counted", got)
	}
	_, one := NewRepairPolicies(RepairConfig{})
	_, other := NewNodePools(RepairConfig{})
	for _, field := range []string{"Nodes", "Statements", "Policies", "Pools", "Template", "Metrics", "Logger"} {
		testkit.Fails(t, one, field+" is missing")
		testkit.Fails(t, other, field+" is missing")
	}
}

func FuzzRepairAnswers(f *testing.F) {
	for _, object := range [][]byte{pool(goodBlock), pool(badBlock), pool(""), raw(f, policy()).Raw, raw(f, policy(negative, off)).Raw, []byte(`{"spec": {"repair": [1]}}`), []byte(`null`)} {
		f.Add(pool(""), object)
		f.Add(object, object)
	}
	f.Fuzz(func(t *testing.T, old, object []byte) {
		w := newRepairFixture()
		for _, k := range []Kind{w.policyKind(t), w.poolKind(t)} {
			fuzz(t, k, old, object, true)
		}
	})
}
