package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
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
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

var discard = slog.New(slog.DiscardHandler)

// fakeNodes are ten nodes. Every rule matches all of them, unless well is set.
type fakeNodes struct {
	ready atomic.Bool
	well  bool
}

func (p *fakeNodes) Ready() bool        { return p.ready.Load() }
func (p *fakeNodes) Reported() []string { return []string{"Unhealthy", "OutOfDisk"} }
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
			Conditions: map[string]v1alpha1.SetCondition{"Unhealthy": {Status: "True"}},
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

// raw returns an object as a request has it, and nothing for nil.
func raw(tb testing.TB, object any) runtime.RawExtension {
	tb.Helper()
	data, isRaw := object.([]byte)
	if value := reflect.ValueOf(object); !isRaw && object != nil && (value.Kind() != reflect.Pointer || !value.IsNil()) {
		data = testkit.Value(json.Marshal(object)).Must(tb)
	}
	return runtime.RawExtension{Raw: data}
}

func ask(tb testing.TB, k Kind, operation admissionv1.Operation, old, object any, changes ...func(*admissionv1.AdmissionRequest)) admission.Response {
	tb.Helper()
	request := admissionv1.AdmissionRequest{Name: "name", Operation: operation, Object: raw(tb, object), OldObject: raw(tb, old)}
	for _, change := range changes {
		change(&request)
	}
	return k.Handle(tb.Context(), admission.Request{AdmissionRequest: request})
}

// request is a request to a handler of the fixture F, with the expected answer.
type request[F any] struct {
	operation admissionv1.Operation
	old, new  any
	change    func(*admissionv1.AdmissionRequest)
	setup     func(F)
	refuses   string
	warns     string
}

// answers sends the requests, each to a handler of its own.
func answers[F any, K Kind](t *testing.T, fixture func() F, kind func(F, testing.TB) K, requests map[string]request[F]) {
	t.Helper()
	for name, test := range requests {
		t.Run(name, func(t *testing.T) {
			f := fixture()
			if test.setup != nil {
				test.setup(f)
			}
			answer := ask(t, kind(f, t), test.operation, test.old, test.new, func(r *admissionv1.AdmissionRequest) {
				if test.change != nil {
					test.change(r)
				}
			})
			if answer.Allowed != (test.refuses == "") || !strings.Contains(answer.Result.Message, test.refuses) {
				t.Errorf("allowed is %v: %s", answer.Allowed, answer.Result.Message)
			}
			if said := strings.Join(answer.Warnings, "\n"); !strings.Contains(said, test.warns) || test.warns == "" && said != "" {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// lasts checks how long the bubble's clock runs meanwhile.
func lasts(t *testing.T, want time.Duration, do func()) {
	t.Helper()
	begin := time.Now()
	if do(); time.Since(begin) != want {
		t.Errorf("it took %s, want %s", time.Since(begin), want)
	}
}

// allowed checks that all requests are allowed.
func allowed(t *testing.T, responses map[string]admission.Response) {
	t.Helper()
	for name, answer := range responses {
		testkit.Check(t, answer.Allowed, "%s: %+v", name, answer.Result)
	}
}

// later makes nodes known after half of the time that a request waits for them.
func (p *fakeNodes) later() {
	go func() {
		<-time.After(waitTimeout / 2)
		p.ready.Store(true)
	}()
}

// fuzz sends any bytes in every kind of request. Every request gets an answer, and every
// rejection has a reason. Not every deletion passes, because a remediation may be under way.
func fuzz(t *testing.T, k Kind, old, object []byte, deletable bool) (created bool) {
	t.Helper()
	for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete, "CONNECT"} {
		answer := ask(t, k, operation, old, object)
		testkit.Check(t, answer.Allowed || answer.Result.Message != "", "it is refused without a word")
		testkit.Check(t, operation != admissionv1.Delete || !deletable || answer.Allowed, "it cannot be deleted")
		created = created || operation == admissionv1.Create && answer.Allowed
	}
	return created
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
	answers(t, newSetFixture, (*setFixture).kind, map[string]request[*setFixture]{
		"lets a new set in":                 {operation: create, new: set(), warns: "dry run"},
		"refuses a new set":                 {operation: create, new: set(healthy), refuses: "OutOfDisk=False"},
		"refuses too much":                  {operation: create, new: set(live), refuses: "10 of 10"},
		"refuses a change":                  {operation: update, old: set(), new: set(healthy), refuses: "OutOfDisk=False"},
		"takes a narrower set":              {operation: update, old: set(strong, accepted("True", 3)), new: set(weak), warns: "10 of 10"},
		"refuses a stronger set":            {operation: update, old: set(weak, accepted("True", 3)), new: set(strong), refuses: "10 of 10"},
		"knows of none that is refused":     {operation: update, old: set(strong, accepted("False", 3)), new: set(weak), refuses: "10 of 10"},
		"knows of none that is not seen":    {operation: update, old: set(strong, accepted("True", 2)), new: set(weak), refuses: "10 of 10"},
		"knows of none without a status":    {operation: update, old: set(strong), new: set(weak), refuses: "10 of 10"},
		"knows of none that does nothing":   {operation: update, old: set(accepted("True", 3)), new: set(weak), refuses: "10 of 10"},
		"takes nothing from a trial":        {operation: update, old: set(misspelled, accepted("True", 3)), new: set(misspelled, live), refuses: "did you mean"},
		"accepts an unchanged stored value": {operation: update, old: set(misspelled, live, accepted("True", 3)), new: set(misspelled, weak), warns: "did you mean"},
		"lets metadata pass":                {operation: update, old: set(healthy, live), new: set(healthy, live, func(s *v1alpha1.ConditionSet) { s.Finalizers = []string{"x/y"} })},
		"warns on a dry run":                {operation: update, old: set(healthy), new: set(healthy), change: asDryRun, warns: "OutOfDisk=False"},
		"refuses also only to see":          {operation: update, old: set(), new: set(healthy), change: asDryRun, refuses: "OutOfDisk=False"},
		"lets a set be switched off":        {operation: update, old: set(healthy, live), new: set(healthy), warns: "OutOfDisk=False"},
		"and no more than that":             {operation: update, old: set(healthy, strong), new: set(healthy), refuses: "OutOfDisk=False"},
		"refuses too many conditions":       {operation: create, new: set(numerous), refuses: "spec.conditions: there are 33, want at most 32"},
		"lets too many become fewer":        {operation: update, old: set(numerous), new: set(), warns: "dry run"},
		"lets a status pass":                {operation: update, old: set(), new: set(healthy), change: func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }},
		"lets every set go":                 {operation: remove, old: set(healthy)},
		"tells what goes with it":           {operation: remove, old: set(func(s *v1alpha1.ConditionSet) { s.Status.Tainted, s.Status.HeldBack = 2, 1 }), warns: "taint example.com/set of this set will be removed from 3 nodes"},
		"tells of one node":                 {operation: remove, old: set(func(s *v1alpha1.ConditionSet) { s.Status.Tainted = 1 }), warns: "from 1 node"},
		"allows deletion of unreadable":     {operation: remove},
	})
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
	other := set(named("map/key/Set"), func(s *v1alpha1.ConditionSet) { s.Spec.TaintKey = "example.com/other" })
	o.stored = []*v1alpha1.ConditionSet{other}
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); !answer.Allowed || o.refresh != 1 {
		t.Errorf("a set that is only cached, after %d refreshes: %+v", o.refresh, answer.Result)
	}
	o.fresh = o.stored
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); answer.Allowed || !strings.Contains(answer.Result.Message, "ConfigMap map") {
		t.Errorf("a duplicate: %+v", answer.Result)
	}
	// The same set is moved.
	o.stored = []*v1alpha1.ConditionSet{set(named("map/key/Set"), func(s *v1alpha1.ConditionSet) { s.Namespace = "ns" })}
	if answer := ask(t, o.kind(t), admissionv1.Create, nil, set()); !answer.Allowed || !strings.Contains(strings.Join(answer.Warnings, "\n"), "this set takes over the taints of a set in ConfigMap map, key key, which is the same: remove it there") {
		t.Errorf("a copy: %+v %q", answer.Result, answer.Warnings)
	}
}

func TestSetsAreRejectedBeforeTheNodesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &setFixture{}
		k := o.kind(t)
		testkit.Check(t, k.Ready() != nil, "it calls itself ready")
		lasts(t, waitTimeout, func() {
			answer := ask(t, k, admissionv1.Create, nil, set(live))
			if answer.Allowed || answer.Result.Code != http.StatusServiceUnavailable || answer.Result.Details.RetryAfterSeconds != retryAfter || !strings.Contains(answer.Result.Message, "try again") {
				t.Errorf("a set that does something: %+v", answer.Result)
			}
		})
		lasts(t, 0, func() {
			allowed(t, map[string]admission.Response{
				"that does nothing": ask(t, k, admissionv1.Create, nil, set()),
				"whose labels change": ask(t, k, admissionv1.Update, set(live), set(live, func(s *v1alpha1.ConditionSet) {
					s.Labels = map[string]string{"a": "b"}
				})),
				"that goes":                        ask(t, k, admissionv1.Delete, set(live), nil),
				"with a name that a node may have": ask(t, k, admissionv1.Create, nil, set(misspelled)),
			})
			if answer := ask(t, k, admissionv1.Create, nil, set(healthy)); answer.Allowed || answer.Result.Code != http.StatusForbidden {
				t.Errorf("what is wrong anyway: %+v", answer.Result)
			}
		})
		o.people.later()
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
	testkit.Check(t, err == nil && len(problems) == 0, "%v %v", problems, err)
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	_, err := NewConditionSets(ConditionSetConfig{})
	for _, field := range []string{"Nodes", "Sets", "Fresh", "Synced", "Metrics", "Logger"} {
		testkit.Fails(t, err, field+" is missing")
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
		if fuzz(t, k, old, object, true) {
			read := &v1alpha1.ConditionSet{}
			if err := json.Unmarshal(object, read); err != nil || read.Spec.Unreadable != "" || len(read.Spec.Conditions) == 0 {
				t.Errorf("an unreadable object is allowed: %s", object)
			}
		}
	})
}

// The webhook compares with the version in force, which is not always the newest.
func TestVersionInForce(t *testing.T) {
	newest := v1alpha1.ConditionSetSpec{Type: "Newest", TaintKey: "example.com/newest"}
	old := v1alpha1.ConditionSetSpec{Type: "Accepted", TaintKey: "example.com/accepted"}
	const none = ""
	for name, test := range map[string]struct {
		status     metav1.ConditionStatus
		generation int64
		spec       string
		dryRun     bool
		want       string // the type of the version for other sets
		inForce    string // the type of the version in force, or none
	}{
		"accepted":                            {"True", 2, format.EncodeSpec(newest), false, "Newest", "Newest"},
		"refused, with an accepted version":   {"False", 2, format.EncodeSpec(old), false, "Accepted", "Accepted"},
		"refused, and switched off":           {"False", 2, format.EncodeSpec(old), true, "Accepted", none},
		"refused, and never accepted":         {"False", 2, "", false, "Newest", none},
		"refused, and the accepted is broken": {"False", 2, "{", false, "Newest", none},
		"not judged yet":                      {"True", 1, format.EncodeSpec(old), false, "Newest", none},
	} {
		t.Run(name, func(t *testing.T) {
			set := &v1alpha1.ConditionSet{Spec: newest}
			set.Generation, set.Spec.DryRun, set.Status.AcceptedSpec = 2, test.dryRun, test.spec
			accepted(test.status, test.generation)(set)
			testkit.Same(t, versionInForce(set).Spec.Type, test.want, "the version for other sets")
			is := none
			if version := inForce(set); version != nil {
				is = version.Spec.Type
			}
			testkit.Same(t, is, test.inForce, "the version in force")
		})
	}
}
