package logmonitor

import (
	"bytes"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// recordsPerEntry is the number of records, including those that do not count, that the
// window reaches back per entry.
const recordsPerEntry = 32

// buildPatterns collects the patterns of all rules, and sizes the window for them.
func (m *Monitor) buildPatterns() {
	var searches []*search
	size, depth := uint64(1), uint64(1)
	for _, r := range m.rules {
		for _, s := range []*search{r.pattern, r.clear} {
			if s == nil {
				continue
			}
			if s.CrossesLines() && m.cfg.Monitor.BufferSize > 1 {
				s.reach = uint64(m.cfg.Monitor.BufferSize)
				s.depth = recordsPerEntry * s.reach
				size, depth = s.reach, s.depth
			}
			searches = append(searches, s)
		}
	}
	m.window = newWindow(size, depth)
	m.patterns = newPatterns(searches)
}

// tryRules tries the rules on the newest entry.
func (m *Monitor) tryRules(now time.Time, e *entry) {
	for _, r := range m.rules {
		if r.KernelOnly && !e.kernel {
			continue
		}
		if lines, ok := m.matches(r, r.pattern, e); ok {
			m.recordMatch(now, r, e, lines)
		} else if r.clear != nil {
			if _, ok := m.matches(r, r.clear, e); ok {
				m.recordClear(now, r, e)
			}
		}
	}
}

// matches tries a pattern on the newest entry. It returns the lines that contain the
// match.
func (m *Monitor) matches(r *rule, s *search, e *entry) ([]byte, bool) {
	if s.until.index < e.index || s.until.ordinal < e.ordinal {
		return nil, false
	}
	text := e.text
	if s.reach > 1 {
		text = m.window.text(r.KernelOnly)
	}
	begin, ok := s.Match(text)
	if !ok {
		return nil, false
	}
	return wholeLines(text, begin), true
}

// fill extends the window up to a record of a chunk. It returns the entry of the record,
// nil if the record does not count. It translates each record once, and only if the record
// may be in the window.
func (m *Monitor) fill(chunk records, here location) *entry {
	w := m.window
	if w.seen < here.ordinal {
		w.pending = w.pending[:0]
		for p, ok := here, true; ok && p.ordinal > w.seen && here.ordinal-p.ordinal < w.depth; p, ok = chunk.previous(p) {
			if e, counts := m.translate(chunk, p); counts {
				w.pending = append(w.pending, e)
			}
			if uint64(len(w.pending)) == w.size() {
				break
			}
		}
		for i := len(w.pending) - 1; i >= 0; i-- {
			w.push(w.pending[i])
		}
		w.seen = here.ordinal
	}
	return w.newest(here.ordinal)
}

// translate parses a record of a chunk. A record counts if it has a timestamp, is not too
// old and does not match the skip list.
func (m *Monitor) translate(chunk records, here location) (e entry, counts bool) {
	e.ordinal, e.text = here.ordinal, chunk.Text[here.begin:here.end]
	if chunk.Records != nil {
		record := chunk.Records[here.record]
		e.at, e.number, e.kernel = record.Time, record.Number, record.Facility == logs.Kernel
		return e, !e.at.Before(m.cfg.Since)
	}
	e.number = chunk.First + uint64(here.begin)
	for _, words := range m.cfg.Monitor.SkipList {
		if bytes.Contains(e.text, []byte(words)) {
			return e, false
		}
	}
	stamped := false
	if m.cfg.Translator != nil {
		e.at, e.text, stamped = m.cfg.Translator.Translate(e.text)
	}
	if !stamped {
		m.counts.Unstamped++
	}
	return e, stamped && !e.at.Before(m.cfg.Since)
}
