package finding

import (
	"time"

	"github.com/resourcestack/autohealer/catalog"
)

// Severity is how bad an event is. There are two, as of the Events of Kubernetes.
type Severity string

// The severities: Info becomes a Normal Event, Warn a Warning.
const (
	Info Severity = "info"
	Warn Severity = "warn"
)

// Condition is what is known of one condition of a node.
type Condition struct {
	Type   string
	Status catalog.Status
	// Since when the status is what it is, by the clock of whatever showed it.
	Since   time.Time
	Reason  string
	Message string
}

// Event is something that has happened on a node.
type Event struct {
	// ID names the occurrence: what is found once more, after a restart, has the same.
	ID       string
	Severity Severity
	Time     time.Time
	Reason   string
	Message  string
	// Condition whose change the event tells of, empty if it tells of none.
	Condition string
}

// Report is what one source has found: what has happened since its last report, from
// the oldest to the newest, and those of its conditions that are not what they were.
type Report struct {
	Source     string
	Events     []Event
	Conditions []Condition
	// Gone are the types of conditions that the source keeps no longer: nobody looks
	// any more, and what was told last must not stand for ever.
	Gone []string
}

// IsEmpty says whether there is nothing to report.
func (r Report) IsEmpty() bool { return len(r.Events)+len(r.Conditions)+len(r.Gone) == 0 }
