package deploy_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	argoHealthPatch = "argocd/health.yaml"
	argoHealthKey   = "resource.customizations.health."
)

// argoHealth returns the health that Argo CD shows for an object. Like Argo CD, it runs the
// script of the kind with few libraries and for at most a second, and a script that fails is Unknown.
func argoHealth(object map[string]any) (status, message string) {
	script, err := argoScript(object)
	if err != nil {
		return "Unknown", err.Error()
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(name))
		state.Call(1, 0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luaValue(state, object))
	if err := state.DoString(script); err != nil {
		return "Unknown", err.Error()
	}
	result, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return "Unknown", "the script returns " + state.Get(-1).String()
	}
	return result.RawGetString("status").String(), result.RawGetString("message").String()
}

// argoScript returns the script for the kind of an object.
func argoScript(object map[string]any) (string, error) {
	text, err := os.ReadFile(argoHealthPatch)
	if err != nil {
		return "", err
	}
	var patch corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &patch); err != nil {
		return "", fmt.Errorf("reading %s: %w", argoHealthPatch, err)
	}
	group, _, _ := strings.Cut(fmt.Sprint(object["apiVersion"]), "/")
	key := fmt.Sprintf("%s%s_%s", argoHealthKey, group, object["kind"])
	script, found := patch.Data[key]
	if !found {
		return "", fmt.Errorf("%s has no key %s", argoHealthPatch, key)
	}
	return script, nil
}

// luaValue converts a value of an object.
func luaValue(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case float64:
		return lua.LNumber(value)
	case int64:
		return lua.LNumber(value)
	case string:
		return lua.LString(value)
	case []any:
		list := state.NewTable()
		for _, item := range value {
			list.Append(luaValue(state, item))
		}
		return list
	case map[string]any:
		fields := state.NewTable()
		for key, item := range value {
			fields.RawSetString(key, luaValue(state, item))
		}
		return fields
	}
	return lua.LNil
}

// showsInArgo waits until Argo CD would show an object with this health.
func (c cluster) showsInArgo(t *testing.T, name, want string) {
	t.Helper()
	testkit.Eventually(t, "the health "+want+" of "+name, func() error {
		var object map[string]any
		c.getJSON(t, &object, name)
		if status, message := argoHealth(object); status != want {
			return fmt.Errorf("it is %s: %s", status, message)
		}
		return nil
	})
}

// The statuses are those that the controller writes in these situations, without the fields that no
// script reads.
func TestArgoHealth(t *testing.T) {
	const (
		set       = "apiVersion: autohealer.resourcestack.com/v1alpha1\nkind: ConditionSet\n"
		policy    = "apiVersion: autohealer.resourcestack.com/v1alpha1\nkind: RepairPolicy\n"
		rails     = "apiVersion: autohealer.resourcestack.com/v1alpha1\nkind: Guardrails\n"
		check     = "apiVersion: remediation.medik8s.io/v1alpha1\nkind: NodeHealthCheck\n"
		evaluated = "the controller has not evaluated this version yet"
	)
	seen := map[string]bool{}
	for name, test := range map[string]struct{ object, status, message string }{
		"a new set": {set + `
metadata: {generation: 1}
`, "Progressing", evaluated},
		"a set with an empty status": {set + `
metadata: {generation: 1}
status: {}
`, "Progressing", evaluated},
		"a set whose nodes are healthy": {set + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Enforce
  selected: 13
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: Followed, message: the set is in force}
  - {type: Ready, status: "True", observedGeneration: 1, reason: Followed, message: "13 nodes, all healthy"}
  - {type: HeldBack, status: "False", observedGeneration: 1, reason: NothingHeldBack, message: no node is kept from NoExecute}
`, "Healthy", "13 nodes, all healthy"},
		"a set that holds nodes back": {set + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Enforce
  selected: 12
  matched: 2
  tainted: 1
  heldBack: 1
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: Followed, message: the set is in force}
  - {type: Ready, status: "True", observedGeneration: 1, reason: Followed, message: "1 node with NoSchedule instead of NoExecute: at most 1 of 12 nodes may have NoExecute; 1 node tainted"}
  - {type: HeldBack, status: "True", observedGeneration: 1, reason: FellBack, message: "nodes with NoSchedule instead of NoExecute: 1; KernelDeadlock=True since 2026-11-18T10:27:40Z"}
`, "Healthy", "1 node with NoSchedule instead of NoExecute: at most 1 of 12 nodes may have NoExecute; 1 node tainted"},
		"a set with a newer version": {set + `
metadata: {generation: 2}
status:
  observedGeneration: 1
  mode: Enforce
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: Followed, message: the set is in force}
  - {type: Ready, status: "True", observedGeneration: 1, reason: Followed, message: "13 nodes, all healthy"}
`, "Progressing", evaluated},
		"a refused set with a newer version": {set + `
metadata: {generation: 2}
status:
  observedGeneration: 1
  conditions:
  - {type: Accepted, status: "False", observedGeneration: 1, reason: Invalid, message: 'spec.conditions[Disk].status: "perhaps": want True, False or Unknown'}
  - {type: Ready, status: "False", observedGeneration: 1, reason: Invalid, message: 'spec.conditions[Disk].status: "perhaps": want True, False or Unknown'}
`, "Progressing", evaluated},
		"an invalid version of a set": {set + `
metadata: {generation: 3}
status:
  observedGeneration: 3
  mode: Enforce
  selected: 13
  matched: 1
  conditions:
  - {type: Accepted, status: "False", observedGeneration: 3, reason: Invalid, message: 'spec.conditions[Disk].status: "perhaps": want True, False or Unknown; the last accepted version stays in force'}
  - {type: Ready, status: "False", observedGeneration: 3, reason: Invalid, message: 'spec.conditions[Disk].status: "perhaps": want True, False or Unknown; the last accepted version stays in force; 13 nodes, all healthy'}
`, "Degraded", `Invalid: spec.conditions[Disk].status: "perhaps": want True, False or Unknown; the last accepted version stays in force; 13 nodes, all healthy`},
		"a set of a condition that no node reports": {set + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Enforce
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: AwaitingReports, message: "the set is in force; no node reports FanBroken yet, and the controller checks the set again when nodes do"}
  - {type: Ready, status: "True", observedGeneration: 1, reason: AwaitingReports, message: "13 nodes, all healthy"}
`, "Healthy", "13 nodes, all healthy"},
		"a set that is held": {set + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Enforce
  matched: 13
  conditions:
  - {type: Accepted, status: "False", observedGeneration: 1, reason: Held, message: "held: too few nodes reported FanBroken when the set was accepted, and now that more do, it would be refused"}
  - {type: Ready, status: "False", observedGeneration: 1, reason: Held, message: "held: too few nodes reported FanBroken when the set was accepted, and now that more do, it would be refused"}
`, "Degraded", "Held: held: too few nodes reported FanBroken when the set was accepted, and now that more do, it would be refused"},
		"a paused set": {set + `
metadata: {generation: 1, annotations: {autohealer.resourcestack.com/paused: Anna looks at it}}
status:
  observedGeneration: 1
  mode: Paused
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: Paused, message: "paused by annotation: Anna looks at it: the set places no new taint"}
  - {type: Ready, status: "True", observedGeneration: 1, reason: Paused, message: "paused by annotation: Anna looks at it: the set places no new taint; 13 nodes, all healthy"}
`, "Suspended", "paused by annotation: Anna looks at it: the set places no new taint; 13 nodes, all healthy"},
		"a set that only observes": {set + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Observe
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: DryRun, message: "the set is evaluated, but places no taint"}
  - {type: Ready, status: "True", observedGeneration: 1, reason: DryRun, message: "dry run: 1 node would be tainted"}
`, "Healthy", "dry run: 1 node would be tainted"},

		"a new repair policy": {policy + `
metadata: {generation: 1}
`, "Progressing", evaluated},
		"a repair policy with an unhealthy node": {policy + `
metadata: {generation: 2}
status:
  observedGeneration: 2
  mode: Enforce
  nodes: 3
  unhealthy: 1
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 2, reason: Followed, message: the policy is in force}
  - {type: Ready, status: "True", observedGeneration: 2, reason: Followed, message: "1 node unhealthy, due 00:10:00"}
  - {type: Conflict, status: "False", observedGeneration: 2, reason: NoConflict, message: no other policy applies to a node that this policy selects}
`, "Healthy", "1 node unhealthy, due 00:10:00"},
		"a paused repair policy": {policy + `
metadata: {generation: 2, annotations: {autohealer.resourcestack.com/paused: upgrade}}
status:
  observedGeneration: 2
  mode: Paused
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 2, reason: Paused, message: "paused by annotation: upgrade: no new repair starts"}
  - {type: Ready, status: "True", observedGeneration: 2, reason: Paused, message: "paused by annotation: upgrade: no new repair starts; 1 node unhealthy, due 00:10:00"}
`, "Suspended", "paused by annotation: upgrade: no new repair starts; 1 node unhealthy, due 00:10:00"},
		"a disabled repair policy": {policy + `
metadata: {generation: 2}
status:
  observedGeneration: 2
  mode: Enforce
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 2, reason: SwitchedOff, message: "the policy is disabled: nothing is repaired"}
  - {type: Ready, status: "True", observedGeneration: 2, reason: SwitchedOff, message: "the policy is disabled: nothing is repaired; 1 node unhealthy, due 00:10:00"}
`, "Healthy", "the policy is disabled: nothing is repaired; 1 node unhealthy, due 00:10:00"},
		"a paused repair policy that is disabled": {policy + `
metadata: {generation: 2, annotations: {autohealer.resourcestack.com/paused: upgrade}}
status:
  observedGeneration: 2
  mode: Paused
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 2, reason: SwitchedOff, message: "the policy is disabled: nothing is repaired"}
  - {type: Ready, status: "True", observedGeneration: 2, reason: SwitchedOff, message: "the policy is disabled: nothing is repaired; 1 node unhealthy, due 00:10:00"}
`, "Suspended", "the policy is disabled: nothing is repaired; 1 node unhealthy, due 00:10:00"},
		"a repair policy without its NodePool": {policy + `
metadata: {generation: 2}
status:
  observedGeneration: 2
  mode: Enforce
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 2, reason: NoSuchNodePool, message: there is no NodePool other yet}
  - {type: Ready, status: "True", observedGeneration: 2, reason: NoSuchNodePool, message: there is no NodePool other yet; no node is selected}
`, "Healthy", "there is no NodePool other yet; no node is selected"},
		"a repair policy that another one shadows": {policy + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Enforce
  conditions:
  - {type: Accepted, status: "False", observedGeneration: 1, reason: Shadowed, message: "RepairPolicy q names NodePool default, too, and is older"}
  - {type: Ready, status: "False", observedGeneration: 1, reason: Shadowed, message: "RepairPolicy q names NodePool default, too, and is older"}
  - {type: Conflict, status: "True", observedGeneration: 1, reason: Shadowed, message: "RepairPolicy q names NodePool default, too, and is older"}
`, "Degraded", "Shadowed: RepairPolicy q names NodePool default, too, and is older"},

		"new guardrails": {rails + `
metadata: {generation: 1}
`, "Progressing", evaluated},
		"guardrails that hold nodes": {rails + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Enforce
  nodes: 10
  held: 2
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: Followed, message: this version is in force}
  - {type: Ready, status: "True", observedGeneration: 1, reason: Followed, message: maxInTreatment (4 of 4) holds 2}
`, "Healthy", "maxInTreatment (4 of 4) holds 2"},
		"guardrails that observe": {rails + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Observe
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: Followed, message: this version is in force}
  - {type: Ready, status: "True", observedGeneration: 1, reason: Followed, message: "mode Observe: nothing new starts"}
`, "Healthy", "mode Observe: nothing new starts"},
		"guardrails in mode Paused or with the annotation": {rails + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Paused
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: Followed, message: this version is in force}
  - {type: Ready, status: "True", observedGeneration: 1, reason: Followed, message: "mode Paused: nothing new starts"}
`, "Suspended", "mode Paused: nothing new starts"},
		"an invalid version of guardrails with mode Paused": {rails + `
metadata: {generation: 2}
status:
  observedGeneration: 2
  mode: Paused
  conditions:
  - {type: Accepted, status: "False", observedGeneration: 2, reason: Invalid, message: 'spec.maxInTreatment: "120%": a share cannot be more than 100%; the last accepted version stays in force, in mode Paused'}
  - {type: Ready, status: "False", observedGeneration: 2, reason: Invalid, message: 'spec.maxInTreatment: "120%": a share cannot be more than 100%; the last accepted version stays in force, in mode Paused'}
`, "Degraded", `Invalid: spec.maxInTreatment: "120%": a share cannot be more than 100%; the last accepted version stays in force, in mode Paused`},
		"accepted guardrails with an invalid annotation": {rails + `
metadata: {generation: 1, annotations: {autohealer.resourcestack.com/release-hold: soon}}
status:
  observedGeneration: 1
  mode: Enforce
  conditions:
  - {type: Accepted, status: "True", observedGeneration: 1, reason: Followed, message: this version is in force}
  - {type: Ready, status: "False", observedGeneration: 1, reason: Invalid, message: 'metadata.annotations[autohealer.resourcestack.com/release-hold]: "soon": want until= and a time in RFC 3339, for example until=2026-03-01T12:00:00Z'}
`, "Degraded", `Invalid: metadata.annotations[autohealer.resourcestack.com/release-hold]: "soon": want until= and a time in RFC 3339, for example until=2026-03-01T12:00:00Z`},

		"a new health check": {check + `
metadata: {generation: 1}
`, "Progressing", evaluated},
		"a health check with a remediation": {check + `
metadata: {generation: 2}
status:
  observedGeneration: 2
  observedNodes: 1
  healthyNodes: 0
  inTreatment: 1
  mode: Enforce
  inFlightRemediations: null
  conditions:
  - {type: Disabled, status: "False", observedGeneration: 2, reason: NodeHealthCheckEnabled, message: the health check is in force}
  - {type: Ready, status: "True", observedGeneration: 2, reason: Remediating, message: 1 node in treatment}
  phase: Remediating
  reason: 1 node in treatment
`, "Healthy", "1 node in treatment"},
		"a health check that observes": {check + `
metadata: {generation: 2, annotations: {autohealer.resourcestack.com/mode: Observe}}
status:
  observedGeneration: 2
  mode: Observe
  conditions:
  - {type: Disabled, status: "False", observedGeneration: 2, reason: NodeHealthCheckEnabled, message: the health check is in force}
  - {type: Ready, status: "True", observedGeneration: 2, reason: Enabled, message: "mode Observe: nodes are evaluated, but no remediation starts; dry run: 1 node would be treated"}
  phase: Enabled
`, "Healthy", "mode Observe: nodes are evaluated, but no remediation starts; dry run: 1 node would be treated"},
		"a paused health check": {check + `
metadata: {generation: 2}
status:
  observedGeneration: 2
  mode: Paused
  conditions:
  - {type: Disabled, status: "False", observedGeneration: 2, reason: NodeHealthCheckEnabled, message: the health check is in force}
  - {type: Ready, status: "True", observedGeneration: 2, reason: Paused, message: "paused by anna: upgrade; 1 node due: nothing new starts: paused: anna: upgrade"}
  phase: Paused
`, "Suspended", "paused by anna: upgrade; 1 node due: nothing new starts: paused: anna: upgrade"},
		"a health check under medik8s' CRD": {check + `
metadata: {generation: 2}
status:
  observedNodes: 1
  healthyNodes: 1
  conditions:
  - {type: Disabled, status: "False", observedGeneration: 2, reason: NodeHealthCheckEnabled, message: the health check is in force}
  - {type: Ready, status: "True", observedGeneration: 2, reason: Enabled, message: "1 node, healthy"}
  phase: Enabled
`, "Healthy", "1 node, healthy"},
		"a paused health check under medik8s' CRD": {check + `
metadata: {generation: 2}
status:
  conditions:
  - {type: Disabled, status: "False", observedGeneration: 2, reason: NodeHealthCheckEnabled, message: the health check is in force}
  - {type: Ready, status: "True", observedGeneration: 2, reason: Paused, message: "paused by anna: upgrade; 1 node, healthy"}
  phase: Paused
`, "Suspended", "paused by anna: upgrade; 1 node, healthy"},
		"an invalid version of a health check": {check + `
metadata: {generation: 2}
status:
  observedGeneration: 2
  mode: Enforce
  conditions:
  - {type: Disabled, status: "False", observedGeneration: 2, reason: NodeHealthCheckEnabled, message: the health check is in force}
  - {type: Ready, status: "False", observedGeneration: 2, reason: Invalid, message: 'Invalid: spec.healthyDelay: "soon": want a duration like 300s or 5m, or a negative one to wait for a manual confirmation; the last accepted version stays in force; 1 node in treatment'}
  phase: Enabled
`, "Degraded", `Invalid: spec.healthyDelay: "soon": want a duration like 300s or 5m, or a negative one to wait for a manual confirmation; the last accepted version stays in force; 1 node in treatment`},
		"a paused health check without its template": {check + `
metadata: {generation: 1}
status:
  observedGeneration: 1
  mode: Paused
  conditions:
  - {type: Disabled, status: "True", observedGeneration: 1, reason: RemediationTemplateNotFound, message: RebootTemplate.example.com ns/quick does not exist}
  - {type: Ready, status: "False", observedGeneration: 1, reason: RemediationTemplateNotFound, message: "RemediationTemplateNotFound: RebootTemplate.example.com ns/quick does not exist"}
  phase: Disabled
`, "Degraded", "RemediationTemplateNotFound: RebootTemplate.example.com ns/quick does not exist"},
		"a health check that medik8s' controller follows": {check + `
metadata: {generation: 2}
status:
  observedNodes: 1
  conditions:
  - {type: StandingBack, status: "True", observedGeneration: 2, reason: AnotherController, message: "medik8s' node-healthcheck-operator is running (them holds Lease theirs/e1f13584.medik8s.io), so the health checks are left to it; stop it, and Autohealer takes over"}
  - {type: Ready, status: "False", observedGeneration: 2, reason: AnotherController, message: "medik8s' node-healthcheck-operator is running (them holds Lease theirs/e1f13584.medik8s.io), so the health checks are left to it; stop it, and Autohealer takes over"}
  phase: Enabled
`, "Degraded", "medik8s' node-healthcheck-operator is running (them holds Lease theirs/e1f13584.medik8s.io), so the health checks are left to it; stop it, and Autohealer takes over"},
	} {
		t.Run(name, func(t *testing.T) {
			var object map[string]any
			testkit.Must(t, yaml.UnmarshalStrict([]byte(test.object), &object))
			kind := fmt.Sprint(object["kind"])
			typed := map[string]client.Object{
				"ConditionSet": &v1alpha1.ConditionSet{}, "RepairPolicy": &v1alpha1.RepairPolicy{}, "Guardrails": &v1alpha1.Guardrails{},
				"NodeHealthCheck": &remediationv1alpha1.NodeHealthCheck{},
			}[kind]
			testkit.Must(t, yaml.UnmarshalStrict([]byte(test.object), typed)) // no field is misspelled
			status, message := argoHealth(object)
			testkit.Same(t, status, test.status, "the status")
			testkit.Same(t, message, test.message, "the message")
			seen[kind+" "+status] = true
		})
	}
	testkit.Check(t, len(seen) == 4*4, "seen are %v, want four healths of four kinds", slices.Sorted(maps.Keys(seen)))
}

// The patch has a script for every kind that the chart installs, and nothing else.
func TestArgoHealthOfEveryKind(t *testing.T) {
	var patch corev1.ConfigMap
	testkit.Must(t, yaml.UnmarshalStrict(testkit.Value(os.ReadFile(argoHealthPatch)).Must(t), &patch))
	testkit.Same(t, patch.Name, "argocd-cm", "the name of the ConfigMap")
	var want []string
	for _, text := range testkit.Value(deploy.CRDs()).Must(t) {
		var crd struct {
			Spec struct {
				Group string
				Names struct{ Kind string }
			}
		}
		testkit.Must(t, yaml.Unmarshal([]byte(text), &crd))
		want = append(want, argoHealthKey+crd.Spec.Group+"_"+crd.Spec.Names.Kind)
	}
	slices.Sort(want)
	testkit.Equal(t, "the keys", want, slices.Sorted(maps.Keys(patch.Data)))
}
