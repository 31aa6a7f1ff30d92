package deploy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	seedCheck = "../api/remediation/v1alpha1/testdata/seed.yaml"
	peerCheck = "../api/remediation/v1alpha1/testdata/medik8s.yaml"
	checkCRD  = "chart/crds/remediation.medik8s.io_nodehealthchecks.yaml"
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
		for _, side := range sides {
			t.Run(path+" by apply "+side, func(t *testing.T) {
				all := c.healthChecks()
				all.applies(t, side, path)
				testkit.Equal(t, "stored", want, all.one(t).Spec)
				testkit.Must(t, all.patchStatus(t, all.sample, `{"observedNodes":2,"phase":"Enabled"}`))
				c.kubectl(t, "apply", "--validate=strict", side, "-f", path)
				if got := all.one(t).Status.Phase; got != v1alpha1.PhaseEnabled {
					t.Errorf("after another apply the phase is %q", got)
				}
				c.kubectl(t, "delete", "-f", path)
			})
		}
	}
}

func (c cluster) takesTypedHealthCheck(t *testing.T) {
	then := metav1.Unix(1772366400, 0)
	template := corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootTemplate", Namespace: "a", Name: "b"}
	spec := v1alpha1.NodeHealthCheckSpec{
		Selector:               &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}},
		UnhealthyConditions:    []v1alpha1.UnhealthyCondition{{Type: "GPUBroken", Status: "True", Duration: "1.5m"}},
		MaxUnhealthy:           new(intstr.FromInt32(3)),
		StormCooldownDuration:  "5m",
		EscalatingRemediations: []v1alpha1.EscalatingRemediation{{RemediationTemplate: template, Order: -1, Timeout: "1m"}},
		PauseRequests:          []string{"anna"},
		HealthyDelay:           "-1s",
	}
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
	c.healthChecks().roundTrips(t, v1alpha1.NodeHealthCheckSpec{RemediationTemplate: &template}, spec, status)
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
		duration = "want a duration with its unit, for example 90s, 5m or 1h30m"
		number   = "want a number of nodes like 3, or a percentage like"
	)
	c.refuses(t, goodCheck, []mistake{
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
		{"a timeout under a minute", "timeout: 20m", "timeout: 59s", "want at least a minute, for example 1m or 10m"},
		{"a timeout in words", "timeout: 20m", "timeout: long", duration},
		{"a negative timeout", "timeout: 20m", "timeout: -20m", duration},
		{"no timeout", "    timeout: 20m\n", "", "spec.escalatingRemediations[1].timeout: Required value"},
		{"a kind that is no template", "kind: ReplaceTemplate", "kind: Replace", "spec.escalatingRemediations[1].remediationTemplate.kind: Invalid value"},
		{"a kind of nothing", "kind: ReplaceTemplate", "kind: Template", "want a kind that ends in Template, for example SelfNodeRemediationTemplate"},
		{"no kind", "kind: ReplaceTemplate, ", "", "want a kind that ends in Template"},
		{"a version without its group", "apiVersion: example.com/v1, kind: Replace", "apiVersion: v1, kind: Replace", "want a group and a version, for example self-node-remediation.medik8s.io/v1alpha1"},
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
		{"a delay in words", "maxUnhealthy", "healthyDelay: long\n  maxUnhealthy", "or a negative duration like -1s to wait until a user confirms"},
		{"an unknown field", "maxUnhealthy", "minUnhealthy: 3\n  maxUnhealthy", "spec.minUnhealthy"},
		{"no spec", goodSpec, "", "spec: Required value"},
	})
}

// agreesWithHealthCheckCompiler compares the API server with the compiler. The compiler is
// more lenient in one respect: it accepts every Go duration. The schema accepts only
// medik8s' durations, so that users can go back to medik8s.
func (c cluster) agreesWithHealthCheckCompiler(t *testing.T) {
	type (
		spec   = v1alpha1.NodeHealthCheckSpec
		change = trial[spec]
	)
	var changes []change
	durations := map[string]func(*spec, string){
		"duration": func(s *spec, d string) { s.UnhealthyConditions[0].Duration = d },
		"timeout":  func(s *spec, d string) { s.EscalatingRemediations[0].Timeout = d },
		"cooldown": func(s *spec, d string) { s.StormCooldownDuration = d },
		"delay":    func(s *spec, d string) { s.HealthyDelay = d },
	}
	for field, set := range durations {
		for _, text := range []string{"0s", "60s", "59s", "5m", "1h30m", "1.5h", "90000ms", "5", "m", "5 m", "-5m", "--5m", "5M", "5d", "five", ".s", "5m-1s", "-"} {
			changes = append(changes, change{name: field + " " + text, change: func(s *spec) { set(s, text) }})
		}
		for _, text := range []string{"+5m", ".5h", "2.h"} {
			changes = append(changes, change{name: field + " " + text, change: func(s *spec) { set(s, text) }, lenient: true})
		}
		changes = append(changes, change{name: field + " of ages", change: func(s *spec) { set(s, "99999999h") }, late: field != "timeout"})
	}
	for _, bound := range []string{"0", "3", "0%", "49%", "100%", "101%", "049%", "half", "", "3.5", "%", "1000000000"} {
		// The compiler reads an empty text as no bound, and accepts larger numbers.
		lenient := bound == "" || bound == "049%" || bound == "1000000000"
		changes = append(changes,
			change{name: "minHealthy " + bound, change: func(s *spec) { s.MinHealthy = new(intstr.FromString(bound)) }, lenient: lenient},
			change{name: "maxUnhealthy " + bound, change: func(s *spec) { s.MaxUnhealthy = new(intstr.FromString(bound)) }, lenient: lenient})
	}
	for _, number := range []int32{-1, 0, 3, 2147483647} {
		changes = append(changes, change{name: fmt.Sprint("maxUnhealthy ", number), change: func(s *spec) { s.MaxUnhealthy = new(intstr.FromInt32(number)) }})
	}
	for _, status := range []corev1.ConditionStatus{"True", "False", "Unknown", "unknown", "fAlSe", "Missing", "1", "yes", "", " True"} {
		changes = append(changes, change{name: "status " + string(status), change: func(s *spec) { s.UnhealthyConditions[0].Status = status }})
	}
	template := func(name string, late bool, set func(*corev1.ObjectReference)) {
		changes = append(changes,
			change{name: name + " in the list", change: func(s *spec) { set(&s.EscalatingRemediations[1].RemediationTemplate) }, late: late},
			change{name: name + " alone", change: func(s *spec) {
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
		change{name: "as it is", change: func(*spec) {}},
		change{name: "no conditions", change: func(s *spec) { s.UnhealthyConditions = nil }},
		change{name: "no steps", change: func(s *spec) { s.EscalatingRemediations = nil }},
		change{name: "both forms", change: func(s *spec) {
			s.RemediationTemplate = s.EscalatingRemediations[0].RemediationTemplate.DeepCopy()
		}},
		change{name: "both bounds", change: func(s *spec) {
			s.MinHealthy, s.MaxUnhealthy = new(intstr.FromInt32(1)), new(intstr.FromInt32(1))
		}},
		change{name: "an order twice", change: func(s *spec) { s.EscalatingRemediations[1].Order = 1 }},
		change{name: "a template twice", late: true, change: func(s *spec) {
			s.EscalatingRemediations[1].RemediationTemplate = s.EscalatingRemediations[0].RemediationTemplate
		}},
		change{name: "a condition in two letter cases", late: true, change: func(s *spec) {
			s.UnhealthyConditions = append(s.UnhealthyConditions, v1alpha1.UnhealthyCondition{Type: "Ready", Status: "false", Duration: "1m"})
		}},
	)
	agrees(t, c.healthChecks(), func(check *v1alpha1.NodeHealthCheck) error {
		_, err := observe.NodeHealthCheck(check)
		return err
	}, func() spec {
		step := func(kind string, order int64) v1alpha1.EscalatingRemediation {
			template := corev1.ObjectReference{APIVersion: "example.com/v1", Kind: kind, Namespace: "a", Name: "b"}
			return v1alpha1.EscalatingRemediation{RemediationTemplate: template, Order: order, Timeout: "10m"}
		}
		return spec{
			UnhealthyConditions:    []v1alpha1.UnhealthyCondition{{Type: "Ready", Status: "False", Duration: "5m"}},
			EscalatingRemediations: []v1alpha1.EscalatingRemediation{step("RebootTemplate", 1), step("ReplaceTemplate", 2)},
		}
	}, changes)
}

// worksWithTheOtherCRD installs medik8s' own CRD in place of ours, as after replacing only
// the controller: it has no CEL rules and none of our status fields. Then it installs our
// CRD, and all stored objects must stay readable and editable.
func (c cluster) worksWithTheOtherCRD(t *testing.T) {
	const template = `"remediationTemplate": {"apiVersion": "example.com/v1", "kind": "RebootTemplate", "namespace": "a", "name": "b"}`
	bad := []oldObject{
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
	all := c.healthChecks()
	all.storesOld(t, checkCRD, 10, bad, func(crd map[string]any) {
		schema := at(t, crd, "spec", "versions", 0, "schema", "openAPIV3Schema")
		delete(schema, "required")
		delete(at(t, schema, "properties", "spec", "properties", "unhealthyConditions"), "minItems")
		for _, added := range []string{"observedGeneration", "inTreatment"} {
			delete(at(t, schema, "properties", "status", "properties"), added)
		}
		for _, added := range []string{"reason", "message"} {
			delete(at(t, schema, "properties", "status", "properties", "unhealthyNodes", "items", "properties"), added)
		}
	}, func() { c.servesTheirStatus(t, `{`+template+`}`) })
	for _, old := range bad {
		patch := func(patch string, options ...string) error {
			_, err := c.Kubectl(t.Context(), append([]string{"patch", "nodehealthcheck", old.name, "--type=merge", "-p", patch}, options...)...)
			return err
		}
		// The oldest API server refuses the status while a rule is broken, and an empty list breaks none.
		isRefused := c.isOldest(t) && old.name != "old-conditions"
		if err := patch(`{"status": {"phase": "Disabled", "reason": "so", "inTreatment": 0}}`, "--subresource=status"); (err != nil) != isRefused {
			t.Errorf("%s: writing the status: %v", old.name, err)
		}
		for _, change := range []string{`{"metadata": {"labels": {"team": "a"}}}`, `{"spec": {"pauseRequests": ["anna"]}}`, `{"spec": ` + old.mend + `}`} {
			// The API server evaluates a rule on the whole spec at any change of the spec.
			whole := old.name == "old-bounds" || old.name == "old-forms" || old.name == "old-nothing"
			if err := patch(change); (err == nil) == (whole && strings.Contains(change, "pause")) {
				t.Errorf("%s: %s: %v", old.name, change, err)
			}
		}
	}
	all.deleteAll(t)
}

// servesTheirStatus stores a health check under medik8s' own CRD, which drops what it does
// not know from the status.
func (c cluster) servesTheirStatus(t *testing.T, spec string) {
	t.Helper()
	all := c.healthChecks()
	testkit.Must(t, all.create(t, all.sample, spec))
	if err := all.patchStatus(t, all.sample, `{"observedGeneration": 1, "observedNodes": 3, "healthyNodes": 2, "inTreatment": 1, "phase": "Remediating", "reason": "so",
		"unhealthyNodes": [{"name": "n1", "reason": "Treating", "message": "it is", "remediations": [{"resource": {"name": "n1"}, "started": "2026-03-01T12:00:00Z"}]}]}`); err != nil {
		t.Errorf("a status with more than they know: %v", err)
	}
	for _, check := range all.list(t) {
		_, err := observe.NodeHealthCheck(&check)
		if check.Name != all.sample {
			testkit.Check(t, err != nil && check.Spec.Unreadable == "", "%s: it compiles, or cannot be read: %v", check.Name, err)
			continue
		}
		kept := check.Status
		if err != nil || kept.ObservedGeneration != 0 || kept.InTreatment != nil || *kept.ObservedNodes != 3 || kept.UnhealthyNodes[0].Reason != "" || len(kept.UnhealthyNodes[0].Remediations) != 1 {
			t.Errorf("%v, and of the status it keeps %+v", err, kept)
		}
	}
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
	testkit.Require(t, ok, "there is no map at %v", path)
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
	all := c.healthChecks()
	all.stores(t, map[string]storable{
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
	})
	for _, check := range all.list(t) {
		if _, err := observe.NodeHealthCheck(&check); err != nil {
			t.Errorf("%s is stored and does not compile: %v", check.Name, err)
		}
	}
	const isRead = true
	all.staysReadable(t, all.sample, []writable{
		{`{"observedNodes": 9223372036854775807}`, isTaken, isRead},
		{`{"observedNodes": 9223372036854775808}`, !isTaken, !isRead},
		{`{"healthyNodes": "3"}`, !isTaken, !isRead},
		{`{"unhealthyNodes": [{}]}`, !isTaken, !isRead},
		{`{"unhealthyNodes": [{"name": "n1", "remediations": [{"resource": {}}]}]}`, !isTaken, !isRead},
		{`{"inFlightRemediations": {"n1": "2026-03-01T12:00:00Z"}}`, isTaken, isRead},
		// The API server accepts more time formats than Go.
		{`{"inFlightRemediations": {"n1": "2026-03-01t12:00:00z"}}`, isTaken, !isRead},
		{`{"lastUpdateTime": "2026-03-01T12:00:00+99:99"}`, isTaken, !isRead},
	})
	all.deleteAll(t)
}

func (c cluster) printsHealthCheckColumns(t *testing.T) {
	c.kubectl(t, "apply", "-f", seedCheck)
	c.prints(t, []string{"NAME MODE OBSERVED HEALTHY TREATED PHASE REASON AGE", "nodehealthcheck-sample"}, "get", "nhc")
	all := c.healthChecks()
	testkit.Must(t, all.patchStatus(t, all.sample, `{"mode": "Enforce", "observedNodes": 10, "healthyNodes": 8, "inTreatment": 1, "phase": "Remediating", "reason": "1 node is in treatment"}`))
	c.prints(t, []string{"NAME MODE OBSERVED HEALTHY TREATED PHASE REASON AGE", "nodehealthcheck-sample Enforce 10 8 1 Remediating 1 node is in treatment"}, "get", "nhc")
	all.deleteAll(t)
}
