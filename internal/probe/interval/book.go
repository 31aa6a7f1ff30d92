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

// NotExamined is the reason of conditions whose first exam takes too long.
const NotExamined = "NotExaminedYet"

// book is where answers are entered, and what they mean is read. It has no clock.
type book struct {
	cfg        Config
	rules      []*rule
	conditions []*condition
	byType     map[string]*condition

	begun    bool // the first report has been made
	events   []finding.Event
	problems map[string]uint64
	unknown  *format.Rest // of what was remembered
}

// rule is what is known of a rule.
type rule struct {
	Rule
	key   string
	last  checkresult.Result
	since time.Time // when the verdict became what it is; zero if there was none yet
	fresh bool      // there was an answer in this life
	// reworded is when it last said the same in other words; zero if it never did.
	reworded time.Time
}

func (r *rule) answered() bool { return !r.since.IsZero() }

// condition is one that is kept.
type condition struct {
	config.Condition
	rules []*rule
	// told is what was said of it last, or would have been.
	told     finding.Condition
	changed  bool // since the last report
	recalled bool // it was sick in the life before
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
		// Two rules may differ in nothing that they are known by.
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

// enter notes an answer.
func (b *book) enter(now time.Time, r *rule, answer checkresult.Result) {
	answer.Message = words(answer.Message)
	if answer.Reason == "" {
		answer.Reason = r.Reason
	}
	if answer.Verdict == checkresult.Well {
		answer = checkresult.Result{Verdict: checkresult.Well} // the condition has words of its own for that
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
	} // else it stays with its words
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

// happened tells the event of a temporary rule.
func (b *book) happened(now time.Time, r *rule, answer checkresult.Result) {
	b.events = append(b.events, finding.Event{
		ID: identity(b.cfg.Key, r.key, stamp(now), answer.Reason), Severity: finding.Warn, Time: now, Reason: answer.Reason, Message: answer.Message,
	})
}

// speaker returns the rule in whose words a condition is told, nil if all are well. It is
// not known if no rule is sick and one has never answered.
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

// settle makes a condition what its rules say, and tells of it if it has changed.
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
		// It stands until all have answered: one of them may be sick by now.
	case b.begun:
		b.tell(now, c, catalog.Unknown, NotExamined, fmt.Sprintf("the first examination for %s has not ended yet", c.Type))
	}
}

// tell says what a condition is. That an answer only has another message is no news,
// unless somebody wants it.
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

// ready says whether something can be said of all conditions.
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

// begin makes the first report of a run, of all conditions: what is not known now is
// Unknown.
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

// report hands out what is new since the last one. Before the first one of conditions
// there are only events of temporary rules.
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
