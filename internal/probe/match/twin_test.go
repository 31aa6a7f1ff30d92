package match_test

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// twin is a pattern three times: as it is written, as what it matches, found out the
// slow way and without any regular expression, and as texts that it may match.
type twin struct {
	written string
	// ends returns where a match can end that begins at a place.
	ends func(text []byte, at int) []int
	// example returns a text that matches, if what is around it lets it.
	example func(t *rapid.T) string
}

// match returns the first place from which on the pattern matches up to the end.
func (w twin) match(text []byte) (begin int, ok bool) {
	for begin <= len(text) {
		if slices.Contains(w.ends(text, begin), len(text)) {
			return begin, true
		}
		_, width := utf8.DecodeRune(text[begin:])
		begin += max(width, 1)
	}
	return 0, false
}

// character takes one character that is of a kind.
func character(written string, is func(rune) bool, examples string) twin {
	return twin{
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

func exactly(c rune, fold bool) twin {
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

// looking takes nothing.
func looking(written string, is func(text []byte, at int) bool) twin {
	return twin{
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

func sequence(parts []twin) twin {
	all := twin{ends: func(text []byte, at int) []int {
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

// each returns all that comes of the places, each of them once.
func each(places []int, of func(at int) []int) []int {
	var all []int
	for _, at := range places {
		all = append(all, of(at)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func either(parts []twin, group string) twin {
	written := make([]string, len(parts))
	for i, part := range parts {
		written[i] = part.written
	}
	return twin{
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

func repeated(part twin, sign string, least, most int) twin {
	return twin{
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

// letters are few, so that patterns and texts often meet, and odd, so that they meet
// where it is hard.
const letters = "abkKsSE é\u017f\u212a\uFFFD0_."

// anyRule makes a pattern as people do: most have a word in them that is not optional.
func anyRule(t *rapid.T) twin {
	if rapid.IntRange(0, 3).Draw(t, "wordless") == 3 {
		return anyTwin(t, 3, false)
	}
	fold := rapid.Bool().Draw(t, "fold")
	rule := sequence([]twin{anyTwin(t, 2, fold), anyWord(t, 3, fold), anyTwin(t, 2, fold)})
	if fold {
		return either([]twin{rule}, "(?i:")
	}
	return rule
}

func anyWord(t *rapid.T, least int, fold bool) twin {
	word := rapid.SliceOfN(rapid.SampledFrom([]rune(letters)), least, 7).Draw(t, "word")
	all := make([]twin, len(word))
	for i, c := range word {
		all[i] = exactly(c, fold)
	}
	return sequence(all)
}

// anyTwin makes a pattern of at most some depth.
func anyTwin(t *rapid.T, depth int, fold bool) twin {
	kinds := []string{"word", "word", "word", "word", "class", "class", "look", "newline"}
	if depth > 0 {
		kinds = append(kinds, "sequence", "sequence", "sequence", "either", "either", "repeat", "repeat", "fold")
	}
	parts := func(least int) []twin {
		all := make([]twin, rapid.IntRange(least, 4).Draw(t, "parts"))
		for i := range all {
			all[i] = anyTwin(t, depth-1, fold)
		}
		return all
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "word":
		return anyWord(t, 1, fold)
	case "class":
		return anyClass(t, fold)
	case "look":
		return anyLook(t)
	case "newline":
		return exactly('\n', false)
	case "sequence":
		return sequence(parts(2))
	case "either":
		return either(parts(2), rapid.SampledFrom([]string{"(", "(?:"}).Draw(t, "group"))
	case "repeat":
		part := anyTwin(t, depth-1, fold)
		sign := rapid.SampledFrom([]string{"*", "+", "?", "{2}", "{1,3}", "{2,}"}).Draw(t, "sign")
		bounds := map[string][2]int{"*": {0, -1}, "+": {1, -1}, "?": {0, 1}, "{2}": {2, 2}, "{1,3}": {1, 3}, "{2,}": {2, -1}}[sign]
		if rapid.Bool().Draw(t, "lazy") {
			sign += "?"
		}
		return repeated(part, sign, bounds[0], bounds[1])
	default:
		return either([]twin{anyTwin(t, depth-1, true)}, "(?i:")
	}
}

func anyClass(t *rapid.T, fold bool) twin {
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
		if fold { // what \w means without regard to case is Go's own business
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

func anyLook(t *rapid.T) twin {
	atLine := func(text []byte, at int) bool { return at == 0 || text[at-1] == '\n' }
	atEnd := func(text []byte, at int) bool { return at == len(text) }
	kind := rapid.SampledFrom([]string{`^`, `^`, `\A`, `(?m:^)`, `$`, `\z`, `(?m:$)`, `\b`, `\B`}).Draw(t, "look")
	switch kind {
	case `^`, `\A`, `(?m:^)`:
		return looking(kind, atLine)
	case `$`, `\z`:
		return looking(kind, atEnd)
	case `(?m:$)`:
		return looking(kind, func(text []byte, at int) bool { return atEnd(text, at) || text[at] == '\n' })
	case `\b`:
		return looking(kind, func(text []byte, at int) bool { return wordAt(text, at-1) != wordAt(text, at) })
	default:
		return looking(kind, func(text []byte, at int) bool { return wordAt(text, at-1) == wordAt(text, at) })
	}
}

func (w twin) GoString() string { return strconv.Quote(w.written) } // for what rapid prints
