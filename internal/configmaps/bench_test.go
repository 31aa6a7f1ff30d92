package configmaps_test

import (
	"fmt"
	"strings"
	"testing"
)

// large returns a valid file of about this many bytes, which may exceed the limit.
func large(bytes int) string {
	var b strings.Builder
	b.WriteString("type: ConditionSets\nconditionSets:\n")
	for i := 0; b.Len() < bytes; i++ {
		fmt.Fprintf(&b, "- type: T%d\n  effect: NoSchedule\n  taintKey: example.com/t%d\n  conditions:\n  - ConditionType: C%d\n    conditionStatus: true\n", i, i, i)
	}
	return b.String()
}

// BenchmarkRead reads the most expensive files: broken ones, where the line has to be
// found.
func BenchmarkRead(b *testing.B) {
	const kib = 1 << 10
	colon := "- type: Bad: x\n"
	for _, fixture := range []struct {
		name string
		data map[string]string
	}{
		{"seed", map[string]string{"sets.yaml": seed(b)}},
		{"64KiB-good", map[string]string{"sets.yaml": large(62 * kib)}},
		{"24KiB-broken-at-end", map[string]string{"sets.yaml": large(24*kib) + colon}},
		{"24KiB-broken-at-start", map[string]string{"sets.yaml": strings.Replace(large(24*kib), "effect", "effect: x", 1)}},
		{"24KiB-quote-open", map[string]string{"sets.yaml": strings.Replace(large(24*kib), "T9\n", "\"T9\n", 1)}},
		{"64KiB-quote-open", map[string]string{"sets.yaml": strings.Replace(large(62*kib), "T9\n", "\"T9\n", 1)}},
		{"64KiB-bracket-open", map[string]string{"sets.yaml": strings.Replace(large(62*kib), "T9\n", "[T9\n", 1)}},
		{"1MiB-broken-in-one-key", map[string]string{"sets.yaml": large(1000*kib) + colon}},
		{"1MiB-broken-in-16-keys", spread(16, large(62*kib)+colon)},
		{"1MiB-of-others-in-16-keys", spread(16, "a:\n"+strings.Repeat("- {b: c, d: e}\n", 4200)+": {\n")},
	} {
		b.Run(fixture.name, func(b *testing.B) {
			m := with(fixture.data)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = read(m)
			}
		})
	}
}

// spread returns this many keys with the same text.
func spread(keys int, text string) map[string]string {
	data := map[string]string{}
	for i := range keys {
		data[fmt.Sprintf("%d.yaml", i)] = text
	}
	return data
}
