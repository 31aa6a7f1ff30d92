package finding

import (
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/catalog"
)

// Severity is the severity of an event. There are two, as with the Events of Kubernetes.
type Severity string

// The severities: Info becomes a Normal Event, Warn a Warning.
const (
	Info Severity = "info"
	Warn Severity = "warn"
)

// MaxMessage is the maximum length of a message in bytes. The API server accepts no more in an
// Event.
const MaxMessage = 1024

// Condition is the state of a condition of the node.
type Condition struct {
	Type string
	// Status is True while the node has the problem. [Condition.Shown] returns the status that the
	// Node has.
	Status catalog.Status
	// Inverted means that the Node has the status True while it does not have the problem, such
	// as Ready.
	Inverted bool `json:",omitempty"`
	// Since is when the status last changed, by the clock of the source.
	Since   time.Time
	Reason  string
	Message string
}

// Event is something that happened on the node.
type Event struct {
	// ID identifies the occurrence. It is the same when the occurrence is found again after a
	// restart.
	ID       string
	Severity Severity
	Time     time.Time
	Reason   string
	Message  string
	// Condition is the type of the condition that changed, empty if the event is not about a
	// condition.
	Condition string
}

// Shown returns the status of the condition on the Node.
func (c Condition) Shown() catalog.Status {
	switch {
	case c.Inverted && c.Status == catalog.True:
		return catalog.False
	case c.Inverted && c.Status == catalog.False:
		return catalog.True
	}
	return c.Status
}

// Changed returns the Event of a condition that had another status or reason before. It is a
// Warning if the node has the problem, or if it is not known any more that the node is healthy.
func (c Condition) Changed(id string, before catalog.Status, at time.Time) Event {
	severity := Info
	if c.Status == catalog.True || c.Status == catalog.Unknown && before == catalog.False {
		severity = Warn
	}
	return Event{
		ID: id, Severity: severity, Time: at, Reason: c.Reason, Condition: c.Type,
		Message: fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", c.Type, c.Shown(), c.Reason, c.Message),
	}
}

// Report contains the findings of a source: the events since its last report, oldest first, and the
// conditions that have changed.
type Report struct {
	Source     string
	Events     []Event
	Conditions []Condition
	// Gone are the types of conditions that the source no longer reports. No monitor updates them
	// any more, so their last state must not stay on the node.
	Gone []string
}

// IsEmpty returns whether there is nothing to report.
func (r Report) IsEmpty() bool { return len(r.Events)+len(r.Conditions)+len(r.Gone) == 0 }
