package match

import (
	"bytes"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// Pattern is a regular expression whose matches end at the end of the text. It is safe for
// concurrent use.
type Pattern struct {
	source   string
	regexp   *regexp.Regexp
	literals []literal
	crosses  bool
}

// Compile parses a pattern in Go's syntax, with two differences. Every match, in every
// alternative, extends to the end of the newest line. ^ and \A match at the start of every
// line.
func Compile(pattern string) (*Pattern, error) {
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("reading pattern %q: %w", pattern, err)
	}
	p := &Pattern{source: pattern, crosses: canMatchNewline(tree)}
	anchorAtLines(tree)
	if p.regexp, err = regexp.Compile(`(?:` + tree.String() + `)\z`); err != nil {
		return nil, fmt.Errorf("reading pattern %q: %w", pattern, err)
	}
	p.literals = literalsOf(tree.Simplify())
	return p, nil
}

// String returns the source of the pattern.
func (p *Pattern) String() string { return p.source }

// CrossesLines says whether a match may contain a newline. If not, only the newest line
// matters.
func (p *Pattern) CrossesLines() bool { return p.crosses }

// Match returns the start of the leftmost match that ends at the end of the text. The text
// is the newest line, without its newline, after the remembered lines.
func (p *Pattern) Match(text []byte) (begin int, ok bool) {
	newest := 0
	if !p.crosses {
		newest = bytes.LastIndexByte(text, '\n') + 1
	}
	found := p.regexp.FindIndex(text[newest:])
	if found == nil {
		return 0, false
	}
	return newest + found[0], true
}

// anchorAtLines makes \A match at the start of every line.
func anchorAtLines(tree *syntax.Regexp) {
	if tree.Op == syntax.OpBeginText {
		tree.Op = syntax.OpBeginLine
	}
	for _, part := range tree.Sub {
		anchorAtLines(part)
	}
}

// canMatchNewline says whether a part of the pattern can consume a newline. Assertions do
// not count: a match that extends past a newline has consumed it.
func canMatchNewline(tree *syntax.Regexp) bool {
	switch tree.Op {
	case syntax.OpAnyChar:
		return true
	case syntax.OpLiteral:
		for _, r := range tree.Rune {
			if r == '\n' {
				return true
			}
		}
	case syntax.OpCharClass:
		for i := 0; i+1 < len(tree.Rune); i += 2 {
			if tree.Rune[i] <= '\n' && '\n' <= tree.Rune[i+1] {
				return true
			}
		}
	}
	for _, part := range tree.Sub {
		if canMatchNewline(part) {
			return true
		}
	}
	return false
}
