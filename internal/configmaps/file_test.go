package configmaps

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// For any mistake, the reported line follows the longest beginning of the text that parses.
// The test finds that beginning by trying all of them.
func TestLocateFindsTheLineAfterTheLongestReadableBeginning(t *testing.T) {
	block := "- type: A\n  effect: NoSchedule\n  taintKey: example.com/a\n  conditions:\n  - ConditionType: A\n    conditionStatus: \"true\"\n"
	flow := "- {type: B, effect: NoSchedule,\n   taintKey: 'example.com/b',\n   conditions: [\n     {ConditionType: B, conditionStatus: true}]}\n"
	long := "- type: C\n  conditions: [\n" + strings.Repeat("    {ConditionType: C,\n     conditionStatus: true},\n", 7) + "  ]\n"
	slips := []string{`"`, "'", "[", "]", "{", "}", ":", ": ", " ", "\n", "\t", "- ", "&", "*", "|", "%", "@", "`", "\x01", "#"}
	rapid.Check(t, func(t *rapid.T) {
		text := "type: ConditionSets\nconditionSets:\n" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{block, flow, long}), 1, 8).Draw(t, "sets"), "")
		at := rapid.IntRange(0, len(text)).Draw(t, "at")
		until := min(len(text), at+rapid.IntRange(0, 2).Draw(t, "without"))
		text = text[:at] + rapid.SampledFrom(slips).Draw(t, "slip") + text[until:]
		_, read, err := parse(text)
		if err == nil {
			return // the text is still YAML
		}
		lines := strings.SplitAfter(text, "\n")
		want := len(lines)
		for ; want > 1; want-- {
			if _, _, err := parse(strings.Join(lines[:want-1], "")); err == nil {
				break
			}
		}
		if line, what := locate(text, err, read); line != want || what == "" {
			t.Errorf("line %d is blamed: %q, want line %d of\n%s", line, what, want, text)
		}
	})
}
