package e2e

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// change is a change of a set whose taint is on a node.
type change struct {
	name string
	from func(*v1alpha1.ConditionSetSpec)
	make func(*scope)
	want func(*scope) []string
}

func editing(edit func(*v1alpha1.ConditionSetSpec)) func(*scope) {
	return func(w *scope) {
		w.t.Helper()
		w.editSet("set", edit)
	}
}

func becomes(taints ...string) func(*scope) []string { return func(*scope) []string { return taints } }

func nothing(*scope) []string { return nil }

func keeps(effect string) func(*scope) []string {
	return func(w *scope) []string { return []string{w.key("set") + ":" + effect} }
}

var changes = []change{
	{"another key", nil, editing(func(s *v1alpha1.ConditionSetSpec) { s.TaintKey = "example.com/another" }), becomes("example.com/another:NoSchedule")},
	{"another key of NoExecute", evict(everyone), editing(func(s *v1alpha1.ConditionSetSpec) { s.TaintKey = "example.com/another" }), becomes("example.com/another:NoExecute")},
	{"a stronger effect", nil, editing(evict(everyone)), keeps("NoExecute")},
	{"a weaker effect", evict(everyone), editing(effect(corev1.TaintEffectNoSchedule)), keeps("NoSchedule")},
	{"the weakest effect", nil, editing(effect(corev1.TaintEffectPreferNoSchedule)), keeps("PreferNoSchedule")},
	{"another selector", nil, editing(func(s *v1alpha1.ConditionSetSpec) { s.Selector.MatchLabels["pool"] = "other" }), nothing},
	{"another selector of NoExecute", evict(everyone), editing(func(s *v1alpha1.ConditionSetSpec) { s.Selector.MatchLabels["pool"] = "other" }), nothing},
	{"another condition", nil, editing(on("Worse")), nothing},
	{"an additional condition", nil, editing(on("Unhealthy", "Worse")), nothing},
	{"another type", nil, editing(func(s *v1alpha1.ConditionSetSpec) { s.Type = "SameAsEver" }), keeps("NoSchedule")},
	{"deleted", nil, deleting, nothing},
	{"deleted with NoExecute", evict(everyone), deleting, nothing},
	{"renamed", evict(everyone), renaming(""), func(w *scope) []string { return []string{noExecute(w.key("renamed"))} }},
	{"renamed with the same key", evict(everyone), renaming("set"), keeps("NoExecute")},
	{"deleted and created again", evict(everyone), replacing, keeps("NoSchedule")},
	{"healthy again", evict(everyone), recovering, nothing},
	{"the condition removed", nil, losing, nothing},
	{"the node relabelled", nil, relabelling, nothing},
}

func deleting(w *scope) {
	w.t.Helper()
	w.deleteSet("set")
}

// renaming gives the set another name, with the key of the set of that name.
func renaming(key string) func(*scope) {
	return func(w *scope) {
		w.t.Helper()
		w.deleteSet("set")
		w.createSet("renamed", evict(everyone), func(s *v1alpha1.ConditionSetSpec) {
			if key != "" {
				s.TaintKey = w.key(key)
			}
		})
	}
}

func replacing(w *scope) {
	w.t.Helper()
	w.deleteSet("set")
	w.createSet("set")
}

func recovering(w *scope) {
	w.t.Helper()
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
}

func losing(w *scope) {
	w.t.Helper()
	w.loses(w.node(1), "Unhealthy")
}

func relabelling(w *scope) {
	w.t.Helper()
	w.relabel(w.node(1), "elsewhere")
}

// testChanges makes all changes at once. If absent is set, that controller is down meanwhile.
func testChanges(w *scope, absent *install.Controller) {
	scopes := make([]*scope, len(changes))
	for i, c := range changes {
		scopes[i] = w.scope(w.t, fmt.Sprintf("%s-%02d", w.name, i))
		node := scopes[i].createNodes(testbed.Nodes{Count: 1})[0]
		from := c.from
		if from == nil {
			from = func(*v1alpha1.ConditionSetSpec) {}
		}
		scopes[i].createSet("set", from)
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	}
	for i, c := range changes {
		before := keeps("NoSchedule")
		if c.from != nil {
			before = keeps("NoExecute")
		}
		scopes[i].has(scopes[i].node(1), before(scopes[i])...)
	}
	if absent != nil {
		testkit.Must(w.t, absent.Stop(w.t.Context()))
	}
	for i, c := range changes {
		c.make(scopes[i])
	}
	if absent != nil {
		w.restart(absent.Part)
	}
	for i, c := range changes {
		scopes[i].run(c.name, func(w *scope) {
			w.has(w.node(1), c.want(w)...)
			for _, set := range w.sets() {
				w.hasStatus(set.Name[len(w.name)+1:], isAccepted(metav1.ConditionTrue, "Followed"))
			}
		})
	}
	w.judge(history.Config{}, history.Counts{Placements: len(changes)}) // of all scopes below this one
	for _, subscope := range scopes {
		subscope.deleteNodes()
	}
}
