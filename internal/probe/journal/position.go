package journal

import (
	"encoding/json"
	"math"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// position is the stored position of a reader.
type position struct {
	// Files lists files that may still grow or were not read to their end.
	Files []filePosition `json:"files,omitempty"`
	// Done is the last number, by sequence, in files that were read to their end.
	Done map[id]uint64 `json:"done,omitempty"`
	// Flushed is the last entry that was read in /run.
	Flushed *moment `json:"flushed,omitempty"`
}

// filePosition is how far a file was read.
type filePosition struct {
	File     id     `json:"file"`
	Sequence id     `json:"sequence"`
	Taken    uint64 `json:"taken"` // number of the last entry that was returned or skipped
	Tail     uint64 `json:"tail"`  // number of the last entry in the file
}

// seen returns the last sequence number that the position covers.
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

// gap returns the number of entries in files that were deleted before they were read to
// their end. These are the numbers between the last seen entry and the first remaining
// one. Journald numbers the entries of all its files consecutively, older versions even
// across sequences, so entries of any file fill the gap. Only a remaining file of the same
// sequence proves that the numbering has continued after a deleted file.
func gap(seen uint64, gone map[id]filePosition, left []header) uint64 {
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

// moment is a point in time within a boot.
type moment struct {
	Boot      id     `json:"boot"`
	Monotonic uint64 `json:"monotonic"`
}

// parsePosition parses a position. It returns nil if text is empty.
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

// position returns the position after everything that was returned.
func (r *Reader) position() (logs.Position, error) {
	p := position{Flushed: r.copies.flushed, Done: r.progress.done}
	for _, s := range r.sources {
		p.Files = append(p.Files, filePosition{File: s.header.file, Sequence: s.header.sequence, Taken: s.taken, Tail: s.header.tail})
	}
	for _, place := range r.progress.resume { // files that were not found yet
		p.Files = append(p.Files, place)
	}
	return json.Marshal(p)
}
