package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autohealer "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestHealthCheckAdmission writes health checks through the real webhook. No controller
// leads meanwhile: every replica answers, and no other client writes a status.
func TestHealthCheckAdmission(t *testing.T) {
	t.Parallel() // the test mostly waits
	w := newFixture(t, func(cfg *testbed.Config) {
		gatheringRights(cfg)
		cfg.Flags.ControllerManager[0] += ",garbage-collector-controller"
	})
	all := w.scope(t, "all")
	testkit.Must(all.t, remediator.Install(t.Context(), w.Cluster))
	testkit.Value(w.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "crd/nodehealthchecks.remediation.medik8s.io")).Must(all.t)
	all.eventually("the rights of the remediator to be aggregated", func() error {
		_, err := w.Kubectl(t.Context(), "auth", "can-i", "get", "exampleremediationtemplates.remediator.example.com", "--as="+install.User, "-n", "default")
		return err
	})
	for _, part := range []part{
		{"every kind of verdict", "verdicts", testHealthVerdicts},
		{"every way to write a health check", "ways", testWaysToWriteHealthChecks},
		{"running remediations are protected", "underway", testNothingIsCutOff},
		{"an invalid object that was stored before stays manageable", "before", testBadHealthChecks},
		{"nothing is admitted before the webhook knows the nodes", "early", testHealthChecksTooEarly},
		{"the webhook is down", "down", testHealthWebhookDown},
	} {
		t.Run(part.name, func(t *testing.T) {
			subscope := w.scope(t, part.subscope)
			subscope.releaseLeadership()
			subscope.leaderless()
			part.test(subscope)
			testkit.Must(subscope.t, install.RemoveWebhook(t.Context(), w.Cluster))
			testkit.Must(subscope.t, subscope.api.DeleteAllOf(t.Context(), &v1alpha1.NodeHealthCheck{}))
			subscope.deleteNodes()
		})
	}
}

// gatheringRights runs the part of the controller manager that aggregates ClusterRoles.
func gatheringRights(cfg *testbed.Config) {
	cfg.ControllerManager = true
	cfg.Flags.ControllerManager = []string{"--controllers=serviceaccount-token-controller,serviceaccount-controller,clusterrole-aggregation-controller"}
}

// leaderless gives the leader's lease to a holder that does not exist, for longer than any
// test.
func (w *scope) leaderless() {
	w.t.Helper()
	now := metav1.NowMicro()
	testkit.Must(w.t, w.api.Create(w.t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "autohealer-controller"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("stopped-controller"), LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now},
	}))
}

// healthCheck returns a valid health check of the scope, with changes.
func (w *scope) healthCheck(name string, changes ...func(*v1alpha1.NodeHealthCheckSpec)) *v1alpha1.NodeHealthCheck {
	check := &v1alpha1.NodeHealthCheck{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeHealthCheck"},
		ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name},
		Spec: v1alpha1.NodeHealthCheckSpec{
			RemediationTemplate: new(w.reference("quick")),
			UnhealthyConditions: []v1alpha1.UnhealthyCondition{{Type: "Unhealthy", Status: "True", Duration: "5m"}},
			Selector:            &metav1.LabelSelector{MatchLabels: map[string]string{scopeLabel: w.name}},
		},
	}
	for _, change := range changes {
		change(&check.Spec)
	}
	return check
}

// onSign makes a health check wait for another condition, written as Type=Status.
func onSign(sign, duration string) func(*v1alpha1.NodeHealthCheckSpec) {
	return func(s *v1alpha1.NodeHealthCheckSpec) {
		name, status, _ := strings.Cut(sign, "=")
		s.UnhealthyConditions = []v1alpha1.UnhealthyCondition{{Type: corev1.NodeConditionType(name), Status: corev1.ConditionStatus(status), Duration: duration}}
	}
}

// escalates makes a health check use several templates.
func escalates(templates ...corev1.ObjectReference) func(*v1alpha1.NodeHealthCheckSpec) {
	return func(s *v1alpha1.NodeHealthCheckSpec) {
		s.RemediationTemplate, s.EscalatingRemediations = nil, nil
		for i, template := range templates {
			s.EscalatingRemediations = append(s.EscalatingRemediations, v1alpha1.EscalatingRemediation{RemediationTemplate: template, Order: int64(i + 1), Timeout: "10m"})
		}
	}
}

const byHealthWebhook = `nodehealthchecks.autohealer.resourcestack.com" denied the request`

// refusedHealth checks a refusal, as refused does for sets.
func refusedHealth(err error, parts ...string) error {
	return refusedBy(byHealthWebhook, err, parts...)
}

// warns waits until a dry run of a new health check gets these warnings.
func (d *warningClient) warns(what string, check *v1alpha1.NodeHealthCheck, parts ...string) {
	d.t.Helper()
	d.eventually(what, func() error {
		d.warnings()
		if err := d.api.Create(d.t.Context(), check.DeepCopy(), client.DryRunAll); err != nil {
			return err
		}
		return saying(d.warnings(), parts...)
	})
}

// testHealthVerdicts triggers every check of the validation package once through the API
// server. The tests of that package check the full texts.
func testHealthVerdicts(w *scope) {
	nodes := w.createNodes(healthyNodes(10))
	quick := w.template("quick")
	plain, one, two := w.template("plain"), w.template("one", several), w.template("two", several)
	odd := w.template("odd", func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{} })
	w.guarded(install.Options{})
	d := w.warningClient()
	testkit.Must(w.t, w.turn(nodes[:3], corev1.ConditionTrue))
	d.warns("the webhook to know the nodes", w.healthCheck("probe"), "3 of 10 selected nodes (30%) match now ("+w.node(1))
	testkit.Must(w.t, d.api.Create(w.t.Context(), w.healthCheck("first", onSign("KernelDeadlock=True", "5m"), escalates(plain))))
	other := func(s *v1alpha1.NodeHealthCheckSpec) {
		onSign("KernelDeadlock=True", "5m")(s)
		*s.RemediationTemplate = plain
	}
	d.warns("the webhook to know the other health check", w.healthCheck("probe"), "other templates: "+w.name+"-first (10, the first is "+w.node(1)+")")
	d.warnings()
	type spec = v1alpha1.NodeHealthCheckSpec
	for _, test := range []struct {
		name   string
		change func(*spec)
		says   []string // empty: it is admitted
		warns  []string
	}{
		{"no warning", other, nil, nil},
		{"both bounds", func(s *spec) { s.MinHealthy, s.MaxUnhealthy = new(intstr.FromInt32(1)), new(intstr.FromInt32(1)) }, []string{bySchema, "minHealthy"}, nil},
		{"a negative number", func(s *spec) { s.MaxUnhealthy = new(intstr.FromInt32(-1)) }, []string{bySchema, "maxUnhealthy"}, nil},
		{"both forms", func(s *spec) { escalates(plain)(s); s.RemediationTemplate = &quick }, []string{bySchema, "not both"}, nil},
		{"neither form", func(s *spec) { s.RemediationTemplate = nil }, []string{bySchema, "remediationTemplate"}, nil},
		{"an order twice", func(s *spec) { escalates(one, two)(s); s.EscalatingRemediations[1].Order = 1 }, []string{bySchema, "order"}, nil},
		{"a short timeout", func(s *spec) { escalates(one)(s); s.EscalatingRemediations[0].Timeout = "59s" }, []string{bySchema, "at least a minute"}, nil},
		{"a template twice", escalates(one, one), []string{"spec.escalatingRemediations[1].remediationTemplate", "named twice"}, nil},
		{"two of one kind", escalates(plain, one), []string{"spec.escalatingRemediations[1].remediationTemplate", w.name + "-plain", remediation.MultipleTemplatesAnnotation}, nil},
		{"two that go together", escalates(one, two), nil, []string{"other templates"}},
		{"two, one of them unknown", escalates(one, w.reference("later")), nil, []string{"there is no ExampleRemediationTemplate default/" + w.name + "-later", "it is unknown whether its remediator takes several"}},
		{"a healthy status", onSign("Ready=True", "5m"), []string{"spec.unhealthyConditions[0].status", "Ready=True", "10 of 10 selected nodes"}, nil},
		{"an invalid label", func(s *spec) { s.Selector.MatchLabels["a b"] = "c" }, []string{"spec.selector"}, nil},

		{"unhealthy nodes within the bound", func(s *spec) { *s.RemediationTemplate = plain }, nil, []string{"3 of 10 selected nodes (30%) match now", "will remediate them, when the condition has lasted for 5m"}},
		{"unhealthy nodes beyond the bound", func(s *spec) { s.MaxUnhealthy = new(intstr.FromInt32(2)); *s.RemediationTemplate = plain }, nil, []string{"maxUnhealthy 2 allows 2: nothing is begun"}},
		{"a pause", func(s *spec) { s.PauseRequests = []string{"upgrade"}; *s.RemediationTemplate = plain }, nil, []string{"nothing is begun while it is paused"}},
		{"others with other templates", func(s *spec) { onSign("KernelDeadlock=True", "5m")(s) }, nil, []string{"other templates: " + w.name + "-first (10, the first is " + w.node(1) + ")"}},
		{"no template", func(s *spec) { *s.RemediationTemplate = w.reference("nowhere") }, nil, []string{"there is no ExampleRemediationTemplate default/" + w.name + "-nowhere"}},
		{"an unknown kind", func(s *spec) { s.RemediationTemplate.Kind = "UnheardOfTemplate" }, nil, []string{"does not know the kind UnheardOfTemplate"}},
		{"a template without rights", func(s *spec) { s.RemediationTemplate.APIVersion = "unheard.example.com/v1" }, nil, []string{"does not know the kind ExampleRemediationTemplate of unheard.example.com/v1"}},
		{"a template without a namespace", func(s *spec) { s.RemediationTemplate.Namespace = "" }, nil, []string{"the reference has no namespace"}},
		{"a template without a body", func(s *spec) { *s.RemediationTemplate = odd }, nil, []string{"nothing can be made from it", "it has no spec.template"}},
		{"a bound that is never fulfilled", func(s *spec) { other(s); s.MinHealthy = new(intstr.FromInt32(10)) }, nil, []string{"spec.minHealthy: with 10, and 10 selected nodes now, nothing is ever begun"}},
		{"an invalid bound", func(s *spec) { other(s); s.MaxUnhealthy = new(intstr.FromString("100%")) }, nil, []string{"spec.maxUnhealthy: 100% is no limit"}},
		{"a selector without nodes", func(s *spec) { other(s); s.Selector.MatchLabels[scopeLabel] = "no-node" }, nil, []string{"no node has these labels"}},
		{"a near miss", func(s *spec) { other(s); s.UnhealthyConditions[0].Type = "KernelDeadlok" }, nil, []string{"did you mean KernelDeadlock?"}},
		{"an unknown condition", func(s *spec) { other(s); s.UnhealthyConditions[0].Type = "OurOwnThing" }, nil, []string{"no node reports OurOwnThing"}},
		{"haste", func(s *spec) {
			other(s)
			s.UnhealthyConditions[0] = v1alpha1.UnhealthyCondition{Type: "Ready", Status: "False", Duration: "30s"}
		}, nil, []string{"starts anew"}},
	} {
		d.verdict(test.name, byHealthWebhook, w.healthCheck("trial", test.change), test.says, test.warns)
	}
	// The controller may not read this kind.
	_, err := w.Kubectl(w.t.Context(), "label", "clusterrole", "remediator.example.com-ext-remediation", "rbac.ext-remediation/aggregate-to-ext-remediation-")
	testkit.Must(w.t, err)
	d.warns("the right to be withdrawn", w.healthCheck("trial", other), "the controller may not read ExampleRemediationTemplate default/"+w.name+"-plain", "aggregate-to-ext-remediation")
	_, err = w.Kubectl(w.t.Context(), "label", "clusterrole", "remediator.example.com-ext-remediation", "rbac.ext-remediation/aggregate-to-ext-remediation=true")
	testkit.Must(w.t, err)
	d.warns("the right to be restored", w.healthCheck("trial", other))
	// The control plane is among the workers.
	testkit.Value(w.Kubectl(w.t.Context(), "label", "node", nodes[0], "node-role.kubernetes.io/control-plane=")).Must(w.t)
	d.warns("the webhook to know the control plane", w.healthCheck("trial", other), "1 of 10 selected nodes are of the control plane")
}

// kubectl runs kubectl, and checks that it fails with this text, or succeeds if the text is
// empty.
func (w *scope) kubectl(want string, args ...string) {
	w.t.Helper()
	out, err := w.Kubectl(w.t.Context(), args...)
	switch {
	case want == "" && err != nil:
		w.t.Error(err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		w.t.Errorf("kubectl %s: %q is missing: %s %v", strings.Join(args, " "), want, out, err)
	}
}

// testWaysToWriteHealthChecks writes the same valid and invalid health checks in every
// possible way.
func testWaysToWriteHealthChecks(w *scope) {
	nodes := w.createNodes(healthyNodes(10))
	testkit.Must(w.t, w.turn(nodes[:2], corev1.ConditionTrue))
	w.template("quick")
	w.guarded(install.Options{})
	good := w.file(w.healthCheck("check"))
	slower := w.file(w.healthCheck("check", onSign("Unhealthy=True", "10m")))
	trap := w.file(w.healthCheck("check", onSign("Ready=True", "5m")))
	const denied, reported = "denied the request: spec.unhealthyConditions[0].status", "Warning: 2 of 10 selected nodes (20%) match now"
	name := w.name + "-check"
	w.eventually("the webhook to know the nodes", func() error {
		_, err := w.Kubectl(w.t.Context(), "create", "-f", good, "--dry-run=server", "--warnings-as-errors")
		return testkit.Says(err, reported)
	})
	for _, apply := range [][]string{{"apply"}, {"apply", "--server-side"}} {
		w.kubectl(denied, append(apply, "-f", trap)...)
		w.kubectl(reported, append(apply, "-f", good, "--dry-run=server", "--warnings-as-errors")...)
		w.kubectl("", append(apply, "-f", good)...)
		if len(apply) > 1 { // the other command sends no request if nothing changes
			w.kubectl(reported, append(apply, "-f", good, "--dry-run=server", "--warnings-as-errors")...)
		}
		w.kubectl(denied, append(apply, "-f", trap)...)
		w.kubectl("", append(apply, "-f", slower)...)
		w.kubectl("", "delete", "nhc", name)
	}
	w.kubectl(denied, "create", "-f", trap)
	w.kubectl("", "create", "-f", good)
	w.kubectl(denied, "replace", "-f", trap)
	w.kubectl(denied, "patch", "nhc", name, "--type=merge", "-p", `{"spec": {"unhealthyConditions": [{"type": "Ready", "status": "True", "duration": "5m"}]}}`)
	w.kubectl(denied, "patch", "nhc", name, "--type=json", "-p", `[{"op": "replace", "path": "/spec/unhealthyConditions/0", "value": {"type": "Ready", "status": "True", "duration": "5m"}}]`)
	w.kubectl("", "replace", "-f", slower)
	w.kubectl("", "label", "nhc", name, "a=b")
	w.kubectl("", "patch", "nhc", name, "--type=merge", "-p", `{"spec": {"pauseRequests": ["upgrade"]}}`)
	// Too many matching nodes close the gate of the health check. They do not prevent its
	// creation.
	testkit.Must(w.t, w.turn(nodes, corev1.ConditionTrue))
	w.eventually("the webhook to know all of them", func() error {
		_, err := w.Kubectl(w.t.Context(), "patch", "nhc", name, "--type=merge", "-p", `{"spec": {"pauseRequests": null}}`, "--dry-run=server", "--warnings-as-errors")
		return testkit.Says(err, "10 of 10 selected nodes (100%) match now")
	})
	w.kubectl("", "patch", "nhc", name, "--type=merge", "-p", `{"spec": {"pauseRequests": null}}`)
	// A health check with a generated name, without a bound.
	testkit.Must(w.t, w.api.Create(w.t.Context(), &v1alpha1.NodeHealthCheck{
		ObjectMeta: metav1.ObjectMeta{GenerateName: w.name + "-"}, Spec: v1alpha1.NodeHealthCheckSpec{RemediationTemplate: new(w.reference("quick"))},
	}))
	w.kubectl("", "delete", "nhc", "--all")
}

// testNothingIsCutOff tries to delete and to change health checks with running
// remediations.
func testNothingIsCutOff(w *scope) {
	nodes := w.createNodes(healthyNodes(3))
	w.template("quick")
	other := w.template("slow")
	w.guarded(install.Options{})
	d := w.warningClient()
	check := w.healthCheck("check")
	testkit.Must(w.t, d.api.Create(w.t.Context(), check))
	// remediate plays the controller: it creates an object, and adds it to the status.
	remediate := func(name string, finalizers ...string) *unstructured.Unstructured {
		object := newRemediation(name)
		object.SetFinalizers(finalizers)
		testkit.Must(w.t, w.api.Create(w.t.Context(), object))
		noted := check.DeepCopy()
		noted.Status.UnhealthyNodes = []v1alpha1.UnhealthyNode{{Name: name, Remediations: []v1alpha1.Remediation{{
			Resource: corev1.ObjectReference{APIVersion: remediator.GroupVersion.String(), Kind: remediator.Kind.Kind, Namespace: "default", Name: name, UID: object.GetUID()},
			Started:  metav1.Now(),
		}}}}
		status := testkit.Value(json.Marshal(map[string]any{"status": noted.Status})).Must(w.t)
		testkit.Must(w.t, w.api.Status().Patch(w.t.Context(), noted, client.RawPatch(types.MergePatchType, status)))
		return object
	}
	patch := func(body string, how ...client.PatchOption) error {
		return d.api.Patch(w.t.Context(), check.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)), how...)
	}
	const relabelled = `{"spec": {"selector": {"matchLabels": {"a": "b"}}}}`
	retemplated := `{"spec": {"remediationTemplate": {"name": "` + other.Name + `"}}}`
	remove := func(how ...client.DeleteOption) error { return d.api.Delete(w.t.Context(), check.DeepCopy(), how...) }
	under := "a remediation of node " + nodes[0] + " is under way"

	object := remediate(nodes[0], "example.com/hangs")
	for what, refusal := range map[string]error{
		"its deletion":       refusedHealth(remove(), "status.unhealthyNodes", under, autohealer.AcceptImpactAnnotation),
		"another selector":   refusedHealth(patch(relabelled), "spec.selector", under, autohealer.AcceptImpactAnnotation),
		"another template":   refusedHealth(patch(retemplated), "spec.remediationTemplate", under),
		"a dry run of these": refusedHealth(remove(client.DryRunAll), under),
	} {
		if refusal != nil {
			w.t.Errorf("%s: %v", what, refusal)
		}
	}
	w.kubectl(under, "delete", "nhc", "--all")
	for what, body := range map[string]string{
		"a pause":                       `{"spec": {"pauseRequests": ["upgrade"]}}`,
		"a bound":                       `{"spec": {"maxUnhealthy": 2}}`,
		"a duration":                    `{"spec": {"unhealthyConditions": [{"type": "Unhealthy", "status": "True", "duration": "10m"}], "healthyDelay": "5m"}}`,
		"a label":                       `{"metadata": {"labels": {"a": "b"}}}`,
		"a finalizer added and removed": `{"metadata": {"finalizers": null}}`,
		"an equivalent spec":            `{"spec": {"selector": {"matchLabels": null, "matchExpressions": [{"key": "` + scopeLabel + `", "operator": "In", "values": ["` + w.name + `"]}]}}}`,
	} {
		if err := patch(body); err != nil {
			w.t.Errorf("%s: %v", what, err)
		}
	}
	d.warnings()
	// The annotation allows it: before a deletion, and together with a change.
	const yes = `{"metadata": {"annotations": {"` + autohealer.AcceptImpactAnnotation + `": "true"}}}`
	if err := patch(strings.TrimSuffix(yes, "}")+`, "spec": {"selector": {"matchLabels": {"a": "b"}, "matchExpressions": null}}}`, client.DryRunAll); err != nil {
		w.t.Error(err)
	}
	testkit.Must(w.t, saying(d.warnings(), under+", and what no longer fits is cut off"))
	testkit.Must(w.t, patch(yes))
	testkit.Must(w.t, remove(client.DryRunAll))
	testkit.Must(w.t, saying(d.warnings(), under+", and cut off by the deletion"))
	testkit.Must(w.t, patch(`{"metadata": {"annotations": null}}`))
	testkit.Must(w.t, refusedHealth(remove(client.DryRunAll), under))
	// A remediation that is being deleted needs no protection, even if its finalizer hangs.
	testkit.Must(w.t, w.api.Delete(w.t.Context(), object.DeepCopy()))
	testkit.Must(w.t, remove(client.DryRunAll))
	testkit.Must(w.t, patch(relabelled, client.DryRunAll))
	testkit.Must(w.t, w.api.Patch(w.t.Context(), object.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))))
	// The status still names the remediation, but it is gone. A new object with that name
	// does not count.
	testkit.Must(w.t, remove(client.DryRunAll))
	foreign := newRemediation(nodes[0])
	testkit.Must(w.t, w.api.Create(w.t.Context(), foreign))
	testkit.Must(w.t, remove(client.DryRunAll))
	// The same holds if the node is deleted, too.
	remediate(nodes[1])
	testkit.Must(w.t, refusedHealth(remove(), "a remediation of node "+nodes[1]))
	for _, left := range []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodes[1]}}, func() client.Object {
		object := foreign.DeepCopy()
		object.SetName(nodes[1])
		object.SetResourceVersion("")
		object.SetUID("")
		return object
	}()} {
		testkit.Must(w.t, w.api.Delete(w.t.Context(), left))
	}
	testkit.Must(w.t, remove(client.DryRunAll))
	// A deletion that has already started is not checked again.
	testkit.Must(w.t, patch(`{"metadata": {"finalizers": ["example.com/hangs"]}}`))
	testkit.Must(w.t, remove())
	remediate(nodes[2])
	testkit.Must(w.t, remove())
	testkit.Must(w.t, patch(`{"metadata": {"finalizers": null}}`))
	// A kind that no longer exists blocks no deletion.
	check.ResourceVersion, check.UID = "", ""
	testkit.Must(w.t, d.api.Create(w.t.Context(), check))
	remediate(nodes[1])
	testkit.Must(w.t, refusedHealth(remove(), under[:len("a remediation of node ")]))
	testkit.Value(w.Kubectl(w.t.Context(), "delete", "crd", "exampleremediations."+remediator.GroupVersion.Group)).Must(w.t)
	testkit.Must(w.t, remove())
	testkit.Must(w.t, remediator.Install(w.t.Context(), w.Cluster))
}

// testBadHealthChecks writes objects that the webhook would have refused, while no webhook
// is registered.
func testBadHealthChecks(w *scope) {
	w.createNodes(healthyNodes(10))
	w.template("quick")
	controller := w.start(install.Options{Webhook: true})
	bad := w.healthCheck("bad", onSign("Ready=True", "5m"))
	bad.Finalizers = []string{"example.com/wait"}
	testkit.Must(w.t, w.api.Create(w.t.Context(), bad))
	w.ask(controller)
	d := w.warningClient()
	patch := func(body string, how ...client.PatchOption) error {
		return d.api.Patch(w.t.Context(), bad.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)), how...)
	}
	for name, body := range map[string]string{
		"a label":             `{"metadata": {"labels": {"a": "b"}}}`,
		"a further finalizer": `{"metadata": {"finalizers": ["example.com/wait", "example.com/more"]}}`,
		"the unchanged spec":  `{"spec": {"pauseRequests": null}}`,
	} {
		if err := patch(body); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	}
	d.warnings()
	testkit.Must(w.t, patch(`{"metadata": {"labels": {"a": "c"}}}`, client.DryRunAll))
	testkit.Must(w.t, saying(d.warnings(), "Ready=True")) // a dry run still shows the problems
	if err := refusedHealth(patch(`{"spec": {"maxUnhealthy": 1}}`), "Ready=True"); err != nil {
		w.t.Error(err)
	}
	if err := patch(`{"spec": {"pauseRequests": ["it hurts"]}}`); err != nil {
		w.t.Errorf("it cannot be paused: %v", err)
	}
	testkit.Must(w.t, saying(d.warnings(), "Ready=True"))
	if err := refusedHealth(patch(`{"spec": {"pauseRequests": null}}`), "Ready=True"); err != nil {
		w.t.Error(err)
	}
	testkit.Must(w.t, patch(`{"spec": {"unhealthyConditions": [{"type": "Ready", "status": "False", "duration": "5m"}]}}`))
	testkit.Must(w.t, d.api.Delete(w.t.Context(), bad.DeepCopy()))
	testkit.Must(w.t, patch(`{"metadata": {"finalizers": null}}`))
}

// testHealthChecksTooEarly starts a controller that cannot list the nodes.
func testHealthChecksTooEarly(w *scope) {
	w.createNodes(healthyNodes(4))
	w.template("quick")
	stored := w.healthCheck("stored")
	testkit.Must(w.t, w.api.Create(w.t.Context(), stored))
	proxy, err := w.Proxy()
	testkit.Must(w.t, err)
	blind := proxy.Inject(func(r testbed.Request) bool { return r.Resource == "nodes" && (r.Verb == "list" || r.Verb == "watch") }, testbed.Hold(), 0)
	controller := w.start(install.Options{Webhook: true, Unready: true, Through: proxy})
	w.ask(controller)
	d := w.warningClient()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	err = d.api.Create(ctx, w.healthCheck("trial"))
	if err == nil || !strings.Contains(err.Error(), "does not know the nodes yet") && !errors.Is(err, context.DeadlineExceeded) {
		w.t.Errorf("a health check that cannot be judged: %v", err)
	}
	if got := value(w.t, w.scrape(controller), `autohealer_admission_duration_seconds_count{answer="unready",resource="nodehealthchecks"}`); got < 2 {
		w.t.Errorf("the client tried %v times", got)
	}
	if err := refusedHealth(d.api.Create(w.t.Context(), w.healthCheck("trap", onSign("Ready=True", "5m"))), "Ready=True"); err != nil {
		w.t.Errorf("a health check that is invalid for any nodes: %v", err)
	}
	testkit.Must(w.t, d.api.Patch(w.t.Context(), stored.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"pauseRequests": ["stop"]}}`))))
	testkit.Must(w.t, d.api.Delete(w.t.Context(), stored))

	// Clients retry by themselves.
	done := w.meanwhile(func() error {
		_, err := w.Kubectl(w.t.Context(), "apply", "-f", w.file(w.healthCheck("waiting")))
		return err
	})
	blind.Lift()
	done()
}

// testHealthWebhookDown kills the replica that serves the webhook.
func testHealthWebhookDown(w *scope) {
	w.createNodes(healthyNodes(4))
	w.template("quick")
	asked := w.guarded(install.Options{})
	d := w.warningClient()
	check := w.healthCheck("check")
	testkit.Must(w.t, d.api.Create(w.t.Context(), check))
	w.kill(asked)
	for what, err := range map[string]error{
		"a new one": d.api.Create(w.t.Context(), w.healthCheck("new")),
		"a change":  d.api.Patch(w.t.Context(), check.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"maxUnhealthy": 1}}`))),
	} {
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "failed calling webhook") {
			w.t.Errorf("%s: %v", what, err)
		}
	}
	testkit.Must(w.t, d.api.Patch(w.t.Context(), check.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`))))
	// A user can still pause the health check, and delete it with its remediations.
	testkit.Must(w.t, d.api.Patch(w.t.Context(), check.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"pauseRequests": ["it hurts"]}}`))))
	object := newRemediation(w.node(1))
	object.SetOwnerReferences([]metav1.OwnerReference{remediation.OwnedBy(remediation.Owner{Kind: remediation.CheckKind, Name: check.Name, UID: check.UID})})
	testkit.Must(w.t, w.api.Create(w.t.Context(), object))
	testkit.Must(w.t, d.api.Delete(w.t.Context(), check.DeepCopy()))
	w.eventually("the remediation of the deleted health check to be deleted", func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it exists: %w", err)
		}
		return nil
	})
	w.restart(asked.Part)
	w.eventually("health checks to be admitted again", func() error { return d.api.Create(w.t.Context(), w.healthCheck("new")) })
}
