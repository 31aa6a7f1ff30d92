package logmonitor

import (
	"bytes"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// location is where a record of a log lies in its chunk.
type location struct {
	ordinal    uint64 // number of the record in the log, counted from 1 by the monitor
	begin, end int    // offsets in the text of the chunk, without the newline
	record     int    // index in Records, if the chunk has them
}

// records finds the records of a chunk.
type records struct{ logs.Chunk }

// before returns the location before the first record. last is the ordinal of the last
// record of the previous chunk.
func (p records) before(last uint64) location {
	return location{ordinal: last, begin: -1, end: -1, record: -1}
}

// next returns the record after another.
func (p records) next(after location) (location, bool) {
	here := location{ordinal: after.ordinal + 1, begin: after.end + 1, record: after.record + 1}
	if here.begin >= len(p.Text) {
		return location{}, false
	}
	if p.Records != nil {
		if here.record == len(p.Records) {
			return location{}, false
		}
		here.end = p.Records[here.record].End - 1
		return here, true
	}
	here.end = p.lineEnd(here.begin)
	return here, true
}

// holding returns the record that contains an offset. The offset is not before the given
// record.
func (p records) holding(from location, at int) location {
	here := from
	if p.Records != nil {
		for here.end < at {
			further, ok := p.next(here)
			if !ok {
				break
			}
			here = further
		}
		return here
	}
	if here.end >= at {
		return here
	}
	// Count the skipped lines without a location for each.
	passed := p.Text[here.end+1 : at]
	here.ordinal += uint64(bytes.Count(passed, []byte{'\n'})) + 1
	here.begin = here.end + 1 + bytes.LastIndexByte(passed, '\n') + 1
	here.end = p.lineEnd(at)
	return here
}

// previous returns the record before another.
func (p records) previous(to location) (location, bool) {
	if to.begin <= 0 {
		return location{}, false
	}
	here := location{ordinal: to.ordinal - 1, end: to.begin - 1, record: to.record - 1}
	if p.Records != nil {
		if here.record > 0 {
			here.begin = p.Records[here.record-1].End
		}
		return here, true
	}
	here.begin = bytes.LastIndexByte(p.Text[:here.end], '\n') + 1
	return here, true
}

// last returns the last record, or the given one if it is the last.
func (p records) last(from location) location {
	if len(p.Text) == 0 {
		return from
	}
	return p.holding(from, len(p.Text)-1)
}

func (p records) lineEnd(from int) int {
	if length := bytes.IndexByte(p.Text[from:], '\n'); length >= 0 {
		return from + length
	}
	return len(p.Text)
}
