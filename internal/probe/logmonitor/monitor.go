package logmonitor

import (
	"encoding/json"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/match"
)

// lull is how long nothing must have come after a chunk that said that there is more,
// until it counts that there is none.
const lull = time.Second

// Monitor looks for problems in one log.
type Monitor struct {
	cfg        Config
	rules      []*rule
	conditions []*condition
	byType     map[string]*condition

	sought []*sought // all patterns, in the order of the set
	set    *match.Set
	hits   []hit
	note   func(at, pattern int)
	until  bound // what some pattern must be tried on
	window *window
	fresh  []entry // that go into the window
	read   uint64  // ordinal of the last record that has been taken

	heard  time.Time // when the last chunk came
	behind bool      // there may be more in the log than has been read
	ranks  uint64
	events []finding.Event
	counts Counts

	unknown    *format.Rest    // of the state
	remembered json.RawMessage // what State returned, nil if it would be something else
	forgot     error
}

// hit is a place in a chunk where a pattern may match.
type hit struct{ at, pattern int }

// Counts is what a monitor has counted in its life.
type Counts struct {
	Lines     uint64 // that were read
	Unstamped uint64 // of those that had to be looked at, which had no stamp
	Lost      uint64 // records that were lost before they could be read
	// Problems by reason: the events of temporary rules, and how often permanent rules
	// began to stand. Every reason of a rule is there from the start.
	Problems map[string]uint64
}

// New makes a monitor.
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
	m.seekAll()
	m.note = func(at, pattern int) { m.hits = append(m.hits, hit{at, pattern}) }
	m.forgot = m.remember(cfg.Remembered)
	return m, nil
}

// Expensive returns the patterns that must be tried on every line, because no text is
// in all of their matches.
func (m *Monitor) Expensive() []string {
	always := m.set.Always()
	patterns := make([]string, 0, len(always))
	for _, i := range always {
		patterns = append(patterns, m.sought[i].words)
	}
	return patterns
}

// Forgot says why what was remembered could not be used, nil if it could.
func (m *Monitor) Forgot() error { return m.forgot }

// Counts returns what has been counted so far.
func (m *Monitor) Counts() Counts {
	counts := m.counts
	counts.Problems = make(map[string]uint64, len(m.counts.Problems))
	for reason, times := range m.counts.Problems {
		counts.Problems[reason] = times
	}
	return counts
}

// Start returns all conditions as they are: well, or as they were remembered. What has
// ended since, by a reboot or a new configuration, has its event.
func (m *Monitor) Start(now time.Time) finding.Report {
	m.heard, m.behind, m.remembered = now, true, nil
	for _, r := range m.rules {
		r.noLaterThan(now)
	}
	for _, c := range m.conditions {
		if c.since.IsZero() {
			c.since = now
		}
		m.settle(c, now)
		c.changed = true
	}
	return m.report()
}

// Take reads a chunk, and returns what is found in it.
func (m *Monitor) Take(now time.Time, c logs.Chunk) finding.Report {
	m.heard, m.behind = now, c.More
	m.counts.Lost += c.Lost
	if c.Lost > 0 {
		m.window.forget()
		m.remembered = nil
	}
	m.hits = m.hits[:0]
	m.set.Scan(c.Text, m.note)

	chunk := places{c}
	first := chunk.before(m.read)
	here, hits := first, m.hits
	for {
		if m.until.place > m.window.last && m.until.ordinal > here.ordinal {
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
				m.expect(m.sought[hits[0].pattern], e.place, e.ordinal)
			}
		}
		if e != nil {
			m.look(now, e)
		}
	}
	last := chunk.last(here)
	m.counts.Lines += last.ordinal - m.read
	if last.ordinal > m.read {
		m.keep(chunk, last)
		m.read = last.ordinal
	}
	if !m.behind {
		m.expire(now)
	}
	return m.report()
}

// keep has the window hold what may still be part of a match when the chunk is gone.
func (m *Monitor) keep(chunk places, last place) {
	if m.window.size() > 1 {
		m.fill(chunk, last)
		m.window.keep()
		m.remembered = nil
	}
}

// Deadline returns when Wake has something to do, if nothing comes until then.
func (m *Monitor) Deadline() (time.Time, bool) {
	r, ok := m.next()
	if !ok {
		return time.Time{}, false
	}
	at, _ := r.deadline()
	if m.behind {
		at = later(at, m.heard.Add(lull))
	}
	return at, true
}

// Wake returns what has changed because time has passed and nothing has come.
func (m *Monitor) Wake(now time.Time) finding.Report {
	if at, ok := m.Deadline(); ok && !at.After(now) {
		m.expire(now)
	}
	return m.report()
}

// report hands out what has been found since the last one.
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
