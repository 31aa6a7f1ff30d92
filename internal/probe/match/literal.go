package match

import (
	"math"
	"math/bits"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// minLiteral is the length from which on a literal saves more than it costs.
	minLiteral = 3
	// maxLiteral is the longest useful length of a literal.
	maxLiteral = 64
	// maxLiterals limits the literals of a pattern. maxPerClass limits how many of them a
	// character class adds.
	maxLiterals, maxPerClass = 64, 16
)

// literal is a sequence of bytes without a newline, because the text of a match joins
// lines differently from the log.
type literal struct {
	text string
	fold bool // ASCII letters match in either case; text is in lower case
}

// literalsOf returns literals of which every match contains at least one, or nil.
func literalsOf(tree *syntax.Regexp) []literal {
	var all []literal
	best := needsOf(tree).best
	for i, l := range best {
		if len(l.text) < minLiteral {
			return nil
		}
		if !slices.ContainsFunc(all, l.includes) && !slices.ContainsFunc(best[i+1:], l.includes) {
			all = append(all, l)
		}
	}
	return all
}

// includes says whether every text with this literal also contains the other.
func (l literal) includes(other literal) bool {
	if other.fold {
		return strings.Contains(lower(l.text), other.text)
	}
	return !l.fold && strings.Contains(l.text, other.text)
}

// needs describes the literals in the matches of a part of a pattern.
type needs struct {
	// exact lists all texts that the part can match; nil if there are too many.
	exact []literal
	// Every match of the part starts with a literal of prefixes and ends with a literal of
	// suffixes.
	prefixes, suffixes []literal
	// best is the best set of literals of which every match contains at least one.
	best []literal
}

// emptyLiteral is the exact set of a part that matches only the empty text. It is also the
// required literal of a part with unknown matches.
func emptyLiteral() []literal { return []literal{{}} }

// unknown returns the needs of a part with too many matches to list.
func unknown() needs { return needs{nil, emptyLiteral(), emptyLiteral(), emptyLiteral()} }

// exactly returns the needs of a part that matches only these texts.
func exactLiterals(exact []literal) needs {
	if exact == nil {
		return unknown()
	}
	return needs{exact, exact, exact, exact}
}

// needsOf computes the needs of a pattern from the needs of its parts.
func needsOf(tree *syntax.Regexp) needs {
	switch tree.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return exactLiterals(emptyLiteral())
	case syntax.OpLiteral:
		all := exactLiterals(emptyLiteral())
		for _, c := range tree.Rune {
			all = all.then(exactLiterals(literalsOfRune(c, tree.Flags&syntax.FoldCase != 0)))
		}
		return all
	case syntax.OpCharClass:
		return exactLiterals(literalsOfClass(tree.Rune))
	case syntax.OpCapture:
		return needsOf(tree.Sub[0])
	case syntax.OpQuest:
		return needsOf(tree.Sub[0]).or(exactLiterals(emptyLiteral()))
	case syntax.OpPlus:
		once := needsOf(tree.Sub[0])
		once.exact = nil
		return once
	case syntax.OpConcat:
		all := exactLiterals(emptyLiteral())
		for _, part := range tree.Sub {
			all = all.then(needsOf(part))
		}
		return all
	case syntax.OpAlternate:
		all := needsOf(tree.Sub[0])
		for _, part := range tree.Sub[1:] {
			all = all.or(needsOf(part))
		}
		return all
	}
	return unknown()
}

// then returns the needs of two consecutive parts.
func (n needs) then(next needs) needs {
	both := needs{exact: join(n.exact, next.exact)}
	if both.exact != nil {
		return exactLiterals(both.exact)
	}
	both.prefixes, both.suffixes = n.prefixes, next.suffixes
	if longer := join(n.exact, next.prefixes); longer != nil {
		both.prefixes = longer
	}
	if longer := join(n.suffixes, next.exact); longer != nil {
		both.suffixes = longer
	}
	both.best = better(n.best, next.best)
	for _, seam := range [][]literal{both.prefixes, both.suffixes, join(n.suffixes, next.prefixes)} {
		both.best = better(both.best, seam)
	}
	return both
}

// or returns the needs of two alternatives.
func (n needs) or(other needs) needs {
	both := needs{union(n.exact, other.exact), union(n.prefixes, other.prefixes), union(n.suffixes, other.suffixes), union(n.best, other.best)}
	for _, choice := range []*[]literal{&both.prefixes, &both.suffixes, &both.best} {
		if *choice == nil {
			*choice = emptyLiteral()
		}
	}
	return both
}

// join returns all concatenations of a literal of before and a literal of after. It
// returns nil if either is unknown or the result has too many or too long literals.
func join(before, after []literal) []literal {
	if len(before)*len(after) > maxLiterals {
		return nil
	}
	var all []literal
	for _, b := range before {
		for _, a := range after {
			if len(b.text)+len(a.text) > maxLiteral {
				return nil
			}
			all = append(all, concat(b, a))
		}
	}
	return all
}

func concat(a, b literal) literal {
	both := literal{text: a.text + b.text, fold: a.fold || b.fold}
	if both.fold {
		both.text = lower(both.text)
	}
	return both
}

// union returns the literals of both, nil if either is unknown or there are too many.
func union(a, b []literal) []literal {
	if a == nil || b == nil {
		return nil
	}
	all := slices.Clone(a)
	for _, l := range b {
		if !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	if len(all) > maxLiterals {
		return nil
	}
	return all
}

// literalsOfRune returns all texts that a character of a pattern can match. It returns nil
// if bytes cannot express that: a literal never contains a newline, and invalid UTF-8
// matches the replacement character.
func literalsOfRune(c rune, fold bool) []literal {
	if c == '\n' || c == utf8.RuneError || !utf8.ValidRune(c) {
		return nil
	}
	if !fold {
		return []literal{{text: string(c)}}
	}
	// Some letters have more than two cases: the Kelvin sign is a k, and the long s is an s.
	var all []literal
	for other := c; ; {
		l := literal{text: string(other)}
		if other < utf8.RuneSelf && unicode.IsLetter(other) {
			l = literal{text: lower(l.text), fold: true}
		}
		if !slices.Contains(all, l) {
			all = append(all, l)
		}
		if other = unicode.SimpleFold(other); other == c {
			return all
		}
	}
}

// literalsOfClass returns all texts that a character class can match, nil if there are too
// many.
func literalsOfClass(ranges []rune) []literal {
	var all []literal
	for i := 0; i+1 < len(ranges); i += 2 {
		for c := ranges[i]; c <= ranges[i+1]; c++ {
			one := literalsOfRune(c, false)
			if one == nil || len(all) == maxPerClass {
				return nil
			}
			all = append(all, one...)
		}
	}
	return all
}

// lower converts ASCII letters to lower case and leaves all other bytes unchanged.
func lower(text string) string {
	folded := []byte(text)
	for i, c := range folded {
		folded[i] = lowerByte(c)
	}
	return string(folded)
}

func lowerByte(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// better returns the set of literals that lets a scan skip more text.
func better(a, b []literal) []literal {
	if score(b) > score(a) {
		return b
	}
	return a
}

// score returns the score of the worst literal, reduced by a cost for the number of
// literals. Among equal scores, longer literals win.
func score(choice []literal) int {
	least, length := maxLiteral, maxLiteral
	for _, l := range choice {
		least, length = min(least, distinctBytes(l.text)), min(length, len(l.text))
	}
	if length < minLiteral {
		return math.MinInt + length
	}
	return maxLiteral*(2*min(least, 16)-3*bits.Len(uint(len(choice)-1))) + length
}

// distinctBytes counts the different bytes of a literal, without words that most lines of
// some logs contain.
func distinctBytes(text string) int {
	for _, word := range []string{"kernel: ", "systemd[", "error", "level=", "msg=", "time="} {
		text = strings.ReplaceAll(text, word, "")
	}
	var seen [256]bool
	count := 0
	for i := range len(text) {
		if !seen[text[i]] {
			seen[text[i]] = true
			count++
		}
	}
	return count
}
