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
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

const (
	sheetLabel = "autohealer.resourcestack.com/condition-sets"
	keptLabel  = "autohealer.resourcestack.com/kept-condition-sets"
	// badMark is what a test puts on a version that must not be followed.
	badMark = "example.com/bad"
)

// TestConfigMaps holds sets that are written in ConfigMaps against what becomes
// of them.
func TestConfigMaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	controller := w.ward(t, "all").start(install.Options{})
	for _, part := range []struct {
		name, ward string
		test       func(*ward)
		atLeast    history.Counts
	}{
		{"the seed applies as written", "sheet-seed", testSheetOfTheSeed(controller), history.Counts{Evictions: 2, Removals: 1}},
		{"a bad edit keeps the last good version", "sheet-bad", testBadEdit(controller), history.Counts{Placements: 3, Removals: 1}},
		{"a good version may use every field", "sheet-full", testFullSheet, history.Counts{Placements: 2}},
		{"ten edits a second, half of them broken", "sheet-storm", testSheetStorm, history.Counts{Placements: 5, Removals: 4}},
		{"a restart keeps the last good version", "sheet-restart", testSheetRestart(controller), history.Counts{Placements: 2, Removals: 1}},
		{"an edit in the controller's absence", "sheet-absent", testSheetAbsent(controller), history.Counts{Placements: 2, Removals: 1}},
		{"without the label the sets are gone", "sheet-label", testSheetUnlabelled, history.Counts{Placements: 1, Removals: 1}},
		{"a deleted ConfigMap takes its sets with it", "sheet-delete", testSheetDeleted, history.Counts{Placements: 2, Removals: 1}},
		{"of two that say the same the first one counts", "sheet-twice", testSheetTwice, history.Counts{Placements: 2, Removals: 1}},
		{"a version that would hurt is not followed", "sheet-hurts", testSheetHurts(controller), history.Counts{Placements: 2}},
		{"an older role does not read ConfigMaps", "sheet-role", testSheetOldRole(controller), history.Counts{Placements: 3, Removals: 1}},
	} {
		t.Run(part.name, func(t *testing.T) {
			ward := w.ward(t, part.ward)
			part.test(ward)
			ward.judge(history.Config{Written: ward.written}, part.atLeast)
			ward.unpin()
			ward.dismiss()
		})
	}
}

// written reads a ConfigMap of the ward for the judge, in a way of its own.
func (w *ward) written(m *unstructured.Unstructured) (specs map[string]v1alpha1.ConditionSetSpec, isGood bool) {
	if m.GetLabels()[sheetLabel] != "true" || !strings.HasPrefix(m.GetName(), w.name+"-") {
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

// sheet is a file of one set: while the condition is True, the taint
// example.com/<ward>-<name> on the ward's nodes.
func (w *ward) sheet(name, effect, condition string) string {
	return strings.NewReplacer("NAME", name, "KEY", w.key(name), "EFFECT", effect, "CONDITION", condition, "WARD", w.name).Replace(`type: ConditionSets
conditionSets:
- type: NAME
  effect: EFFECT
  taintKey: KEY
  selector: {matchLabels: {example.com/ward: WARD}}
  conditions:
    - ConditionType: CONDITION
      conditionStatus: true
`)
}

// pin writes a ConfigMap with one key, sets.yaml, over the one that is there.
func (w *ward) pin(name, text string, isGood bool) {
	w.t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: install.Namespace, Name: w.name + "-" + name, Labels: map[string]string{sheetLabel: "true"}, Annotations: map[string]string{},
	}, Data: map[string]string{"sets.yaml": text}}
	if !isGood {
		m.Annotations[badMark] = "yes"
	}
	err := w.api.Create(w.t.Context(), m)
	if apierrors.IsAlreadyExists(err) {
		err = w.api.Update(w.t.Context(), m)
	}
	w.must(err)
}

// unpin deletes the ConfigMaps of the ward, and waits until their sets are gone.
func (w *ward) unpin() {
	w.t.Helper()
	var list corev1.ConfigMapList
	w.must(w.api.List(w.t.Context(), &list, client.InNamespace(install.Namespace), client.HasLabels{sheetLabel}))
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, w.name+"-") {
			w.must(w.api.Delete(w.t.Context(), &list.Items[i]))
		}
	}
	w.keeps("")
}

// revisions returns what is kept of a ConfigMap of the ward, of all if it has no name.
func (w *ward) revisions(name string) ([]appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	err := w.api.List(w.t.Context(), &list, client.InNamespace(install.Namespace), client.HasLabels{keptLabel})
	return slices.DeleteFunc(list.Items, func(r appsv1.ControllerRevision) bool {
		owner := r.OwnerReferences[0].Name
		return owner != w.name+"-"+name && (name != "" || !strings.HasPrefix(owner, w.name+"-"))
	}), err
}

// keeps waits until exactly one version of a ConfigMap is kept, with all of these
// words, and returns its number; without words, until there is none.
func (w *ward) keeps(name string, says ...string) (number int64) {
	w.t.Helper()
	w.eventually("what is kept of "+w.name+"-"+name, func() error {
		kept, err := w.revisions(name)
		if err != nil {
			return err
		}
		if len(kept) != min(1, len(says)) {
			return fmt.Errorf("%d revisions", len(kept))
		}
		for _, part := range says {
			if number = kept[0].Revision; !strings.Contains(string(kept[0].Data.Raw), part) {
				return fmt.Errorf("it says %s, nothing of %q", kept[0].Data.Raw, part)
			}
		}
		return nil
	})
	return number
}

// metric waits until the metrics of a controller have a line.
func (w *ward) metric(c *install.Controller, line string) {
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

func testSheetOfTheSeed(c *install.Controller) func(*ward) {
	return func(w *ward) {
		seed, err := os.ReadFile("../../internal/configmaps/testdata/seed.yaml")
		w.must(err)
		w.admit(testbed.Nodes{Count: 4})
		_, err = w.KubectlApply(w.t.Context(), strings.ReplaceAll(`
apiVersion: v1
kind: ConfigMap
metadata:
  name: WARD-policies
  namespace: autohealer-system
  labels:
    autohealer.resourcestack.com/condition-sets: "true"
data:
  sets.yaml: |
`, "WARD", w.name)+string(seed))
		w.must(err)
		w.tellsOf(w.name+"-policies", "Accepted", "accepted and in force; sets: 2")
		w.says(w.node(1), "KubeletUnhealthy", corev1.ConditionTrue)
		w.says(w.node(1), "ContainerRuntimeUnhealthy", corev1.ConditionUnknown)
		w.says(w.node(2), "KernelDeadlock", corev1.ConditionTrue)
		w.has(w.node(1), noExecute("node.stakater.com/KubeletContainerRuntimeUnhealthy"))
		w.has(w.node(2), noExecute("node.stakater.com/KernelDeadlock"))
		set := w.name + "-policies/sets.yaml/KernelDeadlock"
		w.tellsOf(w.node(2), "Tainted", "ConditionSet/"+set)
		w.tellsOf(w.name+"-policies", "Tainted", w.node(2), "ConditionSet/"+set)
		w.metric(c, `autohealer_conditionset_nodes{conditionset="`+set+`",state="tainted"} 1`)
		w.metric(c, `autohealer_conditionset_accepted{conditionset="`+set+`"} 1`)
		w.metric(c, `autohealer_configmap_not_in_force{configmap="`+w.name+`-policies"} 0`)
		w.says(w.node(2), "KernelDeadlock", corev1.ConditionFalse)
		w.has(w.node(2))
		w.keeps("policies", "KubeletContainerRuntimeUnhealthy", `"resourceVersion"`)
	}
}

func testBadEdit(c *install.Controller) func(*ward) {
	return func(w *ward) {
		w.admit(healthyNodes(8))
		behind := `autohealer_configmap_not_in_force{configmap="` + w.name + `-policies"} `
		good := w.sheet("one", "NoSchedule", "Sick")
		w.says(w.node(1), "Sick", corev1.ConditionTrue)
		w.pin("policies", strings.Replace(good, "effect:", "efect:", 1), false)
		w.tellsOf(w.name+"-policies", "Trouble", "nothing of it is in force, because there is no good version yet", "key sets.yaml, line 4: a set has no field \"efect\"")
		w.metric(c, behind+"1")
		w.pin("policies", good, true)
		w.has(w.node(1), noSchedule(w.key("one")))
		w.tellsOf(w.name+"-policies", "Accepted", "sets: 1")
		w.metric(c, behind+"0")
		first := w.keeps("policies", w.key("one"))

		// One bad key holds up all the others, and so does one bad set.
		for _, bad := range []struct{ text, line string }{
			{strings.Replace(good, "  effect", "\teffect", 1), "line 4: this is not YAML: there is a tab"},
			{w.sheet("two", "NoSchedule", "Sick") + "- {}\n", "line 10: type is missing in a set"},
			{strings.Replace(good, w.key("one"), "node.kubernetes.io/not-ready", 1), "line 5: "},
			{strings.Replace(good, "true", "true\n      duration: soon", 1), "line 10: "},
			{"type: Nothing\n", "no key of its data says type: ConditionSets"},
		} {
			w.pin("policies", bad.text, false)
			w.tellsOf(w.name+"-policies", "Trouble", "the last good version stays in force", bad.line)
		}
		w.metric(c, behind+"1")
		w.says(w.node(2), "Sick", corev1.ConditionTrue)
		w.has(w.node(2), noSchedule(w.key("one")))
		w.hasNow(w.node(1), noSchedule(w.key("one")))
		before, err := w.events(w.t.Context(), w.name+"-policies", "Trouble")
		w.must(err)
		m := &corev1.ConfigMap{}
		w.must(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: w.name + "-policies"}, m))
		m.Labels["example.com/touched"] = "by-somebody"
		w.must(w.api.Update(w.t.Context(), m))

		next := w.sheet("two", "NoSchedule", "Sick")
		w.pin("policies", next, true)
		w.has(w.node(1), noSchedule(w.key("two")))
		w.metric(c, behind+"0")
		if second := w.keeps("policies", w.key("two")); second <= first {
			w.t.Errorf("revision %d comes after %d", second, first)
		}
		w.eventually("two versions that were accepted", func() error {
			accepted, err := w.events(w.t.Context(), w.name+"-policies", "Accepted")
			if len(accepted) != 2 {
				return errors.Join(err, fmt.Errorf("%d Events", len(accepted)))
			}
			return err
		})
		if after, err := w.events(w.t.Context(), w.name+"-policies", "Trouble"); err != nil || len(after) != len(before) || len(before) != 6 {
			w.t.Errorf("6 bad versions were told of %d times, and then %d times: %v", len(before), len(after), err)
		}

		// Back to the version that is in force.
		w.pin("policies", "type: ConditionSets\n", false)
		w.metric(c, behind+"1")
		w.pin("policies", next, true)
		w.tellsOf(w.name+"-policies", "Accepted", "back to the version that is in force")
		w.metric(c, behind+"0")
	}
}

func testFullSheet(w *ward) {
	w.admit(healthyNodes(10))
	w.pin("policies", strings.ReplaceAll(`
type: ConditionSets
conditionSets:
- type: Bounded
  effect: NoExecute
  taintKey: example.com/WARD-bounded
  maxUnhealthy: 1
  selector: {matchLabels: {example.com/ward: WARD}}
  conditions: [{ConditionType: Sick, conditionStatus: true, duration: 1s}]
- type: Silent
  effect: NoSchedule
  taintKey: example.com/WARD-silent
  selector:
    matchExpressions:
    - {key: example.com/ward, operator: In, values: [WARD]}
  conditions: [{ConditionType: Sick, conditionStatus: Unknown, evenSilent: true}]
- type: Dry
  effect: NoExecute
  taintKey: example.com/WARD-dry
  dryRun: true
  conditions: [{ConditionType: Sick, conditionStatus: Unknown, evenSilent: true}, {ConditionType: Ready, conditionStatus: true}]
`, "WARD", w.name), true)
	w.tellsOf(w.name+"-policies", "Accepted", "sets: 3")
	w.says(w.node(1), "Sick", corev1.ConditionTrue)
	w.says(w.node(2), "Sick", corev1.ConditionUnknown, because("AgentSilent"))
	w.has(w.node(1), noExecute(w.key("bounded")))
	w.has(w.node(2), noSchedule(w.key("silent")))
	w.says(w.node(3), "Sick", corev1.ConditionTrue)
	w.has(w.node(3), noSchedule(w.key("bounded")))
}

// spoiled are ways to break a file that begins with a set.
var spoiled = []func(string) string{
	func(text string) string { return strings.Replace(text, "  effect", "\teffect", 1) },
	func(text string) string {
		return strings.Replace(text, "conditionStatus: true", "conditionStatus: sick", 1)
	},
	func(text string) string { return text + "- type: [\n" },
	func(text string) string { return strings.Replace(text, "type: ConditionSets", "type: ConditionSet", 1) },
	func(text string) string {
		return strings.Replace(text, "taintKey: example.com/", "taintKey: node.kubernetes.io/", 1)
	},
	func(string) string { return "" },
}

func testSheetStorm(w *ward) {
	const edits = 60
	w.admit(healthyNodes(6))
	w.says(w.node(1), "Sick", corev1.ConditionTrue)
	w.pin("policies", w.sheet("v0", "NoSchedule", "Sick"), true)
	w.has(w.node(1), noSchedule(w.key("v0")))
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range edits {
		<-tick.C
		name := fmt.Sprintf("v%d", i/2%5)
		text := w.sheet(name, []string{"NoSchedule", "NoExecute", "PreferNoSchedule"}[i/2%3], "Sick")
		if i%2 == 1 {
			text = spoiled[i/2%len(spoiled)](text)
		}
		w.pin("policies", text, i%2 == 0)
		if i%10 == 5 { // and the nodes do not wait for it
			w.says(w.node(2), "Sick", map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[i%20 == 5])
		}
	}
	// It ends with a bad one, so that the last good one is what counts.
	w.says(w.node(2), "Sick", corev1.ConditionTrue)
	last := w.sheet("last", "NoSchedule", "Sick")
	w.pin("policies", last, true)
	w.keeps("policies", w.key("last"))
	w.pin("policies", strings.Replace(last, "taintKey", "key", 1), false)
	w.tellsOf(w.name+"-policies", "Trouble", `a set has no field "key"`)
	w.has(w.node(1), noSchedule(w.key("last")))
	w.has(w.node(2), noSchedule(w.key("last")))
	w.has(w.node(3))
}

// testSheetRestart kills the controller while the present version is bad.
func testSheetRestart(c *install.Controller) func(*ward) {
	return func(w *ward) {
		w.admit(healthyNodes(6))
		w.says(w.node(1), "Sick", corev1.ConditionTrue)
		good := w.sheet("kept", "NoExecute", "Sick")
		w.pin("policies", good, true)
		w.has(w.node(1), noExecute(w.key("kept")))
		w.pin("policies", strings.Replace(good, "NoExecute", "Eventually", 1), false)
		w.tellsOf(w.name+"-policies", "Trouble", "line 4")
		w.kill(c)
		w.says(w.node(2), "Sick", corev1.ConditionTrue)
		w.restart(c.Part)
		w.has(w.node(2), noExecute(w.key("kept"))) // after all has been loaded
		w.hasNow(w.node(1), noExecute(w.key("kept")))
		w.metric(c, `autohealer_configmap_not_in_force{configmap="`+w.name+`-policies"} 1`)
		w.says(w.node(1), "Sick", corev1.ConditionFalse)
		w.has(w.node(1))
		w.keeps("policies", w.key("kept"))
	}
}

// testSheetAbsent edits and deletes while the controller is down.
func testSheetAbsent(c *install.Controller) func(*ward) {
	return func(w *ward) {
		w.admit(healthyNodes(6, "Gone", "Lost"))
		w.says(w.node(1), "Sick", corev1.ConditionTrue)
		w.says(w.node(2), "Gone", corev1.ConditionTrue)
		w.says(w.node(3), "Lost", corev1.ConditionTrue)
		w.pin("edited", w.sheet("old", "NoSchedule", "Sick"), true)
		w.pin("deleted", w.sheet("gone", "NoSchedule", "Gone"), true)
		w.pin("lost", w.sheet("lost", "NoSchedule", "Lost"), true)
		w.has(w.node(1), noSchedule(w.key("old")))
		w.has(w.node(2), noSchedule(w.key("gone")))
		w.has(w.node(3), noSchedule(w.key("lost")))
		before, err := w.get(w.t.Context(), w.node(3))
		w.must(err)
		w.must(c.Stop(w.t.Context()))
		w.pin("edited", w.sheet("new", "NoSchedule", "Sick"), true)
		w.must(w.api.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: w.name + "-deleted"}}))
		kept, err := w.revisions("lost")
		w.must(err)
		w.must(w.api.Delete(w.t.Context(), &kept[0]))
		w.restart(c.Part)
		w.has(w.node(1), noSchedule(w.key("new")))
		w.has(w.node(2))
		w.keeps("edited", w.key("new"))
		w.keeps("deleted")
		w.keeps("lost", w.key("lost"))
		// Its taint was not taken away and put back.
		if after, err := w.get(w.t.Context(), w.node(3)); err != nil || after.ResourceVersion != before.ResourceVersion {
			w.t.Errorf("the node of the ConfigMap whose kept version was lost has been written: %v", err)
		}
	}
}

func testSheetUnlabelled(w *ward) {
	w.admit(healthyNodes(4))
	w.says(w.node(1), "Sick", corev1.ConditionTrue)
	w.pin("policies", w.sheet("set", "NoSchedule", "Sick"), true)
	w.has(w.node(1), noSchedule(w.key("set")))
	w.keeps("policies", w.key("set"))
	m := &corev1.ConfigMap{}
	w.must(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: w.name + "-policies"}, m))
	delete(m.Labels, sheetLabel)
	w.must(w.api.Update(w.t.Context(), m))
	w.has(w.node(1))
	w.keeps("policies")
	// With the label, but broken, there is nothing to fall back to.
	m.Labels = map[string]string{sheetLabel: "true"}
	m.Annotations = map[string]string{badMark: "yes"}
	m.Data["sets.yaml"] = "type: ConditionSets"
	w.must(w.api.Update(w.t.Context(), m))
	w.tellsOf(m.Name, "Trouble", "there is no good version yet")
	w.hasNow(w.node(1))
}

func testSheetDeleted(w *ward) {
	w.admit(healthyNodes(4))
	w.says(w.node(1), "Sick", corev1.ConditionTrue)
	w.pin("policies", w.sheet("set", "NoSchedule", "Sick"), true)
	w.has(w.node(1), noSchedule(w.key("set")))
	w.must(w.api.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: w.name + "-policies"}}))
	w.has(w.node(1))
	w.keeps("policies")
	// One of the same name is another one.
	w.pin("policies", "type: ConditionSets\n", false)
	w.tellsOf(w.name+"-policies", "Trouble", "there is no good version yet")
	w.hasNow(w.node(1))
	w.pin("policies", w.sheet("next", "NoSchedule", "Sick"), true)
	w.has(w.node(1), noSchedule(w.key("next")))
}

func testSheetTwice(w *ward) {
	w.admit(healthyNodes(4, "Worse"))
	w.says(w.node(1), "Sick", corev1.ConditionTrue)
	text := w.sheet("Twin", "NoSchedule", "Sick")
	w.pin("first", text, true)
	w.has(w.node(1), noSchedule(w.key("Twin")))
	w.pin("second", strings.Replace(text, w.key("Twin"), w.key("other"), 1), false)
	w.tellsOf(w.name+"-second", "Trouble", "there is no good version yet", "key sets.yaml, line 3: set Twin: ", w.name+"-first")
	w.hasNow(w.node(1), noSchedule(w.key("Twin")))

	// Twice in one ConfigMap is no better.
	w.pin("third", w.sheet("A", "NoSchedule", "Worse")+w.sheet("B", "NoExecute", "Worse")[len("type: ConditionSets\nconditionSets:\n"):], false)
	w.tellsOf(w.name+"-third", "Trouble", "key sets.yaml, line 15: set B: the same conditions")

	// The second takes its turn when the first goes. The judge is told by a mark, and before
	// that: afterwards the controller may be faster.
	m := &corev1.ConfigMap{}
	w.must(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: w.name + "-second"}, m))
	delete(m.Annotations, badMark)
	w.must(w.api.Update(w.t.Context(), m))
	w.must(w.api.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: w.name + "-first"}}))
	w.has(w.node(1), noSchedule(w.key("other")))
	w.tellsOf(w.name+"-second", "Accepted", "sets: 1")
}

// oldRole takes from the controllers what is needed for ConfigMaps with sets, until
// they get it back.
func (w *ward) oldRole() (giveBack func()) {
	w.t.Helper()
	role := &rbacv1.Role{}
	w.must(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: install.Account}, role))
	before := slices.Clone(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "controllerrevisions") || slices.Contains(r.Resources, "configmaps") && slices.Contains(r.Verbs, "list")
	})
	set := func(allowed bool) {
		w.t.Helper()
		w.must(w.api.Update(w.t.Context(), role))
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

// testSheetOldRole runs a controller whose role was not replaced together with it.
func testSheetOldRole(c *install.Controller) func(*ward) {
	return func(w *ward) {
		w.admit(healthyNodes(6))
		w.says(w.node(1), "Sick", corev1.ConditionTrue)
		w.says(w.node(2), "Sick", corev1.ConditionTrue)
		w.pin("policies", w.sheet("kept", "NoExecute", "Sick"), true)
		w.has(w.node(1), noExecute(w.key("kept")))
		w.has(w.node(2), noExecute(w.key("kept")))
		w.keeps("policies", w.key("kept"))
		w.must(c.Stop(w.t.Context()))
		giveBack := w.oldRole()
		w.says(w.node(1), "Sick", corev1.ConditionFalse)
		w.want("api", on("Worse"))
		w.says(w.node(3), "Worse", corev1.ConditionTrue)
		w.restart(c.Part)
		w.has(w.node(3), noSchedule(w.key("api")))
		w.told("api", isAccepted(metav1.ConditionTrue, "Followed"))
		w.metric(c, "autohealer_configmaps_followed 0")
		w.metric(c, "autohealer_leading 1")
		for number := range 2 {
			w.hasNow(w.node(number+1), noExecute(w.key("kept")))
		}
		log, err := c.Log()
		w.must(err)
		for _, resource := range []string{"configmaps", "controllerrevisions"} {
			told := 0
			for line := range strings.Lines(log) {
				if strings.Contains(line, "sets in configmaps not followed for want of a right") && strings.Contains(line, `resource \"`+resource+`\"`) {
					told++
				}
			}
			if told != 1 {
				w.t.Errorf("that %s cannot be read is told %d times:\n%s", resource, told, log)
			}
		}
		giveBack()
		w.metric(c, "autohealer_configmaps_followed 1")
		w.has(w.node(1))
		w.hasNow(w.node(2), noExecute(w.key("kept")))
	}
}

// testSheetHurts has versions refused for what they would do, until they would not.
func testSheetHurts(c *install.Controller) func(*ward) {
	return func(w *ward) {
		nodes := w.admit(healthyNodes(4, "Worse"))
		behind := `autohealer_configmap_not_in_force{configmap="` + w.name + `-policies"} `
		for _, node := range nodes[:3] {
			w.says(node, "Sick", corev1.ConditionTrue)
		}
		w.pin("policies", w.sheet("trap", "NoExecute", "OutOfDisk")+"      duration: 1m\n", true)
		w.tellsOf(w.name+"-policies", "Accepted")
		text := strings.Replace(w.sheet("trap", "NoExecute", "OutOfDisk"), "conditionStatus: true", "conditionStatus: false", 1)
		w.pin("policies", text, false)
		w.tellsOf(w.name+"-policies", "Trouble", "the last good version stays in force", "key sets.yaml, line 9: set trap: ", "Write conditionStatus: True")
		w.pin("policies", w.sheet("near", "NoExecute", "KubletUnhealthy"), false)
		w.tellsOf(w.name+"-policies", "Trouble", "key sets.yaml, line 8: set near: ", "KubeletUnhealthy")

		text = w.sheet("many", "NoSchedule", "Sick")
		w.pin("policies", text, false)
		w.tellsOf(w.name+"-policies", "Trouble", "key sets.yaml, line 8: set many: ", "3", w.node(1), "annotate the ConfigMap with autohealer.resourcestack.com/accept-impact")
		w.metric(c, behind+"1")
		w.hasNow(nodes[0])
		// Two of them get well. That is no reason to follow it: somebody has to look at it.
		w.says(nodes[1], "Sick", corev1.ConditionFalse)
		w.says(nodes[2], "Sick", corev1.ConditionFalse)
		w.want("later", on("Worse"))
		w.told("later", isFollowed)
		w.metric(c, behind+"1")
		w.hasNow(nodes[0])
		w.pin("policies", text+"# seen\n", true)
		w.metric(c, behind+"0")
		w.has(nodes[0], noSchedule(w.key("many")))
		told, err := w.events(w.t.Context(), w.name+"-policies", "Trouble")
		if err != nil || len(told) != 3 {
			w.t.Errorf("3 bad versions were told of %d times: %v", len(told), err)
		}
		w.drop("later")

		// With somebody's word for it, the number is no matter.
		for _, node := range nodes[1:] {
			w.says(node, "Worse", corev1.ConditionTrue)
		}
		w.pin("policies", w.sheet("worse", "NoSchedule", "Worse"), false)
		w.tellsOf(w.name+"-policies", "Trouble", "set worse: ")
		m := &corev1.ConfigMap{}
		w.must(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: w.name + "-policies"}, m))
		m.Annotations = map[string]string{v1alpha1.AcceptImpactAnnotation: "true"}
		w.must(w.api.Update(w.t.Context(), m))
		w.has(nodes[3], noSchedule(w.key("worse")))
		w.has(nodes[0])
	}
}
