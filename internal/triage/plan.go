package triage

import "time"

// Plan is what one node should look like, and why.
type Plan struct {
	Node string
	UID  string

	// Reason is the most telling of the findings, or says that there is nothing
	// to find. It is never empty.
	Reason Reason

	// Taints are the taints that this system wants on the node: exactly these,
	// in the order of their rules. Any other of its own is to go.
	Taints []PlannedTaint
	// Treatment is the step that is to be under way, nil for none. Earlier steps
	// of the same rule stay as they are.
	Treatment *PlannedTreatment
	// Release lists the rules whose response is to be taken back entirely, and
	// those that want less now than the NoExecute that was decided and has not
	// been seen: of these only the NoExecute is called off, and what Taints lists
	// of them, if anything, is to be there. Their code is that of the finding. The
	// caller sees to it that nothing of it can still arrive, and calls Abandon.
	Release []Reason
	// CallOff lists the rules whose latest step was decided, has not been seen, and
	// is not to begin now. Only that step is called off: the earlier ones stay, and
	// Treatment names the last of them. The caller sees to it that the step cannot
	// arrive any more, and calls Abandon.
	CallOff []Reason

	// Findings has one reason for each rule that has something to say about the
	// node, in the order of the rules.
	Findings []Reason

	// Remember is what must outlive the core: exactly these memories.
	Remember []Memory

	// Initialized says that the node has been ready for work at some time: whoever
	// wants that to outlive the core keeps it, and gives it back as [Node.Initialized].
	Initialized bool

	// Next is when the plan changes if nothing else does; zero for never.
	Next time.Time
}

// PlannedTaint is a taint to have.
type PlannedTaint struct {
	Taint
	Reason Reason
}

// PlannedTreatment is a step to be under way.
type PlannedTreatment struct {
	Rule   RuleID
	Step   int
	Action Action
	Ref    string
	Since  time.Time // when it was decided, or began if the facts tell
	// HealthySince is to be noted with the treatment, in place of any earlier note;
	// zero for no note.
	HealthySince time.Time
	Reason       Reason
}
