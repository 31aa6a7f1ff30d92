package logmonitor

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/format"
)

// maxStoredText limits the bytes of the window in the state; each line adds lineOverhead.
// A larger state would cost more than a match across a restart is worth.
const (
	maxStoredText = 16 << 10
	lineOverhead  = 64
)

// state is the stored state of a monitor.
type state struct {
	Boot       string                    `json:"boot,omitempty"`
	Conditions map[string]conditionState `json:"conditions,omitempty"` // by type
	Rules      map[string]ruleState      `json:"rules,omitempty"`      // by key
	Window     []lineState               `json:"window,omitempty"`
}

type conditionState struct {
	Since time.Time `json:"since"`
	// Told is the ID of the reported occurrence. Empty means that the condition is False.
	Told string `json:"told,omitempty"`
}

type ruleState struct {
	Last  time.Time   `json:"last"`
	Times []time.Time `json:"times,omitempty"`
	Found *occurrence `json:"found,omitempty"`
}

// lineState is an entry of the window.
type lineState struct {
	Text   []byte    `json:"text,omitempty"`
	At     time.Time `json:"at,omitzero"`
	Number uint64    `json:"number,omitempty"`
	Kernel bool      `json:"kernel,omitempty"`
	// Ago is the number of records since the entry, including those that do not count.
	Ago uint64 `json:"ago,omitempty"`
}

// State returns the state of the monitor. The caller stores it with the position after the
// last chunk, and passes it to New after a restart. The same slice means that nothing has
// changed. The caller must not modify it.
func (m *Monitor) State() json.RawMessage {
	if m.cachedState != nil {
		return m.cachedState
	}
	s := state{Boot: m.cfg.Boot, Conditions: map[string]conditionState{}, Rules: map[string]ruleState{}}
	for _, c := range m.conditions {
		s.Conditions[c.Type] = conditionState{c.since, c.reportedID}
	}
	for _, r := range m.rules {
		if r.found != nil || len(r.times) > 0 {
			s.Rules[r.key] = ruleState{r.last, r.times, r.found}
		}
	}
	s.Window = m.lines()
	text, err := m.unknown.Write(s)
	if err != nil {
		// JSON cannot encode the year of a time. Without a state, a restart acts like a first
		// start, which is better than to stop reading.
		return nil
	}
	m.cachedState = text
	return text
}

// CountUnknown returns the number of fields in the state that this version does not know.
// They are preserved.
func (m *Monitor) CountUnknown() int { return m.unknown.Len() }

// lines returns the newest entries of the window, up to the size limit.
func (m *Monitor) lines() []lineState {
	if m.window.size() == 1 {
		return nil
	}
	var lines []lineState
	w, room := m.window, maxStoredText
	for index, oldest := w.last, w.oldest(); index >= oldest; index-- {
		e := w.at(index)
		if room -= lineOverhead + len(e.text); room < 0 {
			break
		}
		lines = append(lines, lineState{e.text, e.at, e.number, e.kernel, m.read - e.ordinal})
	}
	slices.Reverse(lines)
	return lines
}

// restore applies the state from before a restart.
func (m *Monitor) restore(text json.RawMessage) error {
	if len(text) == 0 {
		return nil
	}
	var s state
	unknown, err := format.ReadAll(text, &s)
	if err != nil {
		return fmt.Errorf("reading the state of the monitor %s: %w", m.cfg.Monitor.Source, err)
	}
	m.unknown = unknown
	rebooted := s.Boot != "" && m.cfg.Boot != "" && s.Boot != m.cfg.Boot
	for _, c := range m.conditions {
		if was, ok := s.Conditions[c.Type]; ok {
			c.since, c.reportedID = was.Since, was.Told
			if c.reportedID != "" {
				c.status = catalog.True
			}
		}
	}
	for _, r := range m.rules {
		survives := r.Permanent && m.byType[r.Condition].SurvivesReboot
		if was, ok := s.Rules[r.key]; ok && (survives || !rebooted) && !m.isCleared(r, was) {
			m.restoreRule(r, was)
		}
	}
	if !rebooted {
		m.restoreWindow(s.Window)
	}
	return nil
}

// isCleared reports whether a user has cleared what a rule found. A rule that has matched again
// since then stays active.
func (m *Monitor) isCleared(r *rule, was ruleState) bool {
	until, ok := m.cfg.Clear[r.Condition]
	return ok && r.Permanent && was.Found != nil && !was.Found.Since.After(until) && !was.Last.After(until)
}

// restoreRule applies the stored state of a rule.
func (m *Monitor) restoreRule(r *rule, was ruleState) {
	r.last = was.Last
	if r.Count > 1 {
		r.times = was.Times[max(0, len(was.Times)-r.Count):]
	}
	if r.Permanent && was.Found != nil && was.Found.ID != "" {
		r.found = was.Found
		m.lastRank = max(m.lastRank, was.Found.Rank)
	}
}

// restoreWindow restores the lines of the window. It is unknown which patterns have a
// literal in them, so all patterns are tried as long as the lines may be part of a match.
func (m *Monitor) restoreWindow(lines []lineState) {
	if m.window.size() == 1 || len(lines) == 0 {
		return
	}
	w := m.window
	m.read, w.seen = w.depth, w.depth
	for _, line := range lines {
		if line.Ago < w.depth {
			w.push(entry{ordinal: m.read - line.Ago, number: line.Number, at: line.At, text: line.Text, kernel: line.Kernel})
		}
	}
	for i, s := range m.patterns.searches {
		if s.reach > 1 {
			m.patterns.extend(i, w.last, m.read)
		}
	}
}
