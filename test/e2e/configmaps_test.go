package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	configMapLabel = "autohealer.resourcestack.com/condition-sets"
	revisionLabel  = "autohealer.resourcestack.com/kept-condition-sets"
	// badMark is the annotation that a test puts on an invalid version.
	badMark = "example.com/bad"
)

// TestConfigMaps tests the effects of sets in ConfigMaps.
func TestConfigMaps(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	controller := w.scope(t, "all").start(install.Options{})
	for _, part := range []struct {
		name, subscope string
		test           func(*scope)
		atLeast        history.Counts
	}{
		{"the seed applies as written", "cm-seed", testConfigMapOfTheSeed(controller), history.Counts{Evictions: 2, Removals: 1}},
		{"an invalid edit keeps the last valid version", "cm-bad", testBadEdit(controller), history.Counts{Placements: 3, Removals: 1}},
		{"a valid version may use every field", "cm-full", testFullConfigMap, history.Counts{Placements: 2}},
		{"ten edits a second, half of them broken", "cm-storm", testConfigMapStorm, history.Counts{Placements: 5, Removals: 4}},
		{"a restart keeps the last valid version", "cm-restart", testConfigMapRestart(controller), history.Counts{Placements: 2, Removals: 1}},
		{"an edit in the controller's absence", "cm-absent", testConfigMapAbsent(controller), history.Counts{Placements: 2, Removals: 1}},
		{"without the label the sets are not in force", "cm-label", testConfigMapUnlabelled, history.Counts{Placements: 1, Removals: 1}},
		{"the sets of a deleted ConfigMap are not in force", "cm-delete", testConfigMapDeleted, history.Counts{Placements: 2, Removals: 1}},
		{"of two equal sets the first is in force", "cm-twice", testConfigMapTwice, history.Counts{Placements: 2, Removals: 1}},
		{"a set moves to a ConditionSet and back without a gap", "cm-moves", testConfigMapMoves, history.Counts{Evictions: 1}},
		{"a harmful version is not applied", "cm-hurts", testConfigMapOverBound(controller), history.Counts{Placements: 2}},
		{"an older role does not read ConfigMaps", "cm-role", testConfigMapOldRole(controller), history.Counts{Placements: 3, Removals: 1}},
	} {
		t.Run(part.name, func(t *testing.T) {
			subscope := w.scope(t, part.subscope)
			part.test(subscope)
			subscope.judge(history.Config{Written: subscope.written}, part.atLeast)
			subscope.deleteConfigMap()
			subscope.deleteNodes()
		})
	}
}

// written parses a ConfigMap of the scope for the checker, with its own code.
func (w *scope) written(m *unstructured.Unstructured) (specs map[string]v1alpha1.ConditionSetSpec, isGood bool) {
	if m.GetLabels()[configMapLabel] != "true" || !strings.HasPrefix(m.GetName(), w.name+"-") {
		return nil, true
	}
	if m.GetAnnotations()[badMark] != "" {
		return nil, false
	}
	data, _, _ := unstructured.NestedStringMap(m.Object, "data")
	specs = map[string]v1alpha1.ConditionSetSpec{}
	for key, text := range data {
		var file struct {
			Type          string `json:"type"`
			ConditionSets []struct {
				Conditions []struct {
					Type       string                   `json:"ConditionType"`
					Status     v1alpha1.ConditionStatus `json:"conditionStatus"`
					Duration   string                   `json:"duration"`
					EvenSilent bool                     `json:"evenSilent"`
				} `json:"conditions"`
				Type         string                `json:"type"`
				Effect       corev1.TaintEffect    `json:"effect"`
				TaintKey     string                `json:"taintKey"`
				Selector     *metav1.LabelSelector `json:"selector"`
				MaxUnhealthy *intstr.IntOrString   `json:"maxUnhealthy"`
				DryRun       bool                  `json:"dryRun"`
			} `json:"conditionSets"`
		}
		if yaml.Unmarshal([]byte(text), &file) != nil || file.Type != "ConditionSets" {
			continue
		}
		for _, set := range file.ConditionSets {
			spec := v1alpha1.ConditionSetSpec{
				Type: set.Type, Effect: set.Effect, TaintKey: set.TaintKey, Selector: set.Selector, MaxUnhealthy: set.MaxUnhealthy, DryRun: set.DryRun,
				Conditions: map[string]v1alpha1.SetCondition{},
			}
			for _, c := range set.Conditions {
				spec.Conditions[c.Type] = v1alpha1.SetCondition{Status: c.Status, Duration: c.Duration, EvenSilent: c.EvenSilent}
			}
			specs[m.GetName()+"/"+key+"/"+set.Type] = spec
		}
	}
	return specs, true
}

// configMap returns a file with a set: while the condition is True, the taint
// example.com/<scope>-<name> on the scope's nodes.
func (w *scope) configMap(name, effect, condition string) string {
	return strings.NewReplacer("NAME", name, "KEY", w.key(name), "EFFECT", effect, "CONDITION", condition, "SCOPE", w.name).Replace(`type: ConditionSets
conditionSets:
- type: NAME
  effect: EFFECT
  taintKey: KEY
  selector: {matchLabels: {example.com/scope: SCOPE}}
  conditions:
    - ConditionType: CONDITION
      conditionStatus: true
`)
}

// createConfigMap creates or replaces a ConfigMap with the key sets.yaml.
func (w *scope) createConfigMap(name, text string, isGood bool) {
	w.t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: install.Namespace, Name: w.name + "-" + name, Labels: map[string]string{configMapLabel: "true"}, Annotations: map[string]string{},
	}, Data: map[string]string{"sets.yaml": text}}
	if !isGood {
		m.Annotations[badMark] = "yes"
	}
	err := w.api.Create(w.t.Context(), m)
	if apierrors.IsAlreadyExists(err) {
		err = w.api.Update(w.t.Context(), m)
	}
	testkit.Must(w.t, err)
}

// deleteConfigMap deletes the ConfigMaps of the scope, and waits until their sets are gone.
func (w *scope) deleteConfigMap() {
	w.t.Helper()
	var list corev1.ConfigMapList
	testkit.Must(w.t, w.api.List(w.t.Context(), &list, client.InNamespace(install.Namespace), client.HasLabels{configMapLabel}))
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, w.name+"-") {
			testkit.Must(w.t, w.api.Delete(w.t.Context(), &list.Items[i]))
		}
	}
	w.hasRevision("")
}

// revisions returns the stored revisions of a ConfigMap of the scope, or of all ConfigMaps
// if the name is empty.
func (w *scope) revisions(name string) ([]appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	err := w.api.List(w.t.Context(), &list, client.InNamespace(install.Namespace), client.HasLabels{revisionLabel})
	return slices.DeleteFunc(list.Items, func(r appsv1.ControllerRevision) bool {
		owner := r.OwnerReferences[0].Name
		return owner != w.name+"-"+name && (name != "" || !strings.HasPrefix(owner, w.name+"-"))
	}), err
}

// hasRevision waits until a ConfigMap has exactly one stored revision, with all of these
// words, and returns its number. Without words it waits until there is none.
func (w *scope) hasRevision(name string, says ...string) (number int64) {
	w.t.Helper()
	w.eventually("the stored revision of "+w.name+"-"+name, func() error {
		kept, err := w.revisions(name)
		if err != nil {
			return err
		}
		if len(kept) != min(1, len(says)) {
			return fmt.Errorf("%d revisions", len(kept))
		}
		for _, part := range says {
			if number = kept[0].Revision; !strings.Contains(string(kept[0].Data.Raw), part) {
				return fmt.Errorf("the revision is %s, without %q", kept[0].Data.Raw, part)
			}
		}
		return nil
	})
	return number
}

// metric waits until the metrics of a controller have a line.
func (w *scope) metric(c *install.Controller, line string) {
	w.t.Helper()
	w.eventually("the metric "+line, func() error {
		text := w.scrape(c)
		if !strings.Contains(text, "\n"+line+"\n") {
			name, _, _ := strings.Cut(line, "}")
			at := strings.Index(text, name)
			return fmt.Errorf("it is %.120q", text[max(0, at):])
		}
		return nil
	})
}

func testConfigMapOfTheSeed(c *install.Controller) func(*scope) {
	return func(w *scope) {
		seed := testkit.Value(os.ReadFile("../../internal/configmaps/testdata/seed.yaml")).Must(w.t)
		w.createNodes(testbed.Nodes{Count: 4})
		testkit.Value(w.KubectlApply(w.t.Context(), strings.ReplaceAll(`
apiVersion: v1
kind: ConfigMap
metadata:
  name: SCOPE-policies
  namespace: autohealer-system
  labels:
    autohealer.resourcestack.com/condition-sets: "true"
data:
  sets.yaml: |
`, "SCOPE", w.name)+string(seed))).Must(w.t)
		w.tellsOf(w.name+"-policies", "Accepted", "accepted and in force; sets: 2")
		w.setCondition(w.node(1), "KubeletUnhealthy", corev1.ConditionTrue)
		w.setCondition(w.node(1), "ContainerRuntimeUnhealthy", corev1.ConditionUnknown)
		w.setCondition(w.node(2), "KernelDeadlock", corev1.ConditionTrue)
		w.has(w.node(1), noExecute("node.stakater.com/KubeletContainerRuntimeUnhealthy"))
		w.has(w.node(2), noExecute("node.stakater.com/KernelDeadlock"))
		set := w.name + "-policies/sets.yaml/KernelDeadlock"
		w.tellsOf(w.node(2), "Tainted", "ConditionSet/"+set)
		w.tellsOf(w.name+"-policies", "Tainted", w.node(2), "ConditionSet/"+set)
		w.metric(c, `autohealer_policy_nodes{policy="`+set+`",policy_kind="ConditionSet",state="Tainted"} 1`)
		w.metric(c, `autohealer_policy_ready{policy="`+set+`",policy_kind="ConditionSet"} 1`)
		w.metric(c, `autohealer_configmap_not_in_force{configmap="`+w.name+`-policies"} 0`)
		w.setCondition(w.node(2), "KernelDeadlock", corev1.ConditionFalse)
		w.has(w.node(2))
		w.hasRevision("policies", "KubeletContainerRuntimeUnhealthy", `"resourceVersion"`)
	}
}

func testBadEdit(c *install.Controller) func(*scope) {
	return func(w *scope) {
		w.createNodes(healthyNodes(8))
		behind := `autohealer_configmap_not_in_force{configmap="` + w.name + `-policies"} `
		good := w.configMap("one", "NoSchedule", "Unhealthy")
		w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
		w.createConfigMap("policies", strings.Replace(good, "effect:", "efect:", 1), false)
		w.tellsOf(w.name+"-policies", "NotAccepted", "nothing of it is in force, because there is no good version yet", "key sets.yaml, line 4: a set has no field \"efect\"")
		w.metric(c, behind+"1")
		w.createConfigMap("policies", good, true)
		w.has(w.node(1), noSchedule(w.key("one")))
		w.tellsOf(w.name+"-policies", "Accepted", "sets: 1")
		w.metric(c, behind+"0")
		w.hasMirror("policies", "one", hasCondition(v1alpha1.Ready, metav1.ConditionTrue, "Followed", "1 node tainted"))
		first := w.hasRevision("policies", w.key("one"))

		// An invalid key blocks all other keys, and so does an invalid set.
		for _, bad := range []struct{ text, line string }{
			{strings.Replace(good, "  effect", "\teffect", 1), "line 4: this is not YAML: there is a tab"},
			{w.configMap("two", "NoSchedule", "Unhealthy") + "- {}\n", "line 10: type is missing in a set"},
			{strings.Replace(good, w.key("one"), "node.kubernetes.io/not-ready", 1), "line 5: "},
			{strings.Replace(good, "true", "true\n      duration: soon", 1), "line 10: "},
			{"type: Nothing\n", "no key of its data says type: ConditionSets"},
		} {
			w.createConfigMap("policies", bad.text, false)
			w.tellsOf(w.name+"-policies", "NotAccepted", "the last good version stays in force", bad.line)
		}
		w.metric(c, behind+"1")
		w.metric(c, `autohealer_policy_ready{policy="`+w.name+`-policies/sets.yaml/one",policy_kind="ConditionSet"} 0`)
		w.hasMirror("policies", "one", hasCondition(v1alpha1.Ready, metav1.ConditionFalse, "Invalid", "the current version of ConfigMap "+w.name+"-policies is not accepted: no key of its data", "the last accepted version stays in force; 1 node tainted"))
		w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
		w.has(w.node(2), noSchedule(w.key("one")))
		w.hasNow(w.node(1), noSchedule(w.key("one")))
		before := testkit.Value(w.events(w.t.Context(), w.name+"-policies", "NotAccepted")).Must(w.t)
		m := &corev1.ConfigMap{}
		testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: w.name + "-policies"}, m))
		m.Labels["example.com/touched"] = "by-a-user"
		testkit.Must(w.t, w.api.Update(w.t.Context(), m))

		next := w.configMap("two", "NoSchedule", "Unhealthy")
		w.createConfigMap("policies", next, true)
		w.has(w.node(1), noSchedule(w.key("two")))
		w.metric(c, behind+"0")
		w.hasMirror("policies", "one", nil)
		if second := w.hasRevision("policies", w.key("two")); second <= first {
			w.t.Errorf("revision %d comes after %d", second, first)
		}
		w.eventually("two accepted versions", func() error {
			accepted, err := w.events(w.t.Context(), w.name+"-policies", "Accepted")
			if len(accepted) != 2 {
				return errors.Join(err, fmt.Errorf("%d Events", len(accepted)))
			}
			return err
		})
		if after, err := w.events(w.t.Context(), w.name+"-policies", "NotAccepted"); err != nil || len(after) != len(before) || len(before) != 6 {
			w.t.Errorf("6 invalid versions were reported %d times, and then %d times: %v", len(before), len(after), err)
		}

		// Back to the version in force.
		w.createConfigMap("policies", "type: ConditionSets\n", false)
		w.metric(c, behind+"1")
		w.createConfigMap("policies", next, true)
		w.tellsOf(w.name+"-policies", "Accepted", "back to the version that is in force")
		w.metric(c, behind+"0")
	}
}

func testFullConfigMap(w *scope) {
	w.createNodes(healthyNodes(10))
	w.createConfigMap("policies", strings.ReplaceAll(`
type: ConditionSets
conditionSets:
- type: Bounded
  effect: NoExecute
  taintKey: example.com/SCOPE-bounded
  maxUnhealthy: 1
  selector: {matchLabels: {example.com/scope: SCOPE}}
  conditions: [{ConditionType: Unhealthy, conditionStatus: true, duration: 1s}]
- type: Silent
  effect: NoSchedule
  taintKey: example.com/SCOPE-silent
  selector:
    matchExpressions:
    - {key: example.com/scope, operator: In, values: [SCOPE]}
  conditions: [{ConditionType: Unhealthy, conditionStatus: Unknown, evenSilent: true}]
- type: Dry
  effect: NoExecute
  taintKey: example.com/SCOPE-dry
  dryRun: true
  conditions: [{ConditionType: Unhealthy, conditionStatus: Unknown, evenSilent: true}, {ConditionType: Ready, conditionStatus: true}]
`, "SCOPE", w.name), true)
	w.tellsOf(w.name+"-policies", "Accepted", "sets: 3")
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionUnknown, because("AgentSilent"))
	w.has(w.node(1), noExecute(w.key("bounded")))
	w.has(w.node(2), noSchedule(w.key("silent")))
	w.setCondition(w.node(3), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(3), noSchedule(w.key("bounded")))
}

// spoiled are ways to break a file that begins with a set.
var spoiled = []func(string) string{
	func(text string) string { return strings.Replace(text, "  effect", "\teffect", 1) },
	func(text string) string {
		return strings.Replace(text, "conditionStatus: true", "conditionStatus: bad", 1)
	},
	func(text string) string { return text + "- type: [\n" },
	func(text string) string { return strings.Replace(text, "type: ConditionSets", "type: ConditionSet", 1) },
	func(text string) string {
		return strings.Replace(text, "taintKey: example.com/", "taintKey: node.kubernetes.io/", 1)
	},
	func(string) string { return "" },
}

func testConfigMapStorm(w *scope) {
	const edits = 60
	w.createNodes(healthyNodes(6))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.createConfigMap("policies", w.configMap("v0", "NoSchedule", "Unhealthy"), true)
	w.has(w.node(1), noSchedule(w.key("v0")))
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range edits {
		<-tick.C
		name := fmt.Sprintf("v%d", i/2%5)
		text := w.configMap(name, []string{"NoSchedule", "NoExecute", "PreferNoSchedule"}[i/2%3], "Unhealthy")
		if i%2 == 1 {
			text = spoiled[i/2%len(spoiled)](text)
		}
		w.createConfigMap("policies", text, i%2 == 0)
		if i%10 == 5 { // the nodes do not wait for it
			w.setCondition(w.node(2), "Unhealthy", map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[i%20 == 5])
		}
	}
	// The last version is invalid, so the last valid version is in force.
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	last := w.configMap("last", "NoSchedule", "Unhealthy")
	w.createConfigMap("policies", last, true)
	w.hasRevision("policies", w.key("last"))
	w.createConfigMap("policies", strings.Replace(last, "taintKey", "key", 1), false)
	w.tellsOf(w.name+"-policies", "NotAccepted", `a set has no field "key"`)
	w.has(w.node(1), noSchedule(w.key("last")))
	w.has(w.node(2), noSchedule(w.key("last")))
	w.has(w.node(3))
}

// testConfigMapRestart kills the controller while the current version is invalid.
func testConfigMapRestart(c *install.Controller) func(*scope) {
	return func(w *scope) {
		w.createNodes(healthyNodes(6))
		w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
		good := w.configMap("kept", "NoExecute", "Unhealthy")
		w.createConfigMap("policies", good, true)
		w.has(w.node(1), noExecute(w.key("kept")))
		w.createConfigMap("policies", strings.Replace(good, "NoExecute", "Eventually", 1), false)
		w.tellsOf(w.name+"-policies", "NotAccepted", "line 4")
		w.kill(c)
		w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
		w.restart(c.Part)
		w.has(w.node(2), noExecute(w.key("kept"))) // after everything is loaded
		w.hasNow(w.node(1), noExecute(w.key("kept")))
		w.metric(c, `autohealer_configmap_not_in_force{configmap="`+w.name+`-policies"} 1`)
		w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
		w.has(w.node(1))
		w.hasRevision("policies", w.key("kept"))
		w.tellsOf(w.node(1), "Recovered") // a later Event of the new leader
		if told := testkit.Value(w.events(w.t.Context(), w.name+"-policies", "NotAccepted")).Must(w.t); len(told) != 1 {
			w.t.Errorf("the new leader has repeated the Event of the invalid version: %+v", told)
		}
	}
}

// testConfigMapAbsent edits and deletes ConfigMaps while the controller is down.
func testConfigMapAbsent(c *install.Controller) func(*scope) {
	return func(w *scope) {
		w.createNodes(healthyNodes(6, "Gone", "Lost"))
		w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
		w.setCondition(w.node(2), "Gone", corev1.ConditionTrue)
		w.setCondition(w.node(3), "Lost", corev1.ConditionTrue)
		w.createConfigMap("edited", w.configMap("old", "NoSchedule", "Unhealthy"), true)
		w.createConfigMap("deleted", w.configMap("gone", "NoSchedule", "Gone"), true)
		w.createConfigMap("lost", w.configMap("lost", "NoSchedule", "Lost"), true)
		w.has(w.node(1), noSchedule(w.key("old")))
		w.has(w.node(2), noSchedule(w.key("gone")))
		w.has(w.node(3), noSchedule(w.key("lost")))
		before := testkit.Value(w.get(w.t.Context(), w.node(3))).Must(w.t)
		testkit.Must(w.t, c.Stop(w.t.Context()))
		w.createConfigMap("edited", w.configMap("new", "NoSchedule", "Unhealthy"), true)
		testkit.Must(w.t, w.api.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: w.name + "-deleted"}}))
		kept := testkit.Value(w.revisions("lost")).Must(w.t)
		testkit.Must(w.t, w.api.Delete(w.t.Context(), &kept[0]))
		w.restart(c.Part)
		w.has(w.node(1), noSchedule(w.key("new")))
		w.has(w.node(2))
		w.hasRevision("edited", w.key("new"))
		w.hasRevision("deleted")
		w.hasRevision("lost", w.key("lost"))
		// Its taint was not removed and added again.
		if after, err := w.get(w.t.Context(), w.node(3)); err != nil || after.ResourceVersion != before.ResourceVersion {
			w.t.Errorf("the controller wrote to the node of the ConfigMap whose revision was lost: %v", err)
		}
	}
}

func testConfigMapUnlabelled(w *scope) {
	w.createNodes(healthyNodes(4))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.createConfigMap("policies", w.configMap("set", "NoSchedule", "Unhealthy"), true)
	w.has(w.node(1), noSchedule(w.key("set")))
	w.hasRevision("policies", w.key("set"))
	m := &corev1.ConfigMap{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: w.name + "-policies"}, m))
	delete(m.Labels, configMapLabel)
	testkit.Must(w.t, w.api.Update(w.t.Context(), m))
	w.has(w.node(1))
	w.hasRevision("policies")
	// An invalid ConfigMap with a new label has no earlier version.
	m.Labels = map[string]string{configMapLabel: "true"}
	m.Annotations = map[string]string{badMark: "yes"}
	m.Data["sets.yaml"] = "type: ConditionSets"
	testkit.Must(w.t, w.api.Update(w.t.Context(), m))
	w.tellsOf(m.Name, "NotAccepted", "there is no good version yet")
	w.hasNow(w.node(1))
}

func testConfigMapDeleted(w *scope) {
	w.createNodes(healthyNodes(4))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.createConfigMap("policies", w.configMap("set", "NoSchedule", "Unhealthy"), true)
	w.has(w.node(1), noSchedule(w.key("set")))
	testkit.Must(w.t, w.api.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: w.name + "-policies"}}))
	w.has(w.node(1))
	w.hasRevision("policies")
	// A new ConfigMap with the same name does not have the old versions.
	w.createConfigMap("policies", "type: ConditionSets\n", false)
	w.tellsOf(w.name+"-policies", "NotAccepted", "there is no good version yet")
	w.hasNow(w.node(1))
	w.createConfigMap("policies", w.configMap("next", "NoSchedule", "Unhealthy"), true)
	w.has(w.node(1), noSchedule(w.key("next")))
}

// testConfigMapMoves moves a set from a ConfigMap to a ConditionSet, and back. While both are there,
// one of them is in force.
func testConfigMapMoves(w *scope) {
	w.createNodes(healthyNodes(6))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	text := w.configMap("moves", "NoExecute", "Unhealthy")
	w.createConfigMap("policies", text, true)
	w.has(w.node(1), noExecute(w.key("moves")))
	w.hasMirror("policies", "moves", isAccepted(metav1.ConditionTrue, "Followed"))
	// Most nodes become unhealthy: the controller would refuse the set if it was new.
	for i := 2; i <= 5; i++ {
		w.setCondition(w.node(i), "Unhealthy", corev1.ConditionTrue)
	}

	w.write("moves", func(s *v1alpha1.ConditionSetSpec) {
		s.Type, s.Effect, s.Selector.MatchExpressions = "moves", corev1.TaintEffectNoExecute, nil
	})
	w.hasStatus("moves", isAccepted(metav1.ConditionTrue, "Followed"))
	w.hasMirror("policies", "moves", isAccepted(metav1.ConditionFalse, "Duplicate", "ConditionSet "+w.name+"-moves is the same set and in force; this one takes over when that is deleted"))
	w.deleteConfigMap()
	w.hasMirror("policies", "moves", nil)
	w.hasNow(w.node(1), noExecute(w.key("moves")))

	w.createConfigMap("policies", text, true)
	w.tellsOf(w.name+"-policies", "Accepted", "takes over when that is deleted")
	w.hasMirror("policies", "moves", isAccepted(metav1.ConditionFalse, "Duplicate"))
	w.deleteSet("moves")
	w.hasMirror("policies", "moves", isAccepted(metav1.ConditionTrue, "Followed"))
	w.hasNow(w.node(1), noExecute(w.key("moves")))

	changes := testkit.Value(w.RecordingOf(w.t.Context(), func(c testbed.Change) bool {
		return c.GVR == testbed.NodesResource && c.Name == w.node(1)
	})).Must(w.t)
	wasTainted := false
	for _, c := range changes {
		node := &corev1.Node{}
		testkit.Must(w.t, runtime.DefaultUnstructuredConverter.FromUnstructured(c.Object.Object, node))
		isTainted := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == w.key("moves") && taint.Effect == corev1.TaintEffectNoExecute
		})
		testkit.Check(w.t, isTainted || !wasTainted, "version %s of the node has lost the taint", c.ResourceVersion)
		wasTainted = isTainted
	}
}

// hasMirror waits until the ConditionSet that shows a set of a ConfigMap has a status, or until it is
// gone if wrong is nil.
func (w *scope) hasMirror(configMap, set string, wrong func(v1alpha1.ConditionSetStatus) error) {
	w.t.Helper()
	name := "configmap-" + w.name + "-" + configMap + "-sets-yaml-" + strings.ToLower(set)
	w.eventually("mirror "+name, func() error {
		mirror := &v1alpha1.ConditionSet{}
		switch err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, mirror); {
		case wrong == nil && apierrors.IsNotFound(err):
			return nil
		case wrong == nil:
			return errors.New("it is there")
		case err != nil:
			return err
		case mirror.Labels[v1alpha1.MirrorLabel] != "ConfigMap" || mirror.Spec.Type != set || mirror.Status.ObservedGeneration != mirror.Generation:
			return fmt.Errorf("it is %+v", mirror)
		}
		return wrong(mirror.Status)
	})
}

func testConfigMapTwice(w *scope) {
	w.createNodes(healthyNodes(4, "Worse"))
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	text := w.configMap("Twin", "NoSchedule", "Unhealthy")
	w.createConfigMap("first", text, true)
	w.has(w.node(1), noSchedule(w.key("Twin")))
	w.createConfigMap("second", strings.Replace(text, w.key("Twin"), w.key("other"), 1), false)
	w.tellsOf(w.name+"-second", "NotAccepted", "there is no good version yet", "key sets.yaml, line 3: set Twin: ", w.name+"-first")
	w.hasNow(w.node(1), noSchedule(w.key("Twin")))

	// A duplicate within one ConfigMap is refused, too.
	w.createConfigMap("third", w.configMap("A", "NoSchedule", "Worse")+w.configMap("B", "NoExecute", "Worse")[len("type: ConditionSets\nconditionSets:\n"):], false)
	w.tellsOf(w.name+"-third", "NotAccepted", "key sets.yaml, line 15: set B: the same conditions")

	// The second set applies when the first is deleted. The annotation for the checker is
	// written before, because the controller may be faster afterwards.
	m := &corev1.ConfigMap{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: w.name + "-second"}, m))
	delete(m.Annotations, badMark)
	testkit.Must(w.t, w.api.Update(w.t.Context(), m))
	testkit.Must(w.t, w.api.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: w.name + "-first"}}))
	w.has(w.node(1), noSchedule(w.key("other")))
	w.tellsOf(w.name+"-second", "Accepted", "sets: 1")
}

// oldRole withdraws the controllers' rights on ConfigMaps with sets, and returns a function
// that restores them.
func (w *scope) oldRole() (giveBack func()) {
	w.t.Helper()
	role := &rbacv1.Role{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: install.Account}, role))
	before := slices.Clone(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "controllerrevisions") || slices.Contains(r.Resources, "configmaps") && slices.Contains(r.Verbs, "list")
	})
	set := func(allowed bool) {
		w.t.Helper()
		testkit.Must(w.t, w.api.Update(w.t.Context(), role))
		w.eventually("a change of rights", func() error {
			for group, resource := range map[string]string{"": "configmaps", "apps": "controllerrevisions"} {
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					User: install.User, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: group, Resource: resource, Namespace: install.Namespace},
				}}
				if err := w.api.Create(w.t.Context(), review); err != nil {
					return err
				}
				if review.Status.Allowed != allowed {
					return fmt.Errorf("%s allowed: %t", resource, review.Status.Allowed)
				}
			}
			return nil
		})
	}
	set(false)
	return func() {
		role.Rules = before
		set(true)
	}
}

// testConfigMapOldRole runs a controller with an outdated role.
func testConfigMapOldRole(c *install.Controller) func(*scope) {
	return func(w *scope) {
		w.createNodes(healthyNodes(6))
		w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
		w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
		w.createConfigMap("policies", w.configMap("kept", "NoExecute", "Unhealthy"), true)
		w.has(w.node(1), noExecute(w.key("kept")))
		w.has(w.node(2), noExecute(w.key("kept")))
		w.hasRevision("policies", w.key("kept"))
		testkit.Must(w.t, c.Stop(w.t.Context()))
		giveBack := w.oldRole()
		w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
		w.createSet("api", on("Worse"))
		w.setCondition(w.node(3), "Worse", corev1.ConditionTrue)
		w.restart(c.Part)
		w.has(w.node(3), noSchedule(w.key("api")))
		w.hasStatus("api", isAccepted(metav1.ConditionTrue, "Followed"))
		w.metric(c, "autohealer_configmaps_followed 0")
		w.metric(c, "autohealer_leading 1")
		for number := range 2 {
			w.hasNow(w.node(number+1), noExecute(w.key("kept")))
		}
		log := testkit.Value(c.Log()).Must(w.t)
		for _, resource := range []string{"configmaps", "controllerrevisions"} {
			reported := 0
			for line := range strings.Lines(log) {
				if strings.Contains(line, "cannot read the sets in configmaps: permission missing") && strings.Contains(line, `resource \"`+resource+`\"`) {
					reported++
				}
			}
			if reported != 1 {
				w.t.Errorf("the log says %d times that %s cannot be read:\n%s", reported, resource, log)
			}
		}
		giveBack()
		w.metric(c, "autohealer_configmaps_followed 1")
		w.has(w.node(1))
		w.hasNow(w.node(2), noExecute(w.key("kept")))
	}
}

// testConfigMapOverBound has the controller refuse versions because of their impact, until
// the impact is acceptable.
func testConfigMapOverBound(c *install.Controller) func(*scope) {
	return func(w *scope) {
		nodes := w.createNodes(healthyNodes(4, "Worse"))
		behind := `autohealer_configmap_not_in_force{configmap="` + w.name + `-policies"} `
		for _, node := range nodes[:3] {
			w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
		}
		w.createConfigMap("policies", w.configMap("trap", "NoExecute", "OutOfDisk")+"      duration: 1m\n", true)
		w.tellsOf(w.name+"-policies", "Accepted")
		text := strings.Replace(w.configMap("trap", "NoExecute", "OutOfDisk"), "conditionStatus: true", "conditionStatus: false", 1)
		w.createConfigMap("policies", text, false)
		w.tellsOf(w.name+"-policies", "NotAccepted", "the last good version stays in force", "key sets.yaml, line 9: set trap: ", "Write conditionStatus: True")
		w.createConfigMap("policies", w.configMap("near", "NoExecute", "KubletUnhealthy"), false)
		w.tellsOf(w.name+"-policies", "NotAccepted", "key sets.yaml, line 8: set near: ", "KubeletUnhealthy")

		text = w.configMap("many", "NoSchedule", "Unhealthy")
		w.createConfigMap("policies", text, false)
		w.tellsOf(w.name+"-policies", "NotAccepted", "key sets.yaml, line 8: set many: ", "3", w.node(1), "annotate the ConfigMap with autohealer.resourcestack.com/accept-impact")
		w.metric(c, behind+"1")
		w.hasNow(nodes[0])
		// Two of the nodes recover. The controller still refuses the version: a user must
		// look at it.
		w.setCondition(nodes[1], "Unhealthy", corev1.ConditionFalse)
		w.setCondition(nodes[2], "Unhealthy", corev1.ConditionFalse)
		w.createSet("later", on("Worse"))
		w.hasStatus("later", isFollowed)
		w.metric(c, behind+"1")
		w.hasNow(nodes[0])
		w.createConfigMap("policies", text+"# seen\n", true)
		w.metric(c, behind+"0")
		w.has(nodes[0], noSchedule(w.key("many")))
		reported, err := w.events(w.t.Context(), w.name+"-policies", "NotAccepted")
		if err != nil || len(reported) != 3 {
			w.t.Errorf("3 invalid versions were reported %d times: %v", len(reported), err)
		}
		w.deleteSet("later")

		// With the annotation of a user, the number does not matter.
		for _, node := range nodes[1:] {
			w.setCondition(node, "Worse", corev1.ConditionTrue)
		}
		w.createConfigMap("policies", w.configMap("worse", "NoSchedule", "Worse"), false)
		w.tellsOf(w.name+"-policies", "NotAccepted", "set worse: ")
		m := &corev1.ConfigMap{}
		testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: w.name + "-policies"}, m))
		m.Annotations = map[string]string{v1alpha1.AcceptImpactAnnotation: "true"}
		testkit.Must(w.t, w.api.Update(w.t.Context(), m))
		w.has(nodes[3], noSchedule(w.key("worse")))
		w.has(nodes[0])
	}
}
