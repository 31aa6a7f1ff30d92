package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// TestAdmission writes policies through the real webhook. All of its parts share
// one cluster; each has a ward of its own.
func TestAdmission(t *testing.T) {
	t.Parallel() // much of it is waiting
	w := newFixture(t)
	for _, part := range []struct {
		name, ward string
		test       func(*scope)
	}{
		{"every kind of verdict", "verdicts", testVerdicts},
		{"every way to write a set", "ways", testWaysToWrite},
		{"what came in before stays manageable", "before", testBadObjects},
		{"a follower says what the leader says", "follower", testFollowerAnswers},
		{"a twin in a ConfigMap counts, also without the right to watch", "pinned", testConfigMapTwin},
		{"nobody is let in before the nodes are known", "early", testTooEarly},
		{"the webhook is down", "down", testWebhookDown},
		{"the certificate changes under load", "rotation", testRotation},
		{"the certificate comes back from a backup under load", "backup", testBackup},
	} {
		t.Run(part.name, func(t *testing.T) {
			ward := w.scope(t, part.ward)
			ward.releaseLeadership()
			part.test(ward)
			ward.deleteNodes()
		})
	}
}

// warningClient is where somebody writes policies and is told something.
type warningClient struct {
	*scope
	api client.Client

	mu   sync.Mutex
	said []string
}

// HandleWarningHeaderWithContext takes a warning down.
func (d *warningClient) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said = append(d.said, text)
}

// warnings returns what was said since the last time.
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
	var err error
	d.api, err = client.New(config, client.Options{Scheme: w.api.Scheme()})
	w.must(err)
	return d
}

// guarded starts a controller whose webhook is asked until the test is over.
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
		w.t.Fatalf("%v\n%s", err, w.logTail())
	}
	w.t.Cleanup(func() { _ = install.RemoveWebhook(context.WithoutCancel(w.t.Context()), w.Cluster) })
}

// policy returns a set of the ward that harms nobody, changed.
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

// refused says what is wrong with a refusal: it must say all of this, and come
// from the webhook unless it is the schema's.
func refused(err error, parts ...string) error {
	if err == nil {
		return errors.New("it was let in")
	}
	if len(parts) == 0 || parts[0] != bySchema {
		parts = append(parts, byWebhook)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("nothing of %q is said: %w", part, err)
		}
	}
	return nil
}

// saying says what is wrong with warnings.
func saying(said []string, parts ...string) error {
	for _, part := range parts {
		if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, part) }) {
			return fmt.Errorf("nothing of %q is said: %q", part, said)
		}
	}
	if len(parts) == 0 && len(said) > 0 {
		return fmt.Errorf("there is nothing to say, and it is: %q", said)
	}
	return nil
}

// healthyNodes are nodes that report what the sets of these tests ask for.
func healthyNodes(count int, more ...corev1.NodeConditionType) testbed.Nodes {
	conditions := []corev1.NodeCondition{}
	for _, name := range append([]corev1.NodeConditionType{"KernelDeadlock", "OutOfDisk", "ReadonlyFilesystem", "Sick"}, more...) {
		conditions = append(conditions, corev1.NodeCondition{Type: name, Status: corev1.ConditionFalse, Reason: "TestSaysSo"})
	}
	return testbed.Nodes{Count: count, Conditions: conditions}
}

// untruncated is how many letters of warnings an answer may have before the API
// server cuts them short.
const untruncated = 4096

// testVerdicts has every check of vet answer once, through the API server: what
// they say in full is vet's business.
func testVerdicts(w *scope) {
	nodes := w.createNodes(healthyNodes(10))
	w.guarded(install.Options{})
	d := w.warningClient()
	w.must(w.turn(nodes[:6], corev1.ConditionTrue))
	w.must(d.api.Create(w.t.Context(), w.policy("first")))
	if said := d.warnings(); len(said) > 0 {
		w.t.Errorf("a set without fault gets the warnings %q", said)
	}
	// What the webhook knows of nodes and sets comes to it by watches.
	w.eventually("the webhook knowing what is there", func() error {
		err := d.api.Create(w.t.Context(), w.policy("probe", when("Sick=True")), client.DryRunAll)
		return refused(err, "6 of 10 selected nodes")
	})
	d.warnings()
	for _, test := range []struct {
		name   string
		change func(*v1alpha1.ConditionSet)
		says   []string // empty: it is let in
		warns  []string
	}{
		{"a healthy status", when("OutOfDisk=False"), []string{"spec.conditions[OutOfDisk].status", "healthy node", "10 of 10 selected nodes", w.node(1), "evict the pods of 4"}, nil},
		{"a near miss", when("KubletUnhealthy=True"), []string{"spec.conditions[KubletUnhealthy]", "did you mean KubeletUnhealthy?"}, nil},
		{"a type twice", func(s *v1alpha1.ConditionSet) {
			s.Spec.Type = w.name + "-first"
			when("FrequentKubeletRestart=True")(s)
		}, []string{"spec.type", w.name + "-first"}, nil},
		{"conditions twice", func(*v1alpha1.ConditionSet) {}, []string{"spec.conditions", "the same conditions", w.name + "-first"}, nil},
		{"a taint of others", func(s *v1alpha1.ConditionSet) {
			s.Spec.TaintKey = "node.kubernetes.io/not-ready"
			when("ReadonlyFilesystem=True")(s)
		}, []string{bySchema, "spec.taintKey"}, nil},
		{"a taint key that is none", func(s *v1alpha1.ConditionSet) { s.Spec.TaintKey = "a b"; when("ReadonlyFilesystem=True")(s) }, []string{bySchema, "spec.taintKey"}, nil},
		{"a duration in words", func(s *v1alpha1.ConditionSet) {
			s.Spec.Conditions["KernelDeadlock"] = v1alpha1.SetCondition{Status: "True", Duration: "long"}
		}, []string{bySchema, "duration"}, nil},
		{"too many nodes", when("Sick=True"), []string{"6 of 10 selected nodes", "maxUnhealthy allows 4", "accept-impact"}, nil},
		{"all of it at once", func(s *v1alpha1.ConditionSet) {
			when("OutOfDisk=False", "KubletUnhealthy=True")(s)
			s.Spec.Type = w.name + "-first"
		}, []string{"spec.type", "spec.conditions[KubletUnhealthy]"}, []string{"OutOfDisk=False"}},

		{"too many nodes on dry run", func(s *v1alpha1.ConditionSet) { when("Sick=True")(s); noTaints(s) }, nil, []string{"nothing is done on dry run"}},
		{"too many nodes on purpose", func(s *v1alpha1.ConditionSet) { when("Sick=True")(s); acceptsImpact(s) }, nil, []string{"6 of 10 selected nodes", "evict the pods of 4"}},
		{"few enough nodes", func(s *v1alpha1.ConditionSet) {
			when("Sick=True")(s)
			s.Spec.MaxUnhealthy = new(intstr.FromInt32(6))
		}, nil, []string{"evict the pods of 6"}},
		{"a condition that nobody knows", when("OurOwnThing=True"), nil, []string{"no node reports OurOwnThing"}},
		{"an Event for a condition", when("OOMKilling=True"), nil, []string{"the reason of an Event"}},
		{"a selector of nobody", func(s *v1alpha1.ConditionSet) { s.Spec.Selector.MatchLabels[scopeLabel] = "nobody" }, nil, []string{"no node has these labels"}},
		{"a bound that is none", func(s *v1alpha1.ConditionSet) {
			when("ReadonlyFilesystem=True")(s)
			s.Spec.MaxUnhealthy = new(intstr.FromString("100%"))
		}, nil, []string{"empty all 10 selected nodes at once"}},
		{"a healthy status beside another", when("OutOfDisk=False", "ReadonlyFilesystem=True"), nil, []string{"OutOfDisk=False is what a healthy node reports"}},
		{"a silent kubelet that speaks", when("Ready=Unknown", "MemoryPressure=True"), nil, []string{"will never match"}},
		{"what Kubernetes does already", when("DiskPressure=True"), nil, []string{"Kubernetes places"}},
		{"an annotation that is none", func(s *v1alpha1.ConditionSet) {
			acceptsImpact(s)
			s.Annotations[v1alpha1.AcceptImpactAnnotation] = "yes"
			when("ReadonlyFilesystem=True")(s)
		}, nil, []string{"accepts nothing"}},
	} {
		err := d.api.Create(w.t.Context(), w.policy("trial", test.change), client.DryRunAll)
		said := d.warnings()
		if len(test.says) > 0 {
			err = refused(err, test.says...)
		}
		if len(test.warns) > 0 || len(test.says) == 0 {
			err = errors.Join(err, saying(said, test.warns...))
		}
		if err != nil {
			w.t.Errorf("%s: %v", test.name, err)
		}
		if total := len([]rune(strings.Join(said, ""))); total > untruncated {
			w.t.Errorf("%s: of %d letters the API server cuts some off: %q", test.name, total, said)
		}
	}
	if got := len(w.sets()); got != 1 {
		w.t.Errorf("dry runs have left %d sets", got-1)
	}
}

// testWaysToWrite writes the same good and bad sets in every way that there is.
func testWaysToWrite(w *scope) {
	nodes := w.createNodes(healthyNodes(10))
	w.must(w.turn(nodes[:2], corev1.ConditionTrue))
	w.guarded(install.Options{})
	good := w.file(w.policy("set", when("Sick=True")))
	narrower := w.file(w.policy("set", when("Sick=True", "KernelDeadlock=True")))
	trap := w.file(w.policy("set", when("OutOfDisk=False")))
	const denied = "denied the request: spec.conditions[OutOfDisk].status"
	run := func(want string, args ...string) {
		w.t.Helper()
		out, err := w.Kubectl(w.t.Context(), args...)
		switch {
		case want == "" && err != nil:
			w.t.Error(err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			w.t.Errorf("kubectl %s: nothing of %q is said: %s %v", strings.Join(args, " "), want, out, err)
		}
	}
	name := w.name + "-set"
	w.eventually("the webhook knowing the nodes", func() error {
		_, err := w.Kubectl(w.t.Context(), "create", "-f", good, "--dry-run=server", "--warnings-as-errors")
		if err == nil || !strings.Contains(err.Error(), "Warning: 2 of 10 selected nodes (20%) match now") {
			return fmt.Errorf("a dry run says %w", err)
		}
		return nil
	})
	run("Warning: no node of 10 selected matches now", "create", "-f", narrower, "--dry-run=server", "--warnings-as-errors")
	for _, apply := range [][]string{{"apply"}, {"apply", "--server-side"}} {
		run(denied, append(apply, "-f", trap)...)
		run("Warning: 2 of 10", append(apply, "-f", good, "--dry-run=server", "--warnings-as-errors")...)
		run("", append(apply, "-f", good)...)
		w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
		if len(apply) > 1 { // the other does not ask when nothing changes
			run("Warning: 2 of 10", append(apply, "-f", good, "--dry-run=server", "--warnings-as-errors")...)
		}
		run(denied, append(apply, "-f", trap)...)
		run("", append(apply, "-f", narrower)...)
		run("", "delete", "conditionset", name)
		w.eventually("the set gone", func() error {
			if left := len(w.sets()); left > 0 {
				return fmt.Errorf("%d left", left)
			}
			return nil
		})
	}
	// A replacement reads before it writes, and a status that is written in between
	// is a conflict.
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
	run(denied, "create", "-f", trap)
	run("", "create", "-f", good)
	settled(2)
	run(denied, "replace", "-f", trap)
	run(denied, "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Sick": null, "OutOfDisk": {"status": false}}}}`)
	run(denied, "patch", "conditionset", name, "--type=json", "-p", `[{"op": "replace", "path": "/spec/conditions", "value": {"OutOfDisk": {"status": "false"}}}]`)
	run("", "replace", "-f", narrower)
	run("", "label", "conditionset", name, "a=b")
	settled(0)
	run("", "replace", "-f", good)
	settled(2)
	run("Warning: the taint "+w.key("set")+" of this set will be removed from 2 nodes", "delete", "conditionset", name, "--dry-run=server", "--warnings-as-errors")
	// What is in force may always become narrower, whatever it matches.
	w.must(w.turn(nodes, corev1.ConditionTrue))
	w.hasStatus("set", func(s v1alpha1.ConditionSetStatus) error {
		if s.Matched != 10 {
			return fmt.Errorf("%d match", s.Matched)
		}
		return nil
	})
	run("", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"maxUnhealthy": "10%"}}`)
	run("10 of 10 selected nodes", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Sick": null, "OutOfDisk": {"status": false}}}}`)
	w.counts(w.key("set"), 4, 6)
	// Whatever lets others be emptied, or other pods be evicted, is no narrowing.
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	run("under another taint key than now", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"taintKey": "example.com/other"}}`)
	run("they need not be those that are emptied now", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Sick": {"duration": "2h"}}}}`)
	// Nor is to wait for a shorter time, and to wait longer is where nobody is emptied.
	run("", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"effect": "NoSchedule", "conditions": {"Sick": {"duration": "2h"}}}}`)
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	run("once it has stood for 1h, sooner than it does now", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Sick": {"duration": "1h"}}}}`)
	run("", "patch", "conditionset", name, "--type=merge", "-p", `{"spec": {"conditions": {"Sick": {"duration": "3h"}}}}`)
	run("", "delete", "conditionsets", "--all")
	w.counts(w.key("set"), 0, 0)
}

// file writes a set down.
func (w *scope) file(set *v1alpha1.ConditionSet) string {
	w.t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": set.APIVersion, "kind": set.Kind, "metadata": map[string]any{"name": set.Name}, "spec": set.Spec})
	w.must(err)
	path := filepath.Join(w.t.TempDir(), "set.json")
	w.must(os.WriteFile(path, text, 0o600))
	return path
}

// testBadObjects writes what the webhook would have refused while nobody is asked.
func testBadObjects(w *scope) {
	w.createNodes(healthyNodes(10))
	controller := w.start(install.Options{Webhook: true})
	bad := w.policy("bad", when("OutOfDisk=False"), noTaints)
	bad.Finalizers = []string{"example.com/wait"}
	w.must(w.api.Create(w.t.Context(), bad))
	w.ask(controller)
	d := w.warningClient()
	patch := func(body string) error {
		return d.api.Patch(w.t.Context(), bad.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)))
	}
	for name, body := range map[string]string{
		"a label":               `{"metadata": {"labels": {"a": "b"}}}`,
		"acceptance":            `{"metadata": {"annotations": {"` + v1alpha1.AcceptImpactAnnotation + `": "true"}}}`,
		"a further finalizer":   `{"metadata": {"finalizers": ["example.com/wait", "example.com/more"]}}`,
		"one finalizer less":    `{"metadata": {"finalizers": ["example.com/wait"]}}`,
		"the spec as it stands": `{"spec": {"dryRun": true}}`,
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
	// Only to see, one is told what is wrong all the same.
	d.warnings()
	w.must(d.api.Patch(w.t.Context(), bad.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"dryRun": true}}`)), client.DryRunAll))
	w.must(saying(d.warnings(), "OutOfDisk=False"))
	w.must(d.api.Delete(w.t.Context(), bad.DeepCopy()))
	if err := patch(`{"metadata": {"finalizers": null}}`); err != nil {
		w.t.Errorf("its last finalizer: %v", err)
	}
	w.eventually("it being gone", func() error {
		if left := len(w.sets()); left > 0 {
			return fmt.Errorf("%d left", left)
		}
		return nil
	})
}

// testFollowerAnswers asks two replicas the same.
func testFollowerAnswers(w *scope) {
	nodes := w.createNodes(healthyNodes(12))
	leader := w.start(install.Options{Webhook: true})
	w.eventually("somebody leading", func() error {
		if value(w.t, w.scrape(leader), "autohealer_leading") != 1 {
			return errors.New("nobody does")
		}
		return nil
	})
	follower := w.start(install.Options{Webhook: true})
	d := w.warningClient()
	for i, sick := range []int{3, 5, 9} {
		w.must(w.turn(nodes[:sick], corev1.ConditionTrue))
		var answers []string
		for _, c := range []*install.Controller{leader, follower} {
			w.ask(c)
			count := fmt.Sprintf("%d of 12 selected nodes", sick)
			w.eventually("an answer of "+c.String(), func() error {
				d.warnings()
				err := d.api.Create(w.t.Context(), w.policy("trial", when("Sick=True")), client.DryRunAll)
				answer := fmt.Sprint(d.warnings(), err)
				if !strings.Contains(answer, count) {
					return errors.New(answer)
				}
				answers = append(answers, answer)
				return nil
			})
		}
		if answers[0] != answers[1] {
			w.t.Errorf("round %d: one says %q, the other %q", i, answers[0], answers[1])
		}
	}
	if value(w.t, w.scrape(follower), "autohealer_leading") != 0 {
		w.t.Error("the follower leads: the test has shown nothing")
	}
}

// testTooEarly starts a controller that does not get to see the nodes.
func testTooEarly(w *scope) {
	w.createNodes(healthyNodes(4))
	proxy, err := w.Proxy()
	w.must(err)
	blind := proxy.Inject(func(r testbed.Request) bool { return r.Resource == "nodes" && (r.Verb == "list" || r.Verb == "watch") }, testbed.Hold(), 0)
	controller := w.start(install.Options{Webhook: true, Unready: true, Through: proxy})
	w.ask(controller)
	d := w.warningClient()
	if page := w.probe(controller, "/readyz?verbose"); !strings.Contains(page, "[-]webhooks") {
		w.t.Errorf("it calls itself ready: %s", page)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	err = d.api.Create(ctx, w.policy("trial"))
	if err == nil || !strings.Contains(err.Error(), "does not know the nodes yet") && !errors.Is(err, context.DeadlineExceeded) {
		w.t.Errorf("a set that nobody can judge: %v", err)
	}
	if got := value(w.t, w.scrape(controller), `autohealer_admission_seconds_count{answer="unready",resource="conditionsets"}`); got < 2 {
		w.t.Errorf("the client has tried %v times", got)
	}
	if err := refused(d.api.Create(w.t.Context(), w.policy("trap", when("OutOfDisk=False"))), "OutOfDisk=False"); err != nil {
		w.t.Errorf("what is wrong whatever the nodes are: %v", err)
	}
	w.must(d.api.Create(w.t.Context(), w.policy("harmless", noTaints)))
	w.must(d.api.Delete(w.t.Context(), w.policy("harmless")))

	// Clients try again by themselves.
	done := w.meanwhile(func() error {
		_, err := w.Kubectl(w.t.Context(), "apply", "-f", w.file(w.policy("patient")))
		return err
	})
	blind.Lift()
	done()
	w.eventually("the replica being ready", func() error {
		if page := w.probe(controller, "/readyz?verbose"); !strings.Contains(page, "[+]webhooks ok") {
			return errors.New(page)
		}
		return nil
	})
}

// testWebhookDown kills the replica that is asked, and goes on with the other.
func testWebhookDown(w *scope) {
	nodes := w.createNodes(healthyNodes(10))
	w.start(install.Options{})
	asked := w.guarded(install.Options{})
	d := w.warningClient()
	w.must(d.api.Create(w.t.Context(), w.policy("set", when("Sick=True"))))
	w.must(d.api.Create(w.t.Context(), w.policy("other")))
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	w.kill(asked)

	w.fallSick(nodes[:3])
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
	w.must(d.api.Patch(w.t.Context(), w.policy("set"), client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`))))
	w.must(d.api.Patch(w.t.Context(), w.policy("other"), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"dryRun": true}}`))))
	w.must(d.api.Delete(w.t.Context(), w.policy("other")))
	w.recover(nodes[:2])
	w.counts(w.key("set"), 1, 0)
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	// It is also how one gets rid of a set that hurts.
	w.must(d.api.Delete(w.t.Context(), w.policy("set")))
	w.counts(w.key("set"), 0, 0)

	w.restart(asked.Part)
	w.eventually("sets being taken again", func() error {
		return d.api.Create(w.t.Context(), w.policy("new", when("ReadonlyFilesystem=True")))
	})
}

// testRotation empties the Secret again and again while somebody writes sets
// without a pause. Good ones get in and bad ones do not, at every moment.
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
		w.must(w.api.Get(w.t.Context(), key, secret))
		old := string(secret.Data["tls.crt"])
		secret.Data = nil
		w.must(w.api.Update(w.t.Context(), secret))
		w.eventually("another certificate being served", func() error {
			w.must(w.api.Get(w.t.Context(), key, secret))
			now := string(secret.Data["tls.crt"])
			if now == "" || now == old {
				return errors.New("none was made")
			}
			shown, err := w.shows(first)
			if err == nil && !strings.Contains(now, shown) {
				err = errors.New("the old one is served")
			}
			return err
		})
	}
	close(stop)
	done()
	if len(failures) > 0 {
		w.t.Errorf("%d of %d writes did not get their answer, the first: %v", len(failures), good+bad, failures[0])
	}
	if good < 10*rounds {
		w.t.Errorf("only %d good sets were written: this shows nothing", good)
	}
	for _, set := range w.sets() {
		if set.Name != w.name+"-set" {
			w.t.Errorf("%s got in", set.Name)
		}
	}
	w.t.Logf("%d good and %d bad sets written during %d changes of the certificate", good, bad, rounds)
}

// shows returns the certificate that a webhook shows, as it stands in a PEM file.
func (w *scope) shows(c *install.Controller) (string, error) {
	shown, err := w.shown(c)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: shown.Raw})), nil
}

// shownNames returns the names in the certificate that a webhook shows.
func (w *scope) shownNames(c *install.Controller) []string {
	w.t.Helper()
	shown, err := w.shown(c)
	w.must(err)
	return shown.DNSNames
}

func (w *scope) shown(c *install.Controller) (*x509.Certificate, error) {
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // whom to trust is not the question
	connection, err := dialer.DialContext(w.t.Context(), "tcp", c.Webhook)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// probe returns what a probe of a controller says.
func (w *scope) probe(c *install.Controller, path string) string {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+c.Probes+path, nil)
	w.must(err)
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	w.must(err)
	return string(text)
}
