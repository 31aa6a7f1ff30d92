package guardrails

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// A cordon keeps treatments of every kind from starting while the guardrails respect cordons. Taints
// ignore it, and so do treatments while there are no guardrails.
func TestGuardrailsRespectTheWorkOfOthers(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		inbox := enginetest.Empty(t, &v1alpha1.Guardrails{})
		metrics := NewMetrics()
		p := New(f, inbox, dialect.Rails{}, metrics)
		f.AddPolicies(p)
		when := triage.When{Signals: []triage.Signal{{Condition: "Broken", Status: triage.True}}}
		for _, kind := range []triage.Kind{policykind.NodeHealthCheck, policykind.Repair, policykind.ReadyTimeout} {
			testkit.Must(t, f.Core().SetRule(time.Now(), triage.Rule{ID: triage.RuleID{Kind: kind, Name: "a"}, Stage: policykind.StageRemediate, When: when, Response: triage.Response{Ladder: []triage.Step{{Action: triage.Remediate}}}}))
		}
		testkit.Must(t, f.Core().SetRule(time.Now(), triage.Rule{ID: triage.RuleID{Kind: policykind.ConditionSet, Name: "a"}, Stage: policykind.StageTaint, When: when, Response: triage.Response{Taint: &triage.TaintResponse{Key: "k", Effect: triage.NoSchedule}}}))
		node := func(name, version string, isBroken bool) *corev1.Node {
			n := enginetest.Named(name, version)
			n.Spec.Unschedulable = isBroken
			status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[isBroken]
			n.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: status, LastTransitionTime: metav1.Now()}}
			return n
		}
		guardrails := func(generation int64, respectsCordons bool) {
			object := &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName, UID: "g", Generation: generation}}
			object.Spec.Respect.Cordons = new(respectsCordons)
			testkit.Must(t, inbox.Update(object))
			f.Round(t.Context())
		}
		testkit.Must(t, f.NodeInbox().Update(node("other", "1", false)))
		guardrails(1, true)
		testkit.Must(t, f.NodeInbox().Update(node("a", "1", true)))
		f.Round(t.Context())
		plan, _ := f.Core().Plan("a")
		vetoed := 0
		for _, is := range plan.Findings {
			if is.Code == triage.Vetoed && strings.Contains(is.Other, "respect.cordons of Guardrails") {
				vetoed++
			}
		}
		testkit.Check(t, vetoed == 3 && plan.Treatment == nil && len(plan.Taints) == 1, "with respect for cordons the plan is %+v", plan)
		p.WriteStatuses(t.Context(), time.Now())
		testkit.Same(t, enginetest.Value(t, metrics, "autohealer_guardrail_held", "respect"), 1, "held nodes")
		testkit.Contains(t, p.statusOf(f.Core().RailUse()).Conditions[1].Message, "respect holds 1", "the message of Ready")

		// The node does not change: the change of the guardrails is sufficient.
		guardrails(2, false)
		plan, _ = f.Core().Plan("a")
		testkit.Check(t, plan.Treatment != nil, "without respect for cordons the plan is %+v", plan)
		guardrails(3, true)
		plan, _ = f.Core().Plan("a")
		testkit.Check(t, plan.Treatment == nil && len(plan.Release) == 1, "with respect again the plan is %+v", plan)
		testkit.Must(t, inbox.Delete(&v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName, UID: "g"}}))
		f.Round(t.Context())
		plan, _ = f.Core().Plan("a")
		testkit.Check(t, plan.Treatment != nil, "without guardrails the plan is %+v", plan)
	})
}

// A new leader must not begin without limits because an API server that has just started denies
// access.
func TestReady(t *testing.T) {
	kind := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "guardrails"}
	for name, of := range map[string]struct {
		answer error
		want   bool
		log    int
	}{
		"access denied": {apierrors.NewForbidden(kind, "", errors.New("RBAC is not loaded yet")), false, 1},
		"unavailable":   {apierrors.NewServiceUnavailable("etcd is away"), false, 1},
		"not served":    {apierrors.NewNotFound(kind, ""), true, 0},
		"listed":        {nil, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(f *enginetest.Fixture) {
				box := watch.NewOptional[*v1alpha1.Guardrails](nil, &v1alpha1.Guardrails{}, nil)
				p := New(f, box, dialect.Rails{}, nil)
				testkit.Check(f.T, !p.Ready(time.Now()), "it is ready before an answer")
				box.SetAvailability(of.answer)
				if of.answer == nil {
					testkit.Must(f.T, box.Replace(nil, "1"))
				}
				testkit.Same(f.T, p.Ready(time.Now()), of.want, "ready")
				testkit.Same(f.T, p.Ready(time.Now()), of.want, "ready again")
				testkit.Same(f.T, strings.Count(f.Log.String(), "until the Guardrails can be read"), of.log, "messages")
			})
		})
	}
}

// A user can always pause: the mode Paused counts even if the rest of the version is invalid, and an
// annotation counts in every mode.
func TestAnInvalidVersionCanPause(t *testing.T) {
	const invalid = `"maxInTreatment": "120%"`
	for name, of := range map[string]struct {
		specs []string // one after the other
		mode  string
		hold  string
		words string // of the problem
	}{
		"after a valid version":                 {[]string{`{}`, `{"mode": "Paused", ` + invalid + `}`}, "Paused", "Guardrails cluster has mode Paused", "; the last accepted version stays in force, in mode Paused"},
		"the first version":                     {[]string{`{"mode": "Paused", ` + invalid + `}`}, "Paused", "Guardrails cluster has mode Paused", "; the defaults are in force, in mode Paused"},
		"a version that cannot be read":         {[]string{`{}`, `{"mode": "Paused", "enforce": 7}`}, "Paused", "Guardrails cluster has mode Paused", "cannot be read"},
		"enforcing does not end a pause":        {[]string{`{"mode": "Paused"}`, `{"mode": "Enforce", ` + invalid + `}`}, "Paused", "Guardrails cluster has mode Paused", "; the last accepted version stays in force"},
		"the defaults name the invalid version": {[]string{`{"mode": "Enforce", ` + invalid + `}`}, "Observe", "Guardrails cluster has no valid version, and --default-mode is Observe", "; the defaults are in force"},
		"an annotation":                         {[]string{`{}`, `{"mode": "Enforce"}`}, "Paused", "Guardrails cluster is paused by annotation: storage fails", ""},
		"a valid version":                       {[]string{`{"mode": "Paused", ` + invalid + `}`, `{}`}, "Enforce", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(f *enginetest.Fixture) {
				inbox := enginetest.Empty(t, &v1alpha1.Guardrails{})
				p := New(f, inbox, testkit.Value(dialect.DefaultRails("Observe")).Must(t), NewMetrics())
				f.AddPolicies(p)
				for i, spec := range of.specs {
					object := &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName, UID: "g", Generation: int64(i + 1), ResourceVersion: strconv.Itoa(i + 1)}}
					if name == "an annotation" {
						object.Annotations = map[string]string{v1alpha1.PausedAnnotation: "storage fails"}
					}
					testkit.Must(t, json.Unmarshal([]byte(spec), &object.Spec))
					testkit.Must(t, inbox.Update(object))
					f.Round(t.Context())
				}
				testkit.Same(t, p.rails.Mode, of.mode, "the mode")
				for _, stage := range policykind.Stages() {
					testkit.Same(t, p.rails.Core.Hold[stage], of.hold, "the hold of stage %s", stage)
				}
				testkit.Check(t, strings.Contains(p.problem, of.words) && (p.problem == "") == (of.words == ""), "the problem is %q", p.problem)
			})
		})
	}
}

// A new leader continues with the version that an earlier one has accepted.
func TestANewLeaderKeepsTheAcceptedVersion(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		inbox := enginetest.Empty(t, &v1alpha1.Guardrails{})
		p := New(f, inbox, testkit.Value(dialect.DefaultRails("Observe")).Must(t), NewMetrics())
		f.AddPolicies(p)
		object := &v1alpha1.Guardrails{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName, UID: "g", Generation: 7, ResourceVersion: "1"}}
		object.Spec.MaxInTreatment = new(intstr.FromInt32(3))
		object.Status.AcceptedSpec = format.EncodeSpec(object.Spec)
		object.Spec.MaxInTreatment = new(intstr.FromString("120%"))
		testkit.Must(t, inbox.Update(object))
		f.Round(t.Context())
		testkit.Same(t, p.rails.Mode, "Enforce", "the mode")
		testkit.Equal(t, "maxInTreatment", &triage.Limit{Number: 3}, p.rails.Core.InTreatment)
		testkit.Contains(t, p.problem, "spec.maxInTreatment", "the problem")
		testkit.Contains(t, p.problem, "the last accepted version stays in force", "the problem")
	})
}

// The numbers follow the cluster also while no plan changes: when a user cordons a node, and when
// treatments leave the period of the pace and attempts their window.
func TestTheNumbersOfAQuietCluster(t *testing.T) {
	enginetest.Run(t, func(f *enginetest.Fixture) {
		metrics := NewMetrics()
		p := New(f, enginetest.Empty(t, &v1alpha1.Guardrails{}), dialect.Rails{Mode: "Enforce", Core: triage.Rails{
			Unschedulable: &triage.Limit{Number: 1},
			Pace:          &triage.Pace{Limit: triage.Limit{Number: 5}, Period: time.Minute},
			MaxAttempts:   &triage.MaxAttempts{Limit: 3, Window: time.Hour},
		}}, metrics)
		// check makes a round, and returns whether it checks the statuses and when the next check is due.
		check := func() (is bool, due time.Time) {
			p.SetRules(t.Context(), time.Now())
			due = f.Statuses().Check(time.Now(), func() {
				is = true
				p.WriteStatuses(t.Context(), time.Now())
			})
			return is, due
		}
		used := func(rail string) float64 { return enginetest.Value(t, metrics, "autohealer_guardrail_used", rail) }
		begun := time.Now()
		p.SetRules(t.Context(), begun)
		f.Core().ResumeStarts(begun, []triage.Start{{At: begun, Treatments: 2}})
		node := triage.Node{Name: "a", Attempts: []triage.Attempt{{Began: begun}}}
		f.Core().Observe(begun, node)
		enginetest.Pass(time.Second)
		is, due := check()
		testkit.Check(t, is && due.Equal(begun.Add(time.Minute+time.Second)), "with a new node the statuses are checked: %t, and next at %v", is, due)
		testkit.Same(t, used("pace"), 2, "treatments")

		node.Closed = true
		f.Core().Observe(time.Now(), node)
		enginetest.Pass(time.Second)
		is, _ = check()
		testkit.Check(t, is, "a cordon does not cause a check")
		testkit.Same(t, used("maxUnschedulable"), 1, "closed nodes")
		is, due = check()
		testkit.Check(t, !is, "without a change the statuses are checked")

		enginetest.Pass(time.Until(due))
		f.Core().Advance(time.Now())
		is, due = check()
		testkit.Check(t, is && due.Equal(begun.Add(time.Hour)), "after the pace the statuses are checked: %t, and next at %v", is, due)
		testkit.Same(t, used("pace"), 0, "treatments")
		testkit.Same(t, used("maxAttempts"), 1, "attempts")
		enginetest.Pass(time.Until(due))
		f.Core().Advance(time.Now())
		is, due = check()
		testkit.Check(t, is && due.IsZero(), "after the window the statuses are checked: %t, and next at %v", is, due)
		testkit.Same(t, used("maxAttempts"), 0, "attempts")
	})
}
