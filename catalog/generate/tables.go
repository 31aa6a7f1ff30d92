package main

import (
	"fmt"
	"strings"

	"github.com/resourcestack/autohealer/catalog"
)

// fill replaces the text between the markers of a table.
func fill(page, table, rows string) (string, error) {
	begin, end := fmt.Sprintf("<!-- begin %s: made of the catalogue by make generate -->\n", table), fmt.Sprintf("<!-- end %s -->\n", table)
	before, rest, ok := strings.Cut(page, begin)
	if !ok {
		return "", fmt.Errorf("there is no line %q", strings.TrimSpace(begin))
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		return "", fmt.Errorf("there is no line %q after %q", strings.TrimSpace(end), strings.TrimSpace(begin))
	}
	return before + begin + rows + end + after, nil
}

// nativeTable lists the conditions of Kubernetes and their taints.
func nativeTable(list []catalog.Condition) string {
	rows := [][]string{{"condition", "healthy", "when unhealthy", "Kubernetes' own taint", "why there is no default"}}
	for _, c := range list {
		if c.Source != catalog.Kubernetes {
			continue
		}
		var taints []string
		for _, taint := range c.Native {
			taints = append(taints, fmt.Sprintf("%s: %s `%s`", taint.Status, taint.Effect, taint.Key))
		}
		rows = append(rows, []string{code(c.Type), string(c.Healthy), c.Meaning, strings.Join(taints, "<br>"), c.Why})
	}
	return table(rows)
}

// defaultTable lists the conditions that have a default.
func defaultTable(list []catalog.Condition) string {
	rows := [][]string{{"condition", "reported by", "healthy", "when unhealthy", "a reboot", "default", "taint key", "why"}}
	for _, c := range list {
		if c.Source == catalog.Kubernetes {
			continue
		}
		decided := fmt.Sprintf("%s: %s", c.Unhealthy(), c.Effect)
		if c.Duration != "" {
			decided += ", after " + c.Duration
		}
		if c.MaxUnhealthy != "" {
			decided += fmt.Sprintf(", on at most %s of the nodes", c.MaxUnhealthy)
		}
		reboot := "ends it"
		if c.SurvivesReboot {
			reboot = "does not cure it"
		}
		rows = append(rows, []string{code(c.Type), string(c.Source), string(c.Healthy), c.Meaning, reboot, decided, code(c.TaintKey()), c.Why})
	}
	return table(rows)
}

// eventTable lists the Events without a condition.
func eventTable(list []catalog.Event) string {
	rows := make([][]string, 0, 1+len(list))
	rows = append(rows, []string{"reason", "reported by", "meaning"})
	for _, e := range list {
		sources := make([]string, 0, len(e.Sources))
		for _, source := range e.Sources {
			sources = append(sources, string(source))
		}
		rows = append(rows, []string{code(e.Reason), strings.Join(sources, ", "), e.Meaning})
	}
	return table(rows)
}

func code(text string) string { return "`" + text + "`" }

// table formats rows. The first is the header.
func table(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return b.String()
}
