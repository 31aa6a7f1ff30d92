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
	// shortest is the length from which on a literal saves more than it costs.
	shortest = 3
	// longest is the length that is enough of a literal.
	longest = 64
	// most is how many literals a pattern may have, and mostOfClass how many one class
	// of characters adds to them.
	most, mostOfClass = 64, 16
)

// literal is a run of bytes without a newline, since lines are not joined in the log
// as they are in the text of a match.
type literal struct {
	text string
	fold bool // ASCII letters of either case count; the text has the small ones
}

func (l literal) String() string {
	if l.fold {
		return "(?i)" + l.text
	}
	return l.text
}

// Literal returns texts of which one is in every match, to be read by people: one that
// may be in either case begins with (?i). If there are none, every line must be tried.
func (p *Pattern) Literal() ([]string, bool) {
	texts := make([]string, len(p.literals))
	for i, l := range p.literals {
		texts[i] = l.String()
	}
	return texts, len(texts) > 0
}

// literalsOf returns literals of which one is in every match, or none.
func literalsOf(tree *syntax.Regexp) []literal {
	var all []literal
	best := needsOf(tree).best
	for i, l := range best {
		if len(l.text) < shortest {
			return nil
		}
		if !slices.ContainsFunc(all, l.has) && !slices.ContainsFunc(best[i+1:], l.has) {
			all = append(all, l)
		}
	}
	return all
}

// has says whether the other literal is found wherever this one is.
func (l literal) has(other literal) bool {
	if other.fold {
		return strings.Contains(lower(l.text), other.text)
	}
	return !l.fold && strings.Contains(l.text, other.text)
}

// needs is what a part of a pattern needs to find in a text.
type needs struct {
	// whole is all that the part can match, nil if that is too much to list.
	whole []literal
	// Whatever the part matches begins with one of head and ends with one of tail.
	head, tail []literal
	// best is the best choice of literals of which one is in whatever it matches.
	best []literal
}

// nothing is all that a part can match which takes no text, and all that is known to be
// in a text that may be any.
func nothing() []literal { return []literal{{}} }

// unknown is what a part needs that can match more than can be listed.
func unknown() needs { return needs{nil, nothing(), nothing(), nothing()} }

// listed is what a part needs that can match just these.
func listed(whole []literal) needs {
	if whole == nil {
		return unknown()
	}
	return needs{whole, whole, whole, whole}
}

// needsOf finds out what a pattern needs, from its parts up.
func needsOf(tree *syntax.Regexp) needs {
	switch tree.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return listed(nothing())
	case syntax.OpLiteral:
		all := listed(nothing())
		for _, c := range tree.Rune {
			all = all.then(listed(alone(c, tree.Flags&syntax.FoldCase != 0)))
		}
		return all
	case syntax.OpCharClass:
		return listed(oneOf(tree.Rune))
	case syntax.OpCapture:
		return needsOf(tree.Sub[0])
	case syntax.OpQuest:
		return needsOf(tree.Sub[0]).or(listed(nothing()))
	case syntax.OpPlus:
		once := needsOf(tree.Sub[0])
		once.whole = nil
		return once
	case syntax.OpConcat:
		all := listed(nothing())
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

// then returns what two parts need that follow each other.
func (n needs) then(next needs) needs {
	both := needs{whole: join(n.whole, next.whole)}
	if both.whole != nil {
		return listed(both.whole)
	}
	both.head, both.tail = n.head, next.tail
	if longer := join(n.whole, next.head); longer != nil {
		both.head = longer
	}
	if longer := join(n.tail, next.whole); longer != nil {
		both.tail = longer
	}
	both.best = better(n.best, next.best)
	for _, seam := range [][]literal{both.head, both.tail, join(n.tail, next.head)} {
		both.best = better(both.best, seam)
	}
	return both
}

// or returns what is needed where one of two parts will do.
func (n needs) or(other needs) needs {
	both := needs{union(n.whole, other.whole), union(n.head, other.head), union(n.tail, other.tail), union(n.best, other.best)}
	for _, choice := range []*[]literal{&both.head, &both.tail, &both.best} {
		if *choice == nil {
			*choice = nothing()
		}
	}
	return both
}

// join returns each of one with each of the other behind it, nil if one is not known
// or if that is too much.
func join(before, after []literal) []literal {
	if len(before)*len(after) > most {
		return nil
	}
	var all []literal
	for _, b := range before {
		for _, a := range after {
			if len(b.text)+len(a.text) > longest {
				return nil
			}
			all = append(all, together(b, a))
		}
	}
	return all
}

func together(a, b literal) literal {
	both := literal{text: a.text + b.text, fold: a.fold || b.fold}
	if both.fold {
		both.text = lower(both.text)
	}
	return both
}

// union returns both, nil if one is not known or if that is too much.
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
	if len(all) > most {
		return nil
	}
	return all
}

// alone returns all that one character of a pattern can match, nil if that cannot be
// told by bytes: no literal goes past the end of a line, and bytes that are no UTF-8
// count as the replacement character.
func alone(c rune, fold bool) []literal {
	if c == '\n' || c == utf8.RuneError || !utf8.ValidRune(c) {
		return nil
	}
	if !fold {
		return []literal{{text: string(c)}}
	}
	// Some letters have more than two cases: the Kelvin sign is a k, and the long s
	// is an s.
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

// oneOf returns all that a class of characters can match, nil if that is too much.
func oneOf(ranges []rune) []literal {
	var all []literal
	for i := 0; i+1 < len(ranges); i += 2 {
		for c := ranges[i]; c <= ranges[i+1]; c++ {
			one := alone(c, false)
			if one == nil || len(all) == mostOfClass {
				return nil
			}
			all = append(all, one...)
		}
	}
	return all
}

// lower makes ASCII letters small, and leaves all other bytes alone.
func lower(text string) string {
	folded := []byte(text)
	for i, c := range folded {
		folded[i] = small(c)
	}
	return string(folded)
}

func small(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// better returns the choice that lets a scan pass over more of the text.
func better(a, b []literal) []literal {
	if score(b) > score(a) {
		return b
	}
	return a
}

// score is that of the worst of the literals, less what their number costs. Where that
// is the same, the longer ones are better.
func score(choice []literal) int {
	least, length := longest, longest
	for _, l := range choice {
		least, length = min(least, tells(l.text)), min(length, len(l.text))
	}
	if length < shortest {
		return math.MinInt + length
	}
	return longest*(2*min(least, 16)-3*bits.Len(uint(len(choice)-1))) + length
}

// tells is how many different bytes a literal has, beside the words that stand in most
// lines of some log.
func tells(text string) int {
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
