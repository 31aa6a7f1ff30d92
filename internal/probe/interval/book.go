package interval

import (
	"fmt"
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/probe/checkresult"
	"github.com/resourcestack/autohealer/internal/probe/config"
)

// NotExamined is the reason of conditions whose first check takes too long.
const NotExamined = "NotExaminedYet"

// ruleStates records the results of all rules and derives conditions and Events from them. It has
// no clock.
type book struct {
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
	key   string
	last  checkresult.Result
	since time.Time // when the verdict last changed; zero before the first result
	fresh bool      // there was a result since the agent started
	// messageChanged is when the rule last replaced its message while verdict and reason stayed the
	// same. Zero means never.
	reworded time.Time
}

func (r *rule) answered() bool { return !r.since.IsZero() }

// condition is the state of a condition.
type condition struct {
	config.Condition
	rules []*rule
	// current is the latest state of the condition, reported or about to be reported.
	told     finding.Condition
	changed  bool // since the last report
	recalled bool // it was True before the agent restarted
}

func newBook(cfg Config) *book {
	b := &book{cfg: cfg, byType: map[string]*condition{}, problems: map[string]uint64{}}
	for _, written := range cfg.Conditions {
		if b.byType[written.Type] == nil {
			c := &condition{Condition: written}
			c.told = finding.Condition{Type: c.Type, Status: catalog.False, Reason: c.Reason, Message: c.Message}
			b.conditions, b.byType[c.Type] = append(b.conditions, c), c
		}
	}
	twins := map[string]int{}
	for _, written := range cfg.Rules {
		// Two rules may be equal in every part of their key.
		key := identity(cfg.Source, strconv.FormatBool(written.Permanent), written.Condition, written.Reason, written.Name, written.Details)
		twins[key]++
		r := &rule{Rule: written, key: identity(key, strconv.Itoa(twins[key]))}
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
func (b *book) enter(now time.Time, r *rule, answer checkresult.Result) {
	answer.Message = words(answer.Message)
	if answer.Reason == "" {
		answer.Reason = r.Reason
	}
	if answer.Verdict == checkresult.Well {
		answer = checkresult.Result{Verdict: checkresult.Well} // the condition has its own message for this
	}
	before, turned := r.last, !r.answered() || r.last.Verdict != answer.Verdict
	if turned {
		r.since = now
	}
	said := turned || before.Reason != answer.Reason
	switch {
	case said:
		r.last, r.reworded = answer, time.Time{}
	case before != answer && b.cfg.UpdateOnMessage && now.Sub(r.reworded) >= b.cfg.MessagePause:
		r.last, r.reworded = answer, now
	} // keep the previous message
	r.fresh = true
	switch {
	case r.Permanent:
		if answer.Verdict == checkresult.Sick && turned {
			b.problems[r.Reason]++
		}
		b.settle(now, b.byType[r.Condition])
	case answer.Verdict == checkresult.Sick:
		b.problems[r.Reason]++
		b.happened(now, r, answer)
	case answer.Verdict == checkresult.Unknown && b.cfg.UnknownIsProblem:
		b.problems[r.Reason]++
		answer.Reason = r.Reason
		b.happened(now, r, answer)
	case answer.Verdict == checkresult.Unknown && said:
		b.happened(now, r, answer)
	}
}

// addEvent appends the Event of a temporary rule.
func (b *book) happened(now time.Time, r *rule, answer checkresult.Result) {
	b.events = append(b.events, finding.Event{
		ID: identity(b.cfg.Key, r.key, stamp(now), answer.Reason), Severity: finding.Warn, Time: now, Reason: answer.Reason, Message: answer.Message,
	})
}

// decisive returns the rule whose result the condition takes, nil if all rules are healthy. The
// condition is not known if no rule is unhealthy and at least one has never answered.
func (c *condition) speaker() (r *rule, known bool) {
	known = true
	for _, next := range c.rules {
		switch {
		case !next.answered():
			known = false
		case next.last.Verdict == checkresult.Well:
		case r == nil, next.last.Verdict > r.last.Verdict, next.last.Verdict == r.last.Verdict && next.since.Before(r.since):
			r = next
		}
	}
	return r, known || r != nil && r.last.Verdict == checkresult.Sick
}

// updateCondition derives the condition from its rules and records an Event if it has changed.
func (b *book) settle(now time.Time, c *condition) {
	r, known := c.speaker()
	switch {
	case known && r == nil:
		b.tell(now, c, catalog.False, c.Reason, c.Message)
	case known && r.last.Verdict == checkresult.Sick:
		b.tell(now, c, catalog.True, r.last.Reason, r.last.Message)
	case known:
		b.tell(now, c, catalog.Unknown, r.last.Reason, r.last.Message)
	case c.recalled && c.told.Status == catalog.True:
		// It stays True until all rules have answered: any of them may be unhealthy by now.
	case b.begun:
		b.tell(now, c, catalog.Unknown, NotExamined, fmt.Sprintf("the first examination for %s has not ended yet", c.Type))
	}
}

// setCondition changes a condition. A new message alone is not a change, unless UpdateOnMessage is
// set.
func (b *book) tell(now time.Time, c *condition, status catalog.Status, reason, message string) {
	before := c.told
	silent := status != catalog.False && !b.cfg.UpdateOnMessage
	if status == before.Status && reason == before.Reason && (message == before.Message || silent) {
		return
	}
	c.told.Status, c.told.Reason, c.told.Message, c.changed = status, reason, message, true
	if status != before.Status {
		c.told.Since = now
	}
	b.events = append(b.events, finding.Event{
		ID: identity(b.cfg.Key, c.Type, string(status), reason, message, stamp(now)), Severity: finding.Info, Time: now, Reason: reason,
		Message:   fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", c.Type, status, reason, message),
		Condition: c.Type,
	})
}

// ready returns whether the state of every condition is known.
func (b *book) ready() bool {
	for _, c := range b.conditions {
		if _, known := c.speaker(); !known {
			return false
		}
		for _, r := range c.rules {
			if b.cfg.SkipInitialStatus && !r.fresh {
				return false
			}
		}
	}
	return true
}

// firstReport makes the first report of a run, with all conditions. Conditions that are not known
// yet are Unknown.
func (b *book) begin(now time.Time) finding.Report {
	b.begun = true
	for _, c := range b.conditions {
		b.settle(now, c)
		if c.told.Since.IsZero() {
			c.told.Since = now
		}
		c.changed = true
	}
	return b.report()
}

// report returns what has changed since the last report. Before the first report it contains only
// the Events of temporary rules.
func (b *book) report() finding.Report {
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
			report.Conditions = append(report.Conditions, c.told)
			c.changed = false
		}
	}
	return report
}
