package logmonitor

import (
	"encoding/json"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// idleTime is how long no chunk must follow a chunk with More until the log counts as read
// to its end.
const idleTime = time.Second

// Monitor finds problems in a log.
type Monitor struct {
	cfg        Config
	rules      []*rule
	conditions []*condition
	byType     map[string]*condition

	patterns *patterns
	window   *window
	read     uint64 // ordinal of the last record that was read

	lastChunk time.Time // time of the last chunk
	behind    bool      // the log may have more to read
	lastRank  uint64
	events    []finding.Event
	counts    Counts

	unknown     *format.Rest    // unknown fields of the state
	cachedState json.RawMessage // result of the last State, nil if it has changed
	restoreErr  error
}

// Counts are the totals of a monitor.
type Counts struct {
	Lines     uint64 // lines that were read
	Unstamped uint64 // translated lines without a timestamp
	Lost      uint64 // records that were lost before they could be read
	// Problems counts, by reason, the events of temporary rules and the activations of
	// permanent rules. It has an entry for every reason of a rule.
	Problems map[string]uint64
}

// New returns a monitor.
func New(cfg Config) (*Monitor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	rules, err := compile(cfg.Monitor.Source, cfg.Monitor.Rules)
	if err != nil {
		return nil, err
	}
	m := &Monitor{cfg: cfg, rules: rules, byType: map[string]*condition{}, counts: Counts{Problems: map[string]uint64{}}}
	for _, written := range cfg.Monitor.Conditions {
		if m.byType[written.Type] == nil {
			c := &condition{Condition: written, status: catalog.False}
			m.conditions, m.byType[written.Type] = append(m.conditions, c), c
		}
	}
	for _, r := range rules {
		m.counts.Problems[r.Reason] = 0
		if r.Permanent {
			c := m.byType[r.Condition]
			c.rules = append(c.rules, r)
		}
	}
	m.buildPatterns()
	m.restoreErr = m.restore(cfg.Remembered)
	return m, nil
}

// Expensive returns the patterns that must be tried on every line, because their matches
// have no common text.
func (m *Monitor) Expensive() []string { return m.patterns.expensive() }

// RestoreError returns why Config.Remembered could not be used, nil if it could.
func (m *Monitor) RestoreError() error { return m.restoreErr }

// Counts returns the totals.
func (m *Monitor) Counts() Counts {
	counts := m.counts
	counts.Problems = make(map[string]uint64, len(m.counts.Problems))
	for reason, times := range m.counts.Problems {
		counts.Problems[reason] = times
	}
	return counts
}

// Start returns all conditions: False, or as they were before a restart. It returns an
// event for each condition that has ended since, because of a reboot or a new
// configuration.
func (m *Monitor) Start(now time.Time) finding.Report {
	m.lastChunk, m.behind, m.cachedState = now, true, nil
	for _, r := range m.rules {
		r.clampTimes(now)
	}
	for _, c := range m.conditions {
		if c.since.IsZero() {
			c.since = now
		}
		m.updateCondition(c, now)
		c.changed = true
	}
	return m.report()
}

// Take applies the rules to a chunk, and returns what they find.
func (m *Monitor) Take(now time.Time, c logs.Chunk) finding.Report {
	m.lastChunk, m.behind = now, c.More
	m.counts.Lost += c.Lost
	if c.Lost > 0 {
		m.window.clear()
		m.cachedState = nil
	}
	chunk := records{c}
	here, hits := chunk.before(m.read), m.patterns.scan(c.Text)
	for {
		if until := m.patterns.until; until.index > m.window.last && until.ordinal > here.ordinal {
			next, ok := chunk.next(here)
			if !ok {
				break
			}
			here = next
		} else if len(hits) > 0 {
			here = chunk.holding(here, hits[0].at)
		} else {
			break
		}
		e := m.fill(chunk, here)
		for ; len(hits) > 0 && hits[0].at <= here.end; hits = hits[1:] {
			if e != nil {
				m.patterns.extend(hits[0].pattern, e.index, e.ordinal)
			}
		}
		if e != nil {
			m.tryRules(now, e)
		}
	}
	last := chunk.last(here)
	m.counts.Lines += last.ordinal - m.read
	if last.ordinal > m.read {
		m.keepWindow(chunk, last)
		m.read = last.ordinal
	}
	if !m.behind {
		m.expire(now)
	}
	return m.report()
}

// keepWindow keeps lines that may still be part of a match after the chunk is released.
func (m *Monitor) keepWindow(chunk records, last location) {
	if m.window.size() > 1 {
		m.fill(chunk, last)
		m.window.copyTexts()
		m.cachedState = nil
	}
}

// Deadline returns when Wake must be called if no chunk comes before.
func (m *Monitor) Deadline() (time.Time, bool) {
	r, ok := m.nextToEnd()
	if !ok {
		return time.Time{}, false
	}
	at, _ := r.deadline()
	if m.behind {
		at = later(at, m.lastChunk.Add(idleTime))
	}
	return at, true
}

// Wake returns what has changed because time has passed.
func (m *Monitor) Wake(now time.Time) finding.Report {
	if at, ok := m.Deadline(); ok && !at.After(now) {
		m.expire(now)
	}
	return m.report()
}

// report returns what was found since the last report.
func (m *Monitor) report() finding.Report {
	report := finding.Report{Source: m.cfg.Monitor.Source, Events: m.events}
	m.events = nil
	for _, c := range m.conditions {
		if c.changed {
			report.Conditions = append(report.Conditions, c.shown())
			c.changed = false
		}
	}
	return report
}
