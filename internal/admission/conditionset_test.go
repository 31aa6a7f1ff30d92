package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

var discard = slog.New(slog.DiscardHandler)

// fakeNodes is a census of ten nodes. Every rule matches all of them, unless well is set.
type fakeNodes struct {
	ready atomic.Bool
	well  bool
}

func (p *fakeNodes) Ready() bool        { return p.ready.Load() }
func (p *fakeNodes) Reported() []string { return []string{"Sick", "OutOfDisk"} }
func (p *fakeNodes) Impact(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error) {
	found := triage.Impact{Selected: 10}
	if !p.well && len(beyond) == 0 { // otherwise the other rules match the same nodes
		found.Matching, found.First = 10, []string{"n0", "n1", "n2", "n3", "n4"}
	}
	return found, rule.Validate()
}

// setFixture creates a ConditionSets handler with the data of a test.
type setFixture struct {
	people         fakeNodes
	stored, fresh  []*v1alpha1.ConditionSet
	storedErr      error
	reads, refresh int
}

func newSetFixture() *setFixture {
	o := &setFixture{}
	o.people.ready.Store(true)
	return o
}

func (o *setFixture) kind(tb testing.TB) *ConditionSets {
	tb.Helper()
	return testkit.Value(NewConditionSets(ConditionSetConfig{
		Nodes: &o.people,
		Sets: func(context.Context) ([]*v1alpha1.ConditionSet, error) {
			o.reads++
			return o.stored, o.storedErr
		},
		Fresh: func(context.Context) ([]*v1alpha1.ConditionSet, error) {
			o.refresh++
			return o.fresh, nil
		},
		Synced: func() bool { return true }, Metrics: NewMetrics(), Logger: discard,
	})).Must(tb)
}

// set returns a harmless set, a dry run, with the changes applied.
func set(changes ...func(*v1alpha1.ConditionSet)) *v1alpha1.ConditionSet {
	s := &v1alpha1.ConditionSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ConditionSet"},
		ObjectMeta: metav1.ObjectMeta{Name: "set", Generation: 3},
		Spec: v1alpha1.ConditionSetSpec{
			Type: "Set", Effect: "NoSchedule", TaintKey: "example.com/set", DryRun: true,
			Conditions: map[string]v1alpha1.SetCondition{"Sick": {Status: "True"}},
		},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func live(s *v1alpha1.ConditionSet)   { s.Spec.DryRun = false }
func strong(s *v1alpha1.ConditionSet) { s.Spec.DryRun, s.Spec.Effect = false, "NoExecute" }
func weak(s *v1alpha1.ConditionSet)   { s.Spec.DryRun, s.Spec.Effect = false, "PreferNoSchedule" }
func healthy(s *v1alpha1.ConditionSet) {
	s.Spec.Conditions = map[string]v1alpha1.SetCondition{"OutOfDisk": {Status: "False"}}
}
func misspelled(s *v1alpha1.ConditionSet) {
	s.Spec.Conditions = map[string]v1alpha1.SetCondition{"KubletUnhealthy": {Status: "True"}}
}

func named(name string) func(*v1alpha1.ConditionSet) {
	return func(s *v1alpha1.ConditionSet) { s.Name = name }
}

// accepted sets the Accepted condition for a generation.
func accepted(status metav1.ConditionStatus, generation int64) func(*v1alpha1.ConditionSet) {
	return func(s *v1alpha1.ConditionSet) {
		s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.Accepted, Status: status, ObservedGeneration: generation}}
	}
}

func raw(tb testing.TB, s *v1alpha1.ConditionSet) runtime.RawExtension {
	tb.Helper()
	if s == nil {
		return runtime.RawExtension{}
	}
	data := testkit.Value(json.Marshal(s)).Must(tb)
	return runtime.RawExtension{Raw: data}
}

func ask(tb testing.TB, k *ConditionSets, operation admissionv1.Operation, old, object *v1alpha1.ConditionSet, changes ...func(*admissionv1.AdmissionRequest)) admission.Response {
	tb.Helper()
	request := admissionv1.AdmissionRequest{Name: "set", Operation: operation, Object: raw(tb, object), OldObject: raw(tb, old)}
	for _, change := range changes {
		change(&request)
	}
	return k.Handle(tb.Context(), admission.Request{AdmissionRequest: request})
}

// A dry run of the API server also reports that no node matches.
func TestDryRunReportsNoMatch(t *testing.T) {
	o := newSetFixture()
	o.people.well = true
	for name, test := range map[string]struct {
		changes []func(*admissionv1.AdmissionRequest)
		want    []string
	}{
		"only to see": {[]func(*admissionv1.AdmissionRequest){asDryRun}, []string{"no node of 10 selected matches now"}},
		"to store":    {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			answer := ask(t, o.kind(t), admissionv1.Create, nil, set(live), test.changes...)
			if !answer.Allowed || !slices.Equal(answer.Warnings, test.want) {
				t.Errorf("allowed: %t; warnings %q, want %q", answer.Allowed, answer.Warnings, test.want)
			}
		})
	}
}

// numerous has one condition more than the schema allows.
func numerous(s *v1alpha1.ConditionSet) {
	for i := range 32 {
		s.Spec.Conditions[fmt.Sprintf("C%d", i)] = v1alpha1.SetCondition{Status: "True"}
	}
}

func asDryRun(r *admissionv1.AdmissionRequest) { r.DryRun = new(true) }

func TestAnswers(t *testing.T) {
	const create, update, remove = admissionv1.Create, admissionv1.Update, admissionv1.Delete
	for name, test := range map[string]struct {
		operation admissionv1.Operation
		old, set  *v1alpha1.ConditionSet
		change    func(*admissionv1.AdmissionRequest)
		refuses   string
		warns     string
	}{
		"lets a new set in":               {operation: create, set: set(), warns: "dry run"},
		"refuses a new set":               {operation: create, set: set(healthy), refuses: "OutOfDisk=False"},
		"refuses too much":                {operation: create, set: set(live), refuses: "10 of 10"},
		"refuses a change":                {operation: update, old: set(), set: set(healthy), refuses: "OutOfDisk=False"},
		"takes a narrower set":            {operation: update, old: set(strong, accepted("True", 3)), set: set(weak), warns: "10 of 10"},
		"refuses a stronger set":          {operation: update, old: set(weak, accepted("True", 3)), set: set(strong), refuses: "10 of 10"},
		"knows of none that is refused":   {operation: update, old: set(strong, accepted("False", 3)), set: set(weak), refuses: "10 of 10"},
		"knows of none that is not seen":  {operation: update, old: set(strong, accepted("True", 2)), set: set(weak), refuses: "10 of 10"},
		"knows of none without a status":  {operation: update, old: set(strong), set: set(weak), refuses: "10 of 10"},
		"knows of none that does nothing": {operation: update, old: set(accepted("True", 3)), set: set(weak), refuses: "10 of 10"},
		"takes nothing from a trial":      {operation: update, old: set(misspelled, accepted("True", 3)), set: set(misspelled, live), refuses: "did you mean"},
		"takes what stands as it is":      {operation: update, old: set(misspelled, live, accepted("True", 3)), set: set(misspelled, weak), warns: "did you mean"},
		"lets metadata pass":              {operation: update, old: set(healthy, live), set: set(healthy, live, func(s *v1alpha1.ConditionSet) { s.Finalizers = []string{"x/y"} })},
		"warns on a dry run":              {operation: update, old: set(healthy), set: set(healthy), change: asDryRun, warns: "OutOfDisk=False"},
		"refuses also only to see":        {operation: update, old: set(), set: set(healthy), change: asDryRun, refuses: "OutOfDisk=False"},
		"lets a set be switched off":      {operation: update, old: set(healthy, live), set: set(healthy), warns: "OutOfDisk=False"},
		"and no more than that":           {operation: update, old: set(healthy, strong), set: set(healthy), refuses: "OutOfDisk=False"},
		"refuses too many conditions":     {operation: create, set: set(numerous), refuses: "spec.conditions: there are 33, want at most 32"},
		"lets too many become fewer":      {operation: update, old: set(numerous), set: set(), warns: "dry run"},
		"lets a status pass":              {operation: update, old: set(), set: set(healthy), change: func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }},
		"lets every set go":               {operation: remove, old: set(healthy)},
		"tells what goes with it":         {operation: remove, old: set(func(s *v1alpha1.ConditionSet) { s.Status.Tainted, s.Status.HeldBack = 2, 1 }), warns: "taint example.com/set of this set will be removed from 3 nodes"},
		"tells of one node":               {operation: remove, old: set(func(s *v1alpha1.ConditionSet) { s.Status.Tainted = 1 }), warns: "from 1 node"},
		"allows deletion of unreadable":   {operation: remove},
	} {
		t.Run(name, func(t *testing.T) {
			o := newSetFixture()
			change := test.change
			if change == nil {
				change = func(*admissionv1.AdmissionRequest) {}
			}
			answer := ask(t, o.kind(t), test.operation, test.old, test.set, change)
			if answer.Allowed != (test.refuses == "") || !strings.Contains(answer.Result.Message, test.refuses) {
				t.Errorf("allowed is %v: %s", answer.Allowed, answer.Result.Message)
			}
			if said := strings.Join(answer.Warnings, "\n"); !strings.Contains(said, test.warns) || test.warns == "" && said != "" {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// A duplicate in the cache that no longer exists does not cause a rejection.
func TestDuplicateIsCheckedWithFreshSets(t *testing.T) {
	other := set(named("other"))
	o := newSetFixture()
	o.stored = []*v1alpha1.ConditionSet{other, set()}
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); !answer.Allowed || o.refresh != 1 {
		t.Errorf("after %d looks: %+v", o.refresh, answer.Result)
	}
	o.fresh = o.stored
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); answer.Allowed || !strings.Contains(answer.Result.Message, "the set other") {
		t.Errorf("a duplicate: %+v", answer.Result)
	}
	before := o.refresh
	o.stored = nil
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set(healthy)); answer.Allowed || o.refresh != before {
		t.Error("the API server is asked about what has nothing to do with other sets")
	}
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); !answer.Allowed || o.refresh != before {
		t.Error("the API server is asked for every set")
	}
	o.storedErr = errors.New("gone")
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); answer.Allowed || answer.Result.Code != http.StatusServiceUnavailable {
		t.Errorf("with nothing to compare it with: %+v", answer.Result)
	}
}

func TestSetsFromConfigMapsCount(t *testing.T) {
	o := newSetFixture()
	o.stored = []*v1alpha1.ConditionSet{set(named("map/key/Set"))}
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); !answer.Allowed || o.refresh != 1 {
		t.Errorf("one that is only remembered, after %d looks: %+v", o.refresh, answer.Result)
	}
	o.fresh = o.stored
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); answer.Allowed || !strings.Contains(answer.Result.Message, "ConfigMap map") {
		t.Errorf("a duplicate: %+v", answer.Result)
	}
}

func TestSetsAreRejectedBeforeTheNodesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &setFixture{}
		k := o.kind(t)
		if k.Ready() == nil {
			t.Error("it calls itself ready")
		}
		begin := time.Now()
		answer := ask(t, k, admissionv1.Create, nil, set(live))
		if answer.Allowed || answer.Result.Code != http.StatusServiceUnavailable || answer.Result.Details.RetryAfterSeconds != retryAfter || !strings.Contains(answer.Result.Message, "try again") {
			t.Errorf("a set that does something: %+v", answer.Result)
		}
		if waited := time.Since(begin); waited != waitTimeout {
			t.Errorf("it waited for %s", waited)
		}
		begin = time.Now()
		for name, answer := range map[string]admission.Response{
			"that does nothing": ask(t, k, admissionv1.Create, nil, set()),
			"whose labels change": ask(t, k, admissionv1.Update, set(live), set(live, func(s *v1alpha1.ConditionSet) {
				s.Labels = map[string]string{"a": "b"}
			})),
			"that goes": ask(t, k, admissionv1.Delete, set(live), nil),
			"with a name that a node may have": ask(t, k, admissionv1.Create, nil, set(func(s *v1alpha1.ConditionSet) {
				s.Spec.Conditions = map[string]v1alpha1.SetCondition{"KubletUnhealthy": {Status: "True"}}
			})),
		} {
			if !answer.Allowed {
				t.Errorf("a set %s: %+v", name, answer.Result)
			}
		}
		if answer := ask(t, k, admissionv1.Create, nil, set(healthy)); answer.Allowed || answer.Result.Code != http.StatusForbidden {
			t.Errorf("what is wrong anyway: %+v", answer.Result)
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("these waited for %s", waited)
		}
		go func() {
			<-time.After(waitTimeout / 2)
			o.people.ready.Store(true)
		}()
		if answer := ask(t, k, admissionv1.Create, nil, set(live)); answer.Result.Code != http.StatusForbidden {
			t.Errorf("known in time: %+v", answer.Result)
		}
		if err := k.Ready(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnswersAreCounted(t *testing.T) {
	o := newSetFixture()
	k := o.kind(t)
	ask(t, k, admissionv1.Create, nil, set())                                  // warned
	ask(t, k, admissionv1.Create, nil, set(healthy))                           // refused
	ask(t, k, admissionv1.Delete, set(), nil)                                  // allowed
	ask(t, k, admissionv1.Update, set(), set(named("set"), healthy), asDryRun) // refused
	if got := testutil.CollectAndCount(k.cfg.Metrics); got != 3 {
		t.Errorf("%d kinds of answers were counted", got)
	}
	problems, err := testutil.CollectAndLint(k.cfg.Metrics)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	_, err := NewConditionSets(ConditionSetConfig{})
	for _, field := range []string{"Nodes", "Sets", "Fresh", "Synced", "Metrics", "Logger"} {
		if err == nil || !strings.Contains(err.Error(), field+" is missing") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := NewServer(Config{Address: ":1"}); err == nil {
		t.Error("a server without kinds and certificate is made")
	}
	for _, address := range []string{"", "localhost", ":x", ":0", ":70000", "1:2:3"} {
		if _, _, err := SplitAddress(address); err == nil {
			t.Errorf("%q is taken for an address", address)
		}
	}
}

// Every request gets an answer, and every rejection has a reason.
func FuzzAnswers(f *testing.F) {
	for _, s := range []*v1alpha1.ConditionSet{set(), set(healthy), set(live), set(strong, accepted("True", 3))} {
		data := raw(f, s).Raw
		f.Add(data, data)
		f.Add(data, raw(f, set()).Raw)
	}
	f.Add([]byte(`{"spec": 3}`), []byte(`{"spec": {"conditions": []}, "status": {"conditions": 1}}`))
	f.Add([]byte(`{"metadata": 1}`), []byte(`null`))
	f.Fuzz(func(t *testing.T, old, object []byte) {
		k := newSetFixture().kind(t)
		for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete, "CONNECT"} {
			answer := k.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: operation, Object: runtime.RawExtension{Raw: object}, OldObject: runtime.RawExtension{Raw: old},
			}})
			if !answer.Allowed && answer.Result.Message == "" {
				t.Error("it is refused without a word")
			}
			if operation == admissionv1.Delete && !answer.Allowed {
				t.Error("it cannot be deleted")
			}
			if operation == admissionv1.Create && answer.Allowed {
				read := &v1alpha1.ConditionSet{}
				if err := json.Unmarshal(object, read); err != nil || read.Spec.Unreadable != "" || len(slices.Collect(maps.Keys(read.Spec.Conditions))) == 0 {
					t.Errorf("an unreadable object is allowed: %s", object)
				}
			}
		}
	})
}
