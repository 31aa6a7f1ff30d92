package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestAdmission writes policies through the real webhook. All parts share one cluster; each
// has its own scope.
func TestAdmission(t *testing.T) {
	t.Parallel() // the test mostly waits
	w := newFixture(t)
	for _, part := range []part{
		{"every kind of verdict", "verdicts", testVerdicts},
		{"every way to write a set", "ways", testWaysToWrite},
		{"a cluster of one node takes all default sets", "defaults", testDefaultSets},
		{"an invalid object that was stored before stays manageable", "before", testBadObjects},
		{"a follower answers like the leader", "follower", testFollowerAnswers},
		{"a twin in a ConfigMap counts, also without the right to watch", "pinned", testConfigMapTwin},
		{"nothing is admitted before the webhook knows the nodes", "early", testTooEarly},
		{"the webhook is down", "down", testWebhookDown},
		{"the certificate changes under load", "rotation", testRotation},
		{"the certificate comes back from a backup under load", "backup", testBackup},
	} {
		t.Run(part.name, func(t *testing.T) {
			subscope := w.scope(t, part.subscope)
			subscope.releaseLeadership()
			part.test(subscope)
			subscope.deleteNodes()
		})
	}
}

// warningClient is a client that collects warnings.
type warningClient struct {
	*scope
	api client.Client

	mu   sync.Mutex
	said []string
}

// HandleWarningHeaderWithContext stores a warning.
func (d *warningClient) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said = append(d.said, text)
}

// warnings returns the warnings since the last call.
func (d *warningClient) warnings() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	said := d.said
	d.said = nil
	return said
}

func (w *scope) warningClient() *warningClient {
	w.t.Helper()
	d := &warningClient{scope: w}
	config := w.AdminConfig()
	config.WarningHandlerWithContext = d
	d.api = testkit.Value(client.New(config, client.Options{Scheme: w.api.Scheme()})).Must(w.t)
	return d
}

func testDefaultSets(w *scope) {
	const file = "../../deploy/defaults/conditionsets.yaml"
	w.createNodes(testbed.Nodes{Count: 1})
	w.guarded(install.Options{})
	applied := testkit.Value(w.Kubectl(w.t.Context(), "apply", "-f", file)).Must(w.t)
	want := strings.Count(string(testkit.Value(os.ReadFile(file)).Must(w.t)), "\nkind: ConditionSet\n")
	if got := strings.Count(applied, " created\n"); got == 0 || got != want {
		w.t.Errorf("%d of %d sets were created:\n%s", got, want, applied)
	}
	w.eventually("every set accepted", func() error {
		states := testkit.Value(w.Kubectl(w.t.Context(), "get", "-f", file, "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)).Must(w.t)
		if got := strings.Fields(states); len(got) != want || slices.Contains(got, "False") {
			return fmt.Errorf("the states are %v", got)
		}
		return nil
	})
	testkit.Value(w.Kubectl(w.t.Context(), "delete", "-f", file)).Must(w.t)
}

// guarded starts a controller whose webhook is registered until the end of the test.
func (w *scope) guarded(o install.Options) *install.Controller {
	w.t.Helper()
	o.Webhook = true
	c := w.start(o)
	w.ask(c)
	return c
}

func (w *scope) ask(c *install.Controller) {
	w.t.Helper()
	if err := install.UseWebhook(w.t.Context(), w.Cluster, c); err != nil {
		w.t.Fatalf("%v\n%s", err, w.LogTail())
	}
	w.t.Cleanup(func() { _ = install.RemoveWebhook(context.WithoutCancel(w.t.Context()), w.Cluster) })
}

// policy returns a harmless set of the scope, with changes.
func (w *scope) policy(name string, changes ...func(*v1alpha1.ConditionSet)) *v1alpha1.ConditionSet {
	set := &v1alpha1.ConditionSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ConditionSet"},
		ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name},
		Spec: v1alpha1.ConditionSetSpec{
			Type: w.name + "-" + name, Effect: corev1.TaintEffectNoExecute, TaintKey: w.key(name),
			Conditions: map[string]v1alpha1.SetCondition{"KernelDeadlock": stand},
			Selector:   &metav1.LabelSelector{MatchLabels: map[string]string{scopeLabel: w.name}},
		},
	}
	for _, change := range changes {
		change(set)
	}
	return set
}

// when makes a set ask for other conditions, each written as Type=Status.
func when(conditions ...string) func(*v1alpha1.ConditionSet) {
	return func(s *v1alpha1.ConditionSet) {
		s.Spec.Conditions = map[string]v1alpha1.SetCondition{}
		for _, c := range conditions {
			name, status, _ := strings.Cut(c, "=")
			s.Spec.Conditions[name] = v1alpha1.SetCondition{Status: v1alpha1.ConditionStatus(status)}
		}
	}
}

func acceptsImpact(s *v1alpha1.ConditionSet) {
	s.Annotations = map[string]string{v1alpha1.AcceptImpactAnnotation: "true"}
}

func noTaints(s *v1alpha1.ConditionSet) { s.Spec.DryRun = true }

const (
	bySchema  = " is invalid: "
	byWebhook = `admission webhook "conditionsets.autohealer.resourcestack.com" denied the request`
)

// refused returns an error unless err is a refusal of a set with all of these parts, from
// the webhook or the schema.
func refused(err error, parts ...string) error { return refusedBy(byWebhook, err, parts...) }

func refusedBy(webhook string, err error, parts ...string) error {
	if len(parts) == 0 || parts[0] != bySchema {
		parts = append(parts, webhook)
	}
	return testkit.Says(err, parts...)
}

// verdict checks the answer to a new policy: a refusal with these parts, or none if there
// are no parts, and the warnings.
func (d *warningClient) verdict(name, webhook string, policy client.Object, says, warns []string) {
	d.t.Helper()
	err := d.api.Create(d.t.Context(), policy, client.DryRunAll)
	said := d.warnings()
	if len(says) > 0 {
		err = refusedBy(webhook, err, says...)
	}
	if len(warns) > 0 || len(says) == 0 {
		err = errors.Join(err, saying(said, warns...))
	}
	if err != nil {
		d.t.Errorf("%s: %v", name, err)
	}
	if total := len([]rune(strings.Join(said, ""))); total > untruncated {
		d.t.Errorf("%s: the API server truncates warnings of %d characters: %q", name, total, said)
	}
}

// saying returns an error unless the warnings have these parts.
func saying(said []string, parts ...string) error {
	for _, part := range parts {
		if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, part) }) {
			return fmt.Errorf("%q is missing: %q", part, said)
		}
	}
	if len(parts) == 0 && len(said) > 0 {
		return fmt.Errorf("unexpected warnings: %q", said)
	}
	return nil
}

// healthyNodes are nodes that report the conditions of these tests.
func healthyNodes(count int, more ...corev1.NodeConditionType) testbed.Nodes {
	conditions := []corev1.NodeCondition{}
	for _, name := range append([]corev1.NodeConditionType{"KernelDeadlock", "OutOfDisk", "ReadonlyFilesystem", "Unhealthy"}, more...) {
		conditions = append(conditions, corev1.NodeCondition{Type: name, Status: corev1.ConditionFalse, Reason: "TestSaysSo"})
	}
	return testbed.Nodes{Count: count, Conditions: conditions}
}

// untruncated is how many characters of warnings the API server returns without truncation.
const untruncated = 4096

// testVerdicts triggers every check of the validation package once through the API server.
// The tests of that package check the full texts.
func testVerdicts(w *scope) {
	nodes := w.createNodes(healthyNodes(10))
	w.guarded(install.Options{})
	d := w.warningClient()
	testkit.Must(w.t, w.turn(nodes[:6], corev1.ConditionTrue))
	testkit.Must(w.t, d.api.Create(w.t.Context(), w.policy("first")))
	if said := d.warnings(); len(said) > 0 {
		w.t.Errorf("a valid set gets the warnings %q", said)
	}
	// The webhook learns of nodes and sets through watches.
	w.eventually("the webhook to know the nodes and sets", func() error {
		err := d.api.Create(w.t.Context(), w.policy("probe", when("Unhealthy=True")), client.DryRunAll)
		return refused(err, "6 of 10 selected nodes")
	})
	d.warnings()
	for _, test := range []struct {
		name   string
		change func(*v1alpha1.ConditionSet)
		says   []string // empty: it is admitted
		warns  []string
	}{
		{"a healthy status", when("OutOfDisk=False"), []string{"spec.conditions[OutOfDisk].status", "healthy node", "10 of 10 selected nodes", w.node(1), "evict the pods of 4"}, nil},
		{"a near miss", when("KubletUnhealthy=True"), []string{"spec.conditions[KubletUnhealthy]", "did you mean KubeletUnhealthy?"}, nil},
		{"a type twice", func(s *v1alpha1.ConditionSet) {
			s.Spec.Type = w.name + "-first"
			when("FrequentKubeletRestart=True")(s)
		}, []string{"spec.type", w.name + "-first"}, nil},
		{"conditions twice", func(*v1alpha1.ConditionSet) {}, []string{"spec.conditions", "the same conditions", w.name + "-first"}, nil},
		{"a taint of another component", func(s *v1alpha1.ConditionSet) {
			s.Spec.TaintKey = "node.kubernetes.io/not-ready"
			when("ReadonlyFilesystem=True")(s)
		}, []string{bySchema, "spec.taintKey"}, nil},
		{"an invalid taint key", func(s *v1alpha1.ConditionSet) { s.Spec.TaintKey = "a b"; when("ReadonlyFilesystem=True")(s) }, []string{bySchema, "spec.taintKey"}, nil},
		{"a duration in words", func(s *v1alpha1.ConditionSet) {
			s.Spec.Conditions["KernelDeadlock"] = v1alpha1.SetCondition{Status: "True", Duration: "long"}
		}, []string{bySchema, "duration"}, nil},
		{"too many nodes", when("Unhealthy=True"), []string{"6 of 10 selected nodes", "maxUnhealthy allows 4", "accept-impact"}, nil},
		{"all of these at once", func(s *v1alpha1.ConditionSet) {
			when("OutOfDisk=False", "KubletUnhealthy=True")(s)
			s.Spec.Type = w.name + "-first"
		}, []string{"spec.type", "spec.conditions[KubletUnhealthy]"}, []string{"OutOfDisk=False"}},

		{"too many nodes in dry run", func(s *v1alpha1.ConditionSet) { when("Unhealthy=True")(s); noTaints(s) }, nil, []string{"nothing is done on dry run"}},
		{"too many nodes on purpose", func(s *v1alpha1.ConditionSet) { when("Unhealthy=True")(s); acceptsImpact(s) }, nil, []string{"6 of 10 selected nodes", "evict the pods of 4"}},
		{"few enough nodes", func(s *v1alpha1.ConditionSet) {
			when("Unhealthy=True")(s)
			s.Spec.MaxUnhealthy = new(intstr.FromInt32(6))
		}, nil, []string{"evict the pods of 6"}},
		{"an unknown condition", when("OurOwnThing=True"), nil, []string{"no node reports OurOwnThing"}},
		{"an Event for a condition", when("OOMKilling=True"), nil, []string{"the reason of an Event"}},
		{"a selector without nodes", func(s *v1alpha1.ConditionSet) { s.Spec.Selector.MatchLabels[scopeLabel] = "no-node" }, nil, []string{"no node has these labels"}},
		{"an invalid bound", func(s *v1alpha1.ConditionSet) {
			when("ReadonlyFilesystem=True")(s)
			s.Spec.MaxUnhealthy = new(intstr.FromString("100%"))
		}, nil, []string{"empty all 10 selected nodes at once"}},
		{"a healthy status next to another", when("OutOfDisk=False", "ReadonlyFilesystem=True"), nil, []string{"OutOfDisk=False is what a healthy node reports"}},
		{"a silent kubelet with a status that it never has", when("Ready=Unknown", "MemoryPressure=True"), nil, []string{"will never match"}},
		{"what Kubernetes does already", when("DiskPressure=True"), nil, []string{"Kubernetes places"}},
		{"an invalid annotation", func(s *v1alpha1.ConditionSet) {
			acceptsImpact(s)
			s.Annotations[v1alpha1.AcceptImpactAnnotation] = "yes"
			when("ReadonlyFilesystem=True")(s)
		}, nil, []string{"accepts nothing"}},
	} {
		d.verdict(test.name, byWebhook, w.policy("trial", test.change), test.says, test.warns)
	}
	if got := len(w.sets()); got != 1 {
		w.t.Errorf("dry runs have left %d sets", got-1)
	}
}

// testWaysToWrite writes the same valid and invalid sets in every possible way.
func testWaysToWrite(w *scope) {
	nodes := w.createNodes(healthyNodes(10))
	testkit.Must(w.t, w.turn(nodes[:2], corev1.ConditionTrue))
	w.guarded(install.Options{})
	good := w.file(w.policy("set", when("Unhealthy=True")))
	narrower := w.file(w.policy("set", when("Unhealthy=True", "KernelDeadlock=True")))
	trap := w.file(w.policy("set", when("OutOfDisk=False")))
	const denied = "denied the request: spec.conditions[OutOfDisk].status"
	name := w.name + "-set"
	w.eventually("the webhook to know the nodes", func() error {
		_, err := w.Kubectl(w.t.Context(), "create", "-f", good, "--dry-run=server", "--warnings-as-errors")
		return testkit.Says(err, "Warning: 2 of 10 selected nodes (20%) match now")
	})
	w.kubectl("Warning: no node of 10 selected matches now", "create", "-f", narrower, "--dry-run=server", "--warnings-as-errors")
	for _, apply := range [][]string{{"apply"}, {"apply", "--server-side"}} {
		w.kubectl(denied, append(apply, "-f", trap)...)
		w.kubectl("Warning: 2 of 10", append(apply, "-f", good, "--dry-run=server", "--warnings-as-errors")...)
		w.kubectl("", append(apply, "-f", good)...)
		w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
		if len(apply) > 1 { // the other command sends no request if nothing changes
			w.kubectl("Warning: 2 of 10", append(apply, "-f", good, "--dry-run=server", "--warnings-as-errors")...)
		}
		w.kubectl(denied, append(apply, "-f", trap)...)
		w.kubectl("", append(apply, "-f", narrower)...)
		w.kubectl("", "delete", "conditionset", name)
		w.setsAreGone()
	}
	// A replace reads before it writes. A status write in between causes a conflict.
	settled := func(tainted int32) {
		w.t.Helper()
		w.counts(w.key("set"), int(tainted), 0)
		w.hasStatus("set", func(s v1alpha1.ConditionSetStatus) error {
			if s.Tainted != tainted {
				return fmt.Errorf("%d are tainted", s.Tainted)
			}
			return nil
		})
	}
	w.kubectl(denied, "create", "-f", trap)
	w.kubectl("", "create", "-f", good)
	settled(2)
	w.kubectl(denied, "replace", "-f", trap)
	w.kubectl(denied, "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Unhealthy": null, "OutOfDisk": {"status": false}}}}`)
	w.kubectl(denied, "patch", "conditionset", name, "--type=json", "-p", `[{"op": "replace", "path": "/spec/conditions", "value": {"OutOfDisk": {"status": "false"}}}]`)
	w.kubectl("", "replace", "-f", narrower)
	w.kubectl("", "label", "conditionset", name, "a=b")
	settled(0)
	w.kubectl("", "replace", "-f", good)
	settled(2)
	w.kubectl("Warning: the taint "+w.key("set")+" of this set will be removed from 2 nodes", "delete", "conditionset", name, "--dry-run=server", "--warnings-as-errors")
	// A set in force may always become narrower, regardless of the matching nodes.
	testkit.Must(w.t, w.turn(nodes, corev1.ConditionTrue))
	w.hasStatus("set", func(s v1alpha1.ConditionSetStatus) error {
		if s.Matched != 10 {
			return fmt.Errorf("%d match", s.Matched)
		}
		return nil
	})
	w.kubectl("", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"maxUnhealthy": "10%"}}`)
	w.kubectl("10 of 10 selected nodes", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Unhealthy": null, "OutOfDisk": {"status": false}}}}`)
	w.counts(w.key("set"), 4, 6)
	// An edit that affects other nodes, or evicts other pods, is not narrower.
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	w.kubectl("under another taint key than now", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"taintKey": "example.com/other"}}`)
	w.kubectl("they need not be those that are emptied now", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Unhealthy": {"duration": "2h"}}}}`)
	// A shorter wait is not narrower either. A longer wait is, if no node is evicted now.
	w.kubectl("", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"effect": "NoSchedule", "conditions": {"Unhealthy": {"duration": "2h"}}}}`)
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	w.kubectl("when the condition has lasted for 1h, sooner than it does now", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Unhealthy": {"duration": "1h"}}}}`)
	w.kubectl("", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Unhealthy": {"duration": "3h"}}}}`)
	w.kubectl("", "delete", "conditionsets", "--all")
	w.counts(w.key("set"), 0, 0)
}

func (w *scope) setsAreGone() {
	w.t.Helper()
	w.eventually("the sets to be deleted", func() error {
		if left := len(w.sets()); left > 0 {
			return fmt.Errorf("%d left", left)
		}
		return nil
	})
}

// file writes a policy to a file, without its status.
func (w *scope) file(policy client.Object) string {
	w.t.Helper()
	var object map[string]any
	testkit.Must(w.t, json.Unmarshal(testkit.Value(json.Marshal(policy)).Must(w.t), &object))
	object["metadata"] = map[string]any{"name": policy.GetName()}
	delete(object, "status")
	path := filepath.Join(w.t.TempDir(), "policy.json")
	testkit.Must(w.t, os.WriteFile(path, testkit.Value(json.Marshal(object)).Must(w.t), 0o600))
	return path
}

// testBadObjects writes objects that the webhook would have refused, while no webhook is
// registered.
func testBadObjects(w *scope) {
	w.createNodes(healthyNodes(10))
	controller := w.start(install.Options{Webhook: true})
	bad := w.policy("bad", when("OutOfDisk=False"), noTaints)
	bad.Finalizers = []string{"example.com/wait"}
	testkit.Must(w.t, w.api.Create(w.t.Context(), bad))
	w.ask(controller)
	d := w.warningClient()
	patch := func(body string) error {
		return d.api.Patch(w.t.Context(), bad.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)))
	}
	for name, body := range map[string]string{
		"a label":             `{"metadata": {"labels": {"a": "b"}}}`,
		"acceptance":          `{"metadata": {"annotations": {"` + v1alpha1.AcceptImpactAnnotation + `": "true"}}}`,
		"a further finalizer": `{"metadata": {"finalizers": ["example.com/wait", "example.com/more"]}}`,
		"one finalizer less":  `{"metadata": {"finalizers": ["example.com/wait"]}}`,
		"the unchanged spec":  `{"spec": {"dryRun": true}}`,
	} {
		if err := patch(body); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	}
	if err := refused(patch(`{"spec": {"dryRun": false}}`), "OutOfDisk=False"); err != nil {
		w.t.Error(err)
	}
	status := bad.DeepCopy()
	if err := d.api.Status().Patch(w.t.Context(), status, client.RawPatch(types.MergePatchType, []byte(`{"status": {"matched": 3}}`))); err != nil {
		w.t.Errorf("its status: %v", err)
	}
	// A dry run still shows the problems.
	d.warnings()
	testkit.Must(w.t, d.api.Patch(w.t.Context(), bad.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"dryRun": true}}`)), client.DryRunAll))
	testkit.Must(w.t, saying(d.warnings(), "OutOfDisk=False"))
	testkit.Must(w.t, d.api.Delete(w.t.Context(), bad.DeepCopy()))
	if err := patch(`{"metadata": {"finalizers": null}}`); err != nil {
		w.t.Errorf("its last finalizer: %v", err)
	}
	w.setsAreGone()
}

// testFollowerAnswers sends the same requests to two replicas.
func testFollowerAnswers(w *scope) {
	nodes := w.createNodes(healthyNodes(12))
	leader := w.start(install.Options{Webhook: true})
	w.eventually("a leader", func() error {
		if value(w.t, w.scrape(leader), "autohealer_leading") != 1 {
			return errors.New("there is no leader")
		}
		return nil
	})
	follower := w.start(install.Options{Webhook: true})
	d := w.warningClient()
	for i, unhealthy := range []int{3, 5, 9} {
		testkit.Must(w.t, w.turn(nodes[:unhealthy], corev1.ConditionTrue))
		var answers []string
		for _, c := range []*install.Controller{leader, follower} {
			w.ask(c)
			count := fmt.Sprintf("%d of 12 selected nodes", unhealthy)
			w.eventually("an answer from "+c.String(), func() error {
				d.warnings()
				err := d.api.Create(w.t.Context(), w.policy("trial", when("Unhealthy=True")), client.DryRunAll)
				answer := fmt.Sprint(d.warnings(), err)
				if !strings.Contains(answer, count) {
					return errors.New(answer)
				}
				answers = append(answers, answer)
				return nil
			})
		}
		if answers[0] != answers[1] {
			w.t.Errorf("round %d: one replica answers %q, the other %q", i, answers[0], answers[1])
		}
	}
	if value(w.t, w.scrape(follower), "autohealer_leading") != 0 {
		w.t.Error("the follower leads: the test proves nothing")
	}
}

// testTooEarly starts a controller that cannot list the nodes.
func testTooEarly(w *scope) {
	w.createNodes(healthyNodes(4))
	proxy, err := w.Proxy()
	testkit.Must(w.t, err)
	blind := proxy.Inject(func(r testbed.Request) bool { return r.Resource == "nodes" && (r.Verb == "list" || r.Verb == "watch") }, testbed.Hold(), 0)
	controller := w.start(install.Options{Webhook: true, Unready: true, Through: proxy})
	w.ask(controller)
	d := w.warningClient()
	if page := w.probe(controller, "/readyz?verbose"); !strings.Contains(page, "[-]webhooks") {
		w.t.Errorf("the controller is ready: %s", page)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	err = d.api.Create(ctx, w.policy("trial"))
	if err == nil || !strings.Contains(err.Error(), "does not know the nodes yet") && !errors.Is(err, context.DeadlineExceeded) {
		w.t.Errorf("a set that cannot be judged: %v", err)
	}
	if got := value(w.t, w.scrape(controller), `autohealer_admission_duration_seconds_count{answer="unready",resource="conditionsets"}`); got < 2 {
		w.t.Errorf("the client tried %v times", got)
	}
	if err := refused(d.api.Create(w.t.Context(), w.policy("trap", when("OutOfDisk=False"))), "OutOfDisk=False"); err != nil {
		w.t.Errorf("a set that is invalid for any nodes: %v", err)
	}
	testkit.Must(w.t, d.api.Create(w.t.Context(), w.policy("harmless", noTaints)))
	testkit.Must(w.t, d.api.Delete(w.t.Context(), w.policy("harmless")))

	// Clients retry by themselves.
	done := w.meanwhile(func() error {
		_, err := w.Kubectl(w.t.Context(), "apply", "-f", w.file(w.policy("waiting")))
		return err
	})
	blind.Lift()
	done()
	w.eventually("the replica to be ready", func() error {
		if page := w.probe(controller, "/readyz?verbose"); !strings.Contains(page, "[+]webhooks ok") {
			return errors.New(page)
		}
		return nil
	})
}

// testWebhookDown kills the replica that serves the webhook, and continues with the other
// replica.
func testWebhookDown(w *scope) {
	nodes := w.createNodes(healthyNodes(10))
	w.start(install.Options{})
	asked := w.guarded(install.Options{})
	d := w.warningClient()
	testkit.Must(w.t, d.api.Create(w.t.Context(), w.policy("set", when("Unhealthy=True"))))
	testkit.Must(w.t, d.api.Create(w.t.Context(), w.policy("other")))
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	w.kill(asked)

	w.makeUnhealthy(nodes[:3])
	w.counts(w.key("set"), 3, 0)
	for what, err := range map[string]error{
		"a new set": d.api.Create(w.t.Context(), w.policy("new", when("ReadonlyFilesystem=True"))),
		"a change":  d.api.Patch(w.t.Context(), w.policy("set"), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"effect": "NoSchedule"}}`))),
		"a dry run": d.api.Patch(w.t.Context(), w.policy("set"), client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "c"}}}`)), client.DryRunAll),
	} {
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "failed calling webhook") {
			w.t.Errorf("%s: %v", what, err)
		}
	}
	testkit.Must(w.t, d.api.Patch(w.t.Context(), w.policy("set"), client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`))))
	testkit.Must(w.t, d.api.Patch(w.t.Context(), w.policy("other"), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"dryRun": true}}`))))
	testkit.Must(w.t, d.api.Delete(w.t.Context(), w.policy("other")))
	w.recover(nodes[:2])
	w.counts(w.key("set"), 1, 0)
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	// A user can still delete a harmful set.
	testkit.Must(w.t, d.api.Delete(w.t.Context(), w.policy("set")))
	w.counts(w.key("set"), 0, 0)

	w.restart(asked.Part)
	w.eventually("sets to be admitted again", func() error {
		return d.api.Create(w.t.Context(), w.policy("new", when("ReadonlyFilesystem=True")))
	})
}

// testRotation empties the Secret again and again while a client writes sets without a
// pause. At every time valid sets are admitted and invalid sets are refused.
func testRotation(w *scope) {
	w.createNodes(healthyNodes(10))
	first := w.guarded(install.Options{})
	w.start(install.Options{Webhook: true})
	const rounds = 4
	var good, bad int
	var failures []error
	stop := make(chan struct{})
	done := w.meanwhile(func() error {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return nil
			default:
			}
			set := w.policy("set", func(s *v1alpha1.ConditionSet) {
				s.Spec.Conditions["KernelDeadlock"] = v1alpha1.SetCondition{Status: "True", Duration: fmt.Sprintf("%ds", 1+i%2)}
			})
			if err := w.api.Patch(w.t.Context(), set, client.Merge); apierrors.IsNotFound(err) {
				err = w.api.Create(w.t.Context(), set)
				if err != nil {
					failures = append(failures, err)
				}
			} else if err != nil {
				failures = append(failures, err)
			}
			good++
			if err := refused(w.api.Create(w.t.Context(), w.policy("trap", when("OutOfDisk=False")))); err != nil {
				failures = append(failures, err)
			}
			bad++
		}
	})
	key := types.NamespacedName{Namespace: install.Namespace, Name: install.WebhookSecret}
	for range rounds {
		secret := &corev1.Secret{}
		testkit.Must(w.t, w.api.Get(w.t.Context(), key, secret))
		old := string(secret.Data["tls.crt"])
		secret.Data = nil
		testkit.Must(w.t, w.api.Update(w.t.Context(), secret))
		w.eventually("the webhook to serve another certificate", func() error {
			testkit.Must(w.t, w.api.Get(w.t.Context(), key, secret))
			now := string(secret.Data["tls.crt"])
			if now == "" || now == old {
				return errors.New("there is no new certificate")
			}
			shown, err := w.shows(first)
			if err == nil && !strings.Contains(now, shown) {
				err = errors.New("the webhook serves the old certificate")
			}
			return err
		})
	}
	close(stop)
	done()
	if len(failures) > 0 {
		w.t.Errorf("%d of %d writes got a wrong response, the first: %v", len(failures), good+bad, failures[0])
	}
	if good < 10*rounds {
		w.t.Errorf("only %d valid sets were written: the test proves nothing", good)
	}
	for _, set := range w.sets() {
		if set.Name != w.name+"-set" {
			w.t.Errorf("%s got in", set.Name)
		}
	}
	w.t.Logf("%d valid and %d invalid sets written during %d changes of the certificate", good, bad, rounds)
}

// shows returns the certificate that a webhook serves, in PEM format.
func (w *scope) shows(c *install.Controller) (string, error) {
	shown, err := w.shown(c)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: shown.Raw})), nil
}

// shownNames returns the names in the certificate that a webhook serves.
func (w *scope) shownNames(c *install.Controller) []string {
	w.t.Helper()
	shown := testkit.Value(w.shown(c)).Must(w.t)
	return shown.DNSNames
}

func (w *scope) shown(c *install.Controller) (*x509.Certificate, error) {
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // trust is not tested here
	connection, err := dialer.DialContext(w.t.Context(), "tcp", c.Webhook)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// probe returns the response of a controller's probe endpoint.
func (w *scope) probe(c *install.Controller, path string) string {
	w.t.Helper()
	_, text, err := testkit.Get(w.t.Context(), "http://"+c.Probes+path)
	testkit.Must(w.t, err)
	return text
}

// testConfigMapTwin writes sets that duplicate sets in a ConfigMap. The controller starts
// with rights from before it watched the stored revisions.
func testConfigMapTwin(w *scope) {
	w.createNodes(healthyNodes(4))
	role := &rbacv1.Role{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: install.Account}, role))
	giveBack := w.withdraw(role, &role.Rules, authorizationv1.ResourceAttributes{
		Verb: "watch", Group: "apps", Resource: "controllerrevisions", Namespace: install.Namespace,
	})
	c := w.guarded(install.Options{})
	d := w.warningClient()
	try := func() error { return d.api.Create(w.t.Context(), w.policy("mine"), client.DryRunAll) }
	twin := func(name string) {
		w.createConfigMap(name, w.configMap(name, "NoSchedule", "KernelDeadlock"), true)
		w.hasRevision(name, name)
		w.eventually("a refusal", func() error { return refused(try(), "the same conditions", "ConfigMap "+w.name+"-"+name) })
		w.deleteConfigMap()
		testkit.Must(w.t, try()) // a remembered revision alone refuses nothing
	}
	twin("one")
	twin("two")
	text := testkit.Value(c.Log()).Must(w.t)
	if got := strings.Count(text, "kept versions of ConfigMaps not watched"); got != 1 {
		w.t.Errorf("the missing watch is logged %d times, want once:\n%s", got, text)
	}
	giveBack()
	_, host, _ := strings.Cut(w.AdminConfig().Host, "//")
	reads := func() float64 {
		return value(w.t, w.scrape(c), fmt.Sprintf(`rest_client_requests_total{code="200",host=%q,method="GET"}`, host))
	}
	w.eventually("a verdict without a request to the API server", func() error {
		before := reads()
		testkit.Must(w.t, try())
		if after := reads(); after != before || after == 0 {
			return fmt.Errorf("%v questions, then %v", before, after)
		}
		return nil
	})
	twin("three")
}
