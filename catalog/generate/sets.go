package main

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/resourcestack/autohealer/catalog"
)

const header = `# The default ConditionSets: what docs/reference/conditions.md decides, one set for each
# condition that has a default.
#
# Made of catalog/conditions.go by make generate: change it there.
`

// conditionSets returns a set for each condition that has a default.
func conditionSets(list []catalog.Condition) string {
	var b strings.Builder
	b.WriteString(header)
	for _, c := range list {
		if c.Effect == catalog.None {
			continue
		}
		b.WriteString("---\n")
		comment(&b, fmt.Sprintf("%s (%s): %s", c.Type, c.Source, c.Meaning))
		comment(&b, fmt.Sprintf("%s: %s", c.Effect, c.Why))
		fmt.Fprintf(&b, `apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata:
  name: default-%s
  labels:
    app.kubernetes.io/part-of: autohealer
spec:
  type: %s
  effect: %s
  taintKey: %s
`, kebab(c.Type), c.Type, c.Effect, c.TaintKey())
		if c.MaxUnhealthy != "" {
			fmt.Fprintf(&b, "  maxUnhealthy: %s\n", c.MaxUnhealthy)
		}
		fmt.Fprintf(&b, "  conditions:\n    %s:\n      status: %s\n", c.Type, strings.ToLower(string(c.Unhealthy())))
		if c.Duration != "" {
			fmt.Fprintf(&b, "      duration: %s\n", c.Duration)
		}
	}
	return b.String()
}

// width is the maximum width of a comment line.
const width = 80

// comment writes a text as comment lines.
func comment(b *strings.Builder, text string) {
	line := "#"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = "#"
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}

// kebab converts camel case to an object name: NTPProblem becomes ntp-problem.
func kebab(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
