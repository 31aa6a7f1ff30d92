package treat

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

var (
	before = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	now    = before.Add(time.Hour + 300*time.Millisecond)
)

func rule(name string) triage.RuleID {
	return triage.RuleID{Kind: policykind.ConditionSet, Name: name}
}

func noted(name, key string, effect corev1.TaintEffect) ownership.Taint {
	return ownership.Taint{Rule: ownership.Rule(rule(name)), Key: key, Effect: effect, Added: before}
}

func wanted(name, key string, effect triage.Effect) triage.PlannedTaint {
	return triage.PlannedTaint{
		Taint:  triage.Taint{Rule: rule(name), Key: key, Effect: effect},
		Reason: triage.Reason{Code: triage.Tainted, Rule: rule(name)},
	}
}

// node returns a node with a record, the taints of the record, and others.
func node(note []ownership.Taint, others ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Annotations: map[string]string{"other": "one"}}}
	if text, some := (ownership.Record{Taints: note}).Encode(); some {
		n.Annotations[ownership.Annotation] = text
	}
	n.Spec.Taints = slices.Clone(others)
	for _, t := range note {
		if !slices.ContainsFunc(n.Spec.Taints, t.Is) {
			n.Spec.Taints = append(n.Spec.Taints, t.Taint())
		}
	}
	return n
}

func TestPrepare(t *testing.T) {
	theirs := corev1.Taint{Key: "theirs", Value: "v", Effect: corev1.TaintEffectNoSchedule}
	fresh := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return ownership.Taint{Key: key, Effect: effect, Added: now.Truncate(time.Second)}.Taint()
	}
	plans := func(taints ...triage.PlannedTaint) triage.Plan { return triage.Plan{Taints: taints} }
	with := func(n *corev1.Node, change func(*corev1.Node)) *corev1.Node {
		change(n)
		return n
	}
	held := []ownership.Taint{noted("a", "k", "NoExecute")}
	tests := []struct {
		name    string
		node    *corev1.Node
		plan    triage.Plan
		taints  []corev1.Taint // nil means no write
		placed  []string       // rules
		removed []string
		takes   []string
		again   []string
	}{
		{name: "writes nothing where nothing is wanted", node: node(nil, theirs)},
		{name: "writes nothing where everything is there", node: node(held, theirs), plan: plans(wanted("a", "k", triage.NoExecute))},
		{name: "adds a taint behind those of others", node: node(nil, theirs), plan: plans(wanted("a", "k", triage.NoSchedule)),
			taints: []corev1.Taint{theirs, fresh("k", "NoSchedule")}, placed: []string{"a"}},
		{name: "a new NoExecute takes a place", node: node(nil), plan: plans(wanted("a", "k", triage.NoExecute)),
			taints: []corev1.Taint{fresh("k", "NoExecute")}, placed: []string{"a"}, takes: []string{"a"}},
		{name: "exchanges the effect in one write",
			node: node([]ownership.Taint{noted("a", "k", "NoSchedule")}, theirs), plan: plans(wanted("a", "k", triage.NoExecute)),
			taints: []corev1.Taint{theirs, fresh("k", "NoExecute")}, placed: []string{"a"}, removed: []string{"a"}, takes: []string{"a"}},
		{name: "takes its own away and leaves the others",
			node: node(held, theirs), plan: triage.Plan{Findings: []triage.Reason{{Code: triage.Recovered, Rule: rule("a")}}},
			taints: []corev1.Taint{theirs}, removed: []string{"a"}},
		{name: "leaves a taint with a reserved key, whatever the record says",
			node:   node([]ownership.Taint{noted("a", "k", "NoExecute"), noted("a", "node.kubernetes.io/unreachable", "NoExecute")}),
			taints: []corev1.Taint{noted("", "node.kubernetes.io/unreachable", "NoExecute").Taint()}, removed: []string{"a"}},
		{name: "accepts an equal taint of another component",
			node: node(nil, corev1.Taint{Key: "k", Effect: "NoExecute"}), plan: plans(wanted("a", "k", triage.NoExecute))},
		{name: "adds to another component's taint with another effect",
			node: node(nil, corev1.Taint{Key: "k", Effect: "NoExecute"}), plan: plans(wanted("a", "k", triage.NoSchedule)),
			taints: []corev1.Taint{{Key: "k", Effect: "NoExecute"}, fresh("k", "NoSchedule")}, placed: []string{"a"}},
		{name: "hands a taint over to the rule that now wants it, which takes a place of its own",
			node: node([]ownership.Taint{noted("old", "k", "NoExecute")}), plan: plans(wanted("new", "k", triage.NoExecute)),
			taints: []corev1.Taint{noted("", "k", "NoExecute").Taint()}, takes: []string{"new"}},
		{name: "two rules share one taint", node: node(nil), plan: plans(wanted("a", "k", triage.NoExecute), wanted("b", "k", triage.NoExecute)),
			taints: []corev1.Taint{fresh("k", "NoExecute")}, placed: []string{"a", "b"}, takes: []string{"a", "b"}},
		{name: "one of two that share a taint lets go of it",
			node: node([]ownership.Taint{noted("a", "k", "NoExecute"), noted("b", "k", "NoExecute")}), plan: plans(wanted("b", "k", triage.NoExecute)),
			taints: []corev1.Taint{noted("", "k", "NoExecute").Taint()}},
		{name: "places a taint again that was removed, and counts it again",
			node: with(node(held), func(n *corev1.Node) { n.Spec.Taints = nil }), plan: plans(wanted("a", "k", triage.NoExecute)),
			taints: []corev1.Taint{fresh("k", "NoExecute")}, placed: []string{"a"}, takes: []string{"a"}, again: []string{"a"}},
		{name: "leaves an equal taint to the component that replaced ours", node: with(node(held), func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = nil }),
			taints: []corev1.Taint{{Key: "k", Effect: "NoExecute"}}},
		{name: "a note that cannot be read is left alone while there is nothing to note",
			node: with(node(nil, theirs), func(n *corev1.Node) { n.Annotations[ownership.Annotation] = "scribble" })},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			untouched := test.node.DeepCopy()
			change := Prepare(test.node, test.plan, now)
			testkit.Equal(t, "the node itself was changed", untouched, test.node)
			if change == nil {
				testkit.Require(t, test.taints == nil, "nothing is to be written")
				return
			}
			testkit.Require(t, test.taints != nil, "%+v is to be written", change)
			testkit.Equal(t, "taints", test.taints, change.Made("8").Spec.Taints)
			var placed, removed, takes, again []string
			for _, p := range change.Placed {
				placed = append(placed, p.Rule.Name)
			}
			for _, r := range change.Removed {
				removed = append(removed, r.Rule.Name)
			}
			for _, r := range change.Takes {
				takes = append(takes, r.Name)
			}
			for _, r := range change.Again {
				again = append(again, r.Name)
			}
			testkit.Equal(t, "placed", test.placed, placed)
			testkit.Equal(t, "placed again", test.again, again)
			testkit.Equal(t, "removed", test.removed, removed)
			testkit.Equal(t, "takes", test.takes, takes)
		})
	}
}

func TestPrepareNotesMemories(t *testing.T) {
	memory := triage.Memory{Rule: rule("a"), Condition: "C", Since: before, Transition: now}
	plan := triage.Plan{Remember: []triage.Memory{memory}}
	change := Prepare(node(nil), plan, now)
	testkit.Require(t, change != nil, "nothing is to be written")
	made := change.Made("8")
	if again := Prepare(made, plan, now); again != nil {
		t.Errorf("%+v is to be written once more", again)
	}
	if forgotten := Prepare(made, triage.Plan{}, now); forgotten == nil {
		t.Error("what need not be remembered any more is kept")
	}
}

func TestPrepareNotesThatANodeWasReady(t *testing.T) {
	change := Prepare(node(nil), triage.Plan{Initialized: true}, now)
	testkit.Require(t, change != nil, "nothing is to be written")
	testkit.Check(t, len(change.Takes)+len(change.Placed)+len(change.Removed) == 0, "the change is %+v", change)
	made := change.Made("8")
	for _, plan := range []triage.Plan{{Initialized: true}, {}} { // the note is permanent
		if again := Prepare(made, plan, now); again != nil {
			t.Errorf("%+v is to be written once more", again)
		}
	}
	if note, err := ownership.Read(Fence(made, "other").Made("9").Annotations); err != nil || !note.Initialized {
		t.Errorf("a fence leaves %+v, %v", note, err)
	}
}

// The patch names the version of the node, so a newer value of the annotation is not lost.
func TestPrepareRemovesAPauseThatHasExpired(t *testing.T) {
	paused := func(value string) *corev1.Node {
		n := node(nil)
		n.Annotations[nodepause.Annotation] = value
		return n
	}
	for _, value := range []string{"until=2026-11-15T13:00:01Z by=anna", "until=tomorrow"} {
		if change := Prepare(paused(value), triage.Plan{}, now); change != nil {
			t.Errorf("with the pause %q, %+v is to be written", value, change)
		}
	}
	plan := triage.Plan{Taints: []triage.PlannedTaint{wanted("a", "k", triage.NoSchedule)}}
	for _, plan := range []triage.Plan{{}, plan} { // with a taint in the same write
		n := paused("until=2026-11-15T13:00:00Z by=anna")
		change := Prepare(n, plan, now)
		testkit.Require(t, change != nil, "nothing is to be written")
		made := change.Made("8")
		if _, is := made.Annotations[nodepause.Annotation]; is || made.Annotations["other"] != "one" || len(made.Spec.Taints) != len(plan.Taints) {
			t.Errorf("the node becomes %+v", made)
		}
		patch := testkit.Value(change.patch()).Must(t)
		patched := testkit.Value(jsonpatch.MergePatch(testkit.Value(json.Marshal(n)).Must(t), patch)).Must(t)
		var got corev1.Node
		testkit.Must(t, json.Unmarshal(patched, &got))
		testkit.Equal(t, "annotations", made.Annotations, got.Annotations)
		testkit.Same(t, got.ResourceVersion, n.ResourceVersion, "the version that the patch requires")
		if again := Prepare(made, plan, now); again != nil {
			t.Errorf("%+v is to be written once more", again)
		}
	}
}

func TestFenceChangesTheNodeAndNothingElse(t *testing.T) {
	n := node([]ownership.Taint{noted("a", "k", "NoExecute")}, corev1.Taint{Key: "theirs", Effect: "NoSchedule"})
	made := Fence(n, "other").Made("8")
	testkit.Equal(t, "the fence changed the taints", n.Spec, made.Spec)
	if n.Annotations[ownership.Annotation] == made.Annotations[ownership.Annotation] {
		t.Error("the note is the same: the node would keep its version")
	}
	plan := triage.Plan{Taints: []triage.PlannedTaint{wanted("a", "k", triage.NoExecute)}}
	change := Prepare(made, plan, now)
	if change == nil || change.Made("9").Annotations[ownership.Annotation] != n.Annotations[ownership.Annotation] {
		t.Error("the fence is not taken down again")
	}
}

// For any node and plan: taints of others stay, ours are exactly the planned ones, and one
// write is sufficient.
func TestPrepareKeepsToItsOwn(t *testing.T) {
	var writes, foreign, served int
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SampledFrom([]string{"a", "b", "c"})
		keys := rapid.SampledFrom([]string{"k", "l"})
		effects := []triage.Effect{triage.PreferNoSchedule, triage.NoSchedule, triage.NoExecute}
		var note []ownership.Taint
		for _, name := range []string{"a", "b", "old"} {
			if rapid.Bool().Draw(t, "noted "+name) {
				effect := corev1.TaintEffect(rapid.SampledFrom(effects).Draw(t, "effect").String())
				note = append(note, noted(name, keys.Draw(t, "key"), effect))
			}
		}
		n := node(note)
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(corev1.Taint) bool { return rapid.IntRange(0, 4).Draw(t, "lost") == 0 })
		for range rapid.IntRange(0, 3).Draw(t, "others") {
			other := corev1.Taint{
				Key: rapid.SampledFrom([]string{"k", "l", "theirs"}).Draw(t, "key"), Value: rapid.SampledFrom([]string{"", "v"}).Draw(t, "value"),
				Effect: corev1.TaintEffect(rapid.SampledFrom(effects).Draw(t, "effect").String()),
			}
			if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == other.Key && t.Effect == other.Effect }) {
				n.Spec.Taints = slices.Insert(n.Spec.Taints, rapid.IntRange(0, len(n.Spec.Taints)).Draw(t, "at"), other)
			}
		}
		var plan triage.Plan
		for range rapid.IntRange(0, 2).Draw(t, "wanted") {
			w := wanted(names.Draw(t, "rule"), keys.Draw(t, "key"), rapid.SampledFrom(effects).Draw(t, "effect"))
			if !slices.ContainsFunc(plan.Taints, func(o triage.PlannedTaint) bool { return o.Rule == w.Rule }) {
				plan.Taints = append(plan.Taints, w)
			}
		}
		was := testkit.Value(ownership.Read(n.Annotations)).Must(t)
		isOthers := func(t corev1.Taint) bool { return !was.Owns(t) }
		after := n
		if change := Prepare(n, plan, now); change != nil {
			writes++
			after = change.Made("8")
			checkPatch(t, n, change, after)
		}
		// All taints of others remain, in their order.
		var want, got []corev1.Taint
		for _, taint := range n.Spec.Taints {
			if isOthers(taint) {
				want = append(want, taint)
				foreign++
			}
		}
		is := testkit.Value(ownership.Read(after.Annotations)).Must(t)
		for _, taint := range after.Spec.Taints {
			if !is.Owns(taint) {
				got = append(got, taint)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("others' taints (-before +after):\n%s", diff)
		}
		// Every planned taint is on the node, under its rule or set by another component.
		for _, w := range plan.Taints {
			at := slices.IndexFunc(after.Spec.Taints, func(t corev1.Taint) bool { return t.Key == w.Key && string(t.Effect) == w.Effect.String() })
			testkit.Require(t, at >= 0, "%s is missing", w.Key)
			if isOthers(after.Spec.Taints[at]) && !is.Owns(after.Spec.Taints[at]) {
				served++
			} else if !hasRecord(is, w.Rule, after.Spec.Taints[at]) {
				t.Fatalf("%s:%s is not noted under %s", w.Key, w.Effect, w.Rule)
			}
		}
		// There are no further taints of ours.
		for _, noted := range is.Taints {
			if !slices.ContainsFunc(plan.Taints, func(w triage.PlannedTaint) bool {
				return ownership.Rule(w.Rule) == noted.Rule && w.Key == noted.Key && w.Effect.String() == string(noted.Effect)
			}) {
				t.Fatalf("%+v is recorded, but not planned", noted)
			}
			testkit.Require(t, slices.ContainsFunc(after.Spec.Taints, noted.Is), "%+v is noted, but not there", noted)
		}
		if again := Prepare(after, plan, now.Add(time.Hour)); again != nil {
			t.Fatalf("%+v is to be written once more", again)
		}
	})
	t.Logf("saw %d writes, %d taints of others, %d that served", writes, foreign, served)
	testkit.Check(t, writes != 0 && foreign != 0 && served != 0, "this test looked at nothing")
}

// checkPatch compares the patch with the change.
func checkPatch(t *rapid.T, n *corev1.Node, change *Change, after *corev1.Node) {
	patch, original := testkit.Value(change.patch()).Must(t), testkit.Value(json.Marshal(n)).Must(t)
	merged := testkit.Value(jsonpatch.MergePatch(original, patch)).Must(t)
	var got corev1.Node
	testkit.Must(t, json.Unmarshal(merged, &got))
	want := after.DeepCopy()
	want.ResourceVersion = n.ResourceVersion // the precondition
	if len(want.Spec.Taints) == 0 {
		want.Spec.Taints, got.Spec.Taints = nil, nil
	}
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Fatalf("the patch makes something else (-said +made):\n%s", diff)
	}
}

// A newer version has recorded unknown kinds of rules and unknown fields. Its taints and its
// record stay, even if a rule of this version shares a taint.
func TestPrepareKeepsWhatANewerVersionHasNoted(t *testing.T) {
	text := testkit.Value(os.ReadFile("../ownership/testdata/record-newer.json")).Must(t)
	theirs := ownership.Taint{Key: "machine", Effect: corev1.TaintEffectNoExecute, Added: before}.Taint()
	shared := ownership.Taint{Key: "kernel", Effect: corev1.TaintEffectNoExecute, Added: before}.Taint()
	n := node(nil, theirs, shared)
	n.Annotations[ownership.Annotation] = string(text)
	ours := wanted("kernel-deadlock", "kernel", triage.NoExecute)
	memory := triage.Memory{Rule: rule("kernel-deadlock"), Condition: "KernelDeadlock", Since: before.Add(-9 * time.Minute)}

	if c := Prepare(n, triage.Plan{Taints: []triage.PlannedTaint{ours}, Remember: []triage.Memory{memory}}, now); c != nil {
		t.Errorf("a node that is as planned is written: %+v", c)
	}
	for name, plan := range map[string]triage.Plan{
		"our rule has nothing to say any more": {},
		"another rule places a taint":          {Taints: []triage.PlannedTaint{ours, wanted("b", "k", triage.NoSchedule)}, Remember: []triage.Memory{memory}},
	} {
		c := Prepare(n, plan, now)
		if c == nil {
			t.Errorf("%s: nothing is written", name)
			continue
		}
		after := c.Made("8")
		note := testkit.Value(ownership.Read(after.Annotations)).Must(t)
		was, _ := ownership.Read(n.Annotations)
		if diff := cmp.Diff(was.Unrecognized, note.Unrecognized); diff != "" || len(c.Removed) > 0 {
			t.Errorf("%s: removed %v, kept (-want +got):\n%s", name, c.Removed, diff)
		}
		if kept := slices.DeleteFunc(slices.Clone(after.Spec.Taints), func(t corev1.Taint) bool { return !was.Keeps(t) }); len(kept) != 2 {
			t.Errorf("%s: the taints are %v", name, after.Spec.Taints)
		}
		if len(plan.Taints) > 0 && (note.Taints[0].Unknown == "" || note.Starts[0].Unknown == "") {
			t.Errorf("%s: a field is lost: %+v", name, note)
		}
	}
	if fenced, err := ownership.Read(Fence(n, "token").Made("8").Annotations); err != nil || fenced.CountUnknown() != 6 {
		t.Errorf("after a fence the note is %+v (%v)", fenced, err)
	}
}
