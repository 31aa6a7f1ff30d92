package catalog

import (
	"slices"
	"strings"
	"sync"
	"unicode"
)

const (
	// shortName is the length from which on one wrong letter is taken for a slip
	// wherever it is. In shorter names it makes another word too easily: Read, Reads
	// and Heady are no slips of Ready. There it must be within the word, which still
	// begins and ends as it should: nobody calls a condition Redy, Raedy or Reaady.
	shortName = 8
	// longName is the length from which on two words may have a slip each.
	longName = 16
	// shortWord is the length from which on a word can have a slip, where it is
	// looked at alone: Boot and Root are two words, Kubelet and Kublet are one.
	shortWord = 5
)

// distinct are names that differ from a known one by a single letter and mean
// something else.
var distinct = []string{
	"PTPProblem",  // the other protocol that sets clocks; NTPProblem
	"NfsShutdown", // other filesystems; XfsShutdown
	"ZfsShutdown",
	"Reedy",        // a word; Ready
	"CPUUnhealthy", // other processors; GPUUnhealthy
	"DPUUnhealthy", "IPUUnhealthy", "NPUUnhealthy", "TPUUnhealthy",
	"GPU0Unhealthy", // one of them, by its number; GPUUnhealthy
	"GPU1Unhealthy", "GPU2Unhealthy", "GPU3Unhealthy", "GPU4Unhealthy", "GPU5Unhealthy", "GPU6Unhealthy", "GPU7Unhealthy",
}

// Nearest returns the known condition type that somebody has probably meant who
// wrote another one, and whether there is one. Known are the types of the
// catalogue and the others, for which a caller takes those that nodes do report:
// a name that a node reports is right, however it is spelled.
//
// It errs on the side of silence, because its answer is used to refuse: a name
// that is far from all known ones is somebody's own, and two names that a person
// would call different words are, whatever their letters. A near miss is a known
// name with
//
//   - other capitals or separators: kernel-deadlock, Readonly_FileSystem;
//   - one slip, that is a letter too many, too few, wrong, or two swapped; in a
//     short name, within the word;
//   - in a long name, one slip in each of two words.
//
// Nothing is known of the words of the others, so a slip in them counts in an
// ordinary word only: CPUBad and GPUBad, Disk1Full and Disk2Full, BootFull and
// RootFull are different things. A name with a domain before it is compared with
// those of the same domain.
func Nearest(conditionType string, others ...string) (name string, ok bool) {
	if _, known := Lookup(conditionType); known || slices.Contains(others, conditionType) || slices.Contains(distinct, conditionType) {
		return "", false
	}
	written := spell(conditionType)
	ours, theirs := spellCatalogue(), make([]spelling, 0, len(others))
	for _, other := range slices.Sorted(slices.Values(others)) { // the same question gets the same answer
		theirs = append(theirs, spell(other))
	}
	// The smallest mistake is the likeliest one.
	for _, mistake := range []struct {
		candidates []spelling
		made       func(written, known spelling) bool
	}{
		{ours, sameLetters},
		{theirs, sameLetters},
		{ours, oneSlip},
		{theirs, slipInWords(1)},
		{ours, slipInWords(2)},
		{theirs, slipInWords(2)},
	} {
		for _, candidate := range mistake.candidates {
			if candidate.domain == written.domain && mistake.made(written, candidate) {
				return candidate.name, true
			}
		}
	}
	return "", false
}

// spelling is a name as it is compared.
type spelling struct {
	name    string
	domain  string // up to the slash
	letters []rune // of the rest, without capitals and separators
	words   []word // of the rest
}

// word is a part of a name: GPU0LinkDown is GPU, 0, Link and Down.
type word struct {
	letters []rune // without capitals
	plain   bool   // neither an abbreviation nor a number
}

// spellCatalogue spells the types of the catalogue, once.
var spellCatalogue = sync.OnceValue(func() []spelling {
	list := make([]spelling, 0, len(conditions))
	for _, c := range conditions {
		list = append(list, spell(c.Type))
	}
	return list
})

func spell(name string) spelling {
	cut := strings.LastIndexByte(name, '/') + 1
	s := spelling{name: name, domain: name[:cut]}
	for _, text := range split(name[cut:]) {
		w := word{[]rune(strings.ToLower(text)), strings.ContainsFunc(text, unicode.IsLower)}
		s.letters = append(s.letters, w.letters...)
		s.words = append(s.words, w)
	}
	return s
}

// split cuts a name in camel case, with or without separators, into its words.
func split(name string) []string {
	var list []string
	runes := []rune(name)
	start := 0
	cut := func(end int) {
		if end > start {
			list = append(list, string(runes[start:end]))
		}
		start = end
	}
	for i, r := range runes {
		switch {
		case strings.ContainsRune("-_. ", r):
			cut(i)
			start = i + 1
		case i == start:
		case unicode.IsDigit(r) != unicode.IsDigit(runes[i-1]),
			unicode.IsUpper(r) && !unicode.IsUpper(runes[i-1]),
			// The last capital of several belongs to the word that follows.
			unicode.IsUpper(r) && i+1 < len(runes) && unicode.IsLower(runes[i+1]):
			cut(i)
		}
	}
	cut(len(runes))
	return list
}

// sameLetters says whether two names differ in capitals and separators only.
func sameLetters(a, b spelling) bool {
	return len(a.letters) > 0 && slices.Equal(a.letters, b.letters)
}

// oneSlip says whether a name is another with one slip in it.
func oneSlip(written, known spelling) bool {
	return isSlip(written.letters, known.letters) &&
		(len(known.letters) >= shortName || isSwap(written.letters, known.letters) || sameEnds(written.letters, known.letters))
}

// sameEnds says whether two names begin and end with the same letter.
func sameEnds(a, b []rune) bool {
	return len(a) > 0 && len(b) > 0 && a[0] == b[0] && a[len(a)-1] == b[len(b)-1]
}

// slipInWords returns a check for names that are the same word by word, save for
// one slip each in at most so many words.
func slipInWords(most int) func(written, known spelling) bool {
	return func(written, known spelling) bool {
		size := len(known.letters)
		if len(written.words) != len(known.words) || size < shortName || most > 1 && size < longName {
			return false
		}
		slips := 0
		for i, a := range written.words {
			b := known.words[i]
			switch {
			case slices.Equal(a.letters, b.letters):
			case len(b.letters) >= shortWord && a.plain && b.plain && isSlip(a.letters, b.letters):
				slips++
			default:
				return false
			}
		}
		return 0 < slips && slips <= most
	}
}

// isSlip says whether a can be made of b by one change: a letter more, less or
// another, or two neighbours swapped.
func isSlip(a, b []rune) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	from := 0 // the first difference
	for from < len(a) && a[from] == b[from] {
		from++
	}
	switch len(b) - len(a) {
	case 0:
		return from < len(a) && slices.Equal(a[from+1:], b[from+1:]) || isSwap(a, b)
	case 1:
		return slices.Equal(a[from:], b[from+1:])
	}
	return false
}

// isSwap says whether a is b with two neighbours swapped.
func isSwap(a, b []rune) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) - 1 {
		if a[i] != b[i] {
			return a[i] == b[i+1] && a[i+1] == b[i] && slices.Equal(a[i+2:], b[i+2:])
		}
	}
	return false
}
