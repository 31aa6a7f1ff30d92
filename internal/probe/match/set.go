package match

// Set searches for several patterns together. It is safe for concurrent use.
type Set struct {
	literals []setLiteral
	always   []int
	window   int // number of bytes of each literal that the scan compares first
	// next is indexed by the last two bytes of a window of the text. Values below bucketBase
	// are the distance to skip. Others select the bucket of literals whose window may end
	// here.
	next    *[1 << 16]uint8
	buckets [256 - bucketBase][]int
}

// bucketBase is the first value of next that is not a distance.
const bucketBase = 0x80

// setLiteral is a literal and the patterns that require it.
type setLiteral struct {
	literal
	offset   int // offset of its window
	patterns []int
}

// NewSet returns a set of patterns. Their indexes identify them.
func NewSet(patterns ...*Pattern) *Set {
	s := &Set{}
	place := map[literal]int{}
	for id, p := range patterns {
		if len(p.literals) == 0 {
			s.always = append(s.always, id)
		}
		for _, l := range p.literals {
			at, known := place[l]
			if !known {
				at = len(s.literals)
				place[l] = at
				s.literals = append(s.literals, setLiteral{literal: l})
			}
			s.literals[at].patterns = append(s.literals[at].patterns, id)
		}
	}
	s.build()
	return s
}

// Always returns the patterns without a literal. They must be tried on every line.
func (s *Set) Always() []int { return s.always }

// Scan reports where patterns may match in a text of many lines. For every line with a
// literal of a pattern it calls found, once or more often, with an offset in that line and
// the pattern. Offsets never decrease. If a match crosses lines, its literal may be in any
// of them, not only in the last. Scan does not report patterns without a literal; see
// [Set.Always].
func (s *Set) Scan(text []byte, found func(at, pattern int)) {
	if s.next == nil {
		return
	}
	for at := s.window - 1; at < len(text); {
		next := s.next[uint16(text[at-1])|uint16(text[at])<<8]
		if next < bucketBase {
			at += int(next)
			continue
		}
		for _, i := range s.buckets[next-bucketBase] {
			l := &s.literals[i]
			if begin := at - s.window + 1 - l.offset; begin >= 0 && l.isPrefixOf(text[begin:]) {
				for _, id := range l.patterns {
					found(at, id)
				}
			}
		}
		at++
	}
}

// isPrefixOf says whether a text starts with the literal.
func (l literal) isPrefixOf(text []byte) bool {
	if len(text) < len(l.text) {
		return false
	}
	if !l.fold {
		return string(text[:len(l.text)]) == l.text
	}
	for i := range len(l.text) {
		if lowerByte(text[i]) != l.text[i] {
			return false
		}
	}
	return true
}
