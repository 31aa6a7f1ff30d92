package problem

import (
	"fmt"
	"slices"
	"time"
)

// Severity is the severity of an event.
type Severity string

// The severities. Info becomes a Normal Event of the Node, Warn a Warning.
const (
	Info Severity = "info"
	Warn Severity = "warn"
)

// ConditionStatus is the status of a condition on the Node. In JSON it is true, false or "Unknown".
type ConditionStatus int8

// The statuses. The default is False. Unknown means that the daemon cannot tell.
const (
	False ConditionStatus = iota
	True
	Unknown
)

var conditionStatuses = [...]string{False: "false", True: "true", Unknown: `"Unknown"`}

// MarshalJSON returns true, false or "Unknown".
func (s ConditionStatus) MarshalJSON() ([]byte, error) {
	if s < 0 || int(s) >= len(conditionStatuses) {
		return nil, fmt.Errorf("the status %d: use False, True or Unknown", s)
	}
	return []byte(conditionStatuses[s]), nil
}

// UnmarshalJSON reads true, false or "Unknown".
func (s *ConditionStatus) UnmarshalJSON(text []byte) error {
	i := slices.Index(conditionStatuses[:], string(text))
	if i < 0 {
		return fmt.Errorf(`the status %.80s: write true, false or "Unknown"`, text)
	}
	*s = ConditionStatus(i)
	return nil
}

// Condition is the state of a condition of the node.
type Condition struct {
	// Type is the type of the condition, for example DiskBadBlock. It must be in the conditions of the
	// source in the agent's configuration, and in Autohealer's catalog or declared there.
	Type string `json:"type"`
	// Status is the status of the condition on the Node. For nearly all types True means that the
	// node has the problem.
	Status ConditionStatus `json:"status"`
	// Transition is when the status last changed.
	Transition time.Time `json:"transition"`
	// Reason is a CamelCase word for machines and tables.
	Reason string `json:"reason"`
	// Message is for people.
	Message string `json:"message"`
}

// Event is something that happened and does not last.
type Event struct {
	Severity Severity `json:"severity"`
	// Timestamp is when it happened.
	Timestamp time.Time `json:"timestamp"`
	// Reason is a CamelCase word for machines and tables.
	Reason string `json:"reason"`
	// Message is for people.
	Message string `json:"message"`
}

// Status is the report of a source. A status without changes is a heartbeat.
type Status struct {
	// Source is the name of the daemon in the agent's configuration.
	Source string `json:"source"`
	// Events are the events since the last status, oldest first.
	Events []Event `json:"events"`
	// Conditions are the current states of all conditions of the source.
	Conditions []Condition `json:"conditions"`
}

// The endpoint of the agent.
const (
	// Path is the HTTP path for POST requests.
	Path = "/v1/status"
	// DefaultSocket is the default socket.
	DefaultSocket = "/run/autohealer/shared/problems.sock"
)

// The agent's limits. A longer message is cut, everything else is refused.
const (
	MaxBody    = 128 << 10 // bytes of a status
	MaxEvents  = 100       // events of a status
	MaxReason  = 64        // bytes
	MaxMessage = 1024      // bytes
)

// RefusedError is the agent's answer to a status that it refuses. The agent ignores the whole
// status.
type RefusedError struct {
	// Code is the HTTP status code; docs/reference/problem-reports.md lists them.
	Code int `json:"-"`
	// Problem is what is wrong.
	Problem string `json:"error"`
	// Field is the invalid field, for example conditions[1].reason. It may be empty.
	Field string `json:"field,omitempty"`
	// Hint is what would be valid.
	Hint string `json:"hint,omitempty"`
}

// Error returns the complete answer of the agent.
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
