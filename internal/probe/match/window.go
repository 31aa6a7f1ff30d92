package match

import (
	"slices"
	"strings"
)

// build selects a window of each literal, all of the same length, and fills the skip
// table, as in the algorithm of Wu and Manber. After two bytes that are in no window, a
// scan can skip nearly a whole window. After two bytes of a window, it can skip to where
// they would end that window.
func (s *Set) build() {
	if len(s.literals) == 0 {
		return
	}
	s.window = maxLiteral
	for _, l := range s.literals {
		s.window = min(s.window, len(l.text))
	}
	s.next = new([1 << 16]uint8)
	for block := range s.next {
		s.next[block] = uint8(s.window - 1)
	}
	for i := range s.literals {
		l := &s.literals[i]
		l.offset = rarest(l.text, s.window)
		for left := 1; left < s.window-1; left++ { // distance from the block to the end of the window
			for _, block := range blocks(l.literal, l.offset+s.window-1-left) {
				s.next[block] = min(s.next[block], uint8(left))
			}
		}
	}
	for i, l := range s.literals {
		for _, block := range blocks(l.literal, l.offset+s.window-1) {
			if s.next[block] < bucketBase {
				s.next[block] = bucketBase + uint8(i%len(s.buckets))
			}
			if bucket := &s.buckets[s.next[block]-bucketBase]; !slices.Contains(*bucket, i) {
				*bucket = append(*bucket, i)
			}
		}
	}
}

// rarest returns the offset of a window whose last two bytes are rare in logs, because the
// scan must compare literals wherever these bytes occur.
func rarest(text string, window int) int {
	best := 0
	for from := range len(text) - window + 1 {
		if common(text, from+window-1) < common(text, best+window-1) {
			best = from
		}
	}
	return best
}

// common estimates how common the two bytes are that end at an offset.
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

// blocks returns the two bytes of a literal that end at an offset, in all relevant cases.
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
