package triage

import "time"

// Plan is the desired state of one node, with reasons.
type Plan struct {
	Node string
	UID  string

	// Reason is the most important of Findings. Without findings it is Healthy or
	// NotSelected.
	Reason Reason

	// Taints are exactly the taints of Autohealer that should be on the node, sorted by
	// rule. The caller removes its other taints.
	Taints []PlannedTaint
	// Treatment is the step that should be in progress; nil for none. Earlier steps of the
	// same rule stay.
	Treatment *PlannedTreatment
	// Release lists the rules whose response should be removed. It also lists rules that now
	// want less than a NoExecute taint that was decided and never observed. For these only
	// the NoExecute taint is called off, and the taints of the rule in Taints should be on
	// the node. Each reason has the code of the finding. The caller makes sure that no write
	// is in flight, and calls [Core.Abandon].
	Release []Reason
	// Cancel lists the rules whose latest step was decided, was never observed, and should
	// not begin now. Only that step is called off. The earlier steps stay, and Treatment
	// names the last of them. The caller makes sure that the step is not in flight, and
	// calls [Core.Abandon].
	Cancel []Reason

	// Reopen says that a taint which closes the node to new pods was decided, was never
	// observed, and should not be placed now. The caller makes sure that no write is in
	// flight, and calls [Core.Reopen].
	Reopen bool

	// Findings has a reason for each rule that is relevant to the node, sorted by rule.
	Findings []Reason

	// Remember are exactly the memories that the caller should store.
	Remember []Memory

	// Initialized says that the node was ready for work at some time. A caller that needs
	// this after a restart stores it and supplies it as [Node.Initialized].
	Initialized bool

	// Next is when the plan changes by time alone; zero for never.
	Next time.Time
}

// PlannedTaint is a taint that should be on the node.
type PlannedTaint struct {
	Taint
	Reason Reason
}

// PlannedTreatment is a step that should be in progress.
type PlannedTreatment struct {
	Rule   RuleID
	Step   int
	Action Action
	Ref    string
	Since  time.Time // start of the step in the facts, else the time of the decision
	// HealthySince is the time to store with the treatment in place of any earlier time.
	// Zero means to store none.
	HealthySince time.Time
	Reason       Reason
}
