package match_test

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// naivePattern is a pattern in three forms: its source, a slow matcher that does not use
// regular expressions, and texts that it may match.
type naivePattern struct {
	written string
	// ends returns where a match that begins at an offset can end.
	ends func(text []byte, at int) []int
	// example returns a text that matches if its surroundings allow it.
	example func(t *rapid.T) string
}

// match returns the first offset from which the pattern matches up to the end.
func (w naivePattern) match(text []byte) (begin int, ok bool) {
	for begin <= len(text) {
		if slices.Contains(w.ends(text, begin), len(text)) {
			return begin, true
		}
		_, width := utf8.DecodeRune(text[begin:])
		begin += max(width, 1)
	}
	return 0, false
}

// character matches a character for which is returns true.
func character(written string, is func(rune) bool, examples string) naivePattern {
	return naivePattern{
		written: written,
		ends: func(text []byte, at int) []int {
			if at == len(text) {
				return nil
			}
			c, width := utf8.DecodeRune(text[at:])
			if !is(c) {
				return nil
			}
			return []int{at + width}
		},
		example: func(t *rapid.T) string {
			return string(rapid.SampledFrom([]rune(examples)).Draw(t, "character"))
		},
	}
}

func exactRune(c rune, fold bool) naivePattern {
	is, examples := func(other rune) bool { return other == c }, string(c)
	if fold {
		is = func(other rune) bool { return strings.EqualFold(string(other), string(c)) }
		examples += strings.ToUpper(examples) + strings.ToLower(examples)
		switch c {
		case 'k', 'K':
			examples += "\u212a"
		case 's', 'S':
			examples += "\u017f"
		}
	}
	written := string(c)
	switch c {
	case '\n':
		written = `\n`
	case '.':
		written = `\.`
	}
	return character(written, is, examples)
}

// assertion matches without consuming text.
func assertion(written string, is func(text []byte, at int) bool) naivePattern {
	return naivePattern{
		written: written,
		ends: func(text []byte, at int) []int {
			if !is(text, at) {
				return nil
			}
			return []int{at}
		},
		example: func(*rapid.T) string { return "" },
	}
}

func wordAt(text []byte, at int) bool {
	return at >= 0 && at < len(text) && isWord(rune(text[at]))
}

func isWord(c rune) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isSpace(c rune) bool { return strings.ContainsRune("\t\n\f\r ", c) }

func sequence(parts []naivePattern) naivePattern {
	all := naivePattern{ends: func(text []byte, at int) []int {
		ends := []int{at}
		for _, part := range parts {
			ends = each(ends, func(at int) []int { return part.ends(text, at) })
		}
		return ends
	}, example: func(t *rapid.T) string {
		var example strings.Builder
		for _, part := range parts {
			example.WriteString(part.example(t))
		}
		return example.String()
	}}
	for _, part := range parts {
		all.written += part.written
	}
	return all
}

// each returns the results of all offsets without duplicates.
func each(places []int, of func(at int) []int) []int {
	var all []int
	for _, at := range places {
		all = append(all, of(at)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func either(parts []naivePattern, group string) naivePattern {
	written := make([]string, len(parts))
	for i, part := range parts {
		written[i] = part.written
	}
	return naivePattern{
		written: group + strings.Join(written, "|") + ")",
		ends: func(text []byte, at int) []int {
			var all []int
			for _, part := range parts {
				all = append(all, part.ends(text, at)...)
			}
			return each(all, func(at int) []int { return []int{at} })
		},
		example: func(t *rapid.T) string { return rapid.SampledFrom(parts).Draw(t, "branch").example(t) },
	}
}

func repeated(part naivePattern, sign string, least, most int) naivePattern {
	return naivePattern{
		written: "(?:" + part.written + ")" + sign,
		ends: func(text []byte, at int) []int {
			now := []int{at}
			for range least {
				now = each(now, func(at int) []int { return part.ends(text, at) })
			}
			all := now
			for n := least; (most < 0 || n < most) && len(now) > 0; n++ {
				now = each(now, func(at int) []int { return part.ends(text, at) })
				before := len(all)
				all = each(append(all, now...), func(at int) []int { return []int{at} })
				if len(all) == before {
					break
				}
			}
			return all
		},
		example: func(t *rapid.T) string {
			highest := most
			if most < 0 {
				highest = least + 2
			}
			var example strings.Builder
			for range rapid.IntRange(least, highest).Draw(t, "times") {
				example.WriteString(part.example(t))
			}
			return example.String()
		},
	}
}

// letters are few, so that patterns often match texts, and unusual, so that difficult
// cases occur.
const letters = "abkKsSE é\u017f\u212a\uFFFD0_."

// anyRule draws a pattern like those of users: most contain a word that is not optional.
func anyRule(t *rapid.T) naivePattern {
	if rapid.IntRange(0, 3).Draw(t, "wordless") == 3 {
		return anyPattern(t, 3, false)
	}
	fold := rapid.Bool().Draw(t, "fold")
	rule := sequence([]naivePattern{anyPattern(t, 2, fold), anyWord(t, 3, fold), anyPattern(t, 2, fold)})
	if fold {
		return either([]naivePattern{rule}, "(?i:")
	}
	return rule
}

func anyWord(t *rapid.T, least int, fold bool) naivePattern {
	word := rapid.SliceOfN(rapid.SampledFrom([]rune(letters)), least, 7).Draw(t, "word")
	all := make([]naivePattern, len(word))
	for i, c := range word {
		all[i] = exactRune(c, fold)
	}
	return sequence(all)
}

// anyPattern draws a pattern up to a depth.
func anyPattern(t *rapid.T, depth int, fold bool) naivePattern {
	kinds := []string{"word", "word", "word", "word", "class", "class", "look", "newline"}
	if depth > 0 {
		kinds = append(kinds, "sequence", "sequence", "sequence", "either", "either", "repeat", "repeat", "fold")
	}
	parts := func(least int) []naivePattern {
		all := make([]naivePattern, rapid.IntRange(least, 4).Draw(t, "parts"))
		for i := range all {
			all[i] = anyPattern(t, depth-1, fold)
		}
		return all
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "word":
		return anyWord(t, 1, fold)
	case "class":
		return anyClass(t, fold)
	case "look":
		return anyAssertion(t)
	case "newline":
		return exactRune('\n', false)
	case "sequence":
		return sequence(parts(2))
	case "either":
		return either(parts(2), rapid.SampledFrom([]string{"(", "(?:"}).Draw(t, "group"))
	case "repeat":
		part := anyPattern(t, depth-1, fold)
		sign := rapid.SampledFrom([]string{"*", "+", "?", "{2}", "{1,3}", "{2,}"}).Draw(t, "sign")
		bounds := map[string][2]int{"*": {0, -1}, "+": {1, -1}, "?": {0, 1}, "{2}": {2, 2}, "{1,3}": {1, 3}, "{2,}": {2, -1}}[sign]
		if rapid.Bool().Draw(t, "lazy") {
			sign += "?"
		}
		return repeated(part, sign, bounds[0], bounds[1])
	default:
		return either([]naivePattern{anyPattern(t, depth-1, true)}, "(?i:")
	}
}

func anyClass(t *rapid.T, fold bool) naivePattern {
	not := func(is func(rune) bool) func(rune) bool { return func(c rune) bool { return !is(c) } }
	kind := rapid.SampledFrom([]string{`.`, `(?s:.)`, `\d`, `\w`, `\s`, `\S`, `\W`, "list", "other"}).Draw(t, "class")
	switch kind {
	case `.`:
		return character(kind, func(c rune) bool { return c != '\n' }, "ab é")
	case `(?s:.)`:
		return character(kind, func(rune) bool { return true }, "ab\né")
	case `\d`:
		return character(kind, func(c rune) bool { return '0' <= c && c <= '9' }, "0479")
	case `\w`:
		if fold { // the meaning of \w without case is Go's own
			kind = `[0-9_]`
			return character(kind, func(c rune) bool { return '0' <= c && c <= '9' || c == '_' }, "04_")
		}
		return character(kind, isWord, "ak0_")
	case `\s`:
		return character(kind, isSpace, " \t\n")
	case `\S`:
		return character(kind, not(isSpace), "ab.é")
	case `\W`:
		if fold {
			return character(`[^0-9]`, func(c rune) bool { return c < '0' || c > '9' }, "a \n")
		}
		return character(kind, not(isWord), " .\né")
	}
	list := rapid.StringOfN(rapid.SampledFrom([]rune("abkKsSEé0_")), 1, 4, -1).Draw(t, "list")
	is := func(c rune) bool {
		return strings.ContainsFunc(list, func(listed rune) bool {
			return c == listed || fold && strings.EqualFold(string(c), string(listed))
		})
	}
	if kind == "other" {
		return character("[^"+list+"]", not(is), "\n.c")
	}
	return character("["+list+"]", is, list)
}

func anyAssertion(t *rapid.T) naivePattern {
	atLine := func(text []byte, at int) bool { return at == 0 || text[at-1] == '\n' }
	atEnd := func(text []byte, at int) bool { return at == len(text) }
	kind := rapid.SampledFrom([]string{`^`, `^`, `\A`, `(?m:^)`, `$`, `\z`, `(?m:$)`, `\b`, `\B`}).Draw(t, "look")
	switch kind {
	case `^`, `\A`, `(?m:^)`:
		return assertion(kind, atLine)
	case `$`, `\z`:
		return assertion(kind, atEnd)
	case `(?m:$)`:
		return assertion(kind, func(text []byte, at int) bool { return atEnd(text, at) || text[at] == '\n' })
	case `\b`:
		return assertion(kind, func(text []byte, at int) bool { return wordAt(text, at-1) != wordAt(text, at) })
	default:
		return assertion(kind, func(text []byte, at int) bool { return wordAt(text, at-1) == wordAt(text, at) })
	}
}

func (w naivePattern) GoString() string { return strconv.Quote(w.written) } // for the output of rapid
