package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	seedGuardrails = "../api/autohealer/v1alpha1/testdata/guardrails.yaml"
	limitsPage     = "../docs/how-to/limit-repairs.md"
)

// defaultGuardrails is the spec that the API server makes of an empty one.
func defaultGuardrails() v1alpha1.GuardrailsSpec {
	return v1alpha1.GuardrailsSpec{
		Mode: v1alpha1.Enforce, Enforce: []v1alpha1.Stage{"Taint", "Remediate", "Repair"},
		MaxInTreatment: new(intstr.FromString("49%")), MaxUnschedulable: new(intstr.FromString("49%")),
		Pace:     v1alpha1.Pace{Max: new(intstr.FromString("10%")), AtLeast: new(int32(2)), Period: "1m"},
		Topology: []v1alpha1.TopologyLimit{{Key: "topology.kubernetes.io/zone", Max: new(intstr.FromString("49%"))}},
		CorrelatedFailure: v1alpha1.CorrelatedFailure{
			Threshold: new(intstr.FromString("50%")), MinNodes: 3, Window: "5m",
			Keys: []v1alpha1.DomainKey{
				"topology.kubernetes.io/zone", "karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool",
				"kubernetes.azure.com/agentpool", "node.kubernetes.io/instance-type", v1alpha1.ImageKey,
			},
		},
		MaxAttempts: v1alpha1.MaxAttempts{Limit: 3, Window: "24h"},
		Respect: v1alpha1.Respect{
			Cordons: new(true), ClusterAutoscaler: new(true), Karpenter: new(true), Maintenance: new(true),
			DeletingMachines: new(true), ExcludeLabel: new(true), DoNotDisrupt: new(true),
		},
	}
}

// noSpec does not begin with a brace, because kubectl 1.30 would read it as JSON.
const noSpec = "apiVersion: autohealer.resourcestack.com/v1alpha1\nkind: Guardrails\nmetadata: {name: cluster}\n"

// defaultsGuardrails stores objects that leave fields out.
func (c cluster) defaultsGuardrails(t *testing.T) {
	all := c.guardrails()
	want := testkit.Value(dialect.DefaultRails(dialect.ModeEnforce)).Must(t)
	for _, empty := range []string{
		`{}`,
		`{"pace": {}, "correlatedFailure": {}, "maxAttempts": {}, "respect": {}}`,
		`{"mode": null, "enforce": null, "maxInTreatment": null, "pace": null, "topology": null, "correlatedFailure": {"keys": null, "threshold": null}, "respect": {"cordons": null}}`,
	} {
		testkit.Must(t, all.create(t, all.sample, empty))
		stored := all.one(t)
		testkit.Equal(t, "the spec stored for "+empty, defaultGuardrails(), stored.Spec)
		testkit.Equal(t, "its compiled form", want, testkit.Value(observe.Guardrails(stored)).Must(t))
		all.remove(t)
	}
	// The object of a user who writes no spec has one.
	c.kubectl(t, "create", "-f", file(t, noSpec))
	testkit.Equal(t, "the spec stored without one", defaultGuardrails(), all.one(t).Spec)
	all.remove(t)
}

// remove deletes the object of most tests without kubectl.
func (k kind[T]) remove(t *testing.T) {
	t.Helper()
	testkit.Must(t, k.client(t).Delete().Resource(k.resource).Name(k.sample).Do(t.Context()).Error())
}

func (c cluster) takesGuardrails(t *testing.T) {
	want := defaultGuardrails()
	want.Enforce = []v1alpha1.Stage{"Taint", "Remediate"}
	want.MaxInTreatment, want.MaxUnschedulable = new(intstr.FromString("10%")), new(intstr.FromString("20%"))
	want.Pace.Max, want.Pace.Period = new(intstr.FromInt32(5)), "10m"
	want.Topology = []v1alpha1.TopologyLimit{{Key: "topology.kubernetes.io/zone", Max: new(intstr.FromString("25%"))}, {Key: "example.com/rack", Max: new(intstr.FromInt32(1))}}
	want.CorrelatedFailure = v1alpha1.CorrelatedFailure{
		Threshold: new(intstr.FromString("30%")), MinNodes: 5, Window: "10m", Keys: []v1alpha1.DomainKey{"topology.kubernetes.io/zone", "image"}, LongestHold: "2h",
	}
	want.MaxAttempts, want.Respect.Cordons = v1alpha1.MaxAttempts{Limit: 2, Window: "12h"}, new(false)
	all := c.guardrails()
	for _, side := range sides {
		// A manifest replaces the lists that the API server has filled in.
		c.kubectl(t, "apply", side, "-f", file(t, noSpec+"spec: {}\n"))
		all.applies(t, side, seedGuardrails)
		testkit.Equal(t, "stored by apply "+side, want, all.one(t).Spec)
		testkit.Must(t, all.patchStatus(t, all.sample, `{"nodes":2}`))
		c.kubectl(t, "apply", "--validate=strict", side, "-f", seedGuardrails)
		if got := all.one(t).Status.Nodes; got != 2 {
			t.Errorf("after another apply there are %d nodes in the status", got)
		}
		all.remove(t)
	}
}

func (c cluster) takesTypedGuardrails(t *testing.T) {
	spec := defaultGuardrails()
	spec.Mode, spec.Enforce, spec.Topology, spec.CorrelatedFailure.Keys = v1alpha1.Paused, []v1alpha1.Stage{}, []v1alpha1.TopologyLimit{}, []v1alpha1.DomainKey{}
	spec.MaxInTreatment, spec.Pace.AtLeast, spec.CorrelatedFailure.LongestHold = new(intstr.FromInt32(0)), new(int32(0)), "720h"
	spec.Respect = v1alpha1.Respect{
		Cordons: new(false), ClusterAutoscaler: new(false), Karpenter: new(false), Maintenance: new(false),
		DeletingMachines: new(false), ExcludeLabel: new(false), DoNotDisrupt: new(false),
	}
	status := v1alpha1.GuardrailsStatus{
		ObservedGeneration: 2, Mode: v1alpha1.Paused, Nodes: 9, Unhealthy: 4, InTreatment: 2, Unschedulable: 3, Held: 2, GivenUp: 1,
		Rails:      []v1alpha1.RailStatus{{Name: "maxInTreatment", Limit: 4, Used: 2}, {Name: "topology", Domain: "topology.kubernetes.io/zone=a", Limit: 1, Used: 1, Held: 2}},
		Conditions: []metav1.Condition{{Type: v1alpha1.Ready, Status: "True", Reason: "Followed", LastTransitionTime: metav1.Unix(1772366400, 0)}},
	}
	c.guardrails().roundTrips(t, v1alpha1.GuardrailsSpec{}, spec, status)
}

// refusesBadGuardrails checks the whole message of every refusal. The documentation quotes
// some of them.
func (c cluster) refusesBadGuardrails(t *testing.T) {
	const (
		nodes = "want a number of nodes like 3, or a percentage like 49%, of at most 100%"
		label = "want the key of a label, without a value, for example topology.kubernetes.io/zone"
	)
	// If an object does not have the shape of the schema, the API server does not check its rules.
	shape := func(says string) string {
		return "[" + says + ", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"
	}
	all := c.guardrails()
	for _, test := range []struct{ spec, says string }{
		{`{"mode": "Pause"}`, shape(`spec.mode: Unsupported value: "Pause": supported values: "Enforce", "Observe", "Paused"`)},
		{`{"mode": ""}`, shape(`spec.mode: Unsupported value: "": supported values: "Enforce", "Observe", "Paused"`)},
		{`{"enforce": ["Taint", "Drain"]}`, shape(`spec.enforce[1]: Unsupported value: "Drain": supported values: "Taint", "Remediate", "Repair"`)},
		{`{"enforce": ["Taint", "Taint"]}`, `spec.enforce: Invalid value: a stage is named twice; want each stage once`},
		{`{"maxInTreatment": "120%"}`, `spec.maxInTreatment: Invalid value: "120%": want a number of nodes like 3, or a percentage like 49%, of at most 100%`},
		{`{"maxInTreatment": -1}`, `spec.maxInTreatment: Invalid value: -1: ` + nodes},
		{`{"maxInTreatment": "half"}`, `spec.maxInTreatment: Invalid value: "half": ` + nodes},
		{`{"maxUnschedulable": "101%"}`, `spec.maxUnschedulable: Invalid value: "101%": ` + nodes},
		{`{"maxUnschedulable": "-5%"}`, `spec.maxUnschedulable: Invalid value: "-5%": ` + nodes},
		{`{"pace": {"max": "200%"}}`, `spec.pace.max: Invalid value: "200%": want a number of nodes like 3, or a percentage like 10%, of at most 100%`},
		{`{"pace": {"atLeast": -2}}`, `spec.pace.atLeast: Invalid value: -2: want a number of nodes from 0 to 100000, like 2`},
		{`{"pace": {"period": "60"}}`, `spec.pace.period: Invalid value: "60": want a duration with its unit, for example 1m, from 1s to 24h`},
		{`{"pace": {"period": "0s"}}`, `spec.pace.period: Invalid value: "0s": want a duration with its unit, for example 1m, from 1s to 24h`},
		{`{"pace": {"period": 60}}`, shape(`spec.pace.period: Invalid value: "integer": spec.pace.period in body must be of type string: "integer"`)},
		{`{"topology": [{"key": "zone=a"}]}`, `spec.topology[0].key: Invalid value: "zone=a": ` + label},
		{`{"topology": [{"key": ""}]}`, `spec.topology[0].key: Invalid value: "": ` + label},
		{`{"topology": [{"max": 1}]}`, shape(`spec.topology[0].key: Required value`)},
		{`{"topology": [{"key": "rack", "max": "101%"}]}`, `spec.topology[0].max: Invalid value: "101%": ` + nodes},
		{`{"topology": [{"key": "rack"}, {"key": "rack", "max": 1}]}`, `spec.topology: Invalid value: a key is named twice; want one limit for each key`},
		{`{"correlatedFailure": {"threshold": "500%"}}`, `spec.correlatedFailure.threshold: Invalid value: "500%": want a percentage like 50%, of at most 100%, or a number of nodes like 5`},
		{`{"correlatedFailure": {"minNodes": 0}}`, `spec.correlatedFailure.minNodes: Invalid value: 0: want a number of nodes from 1 to 100000, like 3`},
		{`{"correlatedFailure": {"minNodes": -3}}`, `spec.correlatedFailure.minNodes: Invalid value: -3: want a number of nodes from 1 to 100000, like 3`},
		{`{"correlatedFailure": {"window": "-5m"}}`, `spec.correlatedFailure.window: Invalid value: "-5m": want a duration with its unit, for example 5m, from 1s to 24h`},
		{`{"correlatedFailure": {"keys": ["the zone"]}}`, `spec.correlatedFailure.keys[0]: Invalid value: "the zone": ` + label + `, or the word image`},
		{`{"correlatedFailure": {"keys": ["image", "image"]}}`, `spec.correlatedFailure.keys: Invalid value: a key is named twice; want each key once`},
		{`{"correlatedFailure": {"longestHold": "30s"}}`, `spec.correlatedFailure.longestHold: Invalid value: "30s": want a duration with its unit, for example 2h, from 1m to 720h`},
		{`{"maxAttempts": {"limit": 0}}`, `spec.maxAttempts.limit: Invalid value: 0: want a number of attempts from 1 to 1000, like 3; to stop all treatments set spec.mode to Paused`},
		{`{"maxAttempts": {"limit": -1}}`, `spec.maxAttempts.limit: Invalid value: -1: want a number of attempts from 1 to 1000, like 3; to stop all treatments set spec.mode to Paused`},
		{`{"maxAttempts": {"window": "30d"}}`, `spec.maxAttempts.window: Invalid value: "30d": want a duration with its unit, for example 24h, from 1m to 720h`},
		{`{"maxAttempts": 3}`, shape(`spec.maxAttempts: Invalid value: "integer": spec.maxAttempts in body must be of type object: "integer"`)},
		{`{"respect": {"cordons": "no"}}`, shape(`spec.respect.cordons: Invalid value: "string": spec.respect.cordons in body must be of type boolean: "string"`)},
		{`"Paused"`, shape(`spec: Invalid value: "string": spec in body must be of type object: "string"`)},
	} {
		err := all.create(t, all.sample, test.spec, "dryRun", "All", "fieldValidation", "Strict")
		want := c.message(t, `Guardrails.autohealer.resourcestack.com "cluster" is invalid: `+test.says)
		if got := c.message(t, fmt.Sprint(err)); got != want {
			t.Errorf("%s: the error is\n%s\nwant\n%s", test.spec, got, want)
		}
	}
	for spec, says := range map[string]string{
		`{"maxInTreatmnt": 3}`:   `unknown field "spec.maxInTreatmnt"`,
		`{"pace": {"limit": 3}}`: `unknown field "spec.pace.limit"`,
		`{"mode": "Enforce", "topology": [{"key": "rack", "maxUnhealthy": 1}], "respect": {"pdb": true}}`: `unknown field "spec.respect.pdb", unknown field "spec.topology[0].maxUnhealthy"`,
	} {
		err := all.create(t, all.sample, spec, "dryRun", "All", "fieldValidation", "Strict")
		if got := fmt.Sprint(err); !strings.HasSuffix(got, ": "+says) {
			t.Errorf("%s: the error is\n%s\nwant\n%s", spec, got, says)
		}
	}
	testkit.Must(t, all.create(t, all.sample, `{}`))
	want := `Guardrails.autohealer.resourcestack.com "second" is invalid: metadata: Invalid value: the cluster has one Guardrails object; want metadata.name: cluster`
	if got := c.message(t, fmt.Sprint(all.create(t, "second", `{"mode": "Paused"}`))); got != want {
		t.Errorf("a second object: the error is\n%s\nwant\n%s", got, want)
	}
	all.one(t)
	all.remove(t)
}

// agreesWithGuardrailsCompiler compares the API server with the compiler.
func (c cluster) agreesWithGuardrailsCompiler(t *testing.T) {
	type (
		spec   = v1alpha1.GuardrailsSpec
		change = trial[spec]
	)
	var changes []change
	for field, set := range map[string]func(*spec, *intstr.IntOrString){
		"maxInTreatment":   func(s *spec, l *intstr.IntOrString) { s.MaxInTreatment = l },
		"maxUnschedulable": func(s *spec, l *intstr.IntOrString) { s.MaxUnschedulable = l },
		"pace":             func(s *spec, l *intstr.IntOrString) { s.Pace.Max = l },
		"topology":         func(s *spec, l *intstr.IntOrString) { s.Topology[0].Max = l },
		"threshold":        func(s *spec, l *intstr.IntOrString) { s.CorrelatedFailure.Threshold = l },
	} {
		for _, text := range []string{"0", "3", "0%", "49%", "100%", "101%", "049%", "half", "", "3.5", "%", "-1", "1000000000"} {
			lenient := text == "" || text == "049%" || text == "1000000000" // the compiler reads an empty text as no limit
			changes = append(changes, change{name: field + " " + text, change: func(s *spec) { set(s, new(intstr.FromString(text))) }, lenient: lenient})
		}
		for _, number := range []int32{-1, 0, 3, 2147483647} {
			changes = append(changes, change{name: fmt.Sprint(field, " ", number), change: func(s *spec) { set(s, new(intstr.FromInt32(number))) }})
		}
	}
	for field, set := range map[string]func(*spec, string){
		"period":      func(s *spec, d string) { s.Pace.Period = d },
		"failures":    func(s *spec, d string) { s.CorrelatedFailure.Window = d },
		"longestHold": func(s *spec, d string) { s.CorrelatedFailure.LongestHold = d },
		"attempts":    func(s *spec, d string) { s.MaxAttempts.Window = d },
	} {
		for _, text := range []string{"0s", "999ms", "1s", "59s", "60s", "1h30m", "1.5h", "90000ms", "24h", "24h1s", "720h", "720.1h", "5", "m", "5 m", "-5m", "5M", "5d", "five", ".s", "999999h999999h1h"} {
			changes = append(changes, change{name: field + " " + text, change: func(s *spec) { set(s, text) }})
		}
		for _, text := range []string{"+5m", ".5h", "2.h", "0000005m", "60000000us"} {
			changes = append(changes, change{name: field + " " + text, change: func(s *spec) { set(s, text) }, lenient: true})
		}
	}
	for _, key := range []string{"rack", "topology.kubernetes.io/zone", "image", "", "a b", "zone=a", "a/b/c", "/a", "a/", "Example.com/a", "example.com/A_b.c", "-a", strings.Repeat("x", 63), strings.Repeat("x", 64)} {
		changes = append(changes,
			change{name: "topology of " + key, change: func(s *spec) { s.Topology[0].Key = key }},
			change{name: "failures of " + key, change: func(s *spec) { s.CorrelatedFailure.Keys = []v1alpha1.DomainKey{v1alpha1.DomainKey(key)} }})
	}
	for name, set := range map[string]func(*spec){
		"no stage":             func(s *spec) { s.Enforce = []v1alpha1.Stage{} },
		"all stages":           func(s *spec) { s.Enforce = []v1alpha1.Stage{"Repair", "Taint", "Remediate"} },
		"a stage twice":        func(s *spec) { s.Enforce = []v1alpha1.Stage{"Repair", "Repair"} },
		"an unknown stage":     func(s *spec) { s.Enforce = []v1alpha1.Stage{"repair"} },
		"mode Observe":         func(s *spec) { s.Mode = v1alpha1.Observe },
		"an unknown mode":      func(s *spec) { s.Mode = "observe" },
		"no topology":          func(s *spec) { s.Topology = []v1alpha1.TopologyLimit{} },
		"a label twice":        func(s *spec) { s.Topology = append(s.Topology, s.Topology[0]) },
		"a key twice":          func(s *spec) { s.CorrelatedFailure.Keys = []v1alpha1.DomainKey{"a", "b", "a"} },
		"16 labels":            func(s *spec) { s.Topology = labels(16) },
		"17 labels":            func(s *spec) { s.Topology = labels(17) },
		"no minimum":           func(s *spec) { s.Pace.AtLeast = new(int32(0)) },
		"a negative minimum":   func(s *spec) { s.Pace.AtLeast = new(int32(-1)) },
		"a large minimum":      func(s *spec) { s.Pace.AtLeast = new(int32(100001)) },
		"a negative number":    func(s *spec) { s.CorrelatedFailure.MinNodes = -1 },
		"a large number":       func(s *spec) { s.CorrelatedFailure.MinNodes = 100001 },
		"one attempt":          func(s *spec) { s.MaxAttempts.Limit = 1 },
		"negative attempts":    func(s *spec) { s.MaxAttempts.Limit = -1 },
		"1000 attempts":        func(s *spec) { s.MaxAttempts.Limit = 1000 },
		"1001 attempts":        func(s *spec) { s.MaxAttempts.Limit = 1001 },
		"nothing is respected": func(s *spec) { s.Respect.Cordons = new(false) },
	} {
		changes = append(changes, change{name: name, change: set})
	}
	compile := func(guardrails *v1alpha1.Guardrails) error {
		_, err := observe.Guardrails(guardrails)
		return err
	}
	agrees(t, c.guardrails(), compile, defaultGuardrails, changes)
}

// labels returns limits for different labels.
func labels(count int) (limits []v1alpha1.TopologyLimit) {
	for i := range count {
		limits = append(limits, v1alpha1.TopologyLimit{Key: fmt.Sprintf("label-%d", i)})
	}
	return limits
}

// storesOnlyReadableGuardrails tries to store values that the Go type cannot hold.
func (c cluster) storesOnlyReadableGuardrails(t *testing.T) {
	const isTaken = true
	all := c.guardrails()
	for _, test := range []storable{
		{`{"maxInTreatment": 2147483647}`, isTaken},
		{`{"maxInTreatment": 2147483648}`, !isTaken},
		{`{"maxInTreatment": 1e30}`, !isTaken},
		{`{"pace": {"atLeast": 1e30}}`, !isTaken},
		{`{"maxAttempts": {"limit": "3"}}`, !isTaken},
		{`{"topology": [null]}`, !isTaken},
		{`{"enforce": [null]}`, !isTaken},
		{`{"topology": [{"key": "rack", "max": null}]}`, isTaken},
		{`{"respect": null}`, isTaken},
		{`null`, isTaken}, // the default
		{`[]`, !isTaken},
	} {
		err := all.create(t, all.sample, test.spec)
		testkit.Check(t, (err == nil) == test.taken, "%s: %v", test.spec, err)
		for _, stored := range all.list(t) {
			testkit.Check(t, stored.Spec.Unreadable == "", "%s is stored and cannot be read: %s", test.spec, stored.Spec.Unreadable)
			all.remove(t)
		}
	}
	testkit.Must(t, all.create(t, all.sample, `{}`))
	const isRead = true
	all.staysReadable(t, all.sample, []writable{
		{`{"nodes": 2147483647}`, isTaken, isRead},
		{`{"nodes": 2147483648}`, c.isOldest(t), !isRead},
		{`{"held": -1}`, !isTaken, !isRead},
		{`{"rails": [{}]}`, !isTaken, !isRead},
		{`{"rails": [{"name": "pace", "limit": 2, "used": 1, "held": 0}]}`, isTaken, isRead},
	})
	all.remove(t)
}

func (c cluster) printsGuardrailsColumns(t *testing.T) {
	all := c.guardrails()
	testkit.Must(t, all.create(t, all.sample, `{"mode": "Paused"}`))
	testkit.Must(t, all.patchStatus(t, all.sample, `{"mode": "Paused", "nodes": 10, "unhealthy": 3, "inTreatment": 1, "unschedulable": 4, "held": 2, "givenUp": 0, "conditions": [
		{"type": "Ready", "status": "True", "reason": "Followed", "message": "paused: 2 nodes wait", "lastTransitionTime": "2026-03-01T12:00:00Z"},
		{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}`))
	c.prints(t, []string{
		"NAME MODE NODES UNHEALTHY IN TREATMENT HELD REASON AGE",
		"cluster Paused 10 3 1 2 paused: 2 nodes wait",
	}, "get", "guardrails")
	c.prints(t, []string{
		"NAME MODE NODES UNHEALTHY IN TREATMENT HELD REASON UNSCHEDULABLE GIVEN UP ACCEPTED AGE",
		"cluster Paused 10 3 1 2 paused: 2 nodes wait 4 0 True",
	}, "get", "gr", "-o", "wide")
	all.remove(t)
}

// takesGuardrailsPages applies every Guardrails object of the pages, and runs their commands.
func (c cluster) takesGuardrailsPages(t *testing.T) {
	all := c.guardrails()
	manifests := []string{string(testkit.Value(os.ReadFile("../examples/guardrails.yaml")).Must(t))}
	for _, page := range []string{limitsPage, "../docs/how-to/observe-first.md", "../docs/reference/guardrails.md"} {
		for i, part := range strings.Split(string(testkit.Value(os.ReadFile(page)).Must(t)), "```") {
			if manifest, isYAML := strings.CutPrefix(part, "yaml\n"); i%2 == 1 && isYAML && strings.Contains(manifest, "kind: Guardrails\n") {
				manifests = append(manifests, manifest)
			}
		}
	}
	testkit.Check(t, len(manifests) >= 4, "the pages have %d manifests", len(manifests))
	api := testkit.Value(client.New(c.AdminConfig(), client.Options{})).Must(t)
	for _, manifest := range manifests {
		object := &unstructured.Unstructured{}
		testkit.Must(t, yaml.Unmarshal([]byte(manifest), &object.Object))
		err := api.Create(t.Context(), object, &client.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		testkit.Require(t, err == nil, "%v:\n%s", err, manifest)
		text := testkit.Value(json.Marshal(object.Object["spec"])).Must(t)
		stored := all.one(t)
		testkit.Check(t, stored.Spec.Unreadable == "", "%s cannot be read: %s", text, stored.Spec.Unreadable)
		testkit.Value(observe.Guardrails(stored)).Must(t)
		all.remove(t)
	}

	testkit.Must(t, all.create(t, all.sample, `{}`))
	c.runsScript(t, "..", allShown(t, limitsPage, "## Pause everything"))
	if got := all.one(t); got.Spec.Mode != v1alpha1.Enforce || len(got.Annotations) > 0 {
		t.Errorf("after the pause has ended the mode is %s, the annotations are %v", got.Spec.Mode, got.Annotations)
	}
	c.runsScript(t, "..", shown(t, limitsPage, "## Limit how many nodes are treated"))
	if got := all.one(t).Spec.MaxInTreatment; got == nil || got.String() != "2" {
		t.Errorf("after the patch of the page maxInTreatment is %v", got)
	}
	c.runsScript(t, "..", shown(t, limitsPage, "## Release a hold"))
	until, err := observe.ReleasedUntil(all.one(t))
	testkit.Check(t, err == nil && !until.IsZero(), "the annotation of the page: %v, %v", until, err)
	all.remove(t)
}
