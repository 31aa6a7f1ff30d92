package main

import (
	"fmt"
	"strings"
)

// page is a page of Markdown.
type page struct{ strings.Builder }

// newPage begins a page with its front matter and its first heading.
func newPage(title, heading string, weight int) *page {
	p := &page{}
	fmt.Fprintf(p, "---\ntitle: %s\nweight: %d\n---\n# %s\n", title, weight, heading)
	return p
}

// add adds a heading, a paragraph or a list.
func (p *page) add(format string, args ...any) { fmt.Fprintf(p, "\n"+format+"\n", args...) }

// header begins a table.
func (p *page) header(cells ...string) {
	p.WriteString("\n")
	p.row(cells...)
	p.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
}

// row adds a row to the table.
func (p *page) row(cells ...string) {
	for _, cell := range cells {
		fmt.Fprintf(p, "| %s ", strings.ReplaceAll(cell, "|", `\|`))
	}
	p.WriteString("|\n")
}

// code formats a name or a value. It returns an empty text for an empty one.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// codes formats a list of names or values.
func codes(texts []string) string { return code(strings.Join(texts, "`, `")) }

// plain formats a text on one line, without HTML.
func plain(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "<", `\<`)
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return ""
}
