package logmonitor

import (
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
)

// condition is one that the monitor keeps.
type condition struct {
	config.Condition

	rules   []*rule // that it depends on
	status  catalog.Status
	since   time.Time
	told    string // ID of the occurrence that it is told with, empty while all is well
	changed bool   // since the last report
}

// cause returns the rule that stands longest, nil if none does.
func (c *condition) cause() *rule {
	var first *rule
	for _, r := range c.rules {
		if r.found != nil && (first == nil || r.found.Rank < first.found.Rank) {
			first = r
		}
	}
	return first
}

// settle makes the condition what its rules say, as of a time, and returns the event of
// that if it has changed.
func (c *condition) settle(source string, at time.Time) (finding.Event, bool) {
	cause, before := c.cause(), c.told
	status, id := catalog.False, ""
	if cause != nil {
		status, id = catalog.True, cause.found.ID
	}
	if id == before {
		return finding.Event{}, false
	}
	if status != c.status {
		c.status, c.since = status, at
	}
	c.told, c.changed = id, true
	// What has begun has the name of its line; what ends, or gives its place to
	// another, has its own name and that of the other.
	if before != "" {
		id = identity(source, "the end of", before, id)
	}
	now := c.shown()
	return finding.Event{
		ID:        id,
		Severity:  finding.Info,
		Time:      at,
		Reason:    now.Reason,
		Message:   fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", now.Type, now.Status, now.Reason, now.Message),
		Condition: now.Type,
	}, true
}

// shown returns the condition as it is told.
func (c *condition) shown() finding.Condition {
	shown := finding.Condition{Type: c.Type, Status: c.status, Since: c.since, Reason: c.Reason, Message: c.Message}
	if cause := c.cause(); cause != nil {
		shown.Reason, shown.Message = cause.Reason, cause.found.Message
	}
	return shown
}
