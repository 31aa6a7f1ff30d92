package spelling

import (
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/resourcestack/autohealer/catalog"
)

const (
	// shortName is the minimum length of a name in which a wrong letter counts as a misspelling at
	// any position. In shorter names it often makes another word: Read, Reads and Heady are not
	// misspellings of Ready. There, the first and last letter must be right, as in Redy, Raedy and
	// Reaady.
	shortName = 8
	// longName is the minimum length of a name in which two words may be misspelled.
	longName = 16
	// shortWord is the minimum length of a word that can be misspelled when words are compared one
	// by one. Boot and Root are two words, Kubelet and Kublet are the same.
	shortWord = 5
)

// distinct are names that differ from a known one by a single letter and mean something else.
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

// NearestCondition returns the known condition type that was probably meant by conditionType, and whether
// there is any. Known are the types of the catalog and others, usually the types that nodes report:
// a reported name is right, however it is spelled.
//
// Admission uses the answer to refuse objects, so NearestCondition prefers to return nothing. A name that is
// far from all known names is a user's own type. A misspelling is a known name with
//
//   - different case or separators: kernel-deadlock, Readonly_FileSystem;
//   - one mistake: a letter too many, too few, wrong, or two letters swapped; in a short name, not
//     at its ends;
//   - in a long name, one mistake in each of two words.
//
// The words of others are not known, so a mistake in them counts only in an ordinary word: CPUBad
// and GPUBad, Disk1Full and Disk2Full, BootFull and RootFull are different types. A name with a
// domain is compared only with names of the same domain.
func NearestCondition(conditionType string, others ...string) (name string, ok bool) {
	if _, known := catalog.Lookup(conditionType); known || slices.Contains(others, conditionType) || slices.Contains(distinct, conditionType) {
		return "", false
	}
	written := spell(conditionType)
	ours, theirs := spellCatalog(), make([]spelled, 0, len(others))
	for _, other := range slices.Sorted(slices.Values(others)) { // sorted, so that the answer is deterministic
		theirs = append(theirs, spell(other))
	}
	// The smallest mistake is the likeliest.
	for _, mistake := range []struct {
		candidates []spelled
		made       func(written, known spelled) bool
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

// spelled is a name prepared for comparison.
type spelled struct {
	name    string
	domain  string // up to the slash
	letters []rune // of the rest, in lower case and without separators
	words   []word // of the rest
}

// word is a part of a name: GPU0LinkDown is GPU, 0, Link and Down.
type word struct {
	letters []rune // in lower case
	plain   bool   // neither an abbreviation nor a number
}

// spellCatalog prepares the types of the catalog once.
var spellCatalog = sync.OnceValue(func() []spelled {
	types := catalog.Conditions()
	list := make([]spelled, 0, len(types))
	for _, c := range types {
		list = append(list, spell(c.Type))
	}
	return list
})

func spell(name string) spelled {
	cut := strings.LastIndexByte(name, '/') + 1
	s := spelled{name: name, domain: name[:cut], letters: letters(name[cut:])}
	for _, text := range split(name[cut:]) {
		s.words = append(s.words, word{letters(text), strings.ContainsFunc(text, unicode.IsLower)})
	}
	return s
}

// split splits a name in camel case, with or without separators, into its words.
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
			// The last of several capitals belongs to the following word.
			unicode.IsUpper(r) && i+1 < len(runes) && unicode.IsLower(runes[i+1]):
			cut(i)
		}
	}
	cut(len(runes))
	return list
}

// sameLetters returns whether two names differ only in case and separators.
func sameLetters(a, b spelled) bool {
	return len(a.letters) > 0 && slices.Equal(a.letters, b.letters)
}

// oneSlip returns whether a name is another with a single mistake.
func oneSlip(written, known spelled) bool {
	return isSlip(written.letters, known.letters) &&
		(len(known.letters) >= shortName || isSwap(written.letters, known.letters) || sameEnds(written.letters, known.letters))
}

// sameEnds returns whether two names begin and end with the same letters.
func sameEnds(a, b []rune) bool {
	return len(a) > 0 && len(b) > 0 && a[0] == b[0] && a[len(a)-1] == b[len(b)-1]
}

// slipInWords returns a check for names that are equal word by word, except for a single mistake
// each in at most most words.
func slipInWords(most int) func(written, known spelled) bool {
	return func(written, known spelled) bool {
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

// isSlip returns whether a and b differ by a single mistake.
func isSlip(a, b []rune) bool { return distance(a, b, 1) == 1 }

// isSwap returns whether a is b with two neighbours swapped.
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
