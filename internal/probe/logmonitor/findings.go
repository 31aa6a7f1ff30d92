package logmonitor

import (
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/times"
)

// recordMatch handles a match of a rule.
func (m *Monitor) recordMatch(now time.Time, r *rule, e *entry, lines []byte) {
	m.cachedState = nil
	at := times.Min(e.at, now)
	m.expire(at)
	if !r.countMatch(at) || r.found != nil {
		return
	}
	m.counts.Problems[r.Reason]++
	words := message(lines, r.Suffix)
	id := finding.ID(r.key, strconv.FormatUint(e.number, 10), m.epoch(e), words)
	if !r.Permanent {
		r.times = nil
		m.events = append(m.events, finding.Event{ID: id, Severity: finding.Warn, Time: e.at, Reason: r.Reason, Message: words})
		return
	}
	m.lastRank++
	r.found = &occurrence{ID: id, Since: e.at, Message: words, Rank: m.lastRank}
	m.updateCondition(m.byType[r.Condition], e.at)
}

// epoch distinguishes entries with the same number. For numbered records it does not
// include the timestamp, because the reader may have corrected its clock since.
func (m *Monitor) epoch(e *entry) string {
	if m.cfg.Translator == nil {
		return m.cfg.Boot
	}
	return strconv.FormatInt(e.at.UnixNano(), 10)
}

// recordClear handles a match of a clearPattern.
func (m *Monitor) recordClear(now time.Time, r *rule, e *entry) {
	m.cachedState = nil
	m.expire(times.Min(e.at, now))
	r.times = nil
	m.deactivate(r, e.at)
}

// deactivate ends an active rule.
func (m *Monitor) deactivate(r *rule, at time.Time) {
	if r.found == nil {
		return
	}
	m.cachedState = nil
	r.found = nil
	m.updateCondition(m.byType[r.Condition], at)
}

// updateCondition updates a condition after a change of its rules.
func (m *Monitor) updateCondition(c *condition, at time.Time) {
	if event, changed := c.update(m.cfg.Monitor.Source, at); changed {
		m.cachedState = nil
		m.events = append(m.events, event)
	}
}

// nextToEnd returns the rule that ends first if there is no further match.
func (m *Monitor) nextToEnd() (*rule, bool) {
	var first *rule
	var soonest time.Time
	for _, r := range m.rules {
		if at, ok := r.deadline(); ok && (first == nil || at.Before(soonest)) {
			first, soonest = r, at
		}
	}
	return first, first != nil
}

// expire ends all rules whose deadline has passed, in the order of their deadlines.
func (m *Monitor) expire(at time.Time) {
	for {
		r, ok := m.nextToEnd()
		if !ok {
			return
		}
		over, _ := r.deadline()
		if over.After(at) {
			return
		}
		if !r.endsByCount() {
			r.times = nil
		}
		m.deactivate(r, over)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
