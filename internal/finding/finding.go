package finding

import (
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

// Condition is the state of a condition of the node.
type Condition struct {
	Type   string
	Status catalog.Status
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
