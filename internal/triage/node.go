package triage

import (
	"fmt"
	"strings"
	"time"
)

// AgentSilent is the reason of an Unknown status that means only that the agent of the node
// stopped reporting. It matches only signals with [Signal.EvenSilent], so that a broken
// DaemonSet does not empty a cluster.
const AgentSilent = "AgentSilent"

// Ready is the condition that shows that a replacement is ready.
const Ready = "Ready"

// StartupTaints is a condition that nodes do not report. The caller adds it as True, and
// sets [Node.Starting], while the node has startup taints.
const StartupTaints = "StartupTaints"

// Node is the known state of one node. The core copies what it needs.
type Node struct {
	Name string
	UID  string // a different UID under the same name is a different node
	Zone string

	Labels  map[string]string
	Created time.Time
	Image   string // the image of the operating system, for [CorrelatedFailure]; empty if unknown

	ControlPlane bool
	// Initialized says that the node was ready for work at some time. The core remembers it
	// while the node exists, and also sets it when it sees the node Ready and not starting.
	Initialized bool
	// Starting says that the node has startup taints. It is not ready for work, even if it
	// is Ready.
	Starting bool

	// Closed says that the node takes no ordinary pods for a reason outside of Autohealer: a
	// cordon, or a taint of another component.
	Closed bool
	// Dedicated says that the node takes only certain pods, for ever. It is neither closed nor
	// open.
	Dedicated bool

	// Assigned are the rules with [Rule.AssignedOnly] that may select the node. The caller decides which
	// of several policies applies to a node.
	Assigned []RuleID

	Conditions []Condition
	// Previous is when the version before this one arrived, zero if there was none. It has effect
	// only if a condition has changed: the old status was still reported then.
	Previous time.Time
	Vetoes   []Veto

	// Remediates are the rules that terminate the node with a remediation object, because it has no
	// machine that could be deleted. Plans and reasons then say [Remediate] instead of [Terminate]. The
	// core counts the removed node until it is replaced, however it is removed.
	Remediates []RuleID

	// Hold, if not empty, is the reason why no rule may begin anything new on the node, as
	// [Rule.Hold] is for one rule on all nodes. Existing responses stay until the node recovers.
	// HoldUntil is when the hold ends by time; zero for never.
	Hold      string
	HoldUntil time.Time

	// Confirmed says that a user has confirmed that the node is healthy. Once the node is
	// healthy, its treatment may end without a delay.
	Confirmed bool

	// Taints and Treatments are the responses of Autohealer on the node, each with the rule
	// that decided it.
	Taints     []Taint
	Treatments []Treatment

	// Foreign are the keys of NoExecute taints on the node that are not in Taints. Another
	// component placed them, or Autohealer cannot prove that it did. The caller never
	// removes them.
	Foreign []string

	// Memories are the memories that an earlier plan asked to store.
	Memories []Memory

	// Attempts are the treatments that have begun on the node, or on nodes that it replaces, as far
	// as they may count for [Rails.MaxAttempts].
	Attempts []Attempt
}

// Condition is a condition of a node.
type Condition struct {
	Type       string
	Status     Status
	Reason     string
	Transition time.Time // last transition time as reported
}

// Status is the status of a condition.
type Status uint8

// The statuses of a condition. Missing means that the node does not report the condition.
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

// ParseStatus parses a status in any letter case.
func ParseStatus(s string) (Status, error) {
	for status, name := range statusNames {
		if strings.EqualFold(s, name) {
			return Status(status), nil
		}
	}
	return Missing, &FieldError{Field: "status", Value: s, Problem: "want True, False, Unknown or Missing"}
}

// Taint is a taint that Autohealer placed on a node.
type Taint struct {
	Rule   RuleID
	Key    string
	Effect Effect
}

// Treatment is a remediation object, reboot, drain or termination of Autohealer that is in
// progress.
type Treatment struct {
	Rule  RuleID
	Step  int // index in the ladder of the rule
	Since time.Time
	// Failed says that the remediator has given up.
	Failed bool
	// Deletes says that the remediator is going to delete the node for good.
	Deletes bool
	// HealthySince is the time that an earlier plan asked to store with the treatment; zero
	// if none.
	HealthySince time.Time
}

// Veto protects a node from treatment, for example because of an annotation, a maintenance
// lease or a deletion in progress. Taints ignore it.
type Veto struct {
	Action Action // that it forbids; zero means all
	Reason string
	// Respected says that it is the work of others that the Guardrails respect. [RailUse] counts
	// the nodes that wait for it.
	Respected bool
}

// Memory is the start of a clock that cannot be derived from the conditions of the node. It
// is valid only while the condition has this transition time. A node that recovered and
// failed again has a new transition time.
type Memory struct {
	Rule       RuleID
	Condition  string
	Since      time.Time
	Transition time.Time
}
