package logmonitor

import (
	"bytes"
	"math"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/match"
)

// seekAll puts the patterns together, and makes the window as large as they need it.
func (m *Monitor) seekAll() {
	var patterns []*match.Pattern
	size := uint64(1)
	for _, r := range m.rules {
		for _, s := range []*sought{r.pattern, r.clear} {
			if s == nil {
				continue
			}
			if s.CrossesLines() {
				s.reach = uint64(m.cfg.Monitor.BufferSize)
				size = s.reach
			}
			m.sought, patterns = append(m.sought, s), append(patterns, s.Pattern)
		}
	}
	m.window = newWindow(int(size))
	m.set = match.NewSet(patterns...)
	for _, i := range m.set.Always() {
		m.sought[i].until, m.until = math.MaxUint64, math.MaxUint64
	}
}

// expect has a pattern tried on an entry that holds a literal of it, and on those after
// it in which a match may end.
func (m *Monitor) expect(s *sought, ordinal uint64) {
	s.until = max(s.until, ordinal+s.reach-1)
	m.until = max(m.until, s.until)
}

// look tries the rules on an entry.
func (m *Monitor) look(now time.Time, chunk places, here place) {
	m.fill(chunk, here)
	e := m.window.newest()
	if !e.counts {
		return
	}
	for _, r := range m.rules {
		if r.KernelOnly && !e.kernel {
			continue
		}
		if lines, ok := m.matches(r, r.pattern); ok {
			m.find(now, r, e, lines)
		} else if r.clear != nil {
			if _, ok := m.matches(r, r.clear); ok {
				m.clear(now, r, e)
			}
		}
	}
}

// matches tries a pattern on the newest entry, and returns the lines in which it lies.
func (m *Monitor) matches(r *rule, s *sought) ([]byte, bool) {
	e := m.window.newest()
	if s.until < e.ordinal {
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

// fill has the window end with an entry of a chunk.
func (m *Monitor) fill(chunk places, here place) {
	if m.window.last >= here.ordinal {
		return
	}
	// The oldest that is needed and not yet there.
	oldest := here
	for oldest.ordinal > m.window.last+1 && here.ordinal-oldest.ordinal+1 < m.window.size() {
		before, ok := chunk.previous(oldest)
		if !ok {
			break
		}
		oldest = before
	}
	for ok := true; ok && oldest.ordinal <= here.ordinal; oldest, ok = chunk.next(oldest) {
		m.translate(chunk, oldest, m.window.push(oldest.ordinal))
	}
}

// translate reads what an entry of a chunk says.
func (m *Monitor) translate(chunk places, here place, e *entry) {
	e.text = chunk.Text[here.begin:here.end]
	if chunk.Records != nil {
		record := chunk.Records[here.record]
		e.at, e.number, e.kernel = record.Time, record.Number, record.Facility == logs.Kernel
		e.counts = !e.at.Before(m.cfg.Since)
		return
	}
	e.number = chunk.First + uint64(here.begin)
	for _, words := range m.cfg.Monitor.SkipList {
		if bytes.Contains(e.text, []byte(words)) {
			return
		}
	}
	stamped := false
	if m.cfg.Translator != nil {
		e.at, e.text, stamped = m.cfg.Translator.Translate(e.text)
	}
	if !stamped {
		m.counts.Unstamped++
	}
	e.counts = stamped && !e.at.Before(m.cfg.Since)
}
