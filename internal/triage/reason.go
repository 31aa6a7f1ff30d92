package triage

import (
	"fmt"
	"strings"
	"time"
)

// Code is the short form of a reason. It fits the reason field of an Event.
type Code uint8

// The codes, most important first.
const (
	_ Code = iota
	// Treating: a step of the ladder is in progress.
	Treating
	// Exhausted: the last step failed or timed out, and no step is left.
	Exhausted
	// Tainted: the taint of the rule is on the node or should be. A release has this code if
	// the taint is weaker than the decided one.
	Tainted
	// FellBack: NoSchedule replaces NoExecute, because the cap is full, the window is closed, or
	// the rule excludes control-plane nodes. A release has this code if NoExecute was decided for a
	// control-plane node that the rule excludes.
	FellBack
	// Kept: the rule cannot be read now; its taint stays.
	Kept
	// Recovering: the node is healthy again. The treatment stays for the delay, or until a
	// user confirms that the node is healthy.
	Recovering
	// Recovered: the conditions no longer match; the response is removed.
	Recovered
	// Deselected: the rule no longer selects the node; the response is removed.
	Deselected
	// RuleGone: the rule is removed; the response is removed.
	RuleGone
	// NodeGone: the node is deleted; the response that remains is removed.
	NodeGone
	// CapFull: as many nodes are in treatment as the rule allows.
	CapFull
	// NotAllowed: the allowance of the rule is used up.
	NotAllowed
	// MaxInTreatment: as many nodes are in treatment as the rails allow.
	MaxInTreatment
	// MaxUnschedulable: as many nodes are closed to new pods as the rails allow.
	MaxUnschedulable
	// MaxInTopology: as many nodes with the same value of a label are in treatment as the
	// rails allow.
	MaxInTopology
	// LastNode: no other node is ready for work and open to new pods.
	LastNode
	// Paced: as many treatments began within the period as the rails allow.
	Paced
	// CorrelatedFailed: many nodes with the same value of a label became unhealthy together.
	CorrelatedFailed
	// GivenUp: the node was treated as often as the rails allow.
	GivenUp
	// GateClosed: the gate is exceeded. It counts nodes that are unhealthy, healthy and
	// still in treatment, or deleted and not replaced yet.
	GateClosed
	// CoolingDown: the gate is no longer exceeded, but the cooldown has not passed.
	CoolingDown
	// ControlPlaneBusy: another control-plane node is in treatment.
	ControlPlaneBusy
	// Busy: another rule treats the node.
	Busy
	// Vetoed: a veto protects the node.
	Vetoed
	// OutsideWindow: the window of the rule is closed, and the step is not urgent.
	OutsideWindow
	// OnHold: the rule is on hold.
	OnHold
	// NodePaused: the node is on hold.
	NodePaused
	// Retrying: the decision could not be carried out; the next attempt follows later.
	Retrying
	// DryRun: the rule is on dry run. It reports what it would do, and its responses are
	// removed.
	DryRun
	// Superseded: a stronger taint of another rule replaces this taint.
	Superseded
	// Unclear: a condition is Unknown, and the rule does not match Unknown.
	Unclear
	// Pending: the conditions have not matched long enough.
	Pending
	// Partial: some conditions match, but the rule requires all.
	Partial
	// Healthy: rules select the node, and no condition matches.
	Healthy
	// NotSelected: no rule selects the node.
	NotSelected
)

var codeNames = [...]string{
	"", "Treating", "Exhausted", "Tainted", "FellBack", "Kept", "Recovering", "Recovered", "Deselected", "RuleGone", "NodeGone", "CapFull",
	"NotAllowed", "MaxInTreatment", "MaxUnschedulable", "MaxInTopology", "LastNode", "Paced", "CorrelatedFailed", "GivenUp", "GateClosed", "CoolingDown", "ControlPlaneBusy", "Busy", "Vetoed", "OutsideWindow", "OnHold", "NodePaused", "Retrying", "DryRun", "Superseded", "Unclear", "Pending", "Partial", "Healthy", "NotSelected",
}

// IsWait reports whether the code describes an unhealthy node whose treatment is due and
// does not start.
func (c Code) IsWait() bool {
	switch c {
	case GateClosed, CoolingDown, CapFull, NotAllowed, MaxInTreatment, MaxUnschedulable, MaxInTopology, LastNode, Paced, CorrelatedFailed, GivenUp, ControlPlaneBusy, Busy, Vetoed, OutsideWindow, OnHold, NodePaused, Retrying:
		return true
	default:
		return false
	}
}

func (c Code) String() string {
	if c > 0 && int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("Code(%d)", uint8(c))
}

// Reason says why something is done or not done. It is a plain value, so Events, status and
// CLI print the same text.
type Reason struct {
	Code  Code
	Taint bool   // the response of the rule is a taint, not a treatment
	Rule  RuleID // zero if the reason concerns no rule

	// Condition is the deciding condition. If any condition is enough, it is the first to
	// become eligible; if all are required, the last.
	Condition string
	Status    Status
	// Detail is the reason and the message of the condition. The core does not know them;
	// a caller that does may set them.
	Detail string
	// AlsoMet lists the other conditions, if the rule requires all of its conditions.
	AlsoMet string
	Since   time.Time // start of its clock; with Recovering, when the node became healthy
	// FromCreation says that Since is the creation time of the node.
	FromCreation bool
	// Eligible is when the conditions have matched long enough; zero if no condition
	// decides.
	Eligible time.Time

	Step   int    // counted from 1
	Steps  int    // length of the ladder
	Action Action // action of the step

	Key    string // key of the taint that is placed, or would be
	Effect Effect // effect of the taint that is placed, or would be

	// Other is the obstacle: a rule, a node, a window, the name of the gate or a text. With Unclear it is the reason of the
	// Unknown condition. On dry run it says that a response is removed, and is empty if
	// there is none. With Tainted it says that a stronger taint is called off.
	Other string
	// Besides says what else would prevent the response, with OnHold and on dry run. The response is
	// Action, or Key and Effect. Empty means that nothing would.
	Besides string
	// Have, Limit and Of are the counted nodes, the allowed nodes and the total.
	Have, Limit, Of int
	// Within is the time in which Have nodes became unhealthy, with CorrelatedFailed.
	Within time.Duration
	// Pool is the pool that shares the cap; empty for none.
	Pool string
	// Recovering is how many of Have are healthy and still in treatment.
	Recovering int
	// Departed is how many of Have are deleted and not replaced yet. With GateClosed they
	// are also part of Of.
	Departed int
	// Gone names the first of these nodes, separated by commas, with CapFull.
	Gone string
	// Foreign is how many of Have have the taint although Autohealer cannot prove that it
	// placed it. With Tainted it says that this node is one of them.
	Foreign int
	// Calm is when the storm calmed down.
	Calm time.Time
	// Until is when the reason changes by time alone; zero for never.
	Until time.Time
}

// String returns the reason as a sentence.
func (r Reason) String() string {
	if r.Rule == (RuleID{}) {
		return r.Sentence()
	}
	return r.Rule.String() + ": " + r.Sentence()
}

// Sentence returns the text without the rule, for readers who know the rule.
func (r Reason) Sentence() string {
	var b strings.Builder
	if r.Condition != "" && r.Code != Unclear {
		b.WriteString(r.ConditionText())
		switch {
		case r.FromCreation:
			b.WriteString(" on a node created at " + stamp(r.Since))
		case !r.Since.IsZero():
			b.WriteString(" since " + stamp(r.Since))
		}
		if r.AlsoMet != "" {
			b.WriteString(" and " + r.AlsoMet)
		}
		if r.Code == DryRun { // only reported, not done
			b.WriteString(": ")
		} else {
			b.WriteString(", ")
		}
	}
	b.WriteString(r.tail())
	return b.String()
}

// ConditionText returns the deciding condition with its detail.
func (r Reason) ConditionText() string {
	condition := fmt.Sprintf("%s=%s", r.Condition, r.Status)
	if r.Condition == StartupTaints && r.Status == True {
		condition = "startup taints are still there"
	}
	if r.Detail != "" {
		condition += " (" + r.Detail + ")"
	}
	return condition
}

// tail returns what follows from the condition.
func (r Reason) tail() string {
	if r.Code.IsWait() {
		return r.waitText()
	}
	switch r.Code {
	case Treating:
		return r.treatingText()
	case Exhausted:
		return r.step() + " did not help, and nothing is left to try"
	case Tainted:
		return r.taintedText()
	case FellBack:
		return r.fellBackText()
	case Kept:
		return "the policy cannot be read now, its taint stays"
	case Recovering:
		sentence := "the node is healthy since " + stamp(r.Since) + ", the treatment stays until "
		if r.Until.IsZero() {
			return sentence + "a user confirms it"
		}
		return sentence + stamp(r.Until)
	case Recovered:
		return "the node has recovered, " + r.removalText()
	case Deselected:
		return "the policy no longer selects this node, " + r.removalText()
	case RuleGone:
		return "the policy no longer exists, " + r.removalText()
	case NodeGone:
		return "the node is gone, " + r.removalText()
	case DryRun:
		return "dry run, " + r.dryRunText()
	case Superseded:
		return fmt.Sprintf("superseded by %s (%s)", r.Other, r.Effect)
	case Unclear:
		return fmt.Sprintf("%s is Unknown%s, which this policy does not match: existing responses stay, nothing new starts", r.Condition, r.unknownCause())
	case Pending:
		return "eligible at " + stamp(r.Until)
	case Partial:
		return fmt.Sprintf("%d of %d conditions are met, all must be", r.Have, r.Of)
	case Healthy:
		if r.Of == 1 {
			return "healthy under its one policy"
		}
		return fmt.Sprintf("healthy under all of its %d policies", r.Of)
	case NotSelected:
		return "no policy selects this node"
	}
	return r.Code.String()
}

// treatingText describes a step in progress.
func (r Reason) treatingText() string {
	if r.Other != "" {
		sentence := r.step() + " did not help, and the next step is held back: " + r.Other
		if !r.Until.IsZero() {
			sentence += ", tried again at " + stamp(r.Until)
		}
		return sentence
	}
	sentence := r.step() + " is under way"
	if !r.Until.IsZero() {
		sentence += " until " + stamp(r.Until)
	}
	return sentence + r.whileUnknown(" and")
}

// taintedText describes a taint.
func (r Reason) taintedText() string {
	switch {
	case r.Foreign > 0:
		return fmt.Sprintf("the node already has the taint %s:%s, which Autohealer cannot prove to be its own", r.Key, r.Effect)
	case r.Other != "":
		return fmt.Sprintf("taint %s:%s; %s", r.Key, r.Effect, r.Other)
	}
	return fmt.Sprintf("taint %s:%s", r.Key, r.Effect) + r.whileUnknown("")
}

// fellBackText says why NoSchedule replaces NoExecute.
func (r Reason) fellBackText() string {
	return fmt.Sprintf("taint %s:%s instead of NoExecute: ", r.Key, r.Effect) + r.notNoExecuteText()
}

// notNoExecuteText says what prevents NoExecute.
func (r Reason) notNoExecuteText() string {
	if r.Other != "" {
		return r.Other + r.whileUnknown("; it")
	}
	// Some of these nodes may not have the taint yet, or may no longer be selected.
	sentence := fmt.Sprintf("%d placed or under way", r.Have)
	if r.Foreign > 0 {
		sentence += fmt.Sprintf(" (%d of them not provably by Autohealer)", r.Foreign)
	}
	return sentence + fmt.Sprintf(", at most %d of %d selected nodes may have it", r.Limit, r.Of)
}

// goneText names the deleted nodes.
func (r Reason) goneText() string {
	if more := r.Departed - strings.Count(r.Gone, ",") - 1; more > 0 {
		return fmt.Sprintf("%s and %d more", r.Gone, more)
	}
	return r.Gone
}

// waitText says what a due treatment waits for.
func (r Reason) waitText() string {
	switch r.Code {
	case CapFull:
		// Have may include deleted nodes that are no longer selected, and may exceed a
		// percentage of the nodes that are left.
		taken := fmt.Sprintf("waits: %d in treatment", r.Have)
		if r.Pool != "" {
			taken += " in " + r.Pool
		}
		if r.Departed > 0 {
			taken += fmt.Sprintf(" (%d gone and not replaced yet: %s", r.Departed, r.goneText())
			if !r.Until.IsZero() {
				taken += "; a slot is free by " + stamp(r.Until)
			}
			taken += ")"
		}
		return fmt.Sprintf("%s, at most %d of %d selected nodes may be", taken, r.Limit, r.Of)
	case NotAllowed:
		if r.Other == "" {
			return "waits: no more treatments may be begun now"
		}
		return "waits: " + r.Other
	case GateClosed:
		sentence := fmt.Sprintf("%d of %d selected nodes are %s, at most %d may be", r.Have, r.Of, unhealthyText(r.Recovering, r.Departed), r.Limit)
		if r.Other == "" {
			return "waits: " + sentence
		}
		return fmt.Sprintf("held by %s: %s; continues when no more than %d are", r.Other, sentence, r.Limit)
	case CoolingDown:
		return fmt.Sprintf("waits: the storm is over since %s, nothing new before %s", stamp(r.Calm), stamp(r.Until))
	case MaxInTreatment, MaxUnschedulable, MaxInTopology, LastNode, Paced, CorrelatedFailed, GivenUp:
		return r.railText()
	case ControlPlaneBusy:
		return fmt.Sprintf("waits: control-plane node %s is in treatment", r.Other)
	case Busy:
		return fmt.Sprintf("waits: %s treats this node", r.Other)
	case Vetoed:
		return "not treated: " + r.Other
	case OutsideWindow:
		if r.Until.IsZero() {
			return outsideWindow + r.Other
		}
		return outsideWindow + r.Other + ", continues at " + stamp(r.Until)
	case OnHold:
		if would := r.wouldText(); would != "" {
			return "nothing new starts: " + r.Other + "; " + would
		}
		return "nothing new starts: " + r.Other
	case NodePaused:
		if r.Until.IsZero() {
			return "nothing new starts on this node: " + r.Other
		}
		return "nothing new starts on this node until " + stamp(r.Until) + ": " + r.Other
	case Retrying:
		return "could not be carried out, tried again at " + stamp(r.Until)
	}
	return r.Code.String()
}

// railText names the rail that holds a treatment, and what would free it.
func (r Reason) railText() string {
	switch r.Code {
	case LastNode:
		return "held by Guardrails: no other node is ready and open to new pods; continues when there is one"
	case Paced:
		sentence := fmt.Sprintf("held by pace of Guardrails: %d treatments began within %s, at most %d may; continues ", r.Have, r.Other, r.Limit)
		if r.Until.IsZero() {
			return sentence + raised
		}
		return sentence + "at " + stamp(r.Until)
	case GivenUp:
		return fmt.Sprintf("given up, held by maxAttempts of Guardrails: %d treatments of this node, or of nodes that it replaces, began within %s, at most %d may; continues at %s, or when a user removes the annotation autohealer.resourcestack.com/attempts",
			r.Have, r.Other, r.Limit, stamp(r.Until))
	}
	if r.Code == CorrelatedFailed {
		sentence := fmt.Sprintf("held by correlatedFailure of Guardrails: %d of %d nodes with %s became unhealthy within %s, probably by a common cause; continues when at most %d of them are unhealthy, ",
			r.Have, r.Of, r.Other, shortDuration(r.Within), r.Limit)
		if !r.Until.IsZero() {
			sentence += "at " + stamp(r.Until) + ", "
		}
		return sentence + "or when a user sets the annotation autohealer.resourcestack.com/release-hold of Guardrails"
	}
	rail, nodes := "maxInTreatment", "nodes"
	switch r.Code {
	case MaxUnschedulable:
		return fmt.Sprintf("held by maxUnschedulable of Guardrails: %d of %d nodes are closed to new pods, at most %d may be; continues %s", r.Have, r.Of, r.Limit, r.freed("opens"))
	case MaxInTopology:
		rail, nodes = "topology", "nodes with "+r.Other
	}
	sentence := fmt.Sprintf("held by %s of Guardrails: %d of %d %s are in treatment", rail, r.Have, r.Of, nodes)
	if r.Departed > 0 {
		sentence += fmt.Sprintf(" (%d gone and not replaced yet)", r.Departed)
	}
	return sentence + fmt.Sprintf(", at most %d may be; continues %s", r.Limit, r.freed("ends"))
}

// raised says when a limit of 0 holds nothing any longer.
const raised = "when the limit is raised"

// freed says when a limit on nodes has room for another one.
func (r Reason) freed(how string) string {
	switch {
	case r.Limit == 0:
		return raised
	case r.Have > r.Limit:
		return fmt.Sprintf("when at most %d are", r.Limit-1)
	}
	return "when one of them " + how
}

// unhealthyText describes the nodes that a gate counts.
func unhealthyText(recovering, departed int) string {
	switch {
	case recovering > 0 && departed > 0:
		return "unhealthy, in treatment or not replaced yet"
	case departed > 0:
		return "unhealthy or not replaced yet"
	case recovering > 0:
		return "unhealthy or in treatment"
	}
	return "unhealthy"
}

// dryRunText says what a rule on dry run would do, and what happens to its existing
// response.
func (r Reason) dryRunText() string {
	would := r.wouldText()
	if would != "" && r.Other != "" {
		would += "; "
	}
	return would + r.Other
}

// wouldText says what a rule would do, and what would prevent that; empty if it is not known.
func (r Reason) wouldText() (would string) {
	switch {
	case r.Key != "":
		would = fmt.Sprintf("would place taint %s:%s", r.Key, r.Effect)
	case r.Steps > 0:
		would = "would begin " + r.step()
	}
	if r.Besides != "" {
		would += ", but " + r.Besides
	}
	return would
}

// step names the step, with its number if there are several.
func (r Reason) step() string {
	if r.Steps == 1 {
		return r.Action.noun()
	}
	return fmt.Sprintf("step %d of %d (%s)", r.Step, r.Steps, r.Action.noun())
}

// whileUnknown says that a response stays only because a condition is Unknown.
func (r Reason) whileUnknown(and string) string {
	if r.Condition != "" {
		return ""
	}
	return and + " stays while its condition is Unknown"
}

// maxReasonLength limits the condition reason that a message repeats, because any component
// may write a long text there.
const maxReasonLength = 64

// unknownCause says why a condition is Unknown, if the condition has a reason.
func (r Reason) unknownCause() string {
	switch {
	case r.Other == AgentSilent:
		return " (" + AgentSilent + ": the node's agent has stopped reporting)"
	case r.Other == "" || len(r.Other) > maxReasonLength:
		return ""
	}
	return " (" + r.Other + ")"
}

// removalText says that the response is removed.
func (r Reason) removalText() string {
	if r.Taint {
		return "the taint is removed"
	}
	return "the treatment ends"
}

// shortDuration formats a duration without trailing zero units: 5m, not 5m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if short, ok := strings.CutSuffix(s, "m0s"); ok {
		s = short + "m"
	}
	if short, ok := strings.CutSuffix(s, "h0m"); ok {
		s = short + "h"
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
