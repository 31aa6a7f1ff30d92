package explore

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treatment/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// planted is a fault in a part of the controller, and the promise that it breaks.
type planted struct {
	fault      faults
	scenario   *Scenario
	deviations int    // with which the search must find it
	only       []op   // kinds of deviations, to save time; nil for all
	breaks     string // name of the promise
}

func TestPlantedFaultsAreFound(t *testing.T) {
	for name, p := range plantedFaults() {
		t.Run(name, func(t *testing.T) {
			r := explore(t, p.scenario, Limits{Deviations: p.deviations, only: p.only}, &p.fault)
			t.Log(r)
			testkit.Require(t, r.Violation != nil, "the fault was not found")
			t.Logf("found with %d deviations after %d actions:\n%s", len(r.Levels)-1, len(r.Path), r.describe())
			testkit.Equal(t, "the broken promise", p.breaks, r.Violation.Invariant)
		})
	}
}

func plantedFaults() map[string]planted {
	return map[string]planted{
		"the core allows one more than the cap": {
			faults{rule: func(rule triage.Rule) triage.Rule {
				rule.Bound.Cap = &triage.Limit{Number: rule.Bound.Cap.Number + 1}
				return rule
			}}, twoUnhealthy, 0, nil, "the cap of NoExecute taints is kept",
		},
		"a write does not wait for the ledger": {
			faults{host: func(h engine.WriterHost) engine.WriterHost { return &hastyHost{h} }},
			twoUnhealthy, 0, nil, "the ledger names a write before it takes a slot",
		},
		"a patch of a node names no version": {
			faults{client: func(c client.WithWatch) client.WithWatch { return &boldClient{c} }},
			twoUnhealthy, 0, nil, "a write carries its preconditions",
		},
		"a patch removes the taints of others": {
			faults{client: func(c client.WithWatch) client.WithWatch { return &greedyClient{c} }},
			others, 1, nil, "only what Autohealer made is changed",
		},
		"a successor forgets the taint that may arrive": {
			faults{writer: func(w engine.NodeWriter) engine.NodeWriter { return &forgetfulWriter{w} }},
			lateReport, 4, []op{environment, crash, failWrite, arriveLate}, "the cap of NoExecute taints is kept",
		},
		"a successor forgets the remediation that may arrive": {
			faults{treatment: func(t engine.Treatment) engine.Treatment { return &forgetfulTreatment{t} }},
			twoBrokenPlanes, 2, nil, "one control-plane node at a time",
		},
		"a slot is free although its remediation may arrive": {
			faults{treatment: func(t engine.Treatment) engine.Treatment { return &impatientTreatment{t} }},
			twoBrokenPlanes, 2, nil, "one control-plane node at a time",
		},
		"the slot of a deleted node is free although its remediation may arrive": {
			faults{treatment: func(t engine.Treatment) engine.Treatment { return &carelessTreatment{t} }},
			replacedPlane, 3, []op{environment, loseAnswer, holdWatch}, "one control-plane node at a time",
		},
		"a remediation starts without a look at the node": {
			faults{checks: func(c engine.StartChecks) engine.StartChecks { return &blindChecks{c} }},
			gate, 0, nil, "a remediation starts after a look at the node",
		},
		"a remediation starts although the node has changed": {
			faults{checks: func(c engine.StartChecks) engine.StartChecks { return &stubbornChecks{c} }},
			gate, 1, nil, "a remediation starts after a look at the node",
		},
		"a remediation starts without asking the gate again": {
			faults{checks: func(c engine.StartChecks) engine.StartChecks { return &ungatedChecks{c} }},
			gate, 2, nil, "a remediation starts while the gate is open",
		},
		"a remediation of a healthy node stays": {
			faults{treatment: func(t engine.Treatment) engine.Treatment { return &lazyTreatment{t} }},
			gate, 1, nil, "the remediations are those that the conditions ask for",
		},
		"changes of a node are ignored": {
			faults{writer: func(w engine.NodeWriter) engine.NodeWriter { return &deafWriter{w} }},
			twoUnhealthy, 1, nil, "the taints are those that the conditions ask for",
		},
		"the pace is ignored": {
			withGuardrails(func(spec *v1alpha1.GuardrailsSpec) { spec.Pace.Max = unlimited }),
			railed(Rails{Pace: 1}), 0, nil, "no more remediations start within a period than allowed",
		},
		"zones are ignored": {
			withGuardrails(func(spec *v1alpha1.GuardrailsSpec) { spec.Topology = []v1alpha1.TopologyLimit{} }),
			railed(Rails{InZone: 1}), 0, nil, "each zone has no more nodes in treatment than allowed",
		},
		"the last node is not protected": {
			withGuardrails(func(spec *v1alpha1.GuardrailsSpec) { spec.MaxInTreatment = unlimited }),
			railed(Rails{InTreatment: 3, Last: true}), 1, []op{environment}, "the last open node is neither treated nor closed",
		},
		"correlated failures are ignored": {
			withGuardrails(func(spec *v1alpha1.GuardrailsSpec) { spec.CorrelatedFailure.Keys = []v1alpha1.DomainKey{} }),
			railed(Rails{Together: 2}), 0, nil, "nothing disruptive starts where nodes failed together",
		},
		"correlated failures hold for ever": {
			withGuardrails(func(spec *v1alpha1.GuardrailsSpec) { spec.CorrelatedFailure.LongestHold = "" }),
			railed(Rails{Together: 2, LongestHold: true}), 0, nil, "the remediations are those that the conditions ask for",
		},
		"cordons are ignored": {
			withGuardrails(func(spec *v1alpha1.GuardrailsSpec) { spec.Respect.Cordons = new(false) }),
			cordoned, 1, []op{environment}, "a remediation starts only if no user has cordoned the node",
		},
		"the mode Paused is ignored": {
			withGuardrails(func(spec *v1alpha1.GuardrailsSpec) { spec.Mode = v1alpha1.Enforce }),
			railed(Rails{Attempts: 3}), 1, []op{environment}, "nothing starts in mode Paused or Observe",
		},
		"the limit of attempts is ignored": {
			withGuardrails(func(spec *v1alpha1.GuardrailsSpec) { spec.MaxAttempts.Limit = 1000 }),
			railed(Rails{Attempts: 1}), 2, []op{environment}, "a node is not treated more often than allowed",
		},
		"an attempt is not recorded before the step": {
			faults{checks: func(c engine.StartChecks) engine.StartChecks { return &forgetfulChecks{c} }},
			railed(Rails{Attempts: 3}), 0, nil, "an attempt is recorded before it starts",
		},
		"the pause of a node is ignored by remediations": {
			withoutAnnotation(nodepause.Annotation), pausedBroken, 1, []op{environment}, "a remediation starts only if its node is not paused",
		},
		"the pause of a node is ignored by taints": {
			withoutAnnotation(nodepause.Annotation), pausedUnhealthy, 1, []op{environment}, "a paused node gets no taint",
		},
		"the window is ignored": {
			withoutAnnotation(v1alpha1.WindowsAnnotation), windowed, 1, []op{wait}, "a remediation starts while its window is open",
		},
	}
}

// withGuardrails changes the Guardrails that replicas receive.
func withGuardrails(edit func(*v1alpha1.GuardrailsSpec)) faults {
	return faults{delivered: func(object client.Object) {
		if guardrails, is := object.(*v1alpha1.Guardrails); is {
			edit(&guardrails.Spec)
		}
	}}
}

// withoutAnnotation removes an annotation from what replicas receive.
func withoutAnnotation(annotation string) faults {
	return faults{delivered: func(object client.Object) {
		if _, is := object.(*unstructured.Unstructured); !is {
			delete(object.GetAnnotations(), annotation)
		}
	}}
}

var unlimited = new(intstr.FromString("100%"))

// railed returns a cluster of two broken nodes in one zone, and a healthy node in another one.
func railed(rails Rails) *Scenario {
	return &Scenario{
		Name:   "a rail",
		Nodes:  []Node{{Name: "a", Zone: "1", True: []string{"Broken"}}, {Name: "b", Zone: "1", True: []string{"Broken"}}, {Name: "c", Zone: "2"}},
		Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 3}}, Rails: rails, Switches: true,
	}
}

// The clusters for planted faults are as small as the faults allow.
var (
	noExecute = []Set{{Name: "sick", Condition: "Sick", Effect: corev1.TaintEffectNoExecute, Max: 1}}
	broken    = []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 2}}

	twoUnhealthy    = &Scenario{Name: "two unhealthy nodes", Nodes: []Node{{Name: "a", True: []string{"Sick"}}, {Name: "b", True: []string{"Sick"}}}, Sets: noExecute}
	lateReport      = &Scenario{Name: "a late report", Nodes: []Node{{Name: "a", True: []string{"Sick"}, Fixed: true}, {Name: "b"}}, Sets: noExecute, Late: true}
	others          = &Scenario{Name: "taints of others", Nodes: []Node{{Name: "a", True: []string{"Sick"}}, {Name: "b"}}, Sets: noExecute, Others: true}
	twoBrokenPlanes = &Scenario{Name: "two broken control-plane nodes", Nodes: []Node{{Name: "a", ControlPlane: true, True: []string{"Broken"}}, {Name: "b", ControlPlane: true, True: []string{"Broken"}}}, Checks: broken}
	replacedPlane   = &Scenario{Name: "a replaced control-plane node", Nodes: []Node{{Name: "a", ControlPlane: true, True: []string{"Broken"}}, {Name: "b", ControlPlane: true, True: []string{"Broken"}, Fixed: true}}, Checks: broken, Replaces: true}
	pausedBroken    = &Scenario{Name: "pauses of a broken node", Nodes: []Node{{Name: "a", True: []string{"Broken"}}}, Checks: broken, Pauses: true}
	pausedUnhealthy = &Scenario{Name: "pauses of an unhealthy node", Nodes: []Node{{Name: "a", True: []string{"Sick"}}}, Sets: noExecute, Pauses: true}
	cordoned        = &Scenario{Name: "cordons of a broken node", Nodes: []Node{{Name: "a", True: []string{"Broken"}}}, Checks: broken, Rails: Rails{Attempts: 1000}, Cordons: true}
	windowed        = &Scenario{Name: "a window", Nodes: []Node{{Name: "a", True: []string{"Broken"}}}, Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 2, IsWindowed: true}}}
	gate            = &Scenario{Name: "a gate of one", Nodes: []Node{{Name: "a", True: []string{"Broken"}}, {Name: "b"}}, Checks: []Check{{Name: "broken", Condition: "Broken", MaxUnhealthy: 1}}}
)

// hastyHost grants every slot at once.
type hastyHost struct{ engine.WriterHost }

func (h *hastyHost) RequestSlot(t engine.SlotTaker) {
	if len(t.Request(time.Now())) > 0 {
		t.Grant()
	}
	t.Proceed()
}

// boldClient removes the version from patches.
type boldClient struct{ client.WithWatch }

func (c *boldClient) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	return c.WithWatch.Patch(ctx, object, edited(patch, object, func(body map[string]any) {
		delete(body["metadata"].(map[string]any), "resourceVersion")
	}), options...)
}

// greedyClient removes all taints of others.
type greedyClient struct{ client.WithWatch }

func (c *greedyClient) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	return c.WithWatch.Patch(ctx, object, edited(patch, object, func(body map[string]any) {
		if spec, is := body["spec"].(map[string]any); is {
			taints, _ := spec["taints"].([]any)
			spec["taints"] = slices.DeleteFunc(taints, func(t any) bool { return t.(map[string]any)["value"] == othersValue })
		}
	}), options...)
}

// edited returns a changed patch.
func edited(patch client.Patch, object client.Object, edit func(body map[string]any)) client.Patch {
	text, err := patch.Data(object)
	if err != nil {
		panic(err)
	}
	var body map[string]any
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&body); err != nil {
		panic(err)
	}
	edit(body)
	if text, err = json.Marshal(body); err != nil {
		panic(err)
	}
	return client.RawPatch(types.MergePatchType, text)
}

// forgetfulWriter ignores the entries of the previous leader.
type forgetfulWriter struct{ engine.NodeWriter }

func (*forgetfulWriter) Restore(time.Time, *engine.Node, ledger.NodeWrite) {}

// deafWriter ignores plans of nodes that it has seen twice.
type deafWriter struct{ engine.NodeWriter }

func (w *deafWriter) Reconcile(now time.Time, n *engine.Node, plan triage.Plan) {
	if len(plan.Taints) > 0 {
		w.NodeWriter.Reconcile(now, n, plan)
	}
}

// forgetfulTreatment ignores the entries of the previous leader.
type forgetfulTreatment struct{ engine.Treatment }

func (*forgetfulTreatment) Restore(time.Time, *engine.NodeTasks, *engine.Node) bool { return false }

// impatientTreatment does not expect a write that has got no answer.
type impatientTreatment struct{ engine.Treatment }

func (*impatientTreatment) MayArrive(ledger.ObjectWrite) bool { return false }

// carelessTreatment frees the slot of a deleted node at once.
type carelessTreatment struct{ engine.Treatment }

func (*carelessTreatment) FreesSlot(time.Time, *engine.NodeTasks) (free bool, due time.Time) {
	return true, time.Time{}
}

// lazyTreatment deletes no remediation object.
type lazyTreatment struct{ engine.Treatment }

func (t *lazyTreatment) Tasks(now time.Time, nodeTasks *engine.NodeTasks, n *engine.Node, plan triage.Plan) iter.Seq2[*engine.Task, time.Time] {
	return func(yield func(*engine.Task, time.Time) bool) {
		for task, due := range t.Treatment.Tasks(now, nodeTasks, n, plan) {
			if task != nil && task.Kind == remediation.DeleteRemediation {
				continue
			}
			if !yield(task, due) {
				return
			}
		}
	}
}

// blindChecks does not read the node again.
type blindChecks struct{ engine.StartChecks }

func (*blindChecks) IsUnchanged(context.Context, *engine.TaskResult) (bool, error) { return true, nil }

// stubbornChecks reads the node again and ignores what it finds.
type stubbornChecks struct{ engine.StartChecks }

func (c *stubbornChecks) IsUnchanged(ctx context.Context, r *engine.TaskResult) (bool, error) {
	_, err := c.StartChecks.IsUnchanged(ctx, r)
	r.Fresh, r.Missing, r.Outcome = nil, false, 0
	return true, err
}

// forgetfulChecks records no attempts.
type forgetfulChecks struct{ engine.StartChecks }

func (*forgetfulChecks) RecordAttempt(context.Context, *engine.TaskResult) (bool, error) {
	return true, nil
}

// ungatedChecks does not ask the gate again.
type ungatedChecks struct{ engine.StartChecks }

func (*ungatedChecks) MayStillStart(context.Context, *engine.TaskResult) (bool, error) {
	return true, nil
}
