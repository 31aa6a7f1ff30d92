package admission

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
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
		Nodes:      &w.people,
		Statements: []dialect.RepairStatement{{Type: "Ready", Status: "False", Toleration: "30m"}},
		Policies:   func(context.Context) ([]*v1alpha1.RepairPolicy, error) { return w.policies, w.policiesErr },
		Pools:      func(context.Context) ([]*karpenter.NodePool, error) { return w.pools, w.poolsErr },
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
		Spec:       v1alpha1.RepairPolicySpec{NodePool: "default", Repair: v1alpha1.RepairSpec{DefaultTolerationDuration: "30m"}},
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
	goodBlock = `{"defaultTolerationDuration": "30m", "policies": [{"conditionType": "Ready", "toleration": "45m"}]}`
	badBlock  = `{"policies": [{"conditionType": "Ready", "toleration": "-45m"}]}`
)

func written(tb testing.TB, object any) []byte {
	tb.Helper()
	switch object := object.(type) {
	case nil:
		return nil
	case []byte:
		return object
	case *v1alpha1.RepairPolicy:
		if object == nil {
			return nil
		}
	}
	return testkit.Value(json.Marshal(object)).Must(tb)
}

func sends(tb testing.TB, k Kind, operation admissionv1.Operation, old, object any, changes ...func(*admissionv1.AdmissionRequest)) admission.Response {
	tb.Helper()
	request := admissionv1.AdmissionRequest{
		Name: "policy", Operation: operation,
		Object: runtime.RawExtension{Raw: written(tb, object)}, OldObject: runtime.RawExtension{Raw: written(tb, old)},
	}
	for _, change := range changes {
		change(&request)
	}
	return k.Handle(tb.Context(), admission.Request{AdmissionRequest: request})
}

func TestRepairAnswers(t *testing.T) {
	const create, update, remove = admissionv1.Create, admissionv1.Update, admissionv1.Delete
	unread := func(w *repairFixture) { w.policiesErr, w.poolsErr = errors.New("gone"), errors.New("away") }
	toStatus := func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }
	for name, test := range map[string]struct {
		pools     bool // validate pools, not policies
		operation admissionv1.Operation
		old, new  any
		change    func(*admissionv1.AdmissionRequest)
		setup     func(*repairFixture)
		refuses   string
		warns     string
	}{
		"lets a new policy in":                {operation: create, new: policy(), warns: "3 of 10 selected nodes (30%) match now (n0, n1 and n2): the policy will repair them, no more than 2 at once, once it has stood for 30m"},
		"refuses a new policy":                {operation: create, new: policy(negative), refuses: `spec.repair.defaultTolerationDuration: "-30m": a duration cannot be negative`},
		"refuses a change of a policy":        {operation: update, old: policy(), new: policy(negative), refuses: "negative"},
		"takes a change of a policy":          {operation: update, old: policy(), new: policy(longer), warns: "stood for 40m"},
		"lets metadata of a policy pass":      {operation: update, old: policy(negative), new: policy(negative, labelled)},
		"lets a bad policy be switched off":   {operation: update, old: policy(negative), new: policy(negative, off), warns: "negative"},
		"lets the status of a policy pass":    {operation: update, old: policy(), new: policy(negative), change: toStatus},
		"tells who only wants to see":         {operation: update, old: policy(negative), new: policy(negative), change: asDryRun, warns: "negative"},
		"refuses a policy also only to see":   {operation: create, new: policy(negative), change: asDryRun, refuses: "negative"},
		"does without the others":             {operation: create, new: policy(), setup: unread, warns: "the NodePools could not be read (away)"},
		"does without the policies":           {operation: create, new: policy(), setup: unread, warns: "the RepairPolicies could not be read (gone)"},
		"warns of a pool that there is not":   {operation: create, new: policy(), setup: func(w *repairFixture) { w.pools = []*karpenter.NodePool{} }, warns: "there is no NodePool default"},
		"says nothing where nobody has pools": {operation: create, new: policy(), warns: "3 of 10"},
		"warns of another policy": {operation: create, new: policy(), setup: func(w *repairFixture) {
			w.policies = []*v1alpha1.RepairPolicy{policy(), policy(func(p *v1alpha1.RepairPolicy) { p.Name = "a"; p.CreationTimestamp = metav1.Unix(1, 0) })}
		}, warns: "which go before this policy: RepairPolicy a (10, the first is n0); it reports Conflict"},
		"warns of a template":           {operation: create, new: policy(selecting), setup: func(w *repairFixture) { w.template = errors.New("no answer") }, warns: "spec.remediationTemplate: no answer"},
		"lets a policy go":              {operation: remove, old: policy(negative)},
		"tells what goes with it":       {operation: remove, old: policy(selecting, repairing), warns: "this policy is repairing 2 nodes"},
		"keeps quiet of what goes on":   {operation: remove, old: policy(repairing)},
		"lets what nobody can read go":  {operation: remove},
		"refuses what is none":          {operation: create, new: []byte(`[]`), refuses: "reading the RepairPolicy"},
		"refuses what cannot be read":   {operation: create, new: []byte(`{"spec": {"nodePool": 3}}`), refuses: "spec.repair: cannot be read"},
		"refuses two pools and no pool": {operation: create, new: policy(func(p *v1alpha1.RepairPolicy) { p.Spec.Selector = &metav1.LabelSelector{} }), refuses: "spec.nodePool: \"default\": give either"},

		"lets a pool in without a block":           {pools: true, operation: create, new: pool("")},
		"lets a pool in with a block":              {pools: true, operation: create, new: pool(goodBlock), warns: "the block will repair them"},
		"refuses a pool with a bad block":          {pools: true, operation: create, new: pool(badBlock), refuses: `spec.repair.policies[0].toleration: "-45m": a duration cannot be negative`},
		"refuses a change of a block":              {pools: true, operation: update, old: pool(goodBlock), new: pool(badBlock), refuses: "negative"},
		"refuses a first block":                    {pools: true, operation: update, old: pool(""), new: pool(badBlock), refuses: "negative"},
		"lets a bad block be changed for good":     {pools: true, operation: update, old: pool(badBlock), new: pool(goodBlock), warns: "3 of 10"},
		"lets a bad block be taken away":           {pools: true, operation: update, old: pool(badBlock), new: pool(""), warns: "without it no node of this pool is repaired"},
		"lets everything else of a pool pass":      {pools: true, operation: update, old: pool(badBlock), new: []byte(strings.ReplaceAll(string(pool(badBlock)), `"requirements": []`, `"requirements": [{}]`))},
		"refuses a block that cannot be read":      {pools: true, operation: update, old: pool(""), new: pool(`{"policies": 3}`), refuses: "spec.repair: cannot be read"},
		"lets a block pass that stays unreadable":  {pools: true, operation: update, old: pool(`{"policies": 3}`), new: pool(`{"policies": 3}`)},
		"refuses another that cannot be read":      {pools: true, operation: update, old: pool(`{"policies": 3}`), new: pool(`{"policies": 4}`), refuses: "cannot be read"},
		"lets the status of a pool pass":           {pools: true, operation: update, old: pool(goodBlock), new: pool(badBlock), change: toStatus},
		"lets a pool go":                           {pools: true, operation: remove, old: pool(badBlock)},
		"judges a pool without the others":         {pools: true, operation: create, new: pool(goodBlock), setup: unread, warns: "could not be read (gone)"},
		"takes a pool's block away without others": {pools: true, operation: update, old: pool(goodBlock), new: pool(""), setup: unread, warns: "without it no node"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRepairFixture()
			if test.setup != nil {
				test.setup(w)
			}
			var k Kind = w.policyKind(t)
			if test.pools {
				k = w.poolKind(t)
			}
			var changes []func(*admissionv1.AdmissionRequest)
			if test.change != nil {
				changes = append(changes, test.change)
			}
			answer := sends(t, k, test.operation, test.old, test.new, changes...)
			if answer.Allowed != (test.refuses == "") || !strings.Contains(answer.Result.Message, test.refuses) {
				t.Errorf("allowed is %v: %s", answer.Allowed, answer.Result.Message)
			}
			if said := strings.Join(answer.Warnings, "\n"); !strings.Contains(said, test.warns) || test.warns == "" && test.refuses == "" && said != "" {
				t.Errorf("it says %q", said)
			}
		})
	}
}

func TestOnlyNodePoolsAreAllowedBeforeTheNodesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRepairFixture()
		w.people.ready.Store(false)
		policies, pools := w.policyKind(t), w.poolKind(t)
		if policies.Ready() == nil || pools.Ready() != nil {
			t.Errorf("ready: policies %v, pools %v", policies.Ready(), pools.Ready())
		}
		begin := time.Now()
		if answer := sends(t, policies, admissionv1.Create, nil, policy()); answer.Allowed || answer.Result.Code != http.StatusServiceUnavailable {
			t.Errorf("a policy: %+v", answer.Result)
		}
		if waited := time.Since(begin); waited != waitTimeout {
			t.Errorf("it waited for %s", waited)
		}
		begin = time.Now()
		for name, answer := range map[string]admission.Response{
			"a policy that is off":   sends(t, policies, admissionv1.Create, nil, policy(off)),
			"a policy that goes":     sends(t, policies, admissionv1.Delete, policy(), nil),
			"a pool":                 sends(t, pools, admissionv1.Create, nil, pool(goodBlock)),
			"a pool without a block": sends(t, pools, admissionv1.Create, nil, pool("")),
		} {
			if !answer.Allowed {
				t.Errorf("%s: %+v", name, answer.Result)
			}
		}
		if answer := sends(t, pools, admissionv1.Create, nil, pool(badBlock)); answer.Allowed {
			t.Error("a pool that is wrong anyway is let in")
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("these waited for %s", waited)
		}
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
		begin := time.Now()
		if answer := sends(t, policies, admissionv1.Create, nil, policy()); !answer.Allowed || time.Since(begin) != readTimeout {
			t.Errorf("a policy: %+v after %s", answer, time.Since(begin))
		}
		begin = time.Now()
		if answer := sends(t, pools, admissionv1.Create, nil, pool(goodBlock)); !answer.Allowed || time.Since(begin) != waitTimeout {
			t.Errorf("a pool: %+v after %s", answer, time.Since(begin))
		}
	})
}

func TestRepairAnswersAreCounted(t *testing.T) {
	config := newRepairFixture().config()
	policies := testkit.Value(NewRepairPolicies(config)).Must(t)
	pools := testkit.Value(NewNodePools(config)).Must(t)
	sends(t, policies, admissionv1.Create, nil, policy())         // warned
	sends(t, policies, admissionv1.Create, nil, policy(negative)) // refused
	sends(t, pools, admissionv1.Create, nil, pool(badBlock))      // refused
	sends(t, pools, admissionv1.Create, nil, pool(""))            // allowed
	if got := testutil.CollectAndCount(config.Metrics); got != 4 {
		t.Errorf("%d kinds of answers were counted", got)
	}
	_, one := NewRepairPolicies(RepairConfig{})
	_, other := NewNodePools(RepairConfig{})
	for _, field := range []string{"Nodes", "Statements", "Policies", "Pools", "Template", "Metrics", "Logger"} {
		for _, err := range []error{one, other} {
			if err == nil || !strings.Contains(err.Error(), field+" is missing") {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
}

// Every request gets an answer, and every rejection has a reason.
func FuzzRepairAnswers(f *testing.F) {
	for _, object := range [][]byte{pool(goodBlock), pool(badBlock), pool(""), written(f, policy()), written(f, policy(negative, off)), []byte(`{"spec": {"repair": [1]}}`), []byte(`null`)} {
		f.Add(pool(""), object)
		f.Add(object, object)
	}
	f.Fuzz(func(t *testing.T, old, object []byte) {
		w := newRepairFixture()
		for _, k := range []Kind{w.policyKind(t), w.poolKind(t)} {
			for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete, "CONNECT"} {
				answer := sends(t, k, operation, old, object)
				if !answer.Allowed && answer.Result.Message == "" {
					t.Error("it is refused without a word")
				}
				if operation == admissionv1.Delete && !answer.Allowed {
					t.Error("it may not go")
				}
			}
		}
	})
}
