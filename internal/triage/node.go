package triage

import (
	"fmt"
	"strings"
	"time"
)

// AgentSilent is the reason of an Unknown that only says that the node's agent
// has stopped reporting. It matches no signal that does not ask for it: a broken
// DaemonSet must not empty a cluster.
const AgentSilent = "AgentSilent"

// Ready is the condition that tells when a replacement has arrived.
const Ready = "Ready"

// StartupTaints is a condition that no node reports: the caller tells it as True, and
// with it [Node.Starting], while the taints are on the node that are to go before it
// is ready for work.
const StartupTaints = "StartupTaints"

// Node is what is known of one node. The core copies what it needs.
type Node struct {
	Name string
	UID  string // another UID under the same name is another node
	Zone string

	Labels  map[string]string
	Created time.Time

	ControlPlane bool
	// Initialized says that the node once was ready for work. It is remembered
	// for as long as the node exists, and so is a Ready that the core has seen while
	// the node was not starting.
	Initialized bool
	// Starting says that the node is not ready for work yet, Ready or not, because its
	// startup taints are still there.
	Starting bool

	Conditions []Condition
	Vetoes     []Veto

	// Confirmed says that somebody vouches for the node's health: a treatment need
	// not stay on it any longer once it is not sick.
	Confirmed bool

	// Taints and Treatments are the responses found on the node that this
	// system put there, each under the rule that decided it.
	Taints     []Taint
	Treatments []Treatment

	// Foreign are the keys of the NoExecute taints on the node that are not among
	// Taints: another component placed them, or nothing proves that this system did.
	// The caller never removes them.
	Foreign []string

	// Memories is what an earlier plan asked to remember.
	Memories []Memory
}

// Condition is one row of a node's conditions.
type Condition struct {
	Type       string
	Status     Status
	Reason     string
	Transition time.Time // when the reporter says that the status changed
}

// Status is the status of a condition.
type Status uint8

// The statuses of a condition. Missing means that the node has no such row.
const (
	Missing Status = iota
	True
	False
	Unknown
)

var statusNames = [...]string{Missing: "Missing", True: "True", False: "False", Unknown: "Unknown"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// ParseStatus reads a status in any letter case.
func ParseStatus(s string) (Status, error) {
	for status, name := range statusNames {
		if strings.EqualFold(s, name) {
			return Status(status), nil
		}
	}
	return Missing, &FieldError{Field: "status", Value: s, Problem: "want True, False, Unknown or Missing"}
}

// Taint is a taint of ours on a node.
type Taint struct {
	Rule   RuleID
	Key    string
	Effect Effect
}

// Treatment is a remediation object, reboot, drain or termination of ours that
// is under way.
type Treatment struct {
	Rule  RuleID
	Step  int // index in the rule's ladder
	Since time.Time
	// Failed says that whoever carries it out has given up.
	Failed bool
	// Deletes says that whoever carries it out is going to delete the node for good.
	Deletes bool
	// HealthySince is what an earlier plan asked to note with it, zero for nothing.
	HealthySince time.Time
}

// Veto is somebody's word that a node must not be treated: an annotation, a
// maintenance lease, a deletion that is already under way. Taints do not ask.
type Veto struct {
	Kind   Kind // the kind of rule it is meant for; zero means all
	Reason string
}

// Memory is the start of a clock that the node's own stamps do not tell. It
// holds only while the condition has the transition time that it had when the
// memory was written: a node that has recovered and fallen sick again since then
// is met with its new stamp.
type Memory struct {
	Rule       RuleID
	Condition  string
	Since      time.Time
	Transition time.Time
}
