package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// maxWait bounds every wait. It suits two busy cores, and is longer than the shortest
	// step of a health check, which is a minute.
	maxWait = 2 * time.Minute
	// firstPause is the pause before the second check. Every later pause is longer.
	firstPause = 20 * time.Millisecond

	// recordAnnotation is the annotation in which the controller records its taints.
	recordAnnotation = "autohealer.resourcestack.com/record"
	// fieldManager is the field manager of the controller's writes.
	fieldManager = "autohealer-controller"
	ledgerName   = "autohealer-ledger"

	// scopeLabel separates the nodes of the tests.
	scopeLabel = "example.com/scope"
)

// wait is for all waits. A check of a whole storm costs CPU time that the storm needs.
var wait = testkit.Wait{Limit: maxWait, First: firstPause, Longest: 500 * time.Millisecond}

// alone lets a controller start without waiting for the lease of a killed controller. Only
// the ledger keeps the two apart.
const alone = "--leader-elect=false"

// fixture is a cluster with the controller installed.
type fixture struct {
	*install.Fixture
	api client.Client // with the rights of an admin
}

// newFixture starts a cluster. The changes adjust its configuration.
func newFixture(t *testing.T, changes ...func(*testbed.Config)) *fixture {
	t.Helper()
	cfg := testbed.Config{
		Record:   history.Resources(),
		RecordIn: history.Namespaces(),
	}
	for _, change := range changes {
		change(&cfg)
	}
	installed := install.NewFixture(t, wait, cfg, v1alpha1.AddToScheme, remediationv1alpha1.AddToScheme)
	return &fixture{Fixture: installed, api: installed.API}
}

// start runs a controller until the end of the test.
func (w *scope) start(o install.Options) *install.Controller {
	w.t.Helper()
	return w.Start(w.t, o)
}

// eventually waits until check returns no error.
func (w *scope) eventually(what string, check func() error) {
	w.t.Helper()
	w.Eventually(w.t, what, check)
}

// waitForExit waits until a controller exits by itself.
func (w *scope) waitForExit(c *install.Controller) {
	w.t.Helper()
	select {
	case <-c.Ended():
	case <-time.After(maxWait):
		w.t.Fatalf("%s did not exit\n%s", c, w.LogTail())
	}
}

func (w *scope) kill(c *install.Controller) {
	w.t.Helper()
	testkit.Must(w.t, c.Kill())
}

func (w *scope) restart(p *testbed.Part) {
	w.t.Helper()
	testkit.Must(w.t, p.Restart(w.t.Context()))
}

// scope is the part of a cluster that belongs to one test: nodes with their own label, and
// sets that select only those.
type scope struct {
	*fixture
	t    *testing.T
	name string
}

func (w *fixture) scope(t *testing.T, name string) *scope {
	t.Helper()
	return &scope{w, t, name}
}

// run runs a part of a test in the same scope.
func (w *scope) run(name string, test func(*scope)) {
	w.t.Helper()
	w.t.Run(name, func(t *testing.T) { test(w.scope(t, w.name)) })
}

// node returns the name of the scope's node with that number.
func (w *scope) node(number int) string { return fmt.Sprintf("%s-%04d", w.name, number) }

// createNodes creates nodes, and returns their names in order.
func (w *scope) createNodes(nodes testbed.Nodes) []string {
	w.t.Helper()
	nodes.Prefix = w.name
	nodes.Labels = maps.Clone(nodes.Labels)
	if nodes.Labels == nil {
		nodes.Labels = map[string]string{}
	}
	nodes.Labels[scopeLabel] = w.name
	made := testkit.Value(w.CreateNodes(w.t.Context(), nodes)).Must(w.t)
	names := make([]string, len(made))
	for i, node := range made {
		names[i] = node.Name
	}
	return names
}

// deleteNodes deletes the sets and the nodes of the scope.
func (w *scope) deleteNodes() {
	w.t.Helper()
	for _, set := range w.sets() {
		w.deleteSet(strings.TrimPrefix(set.Name, w.name+"-"))
	}
	testkit.Must(w.t, w.api.DeleteAllOf(w.t.Context(), &corev1.Node{}, client.MatchingLabels{scopeLabel: w.name}))
}

// all lists the nodes of the scope.
func (w *scope) all(ctx context.Context) ([]corev1.Node, error) {
	var list corev1.NodeList
	err := w.api.List(ctx, &list, client.MatchingLabels{scopeLabel: w.name})
	return list.Items, err
}

func (w *scope) get(ctx context.Context, node string) (*corev1.Node, error) {
	found := &corev1.Node{}
	err := w.api.Get(ctx, client.ObjectKey{Name: node}, found)
	return found, err
}

// setCondition sets a condition of a node, like an agent.
func (w *scope) setCondition(node, condition string, status corev1.ConditionStatus, changes ...func(*corev1.NodeCondition)) {
	w.t.Helper()
	testkit.Must(w.t, w.ReportCondition(w.t.Context(), node, condition, status, changes...))
}

func because(reason string) func(*corev1.NodeCondition) {
	return func(c *corev1.NodeCondition) { c.Reason = reason }
}

// stand is a condition that must be True.
var stand = v1alpha1.SetCondition{Status: "True"}

// createSet creates a set that selects the scope's nodes: while Unhealthy is True, the taint
// example.com/<scope>-<name> with NoSchedule. The changes adjust it. It is accepted for any
// number of matching nodes, because most tests need that.
func (w *scope) createSet(name string, changes ...func(*v1alpha1.ConditionSetSpec)) *v1alpha1.ConditionSet {
	w.t.Helper()
	set := w.newSet(name, changes...)
	set.Annotations = map[string]string{v1alpha1.AcceptImpactAnnotation: "true"}
	testkit.Must(w.t, w.api.Create(w.t.Context(), set))
	return set
}

// newSet returns the set of createSet without creating it. Its selector also has a
// requirement that every node fulfils, so that no two sets of a scope are duplicates.
func (w *scope) newSet(name string, changes ...func(*v1alpha1.ConditionSetSpec)) *v1alpha1.ConditionSet {
	w.t.Helper()
	set := &v1alpha1.ConditionSet{
		ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name},
		Spec: v1alpha1.ConditionSetSpec{
			Type:       w.name + "-" + name,
			Effect:     corev1.TaintEffectNoSchedule,
			TaintKey:   w.key(name),
			Conditions: map[string]v1alpha1.SetCondition{"Unhealthy": stand},
			Selector: &metav1.LabelSelector{
				MatchLabels:      map[string]string{scopeLabel: w.name},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: scopeLabel, Operator: metav1.LabelSelectorOpNotIn, Values: []string{name}}},
			},
		},
	}
	for _, change := range changes {
		change(&set.Spec)
	}
	return set
}

// key returns the taint key of the scope's set with that name.
func (w *scope) key(set string) string { return "example.com/" + w.name + "-" + set }

// editSet changes the spec of a set of the scope.
func (w *scope) editSet(name string, change func(*v1alpha1.ConditionSetSpec)) {
	w.t.Helper()
	set := &v1alpha1.ConditionSet{}
	w.update(name, set, func() { change(&set.Spec) })
}

// update changes a policy of the scope. It repeats the change if the status was written in
// between.
func (w *scope) update(name string, policy client.Object, change func()) {
	w.t.Helper()
	testkit.Must(w.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: w.name + "-" + name}, policy); err != nil {
			return err
		}
		change()
		return w.api.Update(w.t.Context(), policy)
	}))
}

func (w *scope) deleteSet(name string) {
	w.t.Helper()
	err := w.api.Delete(w.t.Context(), &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name}})
	testkit.Must(w.t, err)
}

func (w *scope) sets() []v1alpha1.ConditionSet {
	w.t.Helper()
	var list v1alpha1.ConditionSetList
	testkit.Must(w.t, w.api.List(w.t.Context(), &list))
	return slices.DeleteFunc(list.Items, func(s v1alpha1.ConditionSet) bool { return !strings.HasPrefix(s.Name, w.name+"-") })
}

// hasStatus waits until the status of a set, for its latest generation, is correct.
func (w *scope) hasStatus(name string, wrong func(v1alpha1.ConditionSetStatus) error) v1alpha1.ConditionSetStatus {
	w.t.Helper()
	set := &v1alpha1.ConditionSet{}
	w.eventually("status of "+w.name+"-"+name, func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: w.name + "-" + name}, set); err != nil {
			return err
		}
		if set.Status.ObservedGeneration != set.Generation {
			return fmt.Errorf("the status is for generation %d, want %d", set.Status.ObservedGeneration, set.Generation)
		}
		return wrong(set.Status)
	})
	return set.Status
}

// isAccepted checks the condition Accepted of a set.
func isAccepted(status metav1.ConditionStatus, reason string, says ...string) func(v1alpha1.ConditionSetStatus) error {
	return hasCondition(v1alpha1.Accepted, status, reason, says...)
}

func hasCondition(kind string, status metav1.ConditionStatus, reason string, says ...string) func(v1alpha1.ConditionSetStatus) error {
	return func(s v1alpha1.ConditionSetStatus) error {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if c == nil {
			return fmt.Errorf("there is no condition %s", kind)
		}
		if c.Status != status || c.Reason != reason {
			return fmt.Errorf("%s is %s (%s: %s), not %s (%s)", kind, c.Status, c.Reason, c.Message, status, reason)
		}
		return contains(kind, c.Message, says)
	}
}

// contains returns an error unless a text has all of these parts.
func contains(what, text string, parts []string) error {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return fmt.Errorf("%s has %q, without %q", what, text, part)
		}
	}
	return nil
}

// saysOf checks that a status has a node with that reason.
func saysOf(node, reason string, parts ...string) func(v1alpha1.ConditionSetStatus) error {
	return func(s v1alpha1.ConditionSetStatus) error {
		at := slices.IndexFunc(s.Nodes, func(n v1alpha1.MatchedNode) bool { return n.Name == node })
		if at < 0 {
			return fmt.Errorf("the status does not name %s but %v", node, s.Nodes)
		}
		if s.Nodes[at].Reason != reason {
			return fmt.Errorf("%s is %s (%s), not %s", node, s.Nodes[at].Reason, s.Nodes[at].Message, reason)
		}
		return contains("the status of "+node, s.Nodes[at].Message, parts)
	}
}

// taintsOf returns the taints of a node as key=value:effect, in order.
func taintsOf(node *corev1.Node) []string {
	found := make([]string, 0, len(node.Spec.Taints))
	for _, t := range node.Spec.Taints {
		found = append(found, t.ToString())
	}
	slices.Sort(found)
	return found
}

// has waits until a node has exactly these taints.
func (w *scope) has(node string, taints ...string) {
	w.t.Helper()
	slices.Sort(taints)
	w.eventually("taints of "+node, func() error {
		found, err := w.get(w.t.Context(), node)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(append([]string{}, taints...), taintsOf(found)); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// hasNow checks that a node has exactly these taints now. Call it after a later event has
// proved that the controller had its chance.
func (w *scope) hasNow(node string, taints ...string) {
	w.t.Helper()
	found := testkit.Value(w.get(w.t.Context(), node)).Must(w.t)
	slices.Sort(taints)
	if diff := cmp.Diff(append([]string{}, taints...), taintsOf(found)); diff != "" {
		w.t.Errorf("taints of %s (-want +got):\n%s\n%s", node, diff, w.LogTail())
	}
}

func noExecute(key string) string        { return key + ":NoExecute" }
func noSchedule(key string) string       { return key + ":NoSchedule" }
func preferNoSchedule(key string) string { return key + ":PreferNoSchedule" }

// counts waits until the scope has this number of nodes with the key for each effect.
func (w *scope) counts(key string, evicting, keepingOff int) {
	w.t.Helper()
	w.eventually("taints "+key+" in scope "+w.name, func() error {
		nodes, err := w.all(w.t.Context())
		if err != nil {
			return err
		}
		found := map[corev1.TaintEffect]int{}
		for i := range nodes {
			for _, taint := range nodes[i].Spec.Taints {
				if taint.Key == key {
					found[taint.Effect]++
				}
			}
		}
		want := map[corev1.TaintEffect]int{}
		if evicting > 0 {
			want[corev1.TaintEffectNoExecute] = evicting
		}
		if keepingOff > 0 {
			want[corev1.TaintEffectNoSchedule] = keepingOff
		}
		if diff := cmp.Diff(want, found); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// judge checks the recorded history of the scope for violations, after the last write.
func (w *scope) judge(cfg history.Config, atLeast history.Counts) history.Report {
	w.t.Helper()
	cfg.Us = history.User(install.User)
	cfg.FieldManager = fieldManager
	cfg.Ledger = types.NamespacedName{Namespace: install.Namespace, Name: ledgerName}
	if cfg.Lag == 0 {
		cfg.Lag = lag
	}
	var recording testbed.Recording
	for range wait.Looks(w.t.Context()) {
		recording = w.recording()
		cfg.EndAt = time.Now()
		report := testkit.Value(history.Check(recording, cfg)).Must(w.t)
		if unfinished := report.Of(history.WrongEnd); len(unfinished) == 0 || len(unfinished) < len(report.Violations) {
			break
		}
	}
	report := history.Require(w.t, recording, cfg, atLeast)
	w.t.Logf("scope %s: %d changes, %d writes of ours, %d NoExecute, %d fell back, %d removed, %d fences, at most %v at once", w.name,
		report.Changes, report.Writes, report.Evictions, report.Fallbacks, report.Removals, report.Fences, report.Peak)
	if w.t.Failed() {
		w.t.Fatal(w.LogTail())
	}
	return report
}

// recording returns the recorded changes of the scope, of the Leases of its nodes, of the
// ledger, and of the Lease of medik8s' own controller.
func (w *scope) recording() testbed.Recording {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), maxWait)
	defer cancel()
	return testkit.Value(w.RecordingOf(ctx, func(c testbed.Change) bool {
		return strings.HasPrefix(strings.TrimPrefix(c.Name, "node-"), w.name+"-") || c.GVR == history.ConfigMapsResource || c.Name == medik8sLease
	})).Must(w.t)
}

// lag is the maximal age of a controller's caches when it shares two cores with a control
// plane. longLag is its age when the test delays requests or stops controllers.
const (
	lag     = 5 * time.Second
	longLag = time.Minute
)
