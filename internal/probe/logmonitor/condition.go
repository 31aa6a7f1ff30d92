package logmonitor

import (
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
)

// condition is a condition that the monitor reports.
type condition struct {
	config.Condition

	rules      []*rule // rules that set it
	status     catalog.Status
	since      time.Time
	reportedID string // ID of the reported occurrence, empty while the condition is False
	changed    bool   // since the last report
}

// cause returns the rule that has been active longest, nil if none is active.
func (c *condition) cause() *rule {
	var first *rule
	for _, r := range c.rules {
		if r.found != nil && (first == nil || r.found.Rank < first.found.Rank) {
			first = r
		}
	}
	return first
}

// update sets the condition from its rules, as of the given time. If it has changed,
// update returns the event of the change.
func (c *condition) update(source string, at time.Time) (finding.Event, bool) {
	cause, before := c.cause(), c.reportedID
	status, id := catalog.False, ""
	if cause != nil {
		status, id = catalog.True, cause.found.ID
	}
	if id == before {
		return finding.Event{}, false
	}
	was := c.status
	if status != was {
		c.status, c.since = status, at
	}
	c.reportedID, c.changed = id, true
	// The event of a first occurrence has the ID of its line. An event that ends or replaces
	// an occurrence has an ID made of the old and the new ID.
	if before != "" {
		id = finding.ID(source, "the end of", before, id)
	}
	return c.shown().Changed(id, was, at), true
}

// shown returns the condition as it is reported.
func (c *condition) shown() finding.Condition {
	shown := finding.Condition{Type: c.Type, Inverted: c.Inverted(), Status: c.status, Since: c.since, Reason: c.Reason, Message: c.Message}
	if cause := c.cause(); cause != nil {
		shown.Reason, shown.Message = cause.Reason, cause.found.Message
	}
	return shown
}
