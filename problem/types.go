package problem

import "time"

// Severity is how bad an event is.
type Severity string

// The severities. Info becomes a Normal Event of the Node, Warn a Warning.
const (
	Info Severity = "info"
	Warn Severity = "warn"
)

// Condition is how one condition of the node stands.
type Condition struct {
	// Type names the condition by what is wrong while it stands, such as DiskBadBlock. It
	// is one of the catalogue of Autohealer, and one that the source keeps.
	Type string `json:"type"`
	// Status says whether the node has the problem.
	Status bool `json:"status"`
	// Transition is since when.
	Transition time.Time `json:"transition"`
	// Reason in one word of CamelCase, for machines and tables.
	Reason string `json:"reason"`
	// Message for people.
	Message string `json:"message"`
}

// Event is something that has happened, and that passes.
type Event struct {
	Severity Severity `json:"severity"`
	// Timestamp is when it happened.
	Timestamp time.Time `json:"timestamp"`
	// Reason in one word of CamelCase, for machines and tables.
	Reason string `json:"reason"`
	// Message for people.
	Message string `json:"message"`
}

// Status is what a source reports. One with nothing new in it is a heartbeat.
type Status struct {
	// Source is the name of the daemon, as the agent is configured to know it.
	Source string `json:"source"`
	// Events since the last status, from the oldest to the newest.
	Events []Event `json:"events"`
	// Conditions are all that the source keeps, as they stand now.
	Conditions []Condition `json:"conditions"`
}

// Where the agent listens.
const (
	// Path to which a status is POSTed.
	Path = "/v1/status"
	// DefaultSocket is where, if nothing else is configured.
	DefaultSocket = "/run/autohealer/shared/problems.sock"
)

// What the agent takes. A message that is longer is cut, all else is refused.
const (
	MaxBody    = 128 << 10 // bytes of a status
	MaxEvents  = 100       // of a status
	MaxReason  = 64        // bytes
	MaxMessage = 1024      // bytes
)

// RefusedError is the agent's answer to a status that it does not take. Nothing of that
// status counts.
type RefusedError struct {
	// Code is the HTTP status; docs/problem-reports.md lists them.
	Code int `json:"-"`
	// Problem says what is wrong.
	Problem string `json:"error"`
	// Field that it is wrong with, such as conditions[1].reason. Empty if it is with none.
	Field string `json:"field,omitempty"`
	// Hint says what would be right.
	Hint string `json:"hint,omitempty"`
}

// Error is all that the agent has said.
func (e *RefusedError) Error() string {
	words := e.Problem
	if e.Field != "" {
		words = e.Field + ": " + words
	}
	if e.Hint != "" {
		words += "; " + e.Hint
	}
	return words
}
