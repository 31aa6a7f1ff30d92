package periodic

import (
	"fmt"
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/text"
)

// notChecked is the reason of conditions whose first check takes too long.
const notChecked = "NotCheckedYet"

// ruleStates records the results of all rules and derives conditions and Events from them. It has
// no clock.
type ruleStates struct {
	cfg        Config
	rules      []*rule
	conditions []*condition
	byType     map[string]*condition

	begun    bool // the first report has been made
	events   []finding.Event
	problems map[string]uint64
	unknown  *format.Rest // fields of the stored state that this version does not know
}

// rule is a rule with its latest result.
type rule struct {
	Rule
	key         string
	last        Result
	since       time.Time // when the verdict last changed; zero before the first result
	answeredNow bool      // there was a result since the agent started
	// messageChanged is when the rule last replaced its message while verdict and reason stayed the
	// same. Zero means never.
	messageChanged time.Time
}

func (r *rule) answered() bool { return !r.since.IsZero() }

// condition is the state of a condition.
type condition struct {
	config.Condition
	rules []*rule
	// current is the latest state of the condition, reported or about to be reported.
	current  finding.Condition
	changed  bool // since the last report
	known    bool // current is derived from the rules; before that it is only assumed
	restored bool // it was True before the agent restarted
}

func newRuleStates(cfg Config) *ruleStates {
	b := &ruleStates{cfg: cfg, byType: map[string]*condition{}, problems: map[string]uint64{}}
	for _, written := range cfg.Conditions {
		if b.byType[written.Type] == nil {
			c := &condition{Condition: written}
			c.current = finding.Condition{Type: c.Type, Inverted: c.Inverted(), Status: catalog.False, Reason: c.Reason, Message: c.Message}
			b.conditions, b.byType[c.Type] = append(b.conditions, c), c
		}
	}
	duplicates := map[string]int{}
	for _, written := range cfg.Rules {
		// Two rules may be equal in every part of their key.
		key := finding.ID(cfg.Source, strconv.FormatBool(written.Permanent), written.Condition, written.Reason, written.Name, written.Details)
		duplicates[key]++
		r := &rule{Rule: written, key: finding.ID(key, strconv.Itoa(duplicates[key]))}
		b.rules = append(b.rules, r)
		b.problems[r.Reason] = 0
		if r.Permanent {
			c := b.byType[r.Condition]
			c.rules = append(c.rules, r)
		}
	}
	return b
}

// record stores a result.
func (b *ruleStates) record(now time.Time, r *rule, answer Result) {
	answer.Message = text.Message(answer.Message, finding.MaxMessage)
	if answer.Reason == "" {
		answer.Reason = r.Reason
	}
	if answer.Verdict == Healthy {
		answer = Result{Verdict: Healthy} // the condition has its own message for this
	}
	before, turned := r.last, !r.answered() || r.last.Verdict != answer.Verdict
	if turned {
		r.since = now
	}
	said := turned || before.Reason != answer.Reason
	switch {
	case said:
		r.last, r.messageChanged = answer, time.Time{}
	case before != answer && b.cfg.UpdateOnMessage && now.Sub(r.messageChanged) >= b.cfg.MessagePause:
		r.last, r.messageChanged = answer, now
	} // keep the previous message
	r.answeredNow = true
	switch {
	case r.Permanent:
		if answer.Verdict == Unhealthy && turned {
			b.problems[r.Reason]++
		}
		b.updateCondition(now, b.byType[r.Condition])
	case answer.Verdict == Unhealthy:
		b.problems[r.Reason]++
		b.addEvent(now, r, answer)
	case answer.Unclear:
		b.problems[r.Reason]++
		answer.Reason = r.Reason
		b.addEvent(now, r, answer)
	case answer.Verdict == Unknown && said:
		b.addEvent(now, r, answer)
	}
}

// addEvent appends the Event of a temporary rule.
func (b *ruleStates) addEvent(now time.Time, r *rule, answer Result) {
	b.events = append(b.events, finding.Event{
		ID: finding.ID(b.cfg.Key, r.key, stamp(now), answer.Reason), Severity: finding.Warn, Time: now, Reason: answer.Reason, Message: answer.Message,
	})
}

// decisive returns the rule whose result the condition takes, nil if all rules are healthy. The
// condition is not known if no rule is unhealthy and at least one has never answered.
func (c *condition) decisive() (r *rule, known bool) {
	known = true
	for _, next := range c.rules {
		switch {
		case !next.answered():
			known = false
		case next.last.Verdict == Healthy:
		case r == nil, next.last.Verdict > r.last.Verdict, next.last.Verdict == r.last.Verdict && next.since.Before(r.since):
			r = next
		}
	}
	return r, known || r != nil && r.last.Verdict == Unhealthy
}

// updateCondition derives the condition from its rules and records an Event if it has changed.
func (b *ruleStates) updateCondition(now time.Time, c *condition) {
	r, known := c.decisive()
	switch {
	case known && r == nil:
		b.setCondition(now, c, catalog.False, c.Reason, c.Message)
	case known && r.last.Verdict == Unhealthy:
		b.setCondition(now, c, catalog.True, r.last.Reason, r.last.Message)
	case known:
		b.setCondition(now, c, catalog.Unknown, r.last.Reason, r.last.Message)
	case c.restored && c.current.Status == catalog.True:
		// It stays True until all rules have answered: any of them may be unhealthy by now.
	case b.begun:
		b.setCondition(now, c, catalog.Unknown, notChecked, fmt.Sprintf("the first check for %s has not ended yet", c.Type))
	}
}

// setCondition changes a condition. A new message alone is not a change, unless UpdateOnMessage is
// set.
func (b *ruleStates) setCondition(now time.Time, c *condition, status catalog.Status, reason, message string) {
	before, was := c.current, c.current.Status
	if !c.known {
		was = ""
	}
	c.known = true
	silent := status != catalog.False && !b.cfg.UpdateOnMessage
	if status == before.Status && reason == before.Reason && (message == before.Message || silent) {
		return
	}
	c.current.Status, c.current.Reason, c.current.Message, c.changed = status, reason, message, true
	if status != before.Status {
		c.current.Since = now
	}
	id := finding.ID(b.cfg.Key, c.Type, string(status), reason, message, stamp(now))
	b.events = append(b.events, c.current.Changed(id, was, now))
}

// ready returns whether the state of every condition is known.
func (b *ruleStates) ready() bool {
	for _, c := range b.conditions {
		if _, known := c.decisive(); !known {
			return false
		}
		for _, r := range c.rules {
			if b.cfg.SkipInitialStatus && !r.answeredNow {
				return false
			}
		}
	}
	return true
}

// firstReport makes the first report of a run, with all conditions. Conditions that are not known
// yet are Unknown.
func (b *ruleStates) firstReport(now time.Time) finding.Report {
	b.begun = true
	for _, c := range b.conditions {
		b.updateCondition(now, c)
		if c.current.Since.IsZero() {
			c.current.Since = now
		}
		c.changed = true
	}
	return b.report()
}

// report returns what has changed since the last report. Before the first report it contains only
// the Events of temporary rules.
func (b *ruleStates) report() finding.Report {
	report := finding.Report{Source: b.cfg.Source}
	var later []finding.Event
	for _, event := range b.events {
		if event.Condition == "" || b.begun {
			report.Events = append(report.Events, event)
		} else {
			later = append(later, event)
		}
	}
	b.events = later
	for _, c := range b.conditions {
		if c.changed && b.begun {
			report.Conditions = append(report.Conditions, c.current)
			c.changed = false
		}
	}
	return report
}

func stamp(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
