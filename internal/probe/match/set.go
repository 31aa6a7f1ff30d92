package match

// Set is patterns that are sought together. It may be used by several at once.
type Set struct {
	literals []sought
	always   []int
	window   int // how much of each literal is looked at first
	// next says, by the last two bytes of a window of the text, how far to go on; or,
	// from stop on, which bucket of literals may end here.
	next    *[1 << 16]uint8
	buckets [256 - stop][]int
}

// stop is the first value of next that is no distance.
const stop = 0x80

// sought is a literal and the patterns that need it.
type sought struct {
	literal
	from     int // where its window begins
	patterns []int
}

// NewSet puts patterns together. They are known by their place.
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
				s.literals = append(s.literals, sought{literal: l})
			}
			s.literals[at].patterns = append(s.literals[at].patterns, id)
		}
	}
	s.build()
	return s
}

// Always returns the patterns that have no literal: every line must be tried.
func (s *Set) Always() []int { return s.always }

// Scan tells where patterns may match in a text of many lines: for every line that has
// a literal of a pattern it calls found, once or more often, with a place in that line
// and the pattern. The places never go down. A match that crosses lines has its literal in
// one of them, which need not be the last. Patterns without a literal are not told of,
// see [Set.Always].
func (s *Set) Scan(text []byte, found func(at, pattern int)) {
	if s.next == nil {
		return
	}
	for at := s.window - 1; at < len(text); {
		next := s.next[uint16(text[at-1])|uint16(text[at])<<8]
		if next < stop {
			at += int(next)
			continue
		}
		for _, i := range s.buckets[next-stop] {
			l := &s.literals[i]
			if begin := at - s.window + 1 - l.from; begin >= 0 && l.is(text[begin:]) {
				for _, id := range l.patterns {
					found(at, id)
				}
			}
		}
		at++
	}
}

// is says whether a text begins with the literal.
func (l literal) is(text []byte) bool {
	if len(text) < len(l.text) {
		return false
	}
	if !l.fold {
		return string(text[:len(l.text)]) == l.text
	}
	for i := range len(l.text) {
		if small(text[i]) != l.text[i] {
			return false
		}
	}
	return true
}
