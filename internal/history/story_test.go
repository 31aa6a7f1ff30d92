package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

var (
	us            = testbed.Author{User: "us", UserAgent: "autohealer-controller/v1", FieldManager: "autohealer-controller", Verb: "patch"}
	admin         = testbed.Author{User: "admin", UserAgent: "kubectl/v1", Verb: "patch"}
	kubelet       = testbed.Author{User: "kubelet", UserAgent: "kubelet/v1", Verb: "patch", Subresource: "status"}
	unknownAuthor = testbed.Author{User: testbed.UnknownUser, Reason: "the audit log ends here"}

	ledgerName = types.NamespacedName{Namespace: "autohealer-system", Name: "autohealer-ledger"}
	testConfig = Config{Us: User("us"), Ledger: ledgerName}
)

// story is a recording that a test writes. Every change takes ten milliseconds.
type story struct {
	tb      testing.TB
	now     time.Time
	version int
	nodes   map[string]*corev1.Node
	sets    map[string]*unstructured.Unstructured
	made    testbed.Recording
}

func newStory(tb testing.TB) *story {
	tb.Helper()
	return &story{
		tb: tb, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), version: 1000,
		nodes: map[string]*corev1.Node{}, sets: map[string]*unstructured.Unstructured{},
	}
}

// pass advances the clock.
func (s *story) pass(d time.Duration) { s.now = s.now.Add(d) }

// record adds a change.
func (s *story) record(kind watch.EventType, gvr schema.GroupVersionResource, author testbed.Author, object *unstructured.Unstructured) {
	s.version++
	s.pass(10 * time.Millisecond)
	object = object.DeepCopy()
	object.SetResourceVersion(strconv.Itoa(s.version))
	s.made = append(s.made, testbed.Change{
		Type: kind, GVR: gvr, Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
		ResourceVersion: object.GetResourceVersion(), Object: object, Author: author, Time: s.now,
	})
}

func (s *story) recordNode(kind watch.EventType, author testbed.Author, node *corev1.Node) {
	s.tb.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		s.tb.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetAPIVersion("v1")
	object.SetKind("Node")
	s.record(kind, testbed.NodesResource, author, object)
	node.ResourceVersion = strconv.Itoa(s.version)
}

// node adds healthy nodes.
func (s *story) node(names ...string) {
	s.tb.Helper()
	for _, name := range names {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprintf("uid-%s-%d", name, s.version)), Labels: map[string]string{"pool": "web"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: "Ready", Status: "True", LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second))},
			}},
		}
		s.nodes[name] = node
		s.recordNode(watch.Added, admin, node)
	}
}

// edit has an author change a node.
func (s *story) edit(author testbed.Author, name string, change func(*corev1.Node)) {
	s.tb.Helper()
	node := s.nodes[name].DeepCopy()
	change(node)
	s.nodes[name] = node
	s.recordNode(watch.Modified, author, node)
}

func (s *story) deleteNode(author testbed.Author, name string) {
	s.tb.Helper()
	s.recordNode(watch.Deleted, author, s.nodes[name])
	delete(s.nodes, name)
}

// condition sets a condition, for example Bad=Unknown or Bad=Unknown/AgentSilent. The
// timestamp is the whole second.
func (s *story) condition(name string, conditions ...string) {
	s.tb.Helper()
	s.stamped(name, s.now, conditions...)
}

func (s *story) stamped(name string, stamp time.Time, conditions ...string) {
	s.tb.Helper()
	s.edit(kubelet, name, func(node *corev1.Node) {
		for _, c := range conditions {
			kind, status, _ := strings.Cut(c, "=")
			status, reason, _ := strings.Cut(status, "/")
			row := corev1.NodeCondition{
				Type: corev1.NodeConditionType(kind), Status: corev1.ConditionStatus(status), Reason: reason,
				LastTransitionTime: metav1.NewTime(stamp.Truncate(time.Second)),
			}
			at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == row.Type })
			switch {
			case status == "gone":
				node.Status.Conditions = slices.Delete(node.Status.Conditions, at, at+1)
			case at < 0:
				node.Status.Conditions = append(node.Status.Conditions, row)
			default:
				node.Status.Conditions[at] = row
			}
		}
	})
}

func (s *story) label(name, key, value string) {
	s.tb.Helper()
	s.edit(admin, name, func(node *corev1.Node) { node.Labels[key] = value })
}

// foreign has another writer add a taint to a node, written as key:Effect.
func (s *story) foreign(name, text string) {
	s.tb.Helper()
	s.edit(admin, name, func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: keyOf(text), Effect: effectOf(text), TimeAdded: new(metav1.NewTime(s.now.Add(-time.Hour).Truncate(time.Second)))})
	})
}

func (s *story) takeAway(author testbed.Author, name, text string) {
	s.tb.Helper()
	s.edit(author, name, func(node *corev1.Node) { dropTaint(node, text) })
}

func dropTaint(node *corev1.Node, text string) {
	node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == keyOf(text) && t.Effect == effectOf(text) })
}

func keyOf(text string) string { return text[:strings.LastIndex(text, ":")] }

func effectOf(text string) corev1.TaintEffect {
	return corev1.TaintEffect(text[strings.LastIndex(text, ":")+1:])
}

// set creates or changes a ConditionSet. The fields of its spec are JSON.
func (s *story) set(name, spec string) {
	s.tb.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(spec), &fields); err != nil {
		s.tb.Fatalf("%s: %v", spec, err)
	}
	kind := watch.Modified
	object := s.sets[name]
	if object == nil {
		kind = watch.Added
		object = &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name, "uid": fmt.Sprintf("uid-%s-%d", name, s.version)}}}
		object.SetGroupVersionKind(SetsResource.GroupVersion().WithKind("ConditionSet"))
		s.sets[name] = object
	}
	object.Object["spec"] = fields
	s.record(kind, SetsResource, admin, object)
}

func (s *story) deleteSet(author testbed.Author, name string) {
	s.tb.Helper()
	s.record(watch.Deleted, SetsResource, author, s.sets[name])
	delete(s.sets, name)
}

// ---- our writes

type form struct {
	Taints   []formTaint  `json:"taints,omitempty"`
	Memories []formMemory `json:"memories,omitempty"`
	Fence    string       `json:"fence,omitempty"`
}

type formTaint struct {
	Rule   string    `json:"rule"`
	Key    string    `json:"key"`
	Effect string    `json:"effect"`
	Added  time.Time `json:"added"`
}

type formMemory struct {
	Rule      string    `json:"rule"`
	Condition string    `json:"condition"`
	Since     time.Time `json:"since"`
}

func readForm(node *corev1.Node) form {
	var f form
	_ = json.Unmarshal([]byte(node.Annotations[recordAnnotation]), &f) // empty if missing
	return f
}

func writeForm(node *corev1.Node, f form) {
	text, _ := json.Marshal(f) // plain values
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[recordAnnotation] = string(text)
	if string(text) == "{}" {
		delete(node.Annotations, recordAnnotation)
	}
}

// act is a part of a write of ours.
type act func(node *corev1.Node, f *form)

// we make one write to a node. NoExecute goes into the ledger first.
func (s *story) we(name string, acts ...act) {
	s.tb.Helper()
	probe := s.nodes[name].DeepCopy()
	before := carriedBy(probe)
	s.apply(probe, acts)
	var grants []grant
	for _, t := range carriedBy(probe) {
		had := slices.ContainsFunc(before, func(o formTaint) bool { return o.Rule == t.Rule && o.Effect == noExecute })
		if t.Effect == noExecute && !had {
			grants = append(grants, grant{t.Rule, name, string(probe.UID), s.nodes[name].ResourceVersion, ""})
		}
	}
	if len(grants) > 0 {
		s.enter(grants...)
	}
	s.weUnrecorded(name, acts...)
}

// weUnrecorded writes without the ledger.
func (s *story) weUnrecorded(name string, acts ...act) {
	s.tb.Helper()
	s.edit(us, name, func(node *corev1.Node) { s.apply(node, acts) })
}

func (s *story) apply(node *corev1.Node, acts []act) {
	f := readForm(node)
	for _, a := range acts {
		a(node, &f)
	}
	writeForm(node, f)
}

// carriedBy returns the entries of a record whose taint is on the node.
func carriedBy(node *corev1.Node) []formTaint {
	return slices.DeleteFunc(readForm(node).Taints, func(t formTaint) bool {
		return !slices.ContainsFunc(node.Spec.Taints, t.is)
	})
}

func (t formTaint) is(taint corev1.Taint) bool {
	return taint.Key == t.Key && string(taint.Effect) == t.Effect && taint.Value == "" && taint.TimeAdded != nil && taint.TimeAdded.Time.Equal(t.Added)
}

func (s *story) enter(grants ...grant) {
	text, _ := json.Marshal(ledgerState{Grants: grants}) // plain values
	object := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"ledger": string(text)}}}
	object.SetNamespace(ledgerName.Namespace)
	object.SetName(ledgerName.Name)
	object.SetUID("uid-ledger")
	object.SetAPIVersion("v1")
	object.SetKind("ConfigMap")
	s.record(watch.Modified, ConfigMapsResource, us, object)
}

// place adds a taint of a set to a node and records it.
func (s *story) place(set, text string) act {
	added := s.now.Truncate(time.Second)
	return func(node *corev1.Node, f *form) {
		at := slices.IndexFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == keyOf(text) && t.Effect == effectOf(text) })
		if at < 0 {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: keyOf(text), Effect: effectOf(text), TimeAdded: new(metav1.NewTime(added))})
		} else { // shared
			added = node.Spec.Taints[at].TimeAdded.UTC()
		}
		f.Taints = append(f.Taints, formTaint{"ConditionSet/" + set, keyOf(text), string(effectOf(text)), added})
	}
}

// remove removes a taint of a set and its entry.
func (s *story) remove(set, text string) act {
	return func(node *corev1.Node, f *form) {
		f.Taints = slices.DeleteFunc(f.Taints, func(t formTaint) bool {
			return t.Rule == "ConditionSet/"+set && t.Key == keyOf(text) && t.Effect == string(effectOf(text))
		})
		if !slices.ContainsFunc(f.Taints, func(t formTaint) bool { return t.Key == keyOf(text) && t.Effect == string(effectOf(text)) }) {
			dropTaint(node, text)
		}
	}
}

func fence(token string) act { return func(_ *corev1.Node, f *form) { f.Fence = token } }

func remember(set, condition string, since time.Time) act {
	return func(_ *corev1.Node, f *form) {
		f.Memories = append(f.Memories, formMemory{"ConditionSet/" + set, condition, since.UTC()})
	}
}

func forget(_ *corev1.Node, f *form) { f.Memories = nil }

// ---- judging

func (s *story) check(cfg Config) Report {
	s.tb.Helper()
	report, err := Check(s.made, cfg)
	if err != nil {
		s.tb.Fatal(err)
	}
	return report
}

// hasNoViolation fails the test if the checker finds a violation.
func (s *story) hasNoViolation(cfg Config) Report {
	s.tb.Helper()
	report := s.check(cfg)
	if len(report.Violations) > 0 {
		s.tb.Fatalf("%s\n%s", report, s)
	}
	return report
}

// caught fails the test unless the checker finds violations of this kind only.
func (s *story) caught(cfg Config, kind Kind) Report {
	s.tb.Helper()
	report := s.check(cfg)
	kinds := map[Kind]bool{}
	for _, v := range report.Violations {
		kinds[v.Kind] = true
	}
	if got := slices.Sorted(maps.Keys(kinds)); !slices.Equal(got, []Kind{kind}) {
		s.tb.Errorf("found %v, want %s alone: %s\n%s", got, kind, report, s)
	}
	return report
}

// String formats the story, one line for each change.
func (s *story) String() string { return Format(s.made) }
