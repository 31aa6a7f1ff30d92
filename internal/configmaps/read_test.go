package configmaps_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// holding returns a ConfigMap with one key, sets.yaml.
func holding(text string) *corev1.ConfigMap { return with(map[string]string{"sets.yaml": text}) }

func with(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "autohealer-system", Name: "policies", UID: "u1", ResourceVersion: "7",
			CreationTimestamp: metav1.NewTime(time.Unix(1000, 0)),
			Annotations:       map[string]string{"example.com/other": "x", "autohealer.resourcestack.com/accept-impact": "true"},
		},
		Data: data,
	}
}

// seed is the example of the design document, byte for byte.
func seed(tb testing.TB) string {
	tb.Helper()
	text := testkit.Value(os.ReadFile("testdata/seed.yaml")).Must(tb)
	return string(text)
}

var seedSpecs = map[string]v1alpha1.ConditionSetSpec{
	"policies/sets.yaml/KubeletContainerRuntimeUnhealthy": {
		Type: "KubeletContainerRuntimeUnhealthy", Effect: "NoExecute", TaintKey: "node.stakater.com/KubeletContainerRuntimeUnhealthy",
		Conditions: map[string]v1alpha1.SetCondition{"KubeletUnhealthy": {Status: "True"}, "ContainerRuntimeUnhealthy": {Status: "Unknown"}},
	},
	"policies/sets.yaml/KernelDeadlock": {
		Type: "KernelDeadlock", Effect: "NoExecute", TaintKey: "node.stakater.com/KernelDeadlock",
		Conditions: map[string]v1alpha1.SetCondition{"KernelDeadlock": {Status: "True"}},
	},
}

// read returns the sets of a ConfigMap.
func read(m *corev1.ConfigMap) ([]configmaps.Set, error) {
	version, err := configmaps.Read(m)
	if version == nil {
		return nil, err
	}
	return version.Sets, err
}

func specs(sets []configmaps.Set) map[string]v1alpha1.ConditionSetSpec {
	found := map[string]v1alpha1.ConditionSetSpec{}
	for _, set := range sets {
		found[set.Name] = set.Spec
	}
	return found
}

func TestTheDesignExampleIsRead(t *testing.T) {
	outdented := strings.ReplaceAll("\n"+seed(t), "\n    ", "\n")
	for name, text := range map[string]string{
		"with the seed's indentation":  seed(t),
		"without it":                   outdented,
		"with Windows' line ends":      strings.ReplaceAll(seed(t), "\n", "\r\n"),
		"with a byte order mark":       "\ufeff" + outdented,
		"as a document that is marked": "---\n" + outdented + "---\n",
	} {
		t.Run(name, func(t *testing.T) {
			sets := testkit.Value(read(holding(text))).Must(t)
			testkit.Equal(t, "the sets", seedSpecs, specs(sets))
			for _, set := range sets {
				if _, err := observe.ConditionSet(set.ConditionSet); err != nil {
					t.Errorf("%s cannot be followed: %v", set.Name, err)
				}
			}
		})
	}
}

const full = `# Everything that can be said.
type: ConditionSets
conditionSets:
- type: Full
  effect: NoSchedule
  taintKey: example.com/full
  maxUnhealthy: 30%
  dryRun: true
  selector:
    matchLabels:
      pool: workers
    matchExpressions:
    - {key: zone, operator: In, values: [a, b, ""]}
    - key: gpu
      operator: Exists
  conditions:
    - ConditionType: example.com/Dotted.Type
      conditionStatus: "FALSE"
      duration: 5m
    - ConditionType: Quiet
      conditionStatus: unknown
      evenSilent: true
  windows:
  - {schedule: 0 22 * * 1-5, timeZone: Europe/Berlin, duration: 4h}
- {type: Second, effect: PreferNoSchedule, taintKey: example.com/second, maxUnhealthy: 3,
   conditions: [{ConditionType: Quiet, conditionStatus: true}]}
`

// The controller reads the example for users.
func TestTheExampleForUsersIsRead(t *testing.T) {
	m := &corev1.ConfigMap{}
	testkit.Must(t, yaml.Unmarshal(testkit.Value(os.ReadFile("../../examples/condition-set-configmap.yaml")).Must(t), m))
	testkit.Check(t, configmaps.IsLabelled(m), "the example lacks the label")
	sets := testkit.Value(read(m)).Must(t)
	testkit.Check(t, len(sets) == 2, "%d sets, want 2", len(sets))
	for _, set := range sets {
		testkit.Value(observe.ConditionSet(set.ConditionSet)).Must(t)
	}
}

func TestReadTakesEveryFieldOfAConditionSet(t *testing.T) {
	sets := testkit.Value(read(with(map[string]string{
		"b.yaml": full, "a.yaml": "type: ConditionSets\nconditionSets: []\n",
		"README": "Every key that says type: ConditionSets is read.", "values.yaml": "type: Other\nreplicas: 2\n", "script.sh": "#!/bin/sh\n\techo: {\n", "empty": "",
	}))).Must(t)
	want := map[string]v1alpha1.ConditionSetSpec{
		"policies/b.yaml/Full": {
			Type: "Full", Effect: "NoSchedule", TaintKey: "example.com/full", DryRun: true,
			MaxUnhealthy: new(intstr.FromString("30%")),
			Windows:      []v1alpha1.Window{{Schedule: "0 22 * * 1-5", TimeZone: "Europe/Berlin", Duration: "4h"}},
			Selector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"pool": "workers"},
				MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "zone", Operator: "In", Values: []string{"a", "b", ""}}, {Key: "gpu", Operator: "Exists"},
				},
			},
			Conditions: map[string]v1alpha1.SetCondition{
				"example.com/Dotted.Type": {Status: "False", Duration: "5m"}, "Quiet": {Status: "Unknown", EvenSilent: true},
			},
		},
		"policies/b.yaml/Second": {
			Type: "Second", Effect: "PreferNoSchedule", TaintKey: "example.com/second", MaxUnhealthy: new(intstr.FromInt32(3)),
			Conditions: map[string]v1alpha1.SetCondition{"Quiet": {Status: "True"}},
		},
	}
	testkit.Equal(t, "the sets", want, specs(sets))
	set := sets[0]
	for field, line := range map[string]int{
		"": 4, "metadata.name": 4, "spec": 4, "spec.type": 4, "spec.effect": 5, "spec.taintKey": 6, "spec.maxUnhealthy": 7, "spec.dryRun": 8,
		"spec.selector": 10, "spec.selector.matchLabels": 10, "spec.conditions": 17,
		"spec.conditions[example.com/Dotted.Type]": 17, "spec.conditions[example.com/Dotted.Type].status": 18,
		"spec.conditions.example.com/Dotted.Type.status": 18, "spec.conditions.example.com/Dotted.Type.duration": 19,
		"spec.conditions[Quiet].status": 21, "spec.conditions.Quiet.evenSilent": 22, "spec.conditions[Quiet].duration": 20, "spec.conditions[None]": 17, "spec.windows[0].schedule": 24,
	} {
		if key, at := set.Where(field); key != "b.yaml" || at != line {
			t.Errorf("%q is at line %d of %s, want %d of b.yaml", field, at, key, line)
		}
	}
}

// A status has the same spellings as in a ConditionSet.
func TestReadTakesEverySpellingOfAStatus(t *testing.T) {
	for written, want := range map[string]v1alpha1.ConditionStatus{
		"yes": "True", "on": "True", "'On'": "True", "TRUE": "True", "no": "False", "off": "False", `"NO"`: "False", "uNknown": "Unknown",
	} {
		sets := testkit.Value(read(holding(edit(t, `"FALSE"`, written)))).Must(t)
		testkit.Same(t, sets[0].Spec.Conditions["example.com/Dotted.Type"].Status, want, "conditionStatus: %s", written)
	}
}

func TestASetSaysWhereItIsWritten(t *testing.T) {
	sets := testkit.Value(read(holding(seed(t)))).Must(t)
	set := sets[0].ConditionSet
	want := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "autohealer-system", Name: "policies", UID: "u1", ResourceVersion: "7"}
	testkit.Equal(t, "the ConfigMap", want, configmaps.ConfigMapOf(set))
	testkit.Equal(t, "annotations", map[string]string{"autohealer.resourcestack.com/accept-impact": "true"}, set.Annotations)
	testkit.Check(t, set.CreationTimestamp.Unix() == 1000 && set.UID == "u1", "it was created at %s with the UID %s", set.CreationTimestamp, set.UID)
	if m, isWritten := configmaps.ConfigMapName(set.Name); m != "policies" || !isWritten {
		t.Errorf("by its name it is written in %q: %t", m, isWritten)
	}
	if _, isWritten := configmaps.ConfigMapName("kernel-deadlock"); isWritten {
		t.Error("by its name a ConditionSet of the API is written in a ConfigMap")
	}
	inAPI := &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: "n", OwnerReferences: set.OwnerReferences}}
	if got := configmaps.ConfigMapOf(inAPI); got != nil {
		t.Errorf("a ConditionSet of the API is written in %v", got)
	}
}

// edit replaces a text in the sample of all fields, and fails if it is missing.
func edit(t *testing.T, old, replacement string) string {
	t.Helper()
	testkit.Require(t, strings.Contains(full, old), "there is no %q", old)
	return strings.Replace(full, old, replacement, 1)
}

func TestReadSaysWhichLineIsWrong(t *testing.T) {
	replaced := func(old, replacement string) func(*testing.T) string {
		return func(t *testing.T) string { t.Helper(); return edit(t, old, replacement) }
	}
	const head = "type: ConditionSets\nconditionSets:\n"
	plain := func(text string) func(*testing.T) string { return func(*testing.T) string { return text } }
	for name, test := range map[string]struct {
		text func(*testing.T) string
		want string
	}{
		"an unknown field of the file":    {replaced("conditionSets:", "version: 2\nconditionSets:"), `line 3: a file of sets has no field "version"; there are conditionSets, type`},
		"an unknown field of a set":       {replaced("taintKey:", "taintkey:"), `line 6: a set has no field "taintkey"; there are conditions, dryRun, effect, maxUnhealthy, mode, selector, taintKey, type, windows; key sets.yaml, line 4: taintKey is missing in a set`},
		"an unknown field of a condition": {replaced("conditionStatus: \"FALSE\"", "status: true"), `line 18: a condition has no field "status"; there are ConditionType, conditionStatus, duration, evenSilent; key sets.yaml, line 17: conditionStatus is missing in a condition`},
		"a field twice":                   {replaced("  dryRun: true", "  effect: NoExecute"), `line 8: "effect" stands here a second time, after line 5`},
		"a condition twice":               {replaced("ConditionType: Quiet", "ConditionType: example.com/Dotted.Type"), `line 20: the condition "example.com/Dotted.Type" is named at line 17 already; all conditions must stand at once`},
		"a set twice":                     {replaced("type: Second", "type: Full"), `line 25: there is a set of the type "Full" already, at line 4`},
		"a status that is none":           {replaced(`"FALSE"`, "broken"), `line 18: conditionStatus is "broken", want true, false or Unknown`},
		"a word that is no status":        {replaced(`"FALSE"`, "maybe"), `line 18: conditionStatus is "maybe", want true, false or Unknown`},
		"a status that is a list":         {replaced(`"FALSE"`, "[true]"), `line 18: conditionStatus is a list of 1, want`},
		"no status":                       {replaced(` "FALSE"`, ""), `line 18: conditionStatus is empty, want`},
		"a text that is a number":         {replaced("duration: 5m", "duration: 5"), `line 19: duration is "5", want a time with its unit, for example 90s or 5m`},
		"an empty text":                   {replaced("example.com/full", `""`), `line 6: taintKey is empty, want a key`},
		"no text":                         {replaced(" example.com/full", ``), `line 6: taintKey is empty, want a key`},
		"a bound that is a fraction":      {replaced("30%", "0.5"), `line 7: maxUnhealthy is "0.5", want a number of nodes like 3, or a percentage like 49%`},
		"a bound that is huge":            {replaced("30%", "99999999999"), `line 7: maxUnhealthy is "99999999999", want`},
		"dryRun in words":                 {replaced("dryRun: true", "dryRun: maybe"), `line 8: dryRun is "maybe", want true or false`},
		"a label that is a boolean":       {replaced("pool: workers", "pool: true"), `line 11: the label "pool" is "true", want a text; put it in quotes`},
		"an operator missing":             {replaced("      operator: Exists\n", ""), `line 14: operator is missing in an expression`},
		"a selector that is a text":       {replaced("matchLabels:\n      pool: workers", "matchLabels: pool"), `line 10: this is "pool", want the fields of matchLabels`},
		"a type that is not one line":     {replaced("type: Full", `type: "a\nb"`), `line 4: the type is "a\nb", want at most 316 characters that can be seen`},
		"a type that is long":             {replaced("type: Full", "type: "+strings.Repeat("x", 400)), `line 4: the type is "` + strings.Repeat("x", 60) + `...", want at most 316`},
		"no conditions":                   {plain(head + "- {type: A, effect: NoSchedule, taintKey: a/b, conditions: []}\n"), `line 3: conditions is a list of 0, want a list of 1 to 32 conditions`},
		"conditions as in a ConditionSet": {plain(head + "- type: A\n  effect: NoSchedule\n  taintKey: a/b\n  conditions:\n    A: {status: true}\n"), `line 7: conditions is a mapping, want a list of 1 to 32`},
		"too many conditions":             {plain(head + "- type: A\n  effect: NoSchedule\n  taintKey: a/b\n  conditions:\n" + strings.Repeat("  - {}\n", 33)), `line 7: conditions is a list of 33, want a list of 1 to 32`},
		"sets as a mapping":               {plain("type: ConditionSets\nconditionSets:\n  A: {}\n"), `line 3: conditionSets is a mapping, want a list of sets`},
		"sets left empty":                 {plain(head), `line 2: conditionSets is empty, want a list of sets; to have none, write conditionSets: []`},
		"a set that is a text":            {plain(head + "- KernelDeadlock\n"), `line 3: this is "KernelDeadlock", want the fields of a set`},
		"no sets":                         {plain("type: ConditionSets\n"), `line 1: conditionSets is missing in a file of sets`},
		"no type":                         {plain("conditionSets: []\n"), `line 1: type is missing in a file of sets`},
		"nearly the type":                 {plain("type: ConditionSet\nconditionSets: []\n"), `line 1: the type is "ConditionSet", want ConditionSets`},
		"the type in small letters":       {plain("type: conditionsets\n"), `the type is "conditionsets", want ConditionSets`},
		"a field that is a list":          {plain("type: ConditionSets\n? [a]\n: b\nconditionSets: []\n"), `line 2: this is a list of 1, want the name of a field`},
		"two documents":                   {plain("type: ConditionSets\nconditionSets: []\n---\ntype: ConditionSets\nconditionSets: []\n"), `line 4: a second document begins here`},
		"a document behind another":       {plain("a: b\n---\ntype: ConditionSets\nconditionSets: []\n"), `line 3: a second document begins here`},
		"an anchor":                       {replaced("pool: workers", "pool: &a workers"), `line 11: anchors and aliases (& and *) are not read: write it out`},
		"an alias":                        {replaced("example.com/second", "*a"), `this is not YAML: unknown anchor 'a' referenced`},
		"a bomb":                          {plain("a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d]\n" + head), `line 1: anchors and aliases`},
		"a merge":                         {replaced("  dryRun: true", "  <<: {dryRun: true}"), `line 8: a set has no field "<<"`},
		"a tab":                           {replaced("  taintKey", "\ttaintKey"), `line 6: this is not YAML: there is a tab in the indentation, where YAML wants spaces`},
		"an indentation that is off":      {replaced("  maxUnhealthy", " maxUnhealthy"), `line 7: this is not YAML`},
		"a colon too many":                {replaced("effect: NoSchedule", "effect: NoSchedule: x"), `line 5: this is not YAML: mapping values are not allowed`},
		"a colon missing":                 {replaced("effect: NoSchedule", "effect NoSchedule"), `this is not YAML`},
		"a quote that is not closed":      {replaced(`"FALSE"`, `"FALSE`), `line 18: this is not YAML`},
		"a bracket that is not closed":    {replaced(`[a, b, ""]}`, `[a, b, ""`), `line 13: this is not YAML`},
		"a line that was cut":             {plain(full[:len(full)-20]), `line 25: this is not YAML`},
		"no UTF-8":                        {replaced("workers", "work\xffers"), `line 11: this is not YAML`},
		"a control character":             {replaced("workers", "work\x01ers"), `line 11: this is not YAML: control characters are not allowed`},
		"broken JSON":                     {plain(`{"type": "ConditionSets", "conditionSets": [}`), `line 1: this is not YAML`},
		"a broken file without a type":    {plain("conditionSets:\n- a: {\n"), `line 2: this is not YAML`},
		"too much":                        {plain(head + strings.Repeat("# much\n", 40000)), `line 1: the sets of one ConfigMap may take 64 KiB`},
		"too many sets":                   {plain(manySets(101)), `line 103: this is one more than the 100 sets that one ConfigMap may have`},
	} {
		t.Run(name, func(t *testing.T) {
			sets, err := read(holding(test.text(t)))
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "key sets.yaml, line ") {
				t.Errorf("error is %v\nwant %s", err, test.want)
			}
			testkit.Check(t, len(sets) == 0, "%d sets beside an error", len(sets))
			var problems configmaps.LineErrors
			testkit.Check(t, errors.As(err, &problems), "the error is a %T", err)
		})
	}
}

func manySets(n int) string {
	var b strings.Builder
	b.WriteString("type: ConditionSets\nconditionSets:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {type: T%d, effect: NoSchedule, taintKey: example.com/t%d, conditions: [{ConditionType: C%d, conditionStatus: true}]}\n", i, i, i)
	}
	return b.String()
}

func TestReadTellsOfEveryKey(t *testing.T) {
	_, err := read(with(map[string]string{"good.yaml": full, "b.yaml": "type: ConditionSets\nconditionSets: 1\n", "a.yaml": "type: ConditionSets\n\t- x"}))
	const want = `key a.yaml, line 2: this is not YAML: there is a tab in the indentation, where YAML wants spaces; ` +
		`key b.yaml, line 2: conditionSets is "1", want a list of sets; to have none, write conditionSets: []`
	testkit.Check(t, err != nil && err.Error() == want, "error is %v\nwant %s", err, want)
}

func TestReadLimitsTheNumberOfProblems(t *testing.T) {
	_, err := read(holding("type: ConditionSets\nconditionSets:\n" + strings.Repeat("- x\n", 50)))
	if err == nil || !strings.HasSuffix(err.Error(), "; and 45 more") || strings.Count(err.Error(), "line") != 5 {
		t.Errorf("error is %v", err)
	}
}

func TestAConfigMapWithNothingToReadIsNoEmptyList(t *testing.T) {
	for name, m := range map[string]*corev1.ConfigMap{
		"no data":      with(nil),
		"other files":  with(map[string]string{"a": "type: Other", "b": "{", "c": "just text"}),
		"binary files": {BinaryData: map[string][]byte{"sets.yaml": []byte(full)}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(m)
			if err == nil || !strings.HasPrefix(err.Error(), "no key of its data says type: ConditionSets") || (len(m.BinaryData) > 0) != strings.Contains(err.Error(), "binaryData is not read") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// Reading is fast even for malicious files. The limit suits a busy machine; quadratic cost
// is far above it.
func TestReadIsQuickWithAnything(t *testing.T) {
	const much = 60 << 10
	for name, text := range map[string]string{
		"deep":       "type: ConditionSets\nconditionSets: " + strings.Repeat("[", much),
		"deep pairs": "type: ConditionSets\nconditionSets: " + strings.Repeat("{a: ", much/4),
		"long":       "type: ConditionSets\n" + strings.Repeat("- x\n", much/4),
		"hopeless":   strings.Repeat("a: b\n", much/5) + "type: ConditionSets: x\n",
		"tabs":       "type: ConditionSets\n" + strings.Repeat("\ta\n", much/3),
		"keys":       "type: ConditionSets\n" + strings.Repeat("? ", much/2),
		"a quote":    "type: ConditionSets\nx: \"" + strings.Repeat("a\n", much/2),
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := read(holding(text))
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("it took %s", took)
			} else {
				t.Log(took)
			}
			testkit.Check(t, err != nil, "it was read")
		})
	}
}

// In a long file the mistake may be far from where the parser fails: everything after an
// open quote is text until the next quote.
func TestReadFindsTheLineInALongFile(t *testing.T) {
	text := large(40 << 10)
	flow := "- type: Flow\n  effect: NoSchedule\n  taintKey: example.com/flow\n  conditions: [\n" + strings.Repeat("    {ConditionType: F,\n     conditionStatus: true},\n", 6) + "  ]\n"
	const mark = "- type: T99\n"
	above, _, _ := strings.Cut(text, mark)
	at := strings.Count(above, "\n") + 1
	for name, test := range map[string]struct {
		replacement string
		line        int // from the mark
	}{
		"a quote":                     {"- type: \"T99\n", 0},
		"a quote behind many lines":   {flow + "- type: \"T99\n", 17},
		"a bracket":                   {"- type: [T99\n", 0},
		"a bracket behind many lines": {flow + "- type: [T99\n", 17},
		"a brace around many lines":   {"- {type: T99,\n   dryRun: true,\n   maxUnhealthy: 3,\n", 0},
		"a tab":                       {"- type: T99\n\teffect: x\n", 1},
		"a colon too many":            {"- type: T99: x\n", 0},
		"a colon missing":             {"- type: T99\n  effect NoSchedule\n", 1},
		"an indentation that is off":  {"- type: T99\n effect: NoSchedule\n", 1},
		"a control character":         {"- type: T\x0199\n", 0},
		"a quote that closes later":   {"- type: \"T99\n  effect: NoSchedule\n  taintKey: \"x\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(holding(strings.Replace(text, mark, test.replacement, 1)))
			if want := fmt.Sprintf("key sets.yaml, line %d: this is not YAML: ", at+test.line); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("error is %v\nwant %s", err, want)
			}
		})
	}
}

// The search for the line parses a broken file again, but not often. The test counts
// allocations, because time depends on other programs.
func TestABrokenFileCostsAFewGoodOnes(t *testing.T) {
	cost := func(text string) float64 {
		m := holding(text)
		return testing.AllocsPerRun(1, func() { _, _ = read(m) })
	}
	const much = 60 << 10
	good := large(much)
	whole := cost(good)
	for name, test := range map[string]struct {
		text  string
		times float64
	}{
		"a colon at the end":        {good + "- type: Bad: x\n", 3},
		"a colon at the start":      {strings.Replace(good, "T0", "T0: x", 1), 1},
		"a quote":                   {strings.Replace(good, "T99\n", "\"T99\n", 1), 3},
		"tabs below a mistake":      {strings.Replace(good, "T99\n", "T99: x\n", 1) + strings.Repeat("\ttab\n", 500), 3},
		"not more than is worth it": {strings.Repeat("a: b\n", much/10) + "type: ConditionSets\nx: [\n" + strings.Repeat("y: {a: b}\n\n", much/22), 12},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cost(test.text) / whole; got > test.times {
				t.Errorf("it costs %.1f times as much as a good file of that size, want at most %v", got, test.times)
			}
		})
	}
	others := with(spread(4, strings.Repeat("- {a: b}\n", much/9)))
	if got := testing.AllocsPerRun(1, func() { _, _ = read(others) }); got > whole/100 {
		t.Errorf("files that are nothing to us cost %v allocations", got)
	}
}

// Reading always ends. Every set has a unique name and a place.
func FuzzRead(f *testing.F) {
	f.Add(seed(f))
	f.Add(full)
	f.Add(manySets(3))
	f.Add("type: ConditionSets\nconditionSets:\n- &a {type: *a}\n")
	f.Add("{\"type\": \"ConditionSets\", \"conditionSets\": [{}]}")
	f.Add("type: ConditionSets\n---\n? - x\n: !!binary y\n")
	f.Fuzz(func(t *testing.T, text string) {
		sets, err := read(with(map[string]string{"a": text, "b": "type: ConditionSets\nconditionSets: []"}))
		if err != nil {
			var problems configmaps.LineErrors
			testkit.Require(t, errors.As(err, &problems) && len(problems) != 0 && len(sets) == 0, "%d sets with the error %#v", len(sets), err)
			lines := strings.Count(text, "\n") + strings.Count(text, "\r") + strings.Count(text, "\u0085") + strings.Count(text, "\u2028") + strings.Count(text, "\u2029") + 1
			for _, p := range problems {
				if p.Key != "a" || p.Line < 1 || p.Line > lines || p.Text == "" {
					t.Fatalf("problem %+v of %d lines", p, lines)
				}
			}
			return
		}
		names := map[string]bool{}
		for _, set := range sets {
			if names[set.Name] || !strings.HasPrefix(set.Name, "policies/a/") || set.Spec.Type == "" || len(set.Spec.Conditions) == 0 {
				t.Fatalf("%q among %v", set.Name, slices.Collect(maps.Keys(names)))
			}
			names[set.Name] = true
			for condition := range set.Spec.Conditions {
				if _, line := set.Where("spec.conditions[" + condition + "].status"); line < 1 {
					t.Fatalf("the status of %q is nowhere", condition)
				}
			}
			_, _ = observe.ConditionSet(set.ConditionSet)
		}
	})
}

func TestProblemsWithinARoom(t *testing.T) {
	long := strings.Repeat("é", 100)
	several := configmaps.LineErrors{{Key: "b.yaml", Line: 16, Text: long}, {Key: "b.yaml", Line: 9, Text: "short"}, {Key: "b.yaml", Line: 9, Text: long}, {Key: "a.yaml", Line: 3, Text: long}}
	const places = "line 3 of key a.yaml, lines 9, 16 of key b.yaml"
	for name, test := range map[string]struct {
		problems configmaps.LineErrors
		room     int
		want     string
	}{
		"all of it":         {several[:2], 300, "key b.yaml, line 16: " + long + "; key b.yaml, line 9: short"},
		"no key":            {configmaps.LineErrors{{Text: "nothing to read"}}, 300, "nothing to read"},
		"a part of each":    {several, 400, places + "; key b.yaml, line 16: " + long[:62] + "...; key b.yaml, line 9: short; key b.yaml, line 9: " + long[:94] + "...; key a.yaml, line 3: " + long[:94] + "..."},
		"of the first only": {several, len(places) + 80, places + "; key b.yaml, line 16: " + long[:54] + "..."},
		"of none":           {several, len(places) + 79, places},
		"not even places":   {several, 20, "line 3 of key a.y..."},
		"no room":           {several, 0, "..."},
		"less than none":    {several, -500, "..."},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.problems.Within(test.room)
			testkit.Check(t, got == test.want, "%d letters:\n%s\nwant\n%s", len(got), got, test.want)
			testkit.Check(t, len(got) <= max(3, test.room) && utf8.ValidString(got), "%d letters in a room of %d: %q", len(got), test.room, got)
		})
	}
}
