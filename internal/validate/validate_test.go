package validate_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// longestMessage is the maximum message length of a status condition.
const longestMessage = 32768

func reasons(v validate.Verdict) (list []validate.Reason) {
	for _, p := range v.Problems {
		list = append(list, p.Reason)
	}
	return list
}

// speaks checks the words of a verdict.
func speaks(tb rapid.TB, v validate.Verdict) {
	tb.Helper()
	for _, p := range v.Problems {
		if p.Field == "" || p.Text == "" || p.Reason == "" {
			tb.Fatalf("a problem says too little: %+v", p)
		}
	}
	if err := v.Err(); err != nil && (len(err.Error()) > longestMessage || !utf8.ValidString(err.Error())) {
		tb.Fatalf("no status or answer takes an error of %d bytes: %q", len(err.Error()), err)
	}
	for _, w := range validate.Lines(v.Warnings) {
		if w == "" || strings.ContainsAny(w, "\r\n") {
			tb.Fatalf("a warning is not one line: %q", w)
		}
	}
}

// sound checks what must hold for every verdict.
func sound(tb rapid.TB, c validate.Case) validate.Verdict {
	tb.Helper()
	v := validate.ConditionSet(c)
	if diff := cmp.Diff(v, validate.ConditionSet(c)); diff != "" {
		tb.Fatalf("the second verdict is another (-first +second):\n%s", diff)
	}
	if (v.Err() == nil) != (len(v.Problems) == 0) {
		tb.Fatalf("%d problems make the error %v", len(v.Problems), v.Err())
	}
	for _, p := range v.Problems {
		if !strings.Contains(v.Err().Error(), p.String()) {
			tb.Fatalf("the error leaves out %q", p)
		}
	}
	speaks(tb, v)
	standing := validate.StoredConditionSet(c)
	if len(standing.Warnings) > 0 {
		tb.Fatalf("the verdict on a set in force is %+v", standing)
	}
	for _, p := range standing.Problems {
		if !slices.Contains(v.Problems, p) {
			tb.Fatalf("a set in force has a problem that a new set does not have: %s", p)
		}
		if p.Reason == validate.Impact || p.Reason == validate.NearMiss {
			tb.Fatalf("a set that stands falls with the nodes of the moment: %s", p)
		}
	}
	return v
}

var (
	someTypes    = []string{"KernelDeadlock", "OutOfDisk", "Ready", "DiskPressure", "Custom", "Custm", "KubletUnhealthy", "OOMKilling"}
	someStatuses = []v1alpha1.ConditionStatus{"True", "False", "Unknown", "true", "unknown", "broken", ""}
	someBounds   = []intstr.IntOrString{intstr.FromInt32(0), intstr.FromInt32(3), intstr.FromString("10%"), intstr.FromString("49%"), intstr.FromString("100%"), intstr.FromString("half"), intstr.FromString("")}
	someEffects  = []corev1.TaintEffect{"PreferNoSchedule", "NoSchedule", "NoExecute"}
)

func drawCluster(t *rapid.T) cluster {
	c := cluster{}
	for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
		n := node{map[string]string{"pool": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pool")}, map[string]triage.Status{}}
		if rapid.IntRange(0, 3).Draw(t, "control plane") == 0 {
			n.labels["node-role.kubernetes.io/control-plane"] = ""
		}
		for _, name := range []string{"KernelDeadlock", "OutOfDisk", "Ready", "Custom"} {
			n.conditions[name] = rapid.SampledFrom([]triage.Status{triage.Missing, triage.True, triage.True, triage.False, triage.Unknown}).Draw(t, name)
			if n.conditions[name] == triage.Missing {
				delete(n.conditions, name)
			}
		}
		c[fmt.Sprintf("n%d", i)] = n
	}
	return c
}

// drawSet returns a set that compiles, unless it is spoiled.
func drawSet(t *rapid.T, name string, spoiled bool) *v1alpha1.ConditionSet {
	pick := func(n int) int { // the first few of n are valid
		if spoiled {
			return n
		}
		return 3
	}
	set := &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	set.Spec.Type = rapid.SampledFrom([]string{"T1", "T2", "T3", ""}[:pick(4)]).Draw(t, "type")
	set.Spec.Effect = rapid.SampledFrom(append(slices.Clone(someEffects), "Evict")[:pick(4)]).Draw(t, "effect")
	set.Spec.TaintKey = rapid.SampledFrom([]string{"example.com/a", "a", "example.com/b", "karpenter.sh/a", "a b", "k8s.io/", ""}[:pick(7)]).Draw(t, "key")
	set.Spec.Conditions = map[string]v1alpha1.SetCondition{}
	for range rapid.IntRange(1, 3).Draw(t, "conditions") {
		types := someTypes
		if spoiled {
			types = append(slices.Clone(types), "", strings.Repeat("x", 317))
		}
		set.Spec.Conditions[rapid.SampledFrom(types).Draw(t, "condition")] = v1alpha1.SetCondition{
			Status:   rapid.SampledFrom(someStatuses[:pick(len(someStatuses))]).Draw(t, "status"),
			Duration: rapid.SampledFrom([]string{"", "0s", "5m", "long"}[:pick(4)]).Draw(t, "duration"),
		}
	}
	if rapid.Bool().Draw(t, "selects") {
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": rapid.SampledFrom([]string{"a", "b", "c", "? c"}[:pick(4)]).Draw(t, "pool")}}
	}
	if rapid.Bool().Draw(t, "bounded") {
		set.Spec.MaxUnhealthy = new(rapid.SampledFrom(someBounds[:min(5, pick(len(someBounds))+2)]).Draw(t, "bound"))
	}
	set.Spec.DryRun = rapid.IntRange(0, 3).Draw(t, "dry run") == 0
	if rapid.IntRange(0, 3).Draw(t, "annotated") == 0 {
		set.Annotations = map[string]string{v1alpha1.AcceptImpactAnnotation: rapid.SampledFrom([]string{"true", "yes"}).Draw(t, "accept")}
	}
	if spoiled && rapid.IntRange(0, 4).Draw(t, "unreadable") == 0 {
		set.Spec = v1alpha1.ConditionSetSpec{Unreadable: "it is torn"}
	}
	return set
}

// often draws several times per check, so that every run covers rare cases.
func often(t *testing.T, draw func(*rapid.T)) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			draw(t)
		}
	})
}

func TestVerdictsAreSound(t *testing.T) {
	saw := map[validate.Reason]int{}
	often(t, func(t *rapid.T) {
		nodes := drawCluster(t)
		c := validate.Case{Set: drawSet(t, "mine", rapid.Bool().Draw(t, "spoiled"))}
		if rapid.Bool().Draw(t, "simple") {
			c.Set.Spec.Conditions = map[string]v1alpha1.SetCondition{"Custom": {Status: "True"}}
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "others") {
			c.Others = append(c.Others, drawSet(t, fmt.Sprint("other", i), rapid.Bool().Draw(t, "spoiled")))
		}
		if rapid.Bool().Draw(t, "in force") {
			c.Before = drawSet(t, "mine", rapid.Bool().Draw(t, "spoiled"))
		}
		if rapid.IntRange(0, 4).Draw(t, "blind") > 0 {
			c.Reported, c.Impact = nodes.reported(), nodes.impact
		}
		v := sound(t, c)
		for _, reason := range reasons(v) {
			saw[reason]++
		}
		if slices.Contains(reasons(v), validate.Impact) {
			testkit.Require(t, !c.Set.Spec.DryRun, "a dry run is refused for its impact")
			testkit.Require(t, c.Set.Annotations[v1alpha1.AcceptImpactAnnotation] != "true", "an impact that is accepted is refused")
			if strings.Contains(v.Err().Error(), "no node matches") {
				t.Fatalf("an impact on no node is rejected: %v", v.Err())
			}
		}
	})
	t.Logf("saw refusals %v", saw)
	for _, reason := range []validate.Reason{validate.Invalid, validate.HealthyStatus, validate.NearMiss, validate.Duplicate, validate.ReservedTaintKey, validate.Impact} {
		testkit.Check(t, saw[reason] != 0, "no set was refused for %s: the draw is too tame", reason)
	}
}

// A change that only narrows a set is never rejected for its impact.
func TestNarrowingIsNeverRefusedForItsImpact(t *testing.T) {
	over := 0
	often(t, func(t *rapid.T) {
		nodes := drawCluster(t)
		before := drawSet(t, "mine", false)
		before.Spec.DryRun, before.Annotations = false, nil
		after := before.DeepCopy()
		narrowings := []func(){
			func() {
				after.Spec.Effect = someEffects[rapid.IntRange(0, slices.Index(someEffects, before.Spec.Effect)).Draw(t, "weaker")]
			},
			func() {
				if after.Spec.Effect == "NoExecute" {
					return // other nodes could be emptied
				}
				after.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "node-role.kubernetes.io/control-plane", Operator: "DoesNotExist"}}}
				if before.Spec.Selector != nil {
					after.Spec.Selector.MatchLabels = before.Spec.Selector.MatchLabels
				}
			},
			func() {
				if after.Spec.Effect != "NoExecute" {
					after.Spec.Conditions["Another"] = v1alpha1.SetCondition{Status: "True"}
				}
			},
			func() { after.Spec.MaxUnhealthy = new(intstr.FromInt32(0)) },
			func() { after.Labels = map[string]string{"team": "a"} },
		}
		for i, narrow := range narrowings {
			if rapid.Bool().Draw(t, fmt.Sprint("narrowing ", i)) {
				narrow()
			}
		}
		c := validate.Case{Set: after, Reported: nodes.reported(), Impact: nodes.impact}
		if slices.Contains(reasons(validate.ConditionSet(c)), validate.Impact) {
			over++ // a new set would be rejected
		}
		c.Before = before
		if v := sound(t, c); slices.Contains(reasons(v), validate.Impact) {
			t.Fatalf("refused: %v\nbefore %+v\nafter %+v", v.Err(), before.Spec, after.Spec)
		}
	})
	t.Logf("saw %d changes that would be refused as new sets", over)
	testkit.Check(t, over != 0, "the narrowing was never what saved a set")
}

// A new set that matches too many nodes is rejected for every effect.
func TestImpactIsRefusedExactlyAboveTheBound(t *testing.T) {
	var above, within int
	often(t, func(t *rapid.T) {
		nodes := drawCluster(t)
		set := drawSet(t, "mine", false)
		set.Spec.DryRun, set.Annotations = false, nil
		set.Spec.Conditions = map[string]v1alpha1.SetCondition{"Custom": {Status: "True"}}
		v := sound(t, validate.Case{Set: set, Reported: nodes.reported(), Impact: nodes.impact})
		bound := "49%"
		if set.Spec.MaxUnhealthy != nil {
			bound = set.Spec.MaxUnhealthy.String()
		}
		selected, matching := 0, 0
		for _, n := range nodes {
			if set.Spec.Selector != nil && n.labels["pool"] != set.Spec.Selector.MatchLabels["pool"] {
				continue
			}
			selected++
			if n.conditions["Custom"] == triage.True {
				matching++
			}
		}
		allowed := map[string]int{"0": 0, "3": 3, "10%": selected / 10, "49%": selected * 49 / 100, "100%": selected}[bound]
		if strings.HasSuffix(bound, "%") && allowed == 0 {
			allowed = 1
		}
		if refused := slices.Contains(reasons(v), validate.Impact); refused != (matching > allowed) {
			t.Fatalf("%d of %d match and %s is %d: %v", matching, selected, bound, allowed, v.Err())
		}
		if matching > allowed {
			above++
		} else {
			within++
		}
		told := len(v.Warnings) > 0 && strings.Contains(v.Warnings[0].String(), fmt.Sprintf("%d of %d selected node", matching, selected))
		if told != (0 < matching && matching <= allowed) {
			t.Fatalf("%d of %d match within %d, and the warnings are %q", matching, selected, allowed, v.Warnings)
		}
	})
	testkit.Check(t, above != 0 && within != 0, "%d above and %d within: one side was never tried", above, within)
}

// An evaluation of ten thousand nodes takes a millisecond, and the request waits. There is
// one per verdict, and more only if the bound is exceeded and the change may narrow the set.
func TestNumberOfEvaluations(t *testing.T) {
	nodes := cluster{}
	testkit.Must(t, nodes.add("worker", 10, []string{"Custom:True"}))
	set := func(effect corev1.TaintEffect, bound string) *v1alpha1.ConditionSet {
		s := &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
		s.Spec = v1alpha1.ConditionSetSpec{
			Type: "T", Effect: effect, TaintKey: "example.com/a", MaxUnhealthy: new(intstr.FromString(bound)),
			Conditions: map[string]v1alpha1.SetCondition{"Custom": {Status: "True"}},
		}
		return s
	}
	for name, test := range map[string]struct {
		set, before *v1alpha1.ConditionSet
		refused     bool
		looks       int
	}{
		"new":                           {set: set("NoExecute", "100%"), looks: 1},
		"new, too much":                 {set: set("NoExecute", "10%"), refused: true, looks: 1},
		"changed":                       {set: set("NoExecute", "100%"), before: set("NoExecute", "10%"), looks: 1},
		"changed, too much, narrower":   {set: set("NoSchedule", "10%"), before: set("NoExecute", "10%"), looks: 3},
		"changed, too much, stronger":   {set: set("NoExecute", "10%"), before: set("NoSchedule", "10%"), refused: true, looks: 1},
		"changed, too much, more of it": {set: set("NoExecute", "20%"), before: set("NoExecute", "10%"), refused: true, looks: 2},
	} {
		t.Run(name, func(t *testing.T) {
			looks := 0
			v := validate.ConditionSet(validate.Case{Set: test.set, Before: test.before, Reported: nodes.reported(), Impact: func(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error) {
				looks++
				return nodes.impact(rule, beyond...)
			}})
			if refused := v.Err() != nil; refused != test.refused || looks != test.looks {
				t.Errorf("after %d looks, want %d: %v", looks, test.looks, v.Err())
			}
		})
	}
}

func TestBefore(t *testing.T) {
	set := func(name string, created time.Time) *v1alpha1.ConditionSet {
		return &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created)}}
	}
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	order := []*v1alpha1.ConditionSet{
		set("z", noon), set("a", noon.Add(time.Second)), set("b", noon.Add(time.Second)), set("a", time.Time{}), set("b", time.Time{}),
	}
	for i, a := range order {
		for j, b := range order {
			if got := validate.Before(a, b); got != (i < j) {
				t.Errorf("%s of %v before %s of %v: %v", a.Name, a.CreationTimestamp, b.Name, b.CreationTimestamp, got)
			}
		}
	}
}

func TestManyLongNamesFitAStatus(t *testing.T) {
	set := &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("n", 253)}}
	set.Spec = v1alpha1.ConditionSetSpec{Type: strings.Repeat("t", 316), Effect: "NoExecute", TaintKey: "example.com/a", Conditions: map[string]v1alpha1.SetCondition{}}
	nodes := cluster{}
	n := node{conditions: map[string]triage.Status{}}
	for i := range 32 {
		word := strings.Repeat(string(rune('a'+i%26)), 300)
		n.conditions[fmt.Sprintf("Fan%sBroken%02d", word, i)] = triage.True
		set.Spec.Conditions[fmt.Sprintf("Fan%sBrokn%02d", word, i)] = v1alpha1.SetCondition{Status: "True"}
	}
	nodes[strings.Repeat("n", 253)] = n
	other := set.DeepCopy()
	other.Name = strings.Repeat("o", 253)
	v := sound(t, validate.Case{Set: set, Others: []*v1alpha1.ConditionSet{other}, Reported: nodes.reported(), Impact: nodes.impact})
	testkit.Check(t, len(v.Problems) == 33, "%d problems, want 33", len(v.Problems))
}

// Every stored set gets a verdict.
func FuzzConditionSet(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a"},"spec":{"type":"T","effect":"NoExecute","taintKey":"a/b","conditions":{"OutOfDisk":{"status":false}}}}`), []byte(`{}`), false)
	f.Add([]byte(`{"spec":{"maxUnhealthy":{},"dryRun":7}}`), []byte(`{"spec":{"type":"T","conditions":{"A":{"status":"unknown"}}}}`), true)
	f.Add([]byte(`{"metadata":{"generateName":"a-"},"spec":{"type":"T","effect":"NoSchedule","taintKey":"karpenter.sh/b","maxUnhealthy":"0%","conditions":{"KubletUnhealthy":{"status":1}}}}`), []byte(`{}`), false)
	f.Fuzz(func(t *testing.T, one, other []byte, inForce bool) {
		read := func(data []byte) *v1alpha1.ConditionSet {
			set := &v1alpha1.ConditionSet{}
			if json.Unmarshal(data, set) != nil {
				t.Skip("not even an object")
			}
			return set
		}
		nodes := cluster{}
		testkit.Must(t, nodes.add("n", 3, []string{"pool=a", "Ready:True", "OutOfDisk:False", "A:Unknown"}))
		c := validate.Case{Set: read(one), Others: []*v1alpha1.ConditionSet{read(other)}, Reported: nodes.reported(), Impact: nodes.impact}
		if inForce {
			c.Before = read(other)
		}
		sound(t, c)
	})
}

// The shipped defaults and examples are accepted without a warning, also together, in a
// cluster that reports no conditions yet.
func TestShippedSetsAreAccepted(t *testing.T) {
	for _, path := range []string{
		"../../deploy/defaults/conditionsets.yaml", "../../api/autohealer/v1alpha1/testdata/seed.yaml", "../../cmd/demo/conditionsets.yaml",
		"../../examples/condition-set.yaml", "../../examples/tutorial.yaml",
	} {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			sets := slices.DeleteFunc(documents[v1alpha1.ConditionSet](t, path), func(s *v1alpha1.ConditionSet) bool { return s.Kind != "ConditionSet" })
			testkit.Require(t, len(sets) != 0, "there is no set: this test looks at nothing")
			nodes := cluster{}
			testkit.Must(t, nodes.add("n", 3, []string{"Ready:True"}))
			for _, set := range sets {
				v := sound(t, validate.Case{Set: set, Others: sets, Reported: nodes.reported(), Impact: nodes.impact})
				if v.Err() != nil || len(v.Warnings) > 0 {
					t.Errorf("%s: %v, %q", set.Name, v.Err(), v.Warnings)
				}
			}
		})
	}
}
