package match

import (
	"bytes"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// Pattern is a regular expression that matches up to the end of a text. It may be used
// by several at once.
type Pattern struct {
	source   string
	regexp   *regexp.Regexp
	literals []literal
	crosses  bool
}

// Compile reads a pattern, in the syntax of Go. A match reaches up to the end of the
// newest line, whichever branch of the pattern matches, and ^ (like \A) is the start
// of a line, not only of the first one. Everything else means what it means in Go.
func Compile(pattern string) (*Pattern, error) {
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("reading pattern %q: %w", pattern, err)
	}
	p := &Pattern{source: pattern, crosses: mayHoldNewline(tree)}
	beginAtLines(tree)
	if p.regexp, err = regexp.Compile(`(?:` + tree.String() + `)\z`); err != nil {
		return nil, fmt.Errorf("reading pattern %q: %w", pattern, err)
	}
	p.literals = literalsOf(tree.Simplify())
	return p, nil
}

// String returns the pattern as it was written.
func (p *Pattern) String() string { return p.source }

// CrossesLines says whether a match may hold a newline. If not, the newest line alone
// decides.
func (p *Pattern) CrossesLines() bool { return p.crosses }

// Match says where a match begins that ends where the text ends; the first such place,
// if there are several. The text is the newest line, without its newline, and as many
// lines before it as are remembered.
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

// beginAtLines makes the start of the text the start of any line.
func beginAtLines(tree *syntax.Regexp) {
	if tree.Op == syntax.OpBeginText {
		tree.Op = syntax.OpBeginLine
	}
	for _, part := range tree.Sub {
		beginAtLines(part)
	}
}

// mayHoldNewline says whether something in the pattern takes newlines. What looks at
// them without taking them does not count: a match that goes past one has taken it.
func mayHoldNewline(tree *syntax.Regexp) bool {
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
		if mayHoldNewline(part) {
			return true
		}
	}
	return false
}
