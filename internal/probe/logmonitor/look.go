package logmonitor

import (
	"bytes"
	"math"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/match"
)

// stretch is how many records, with those that do not count, the window goes back for
// each of its entries.
const stretch = 32

// seekAll puts the patterns together, and makes the window as large as they need it.
func (m *Monitor) seekAll() {
	var patterns []*match.Pattern
	size, depth := uint64(1), uint64(1)
	for _, r := range m.rules {
		for _, s := range []*sought{r.pattern, r.clear} {
			if s == nil {
				continue
			}
			if s.CrossesLines() && m.cfg.Monitor.BufferSize > 1 {
				s.reach = uint64(m.cfg.Monitor.BufferSize)
				s.depth = stretch * s.reach
				size, depth = s.reach, s.depth
			}
			m.sought, patterns = append(m.sought, s), append(patterns, s.Pattern)
		}
	}
	m.window = newWindow(size, depth)
	m.set = match.NewSet(patterns...)
	for _, i := range m.set.Always() {
		m.sought[i].until = bound{math.MaxUint64, math.MaxUint64}
		m.until = m.sought[i].until
	}
}

// expect has a pattern tried on an entry that holds a literal of it, and on those after
// it in which a match may end.
func (m *Monitor) expect(s *sought, place, ordinal uint64) {
	s.until = s.until.or(bound{place + s.reach - 1, ordinal + s.depth - 1})
	m.until = m.until.or(s.until)
}

// look tries the rules on the newest entry.
func (m *Monitor) look(now time.Time, e *entry) {
	for _, r := range m.rules {
		if r.KernelOnly && !e.kernel {
			continue
		}
		if lines, ok := m.matches(r, r.pattern, e); ok {
			m.find(now, r, e, lines)
		} else if r.clear != nil {
			if _, ok := m.matches(r, r.clear, e); ok {
				m.clear(now, r, e)
			}
		}
	}
}

// matches tries a pattern on the newest entry, and returns the lines in which it lies.
func (m *Monitor) matches(r *rule, s *sought, e *entry) ([]byte, bool) {
	if s.until.place < e.place || s.until.ordinal < e.ordinal {
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

// fill has the window end with a record of a chunk, and returns its entry, nil if it does
// not count. Each record is translated once, and only if it may be in the window.
func (m *Monitor) fill(chunk places, here place) *entry {
	w := m.window
	if w.seen < here.ordinal {
		m.fresh = m.fresh[:0]
		for p, ok := here, true; ok && p.ordinal > w.seen && here.ordinal-p.ordinal < w.depth; p, ok = chunk.previous(p) {
			if e, counts := m.translate(chunk, p); counts {
				m.fresh = append(m.fresh, e)
			}
			if uint64(len(m.fresh)) == w.size() {
				break
			}
		}
		for i := len(m.fresh) - 1; i >= 0; i-- {
			w.push(m.fresh[i])
		}
		w.seen = here.ordinal
	}
	return w.is(here.ordinal)
}

// translate reads what a record of a chunk says, and whether it counts: it has a stamp,
// is not too old and not to be passed over.
func (m *Monitor) translate(chunk places, here place) (e entry, counts bool) {
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
