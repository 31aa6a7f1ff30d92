package match

import (
	"slices"
	"strings"
)

// build chooses a window of each literal, all of one length, and lays out the table by
// which a scan goes on, after Wu and Manber: from two bytes that are in no window it can
// go on by nearly a whole one, and from two that are, up to where they would be its end.
func (s *Set) build() {
	if len(s.literals) == 0 {
		return
	}
	s.window = longest
	for _, l := range s.literals {
		s.window = min(s.window, len(l.text))
	}
	s.next = new([1 << 16]uint8)
	for block := range s.next {
		s.next[block] = uint8(s.window - 1)
	}
	for i := range s.literals {
		l := &s.literals[i]
		l.from = rarest(l.text, s.window)
		for left := 1; left < s.window-1; left++ { // from the block to the window's end
			for _, block := range blocks(l.literal, l.from+s.window-1-left) {
				s.next[block] = min(s.next[block], uint8(left))
			}
		}
	}
	for i, l := range s.literals {
		for _, block := range blocks(l.literal, l.from+s.window-1) {
			if s.next[block] < stop {
				s.next[block] = stop + uint8(i%len(s.buckets))
			}
			if bucket := &s.buckets[s.next[block]-stop]; !slices.Contains(*bucket, i) {
				*bucket = append(*bucket, i)
			}
		}
	}
}

// rarest returns where in a text a window begins whose last two bytes are rare in logs:
// at these a scan has to look closer.
func rarest(text string, window int) int {
	best := 0
	for from := range len(text) - window + 1 {
		if common(text, from+window-1) < common(text, best+window-1) {
			best = from
		}
	}
	return best
}

// common is how common the two bytes are that end at a place.
func common(text string, end int) int {
	sum := 0
	for _, c := range []byte(text[end-1 : end+1]) {
		switch {
		case strings.IndexByte(" aeinorst0", c) >= 0:
			sum += 3
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z':
			sum += 2
		default:
			sum++
		}
	}
	return sum
}

// blocks returns the two bytes of a literal that end at a place, in all cases that
// count.
func blocks(l literal, end int) []uint16 {
	all := make([]uint16, 0, 4)
	for _, a := range cases(l.text[end-1], l.fold) {
		for _, b := range cases(l.text[end], l.fold) {
			all = append(all, uint16(a)|uint16(b)<<8)
		}
	}
	return all
}

func cases(c byte, fold bool) []byte {
	if fold && 'a' <= c && c <= 'z' {
		return []byte{c, c - ('a' - 'A')}
	}
	return []byte{c}
}
