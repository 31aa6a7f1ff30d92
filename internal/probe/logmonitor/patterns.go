package logmonitor

import (
	"math"

	"github.com/resourcestack/autohealer/internal/probe/match"
)

// search is a pattern and the entries that it must be tried on.
type search struct {
	*match.Pattern

	source string
	reach  uint64 // number of entries that a match can span
	depth  uint64 // number of records that a match can span, including those that do not count
	until  bound  // the last entry that it must be tried on
}

// bound is the last entry to look at, limited by its index and by its ordinal.
type bound struct{ index, ordinal uint64 }

// or returns a bound that includes both.
func (b bound) or(other bound) bound {
	return bound{max(b.index, other.index), max(b.ordinal, other.ordinal)}
}

// newSearch compiles a pattern.
func newSearch(pattern string) (*search, error) {
	compiled, err := match.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return &search{Pattern: compiled, source: pattern, reach: 1, depth: 1}, nil
}

// patterns is the set of all patterns. It finds the entries that they must be tried on.
type patterns struct {
	searches []*search // in the order of the set
	set      *match.Set
	until    bound // the last entry that some pattern must be tried on
	hits     []hit // of the last scan
	addHit   func(at, pattern int)
}

// hit is an offset in a text where a pattern may match.
type hit struct{ at, pattern int }

func newPatterns(searches []*search) *patterns {
	compiled := make([]*match.Pattern, len(searches))
	for i, s := range searches {
		compiled[i] = s.Pattern
	}
	p := &patterns{searches: searches, set: match.NewSet(compiled...)}
	p.addHit = func(at, pattern int) { p.hits = append(p.hits, hit{at, pattern}) }
	for _, i := range p.set.Always() {
		p.until = bound{math.MaxUint64, math.MaxUint64}
		searches[i].until = p.until
	}
	return p
}

// expensive returns the patterns that must be tried on every entry.
func (p *patterns) expensive() []string {
	always := p.set.Always()
	sources := make([]string, 0, len(always))
	for _, i := range always {
		sources = append(sources, p.searches[i].source)
	}
	return sources
}

// scan returns where the patterns may match in a text. The result is valid until the next
// scan.
func (p *patterns) scan(text []byte) []hit {
	p.hits = p.hits[:0]
	p.set.Scan(text, p.addHit)
	return p.hits
}

// extend makes a pattern apply to an entry with one of its literals, and to the following
// entries in which a match may end.
func (p *patterns) extend(pattern int, index, ordinal uint64) {
	s := p.searches[pattern]
	s.until = s.until.or(bound{index + s.reach - 1, ordinal + s.depth - 1})
	p.until = p.until.or(s.until)
}
