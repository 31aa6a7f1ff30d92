package deploy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	seedCheck = "../api/remediation/v1alpha1/testdata/seed.yaml"
	peerCheck = "../api/remediation/v1alpha1/testdata/medik8s.yaml"
	checkCRD  = "shared/remediation.medik8s.io_nodehealthchecks.yaml"
)

// usual are the default conditions of the API server.
var usual = []v1alpha1.UnhealthyCondition{
	{Type: "Ready", Status: "False", Duration: "300s"}, {Type: "Ready", Status: "Unknown", Duration: "300s"},
}

func (c cluster) takesHealthChecks(t *testing.T) {
	for path, want := range map[string]v1alpha1.NodeHealthCheckSpec{
		seedCheck: {
			UnhealthyConditions: usual,
			RemediationTemplate: &corev1.ObjectReference{APIVersion: "medik8s.io/v1alpha1", Kind: "ProviderXRemediationTemplate", Namespace: "default", Name: "group-x"},
		},
		peerCheck: {
			Selector:            &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "node-role.kubernetes.io/worker", Operator: "Exists"}}},
			UnhealthyConditions: usual,
			MinHealthy:          new(intstr.FromString("51%")),
			RemediationTemplate: &corev1.ObjectReference{
				APIVersion: "self-node-remediation.medik8s.io/v1alpha1", Kind: "SelfNodeRemediationTemplate",
				Namespace: "openshift-operators", Name: "self-node-remediation-automatic-strategy-template",
			},
		},
	} {
		for _, side := range []string{"--server-side=false", "--server-side=true"} {
			t.Run(path+" by apply "+side, func(t *testing.T) {
				apply := func() {
					t.Helper()
					if _, err := c.Kubectl(t.Context(), "apply", "--validate=strict", side, "-f", path); err != nil {
						t.Fatal(err)
					}
				}
				apply()
				stored := c.oneCheck(t)
				if diff := cmp.Diff(want, stored.Spec); diff != "" {
					t.Errorf("stored (-want +got):\n%s", diff)
				}
				apply()
				if again := c.oneCheck(t); again.ResourceVersion != stored.ResourceVersion {
					t.Error("the second apply has changed something")
				}
				testkit.Must(t, c.patchCheckStatus(t, `{"status":{"observedNodes":2,"phase":"Enabled"}}`))
				apply()
				if got := c.oneCheck(t).Status.Phase; got != v1alpha1.PhaseEnabled {
					t.Errorf("after another apply the phase is %q", got)
				}
				if _, err := c.Kubectl(t.Context(), "delete", "-f", path); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// listChecks reads all health checks like the controller: all or none.
func (c cluster) listChecks(t *testing.T) []v1alpha1.NodeHealthCheck {
	t.Helper()
	data, err := c.rawClient(t, v1alpha1.GroupVersion).Get().Resource("nodehealthchecks").Do(t.Context()).Raw()
	testkit.Must(t, err)
	var list v1alpha1.NodeHealthCheckList
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatalf("the list cannot be read: %v\n%s", err, data)
	}
	return list.Items
}

// oneCheck returns the only health check.
func (c cluster) oneCheck(t *testing.T) v1alpha1.NodeHealthCheck {
	t.Helper()
	list := c.listChecks(t)
	if len(list) != 1 {
		t.Fatalf("%d health checks are stored", len(list))
	}
	return list[0]
}

// patchCheckStatus writes the status of the users' health check.
func (c cluster) patchCheckStatus(t *testing.T, patch string) error {
	t.Helper()
	return c.rawClient(t, v1alpha1.GroupVersion).Patch(types.MergePatchType).Resource("nodehealthchecks").Name("nodehealthcheck-sample").
		SubResource("status").Param("fieldManager", account).Body([]byte(patch)).Do(t.Context()).Error()
}

// createCheck creates a health check without kubectl.
func (c cluster) createCheck(t *testing.T, name, spec string, options ...string) error {
	t.Helper()
	request := c.rawClient(t, v1alpha1.GroupVersion).Post().Resource("nodehealthchecks")
	if len(options) > 0 {
		request = request.Param("dryRun", options[0])
	}
	return request.Body([]byte(`{"apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "metadata": {"name": "` + name + `"}, "spec": ` + spec + `}`)).
		Do(t.Context()).Error()
}

func (c cluster) deleteChecks(t *testing.T) {
	t.Helper()
	if _, err := c.Kubectl(t.Context(), "delete", "nodehealthchecks", "--all"); err != nil {
		t.Fatal(err)
	}
}

// takesTypedHealthCheck writes a health check like a program, with every field and with
// none, and checks that an empty status clears a full one.
func (c cluster) takesTypedHealthCheck(t *testing.T) {
	then := metav1.Unix(1772366400, 0)
	template := corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "a", Name: "b"}
	check := &v1alpha1.NodeHealthCheck{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeHealthCheck"},
		ObjectMeta: metav1.ObjectMeta{Name: "nodehealthcheck-sample"},
		Spec:       v1alpha1.NodeHealthCheckSpec{RemediationTemplate: &template},
	}
	send := func(r *rest.Request) {
		t.Helper()
		body, err := json.Marshal(check)
		testkit.Must(t, err)
		answer, err := r.Resource("nodehealthchecks").Body(body).Do(t.Context()).Raw()
		if err != nil {
			t.Fatalf("%v\n%s", err, body)
		}
		*check = v1alpha1.NodeHealthCheck{}
		testkit.Must(t, json.Unmarshal(answer, check))
	}
	client := c.rawClient(t, v1alpha1.GroupVersion)
	send(client.Post())
	spec := v1alpha1.NodeHealthCheckSpec{
		Selector:               &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}},
		UnhealthyConditions:    []v1alpha1.UnhealthyCondition{{Type: "GPUBroken", Status: "True", Duration: "1.5m"}},
		MaxUnhealthy:           new(intstr.FromInt32(3)),
		StormCooldownDuration:  "5m",
		EscalatingRemediations: []v1alpha1.EscalatingRemediation{{RemediationTemplate: template, Order: -1, Timeout: "1m"}},
		PauseRequests:          []string{"anna"},
		HealthyDelay:           "-1s",
	}
	check.Spec = spec
	send(client.Put().Name(check.Name))
	status := v1alpha1.NodeHealthCheckStatus{
		ObservedGeneration: 2, ObservedNodes: new(5), HealthyNodes: new(3), InTreatment: new(1),
		UnhealthyNodes: []v1alpha1.UnhealthyNode{{
			Name: "n1", ConditionsHealthyTimestamp: &then, HealthyDelayed: new(true), Reason: "Recovering", Message: "it is healthy again",
			Remediations: []v1alpha1.Remediation{{Resource: template, Started: then, TimedOut: &then, TemplateName: "b"}},
		}},
		InFlightRemediations: map[string]metav1.Time{"n1": then},
		Conditions:           []metav1.Condition{{Type: v1alpha1.Disabled, Status: "False", Reason: v1alpha1.ReasonEnabled, LastTransitionTime: then}},
		Phase:                v1alpha1.PhaseRemediating, Reason: "1 node is in treatment", LastUpdateTime: &then,
	}
	check.Status = status
	send(client.Put().Name(check.Name).SubResource("status"))
	if diff := cmp.Diff(spec, check.Spec); diff != "" {
		t.Errorf("spec (-written +stored):\n%s", diff)
	}
	if diff := cmp.Diff(status, check.Status); diff != "" {
		t.Errorf("status (-written +stored):\n%s", diff)
	}

	empty, err := json.Marshal(map[string]any{"status": v1alpha1.NodeHealthCheckStatus{}})
	testkit.Must(t, err)
	testkit.Must(t, c.patchCheckStatus(t, string(empty)))
	if diff := cmp.Diff(v1alpha1.NodeHealthCheckStatus{}, c.oneCheck(t).Status); diff != "" {
		t.Errorf("after an empty status is patched in (-none +left):\n%s", diff)
	}
	c.deleteChecks(t)
}

// goodCheck is a valid health check.
const (
	goodCheck = `
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata:
  name: bad
` + goodSpec
	goodSpec = `spec:
  maxUnhealthy: 49%
  ` + goodConditions + `  ` + goodSteps
	goodConditions = `unhealthyConditions:
  - type: Ready
    status: "False"
    duration: 300s
`
	goodSteps = `escalatingRemediations:
  - order: 1
    timeout: 10m
    remediationTemplate: {apiVersion: example.com/v1, kind: RebootTemplate, namespace: a, name: b}
  - order: 2
    timeout: 20m
    remediationTemplate: {apiVersion: example.com/v1, kind: ReplaceTemplate, namespace: a, name: b}
`
)

func (c cluster) refusesBadHealthChecks(t *testing.T) {
	const (
		duration = "want a duration with its unit, such as 90s, 5m or 1h30m"
		number   = "want a number of nodes such as 3, or a share such as"
	)
	tests := []struct {
		name     string
		old, new string
		says     string
	}{
		{"both bounds", "maxUnhealthy: 49%", "maxUnhealthy: 49%\n  minHealthy: 51%", "give either minHealthy or maxUnhealthy, not both"},
		{"a negative bound", "maxUnhealthy: 49%", "maxUnhealthy: -1", number},
		{"a negative number of healthy ones", "maxUnhealthy: 49%", "minHealthy: -1", number},
		{"a bound of more than all", "maxUnhealthy: 49%", "maxUnhealthy: 101%", number},
		{"a bound in words", "maxUnhealthy: 49%", "minHealthy: half", number},
		{"a bound that no number holds", "maxUnhealthy: 49%", "maxUnhealthy: 3000000000", number},
		{"no template", goodSteps, "", "want a remediationTemplate, or at least one of escalatingRemediations"},
		{"an empty list of templates", goodSteps, "escalatingRemediations: []\n", "want a remediationTemplate, or at least one of escalatingRemediations"},
		{"both forms", "  escalating", "  remediationTemplate: {apiVersion: example.com/v1, kind: RebootTemplate, name: b}\n  escalating", "give either remediationTemplate or escalatingRemediations, not both"},
		{"an order twice", "order: 2", "order: 1", "two of them have the same order: want every order once"},
		{"no order", "  - order: 2\n    timeout", "  - timeout", "spec.escalatingRemediations[1].order: Required value"},
		{"a timeout under a minute", "timeout: 20m", "timeout: 59s", "want at least a minute, such as 1m or 10m"},
		{"a timeout in words", "timeout: 20m", "timeout: long", duration},
		{"a negative timeout", "timeout: 20m", "timeout: -20m", duration},
		{"no timeout", "    timeout: 20m\n", "", "spec.escalatingRemediations[1].timeout: Required value"},
		{"a kind that is no template", "kind: ReplaceTemplate", "kind: Replace", "spec.escalatingRemediations[1].remediationTemplate.kind: Invalid value"},
		{"a kind of nothing", "kind: ReplaceTemplate", "kind: Template", "want a kind that ends in Template, such as SelfNodeRemediationTemplate"},
		{"no kind", "kind: ReplaceTemplate, ", "", "want a kind that ends in Template"},
		{"a version without its group", "apiVersion: example.com/v1, kind: Replace", "apiVersion: v1, kind: Replace", "want a group and a version, such as self-node-remediation.medik8s.io/v1alpha1"},
		{"a template without a name", "namespace: a, name: b}\n  - order: 2", "namespace: a}\n  - order: 2", "want the name of the template"},
		{"a single template without a name", goodSteps, "remediationTemplate: {apiVersion: example.com/v1, kind: RebootTemplate}\n", "want the name of the template"},
		{"a status that is none", `status: "False"`, "status: broken", "want True, False or Unknown"},
		{"a status without quotes", `status: "False"`, "status: False", "spec.unhealthyConditions["},
		{"an empty type", "type: Ready", "type: ''", "spec.unhealthyConditions[0].type: Invalid value"},
		{"a condition twice", "    duration: 300s", "    duration: 300s\n  - type: Ready\n    status: \"False\"\n    duration: 10m", "uplicate"},
		{"a duration in bare seconds", "duration: 300s", "duration: '300'", duration},
		{"a negative duration", "duration: 300s", "duration: -5m", duration},
		{"no duration", "    duration: 300s\n", "", "spec.unhealthyConditions[0].duration: Required value"},
		{"no conditions", goodConditions, "unhealthyConditions: []\n", "spec.unhealthyConditions: Invalid value"},
		{"a cooldown in words", "maxUnhealthy", "stormCooldownDuration: long\n  maxUnhealthy", duration},
		{"a negative cooldown", "maxUnhealthy", "stormCooldownDuration: -5m\n  maxUnhealthy", duration},
		{"a delay in words", "maxUnhealthy", "healthyDelay: long\n  maxUnhealthy", "or a negative one such as -1s to wait for somebody to confirm"},
		{"an unknown field", "maxUnhealthy", "minUnhealthy: 3\n  maxUnhealthy", "spec.minUnhealthy"},
		{"no spec", goodSpec, "", "spec: Required value"},
	}
	for _, side := range []string{"--server-side=false", "--server-side=true"} {
		for _, test := range tests {
			t.Run(test.name+" by apply "+side, func(t *testing.T) {
				bad := strings.Replace(goodCheck, test.old, test.new, 1)
				if bad == goodCheck {
					t.Fatalf("%q is not in the health check to start from", test.old)
				}
				_, err := c.Kubectl(t.Context(), "apply", side, "-f", file(t, bad))
				if err == nil {
					t.Fatal("it was accepted")
				}
				_, answer, _ := strings.Cut(err.Error(), "exit status 1: ")
				if !strings.Contains(answer, test.says) {
					t.Errorf("the error is\n%s\nwant\n%s", answer, test.says)
				}
			})
		}
	}
}

// agreesWithHealthCheckCompiler compares the API server with the compiler. The compiler is
// more lenient in one respect: it accepts every Go duration. The schema accepts only
// medik8s' durations, so that users can go back to medik8s.
func (c cluster) agreesWithHealthCheckCompiler(t *testing.T) {
	type change struct {
		name    string
		change  func(*v1alpha1.NodeHealthCheckSpec)
		late    bool // only the compiler refuses it
		lenient bool // only the schema refuses it
	}
	var changes []change
	durations := map[string]func(*v1alpha1.NodeHealthCheckSpec, string){
		"duration": func(s *v1alpha1.NodeHealthCheckSpec, d string) { s.UnhealthyConditions[0].Duration = d },
		"timeout":  func(s *v1alpha1.NodeHealthCheckSpec, d string) { s.EscalatingRemediations[0].Timeout = d },
		"cooldown": func(s *v1alpha1.NodeHealthCheckSpec, d string) { s.StormCooldownDuration = d },
		"delay":    func(s *v1alpha1.NodeHealthCheckSpec, d string) { s.HealthyDelay = d },
	}
	for field, set := range durations {
		for _, text := range []string{"0s", "60s", "59s", "5m", "1h30m", "1.5h", "90000ms", "5", "m", "5 m", "-5m", "--5m", "5M", "5d", "five", ".s", "5m-1s", "-"} {
			changes = append(changes, change{name: field + " " + text, change: func(s *v1alpha1.NodeHealthCheckSpec) { set(s, text) }})
		}
		for _, text := range []string{"+5m", ".5h", "2.h"} {
			changes = append(changes, change{name: field + " " + text, change: func(s *v1alpha1.NodeHealthCheckSpec) { set(s, text) }, lenient: true})
		}
		changes = append(changes, change{name: field + " of ages", change: func(s *v1alpha1.NodeHealthCheckSpec) { set(s, "99999999h") }, late: field != "timeout"})
	}
	for _, bound := range []string{"0", "3", "0%", "49%", "100%", "101%", "049%", "half", "", "3.5", "%", "1000000000"} {
		// The compiler reads an empty text as no bound, and accepts larger numbers.
		lenient := bound == "" || bound == "049%" || bound == "1000000000"
		changes = append(changes,
			change{name: "minHealthy " + bound, change: func(s *v1alpha1.NodeHealthCheckSpec) { s.MinHealthy = new(intstr.FromString(bound)) }, lenient: lenient},
			change{name: "maxUnhealthy " + bound, change: func(s *v1alpha1.NodeHealthCheckSpec) { s.MaxUnhealthy = new(intstr.FromString(bound)) }, lenient: lenient})
	}
	for _, number := range []int32{-1, 0, 3, 2147483647} {
		changes = append(changes, change{name: fmt.Sprint("maxUnhealthy ", number), change: func(s *v1alpha1.NodeHealthCheckSpec) { s.MaxUnhealthy = new(intstr.FromInt32(number)) }})
	}
	for _, status := range []corev1.ConditionStatus{"True", "False", "Unknown", "unknown", "fAlSe", "Missing", "1", "yes", "", " True"} {
		changes = append(changes, change{name: "status " + string(status), change: func(s *v1alpha1.NodeHealthCheckSpec) { s.UnhealthyConditions[0].Status = status }})
	}
	template := func(name string, late bool, set func(*corev1.ObjectReference)) {
		changes = append(changes,
			change{name: name + " in the list", change: func(s *v1alpha1.NodeHealthCheckSpec) { set(&s.EscalatingRemediations[1].RemediationTemplate) }, late: late},
			change{name: name + " alone", change: func(s *v1alpha1.NodeHealthCheckSpec) {
				s.RemediationTemplate = s.EscalatingRemediations[0].RemediationTemplate.DeepCopy()
				s.EscalatingRemediations = nil
				set(s.RemediationTemplate)
			}, late: late})
	}
	for _, kind := range []string{"XTemplate", "TemplateTemplate", "Template", "Xtemplate", "TemplateX", ""} {
		template("kind "+kind, false, func(r *corev1.ObjectReference) { r.Kind = kind })
	}
	for _, version := range []string{"example.com/v1", "v1", "/v1", ""} {
		template("version "+version, false, func(r *corev1.ObjectReference) { r.APIVersion = version })
	}
	template("version of three", true, func(r *corev1.ObjectReference) { r.APIVersion = "a/b/c" })
	template("name of two", true, func(r *corev1.ObjectReference) { r.Name = "a/b" })
	template("no name", false, func(r *corev1.ObjectReference) { r.Name = "" })
	template("no namespace", false, func(r *corev1.ObjectReference) { r.Namespace = "" })
	changes = append(changes,
		change{name: "as it is", change: func(*v1alpha1.NodeHealthCheckSpec) {}},
		change{name: "no conditions", change: func(s *v1alpha1.NodeHealthCheckSpec) { s.UnhealthyConditions = nil }},
		change{name: "no steps", change: func(s *v1alpha1.NodeHealthCheckSpec) { s.EscalatingRemediations = nil }},
		change{name: "both forms", change: func(s *v1alpha1.NodeHealthCheckSpec) {
			s.RemediationTemplate = s.EscalatingRemediations[0].RemediationTemplate.DeepCopy()
		}},
		change{name: "both bounds", change: func(s *v1alpha1.NodeHealthCheckSpec) {
			s.MinHealthy, s.MaxUnhealthy = new(intstr.FromInt32(1)), new(intstr.FromInt32(1))
		}},
		change{name: "an order twice", change: func(s *v1alpha1.NodeHealthCheckSpec) { s.EscalatingRemediations[1].Order = 1 }},
		change{name: "a template twice", late: true, change: func(s *v1alpha1.NodeHealthCheckSpec) {
			s.EscalatingRemediations[1].RemediationTemplate = s.EscalatingRemediations[0].RemediationTemplate
		}},
		change{name: "a condition in two letter cases", late: true, change: func(s *v1alpha1.NodeHealthCheckSpec) {
			s.UnhealthyConditions = append(s.UnhealthyConditions, v1alpha1.UnhealthyCondition{Type: "Ready", Status: "false", Duration: "1m"})
		}},
	)

	client := c.rawClient(t, v1alpha1.GroupVersion)
	var taken, refused int
	for _, test := range changes {
		check := &v1alpha1.NodeHealthCheck{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeHealthCheck"},
			ObjectMeta: metav1.ObjectMeta{Name: "trial"},
			Spec: v1alpha1.NodeHealthCheckSpec{
				UnhealthyConditions: []v1alpha1.UnhealthyCondition{{Type: "Ready", Status: "False", Duration: "5m"}},
				EscalatingRemediations: []v1alpha1.EscalatingRemediation{
					{RemediationTemplate: corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "a", Name: "b"}, Order: 1, Timeout: "10m"},
					{RemediationTemplate: corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "ReplaceTemplate", Namespace: "a", Name: "b"}, Order: 2, Timeout: "10m"},
				},
			},
		}
		test.change(&check.Spec)
		body, err := json.Marshal(check)
		testkit.Must(t, err)
		err = client.Post().Resource("nodehealthchecks").Param("dryRun", "All").Body(body).Do(t.Context()).Error()
		_, wrong := observe.NodeHealthCheck(check)
		switch {
		case err != nil && !apierrors.IsInvalid(err):
			t.Errorf("%q: %v", test.name, err)
		case test.late && (err != nil || wrong == nil):
			t.Errorf("%q: only the compiler should refuse it; the API server says %v, the compiler %v", test.name, err, wrong)
		case test.lenient && (err == nil || wrong != nil):
			t.Errorf("%q: only the API server should refuse it; it says %v, the compiler %v", test.name, err, wrong)
		case !test.late && !test.lenient && (err == nil) != (wrong == nil):
			t.Errorf("%q: the API server says %v, the compiler %v", test.name, err, wrong)
		}
		if err == nil {
			taken++
		} else {
			refused++
		}
	}
	t.Logf("%d were accepted and %d refused", taken, refused)
	if taken == 0 || refused == 0 {
		t.Error("one kind was never tried")
	}
}

// worksWithTheOtherCRD installs medik8s' own CRD in place of ours, as after replacing only
// the controller: it has no CEL rules and none of our status fields. Then it installs our
// CRD, and all stored objects must stay readable and editable.
func (c cluster) worksWithTheOtherCRD(t *testing.T) {
	data, err := os.ReadFile(checkCRD)
	testkit.Must(t, err)
	var other map[string]any
	testkit.Must(t, yaml.Unmarshal(data, &other))
	if n := withoutRules(other); n < 10 {
		t.Fatalf("the CRD has %d rules: the test proves nothing", n)
	}
	schema := at(t, other, "spec", "versions", 0, "schema", "openAPIV3Schema")
	delete(schema, "required")
	delete(at(t, schema, "properties", "spec", "properties", "unhealthyConditions"), "minItems")
	for _, added := range []string{"observedGeneration", "inTreatment"} {
		delete(at(t, schema, "properties", "status", "properties"), added)
	}
	for _, added := range []string{"reason", "message"} {
		delete(at(t, schema, "properties", "status", "properties", "unhealthyNodes", "items", "properties"), added)
	}
	theirs, err := json.Marshal(other)
	testkit.Must(t, err)
	if _, err := c.Kubectl(t.Context(), "replace", "-f", file(t, string(theirs))); err != nil {
		t.Fatal(err)
	}

	const template = `"remediationTemplate": {"apiVersion": "example.com/v1", "kind": "RebootTemplate", "namespace": "a", "name": "b"}`
	bad := []struct {
		name, spec, mend string
	}{
		{"old-bounds", `{` + template + `, "minHealthy": 1, "maxUnhealthy": 1}`, `{"minHealthy": null}`},
		{"old-number", `{` + template + `, "maxUnhealthy": -1}`, `{"maxUnhealthy": 1}`},
		{"old-kind", `{"remediationTemplate": {"apiVersion": "example.com/v1", "kind": "Reboot", "name": "b"}}`, `{` + template + `}`},
		{"old-forms", `{` + template + `, "escalatingRemediations": [{"order": 1, "timeout": "1m", ` + template + `}]}`, `{"remediationTemplate": null}`},
		{"old-order", `{"escalatingRemediations": [{"order": 1, "timeout": "1m", ` + template + `}, {"order": 1, "timeout": "1m", ` + template + `}]}`,
			`{"escalatingRemediations": [{"order": 1, "timeout": "1m", ` + template + `}]}`},
		{"old-timeout", `{"escalatingRemediations": [{"order": 1, "timeout": "1s", ` + template + `}]}`, `{"escalatingRemediations": [{"order": 1, "timeout": "1m", ` + template + `}]}`},
		{"old-conditions", `{` + template + `, "unhealthyConditions": []}`, `{"unhealthyConditions": null}`},
		{"old-status", `{` + template + `, "unhealthyConditions": [{"type": "Ready", "status": "Broken", "duration": "1s"}]}`, `{"unhealthyConditions": null}`},
		{"old-nothing", `{}`, `{` + template + `}`},
	}
	for _, old := range bad {
		testkit.Eventually(t, "medik8s' CRD to be served", func() error { return c.createCheck(t, old.name, old.spec) })
	}
	testkit.Must(t, c.createCheck(t, "nodehealthcheck-sample", `{`+template+`}`))
	const status = `{"status": {"observedGeneration": 1, "observedNodes": 3, "healthyNodes": 2, "inTreatment": 1, "phase": "Remediating", "reason": "so",
		"unhealthyNodes": [{"name": "n1", "reason": "Treating", "message": "it is", "remediations": [{"resource": {"name": "n1"}, "started": "2026-03-01T12:00:00Z"}]}]}}`
	if err := c.patchCheckStatus(t, status); err != nil {
		t.Errorf("a status with more than they know: %v", err)
	}
	for _, check := range c.listChecks(t) {
		_, err := observe.NodeHealthCheck(&check)
		if check.Name != "nodehealthcheck-sample" {
			if err == nil || check.Spec.Unreadable != "" {
				t.Errorf("%s: it compiles, or cannot be read: %v", check.Name, err)
			}
			continue
		}
		kept := check.Status
		if err != nil || kept.ObservedGeneration != 0 || kept.InTreatment != nil || *kept.ObservedNodes != 3 || kept.UnhealthyNodes[0].Reason != "" || len(kept.UnhealthyNodes[0].Remediations) != 1 {
			t.Errorf("%v, and of the status it keeps %+v", err, kept)
		}
	}

	if _, err := c.Kubectl(t.Context(), "replace", "-f", checkCRD); err != nil {
		t.Fatal(err)
	}
	for _, old := range bad {
		testkit.Eventually(t, "our CRD to be served", func() error {
			if c.createCheck(t, "trial", old.spec, "All") == nil {
				return fmt.Errorf("%s is still accepted", old.spec)
			}
			return nil
		})
	}
	if got := len(c.listChecks(t)); got != len(bad)+1 {
		t.Errorf("%d health checks can be read, want %d", got, len(bad)+1)
	}
	for _, old := range bad {
		patch := func(patch string, options ...string) error {
			_, err := c.Kubectl(t.Context(), append([]string{"patch", "nodehealthcheck", old.name, "--type=merge", "-p", patch}, options...)...)
			return err
		}
		if err := patch(`{"status": {"phase": "Disabled", "reason": "so", "inTreatment": 0}}`, "--subresource=status"); err != nil {
			t.Errorf("%s: the status cannot be written: %v", old.name, err)
		}
		for _, change := range []string{`{"metadata": {"labels": {"team": "a"}}}`, `{"spec": {"pauseRequests": ["anna"]}}`, `{"spec": ` + old.mend + `}`} {
			// The API server evaluates a rule on the whole spec at any change of the spec.
			whole := old.name == "old-bounds" || old.name == "old-forms" || old.name == "old-nothing"
			if err := patch(change); (err == nil) == (whole && strings.Contains(change, "pause")) {
				t.Errorf("%s: %s: %v", old.name, change, err)
			}
		}
	}
	c.deleteChecks(t)
}

// at returns a map inside a document.
func at(t *testing.T, document any, path ...any) map[string]any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			document = document.(map[string]any)[step]
		case int:
			document = document.([]any)[step]
		}
	}
	found, ok := document.(map[string]any)
	if !ok {
		t.Fatalf("there is no map at %v", path)
	}
	return found
}

// storesOnlyReadableHealthChecks tries to store, without kubectl, values that the Go type
// cannot hold. The list must stay readable.
func (c cluster) storesOnlyReadableHealthChecks(t *testing.T) {
	const template = `"remediationTemplate": {"apiVersion": "example.com/v1", "kind": "RebootTemplate", "namespace": "a", "name": "b"}`
	step := func(order string) string {
		return `{"escalatingRemediations": [{"order": ` + order + `, "timeout": "1m", ` + template + `}]}`
	}
	const isTaken = true
	for name, test := range map[string]struct {
		spec  string
		taken bool
	}{
		"nodehealthcheck-sample": {`{` + template + `}`, isTaken},
		"int32":                  {`{` + template + `, "maxUnhealthy": 2147483647}`, isTaken},
		"over-int32":             {`{` + template + `, "maxUnhealthy": 2147483648}`, !isTaken},
		"float":                  {`{` + template + `, "minHealthy": 1e30}`, !isTaken},
		"int64":                  {step(`9223372036854775807`), isTaken},
		"over-int64":             {step(`9223372036854775808`), !isTaken},
		"order-as-text":          {step(`"1"`), !isTaken},
		"order-as-float":         {step(`1.5`), !isTaken},
		"status-as-boolean":      {`{` + template + `, "unhealthyConditions": [{"type": "Ready", "status": false, "duration": "1s"}]}`, !isTaken},
		"duration-as-number":     {`{` + template + `, "unhealthyConditions": [{"type": "Ready", "status": "False", "duration": 300}]}`, !isTaken},
		"condition-as-null":      {`{` + template + `, "unhealthyConditions": [null]}`, !isTaken},
		"step-as-null":           {`{"escalatingRemediations": [null]}`, !isTaken},
		"template-as-text":       {`{"remediationTemplate": "b"}`, !isTaken},
		"pause-as-text":          {`{` + template + `, "pauseRequests": "anna"}`, !isTaken},
		"nulls":                  {`{` + template + `, "selector": null, "unhealthyConditions": null, "escalatingRemediations": null, "healthyDelay": null, "maxUnhealthy": null}`, isTaken},
		"spec-as-text":           {`"spec"`, !isTaken},
		"spec-as-null":           {`null`, !isTaken},
	} {
		if err := c.createCheck(t, name, test.spec); (err == nil) != test.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
	stored := c.listChecks(t)
	for _, check := range stored {
		if _, err := observe.NodeHealthCheck(&check); err != nil {
			t.Errorf("%s is stored and does not compile: %v", check.Name, err)
		}
	}
	const isRead = true
	for _, test := range []struct {
		status      string
		taken, read bool
	}{
		{`{"observedNodes": 9223372036854775807}`, isTaken, isRead},
		{`{"observedNodes": 9223372036854775808}`, !isTaken, !isRead},
		{`{"healthyNodes": "3"}`, !isTaken, !isRead},
		{`{"unhealthyNodes": [{}]}`, !isTaken, !isRead},
		{`{"unhealthyNodes": [{"name": "n1", "remediations": [{"resource": {}}]}]}`, !isTaken, !isRead},
		{`{"inFlightRemediations": {"n1": "2026-03-01T12:00:00Z"}}`, isTaken, isRead},
		// The API server accepts more time formats than Go.
		{`{"inFlightRemediations": {"n1": "2026-03-01t12:00:00z"}}`, isTaken, !isRead},
		{`{"lastUpdateTime": "2026-03-01T12:00:00+99:99"}`, isTaken, !isRead},
	} {
		if err := c.patchCheckStatus(t, `{"status": `+test.status+`}`); (err == nil) != test.taken {
			t.Errorf("status %s: %v", test.status, err)
		}
		list := c.listChecks(t)
		if len(list) != len(stored) {
			t.Errorf("after status %s the list is incomplete", test.status)
		}
		for _, check := range list {
			empty := cmp.Equal(check.Status, v1alpha1.NodeHealthCheckStatus{})
			if empty == (check.Name == "nodehealthcheck-sample" && test.read) {
				t.Errorf("after status %s that of %s is empty: %v", test.status, check.Name, empty)
			}
		}
		testkit.Must(t, c.patchCheckStatus(t, `{"status": null}`))
	}
	c.deleteChecks(t)
}

func (c cluster) printsHealthCheckColumns(t *testing.T) {
	if _, err := c.Kubectl(t.Context(), "apply", "-f", seedCheck); err != nil {
		t.Fatal(err)
	}
	c.prints(t, []string{"NAME OBSERVED HEALTHY TREATED PHASE REASON AGE", "nodehealthcheck-sample"}, "get", "nhc")
	testkit.Must(t, c.patchCheckStatus(t, `{"status": {"observedNodes": 10, "healthyNodes": 8, "inTreatment": 1, "phase": "Remediating", "reason": "1 node is in treatment"}}`))
	c.prints(t, []string{"NAME OBSERVED HEALTHY TREATED PHASE REASON AGE", "nodehealthcheck-sample 10 8 1 Remediating 1 node is in treatment"}, "get", "nhc")
	c.deleteChecks(t)
}
