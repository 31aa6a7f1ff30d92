package journal

import (
	"encoding/json"
	"math"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// position is where a reader goes on.
type position struct {
	// Files that may still grow, or are not read to their end.
	Files []place `json:"files,omitempty"`
	// Done is, by sequence, the last number of the files that are read to their end.
	Done map[id]uint64 `json:"done,omitempty"`
	// Flushed is the last entry that was read in /run.
	Flushed *moment `json:"flushed,omitempty"`
}

// place is how far a file is read.
type place struct {
	File     id     `json:"file"`
	Sequence id     `json:"sequence"`
	Taken    uint64 `json:"taken"` // number of the last entry that was taken
	Tail     uint64 `json:"tail"`  // and of the last that was there, whosoever's
}

// seen is the last sequence number that is known to whoever was at the position.
func (p *position) seen() uint64 {
	last := uint64(0)
	for _, place := range p.Files {
		last = max(last, place.Tail)
	}
	for _, number := range p.Done {
		last = max(last, number)
	}
	return last
}

// gap returns how many entries went with files that are gone: as many as are missing
// between the last that was seen and the first that is left. Journald numbers the entries
// of all its files in one row, older ones even across sequences, so those of any file
// fill the gap. That the numbers have gone on where a file is gone, another of its
// sequence must show.
func gap(seen uint64, gone map[id]place, left []header) uint64 {
	sequences := map[id]bool{}
	for _, place := range gone {
		sequences[place.Sequence] = true
	}
	first, hasGoneOn := uint64(math.MaxUint64), false
	for _, h := range left {
		if h.entries > 0 && h.tail > seen {
			first = min(first, max(h.head, seen+1))
			hasGoneOn = hasGoneOn || sequences[h.sequence]
		}
	}
	if !hasGoneOn {
		return 0
	}
	return first - seen - 1
}

// moment is a point of time in one boot.
type moment struct {
	Boot      id     `json:"boot"`
	Monotonic uint64 `json:"monotonic"`
}

// parsePosition reads a position; none if it is empty.
func parsePosition(text logs.Position) (*position, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var p *position
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, err
	}
	return p, nil
}

// position of the reader, after all that it has handed out.
func (r *Reader) position() (logs.Position, error) {
	p := position{Flushed: r.flushed, Done: r.done}
	for _, s := range r.sources {
		p.Files = append(p.Files, place{File: s.header.file, Sequence: s.header.sequence, Taken: s.taken, Tail: s.header.tail})
	}
	for _, place := range r.resume { // not found yet
		p.Files = append(p.Files, place)
	}
	return json.Marshal(p)
}
