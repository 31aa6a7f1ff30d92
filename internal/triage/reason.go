package triage

import (
	"fmt"
	"strings"
	"time"
)

// Code is what a reason comes down to, in a word that fits an Event.
type Code uint8

// The codes, most telling first.
const (
	_ Code = iota
	// Treating: a step of the rule's ladder is under way.
	Treating
	// Exhausted: the last step has failed or timed out; nothing is left to try.
	Exhausted
	// Tainted: the rule's taint is on the node, or stays there. A release has this
	// code when the taint is weaker than the one that was decided.
	Tainted
	// FellBack: NoSchedule stands in for NoExecute, because the cap is full or, for
	// as long as it stands, because control-plane nodes are not included. A release
	// has this code when NoExecute had been decided for one of them.
	FellBack
	// Recovering: the node is not sick any more; the treatment stays for a while, or
	// until somebody confirms that the node is healthy.
	Recovering
	// Recovered: the signals have ended; the response is to be taken back.
	Recovered
	// Deselected: the rule no longer selects the node; likewise.
	Deselected
	// RuleGone: there is no such rule any more; likewise.
	RuleGone
	// NodeGone: what was done about a node outlives it, and is taken back.
	NodeGone
	// CapFull: as many nodes are in treatment as the rule allows.
	CapFull
	// NotAllowed: somebody's word lets the rule begin no more.
	NotAllowed
	// GateClosed: more nodes are sick, not sick and still in treatment, or gone and not
	// replaced yet, than the rule allows.
	GateClosed
	// CoolingDown: no longer, but not for long enough.
	CoolingDown
	// ControlPlaneBusy: another control-plane node is in treatment.
	ControlPlaneBusy
	// Busy: another rule treats the node.
	Busy
	// Vetoed: somebody asks that the node be left alone.
	Vetoed
	// OnHold: the rule is on hold.
	OnHold
	// Retrying: what was decided could not be done; it is tried again later.
	Retrying
	// DryRun: the rule is on dry run; what it would do is told and not done, and
	// any response of it is to be taken back.
	DryRun
	// Superseded: another rule's stronger taint takes the place of this one.
	Superseded
	// Unclear: the condition is Unknown, which the rule does not name.
	Unclear
	// Pending: the signals have not stood long enough.
	Pending
	// Partial: some of the signals stand, but the rule wants all of them.
	Partial
	// Healthy: the node is selected, and no signal stands.
	Healthy
	// NotSelected: no rule selects the node.
	NotSelected
)

var codeNames = [...]string{
	"", "Treating", "Exhausted", "Tainted", "FellBack", "Recovering", "Recovered", "Deselected", "RuleGone", "NodeGone", "CapFull",
	"NotAllowed", "GateClosed", "CoolingDown", "ControlPlaneBusy", "Busy", "Vetoed", "OnHold", "Retrying", "DryRun", "Superseded", "Unclear", "Pending", "Partial", "Healthy", "NotSelected",
}

func (c Code) String() string {
	if c > 0 && int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("Code(%d)", uint8(c))
}

// Reason says why something is done or not done. It is a plain value: whoever
// shows it shows the same.
type Reason struct {
	Code Code
	Rule RuleID // zero when no rule speaks

	// The signal that decides: of several that are enough, the one that is
	// eligible first; of several that must all stand, the one that is last.
	Condition string
	Status    Status
	Since     time.Time // when its clock started; of a node that is recovering, since when it is healthy
	// FromCreation says that this is when the node was created.
	FromCreation bool
	// Eligible is from when the rule may act, as far as its signals go; zero if no
	// signal decides.
	Eligible time.Time

	Step   int    // of Steps, counted from 1
	Steps  int    // length of the ladder
	Action Action // of that step

	Key    string // of the taint
	Effect Effect // of the taint that is placed, or would be

	// Other is who or what stands in the way: a rule, a node, somebody's words; of a
	// condition that is Unknown, the reason that its reporter gives. On
	// dry run it tells that a response is taken back, and is empty if there is none;
	// of a taint that is asked for now it tells that a stronger one is called off.
	Other string
	// Have of Of nodes, where at most Limit may be.
	Have, Limit, Of int
	// Pool is who shares the cap of which Have are taken, empty for nobody.
	Pool string
	// Recovering is how many of Have are not sick, but still in treatment.
	Recovering int
	// Departed is how many of Have are gone and not replaced yet. Where a gate is closed
	// they are among Of.
	Departed int
	// Foreign is how many of Have nodes have the taint although this system cannot prove
	// that it placed it; with Tainted, that this node is one of them.
	Foreign int
	// Calm is since when the storm is over.
	Calm time.Time
	// Until is when time alone will change this; zero when it will not.
	Until time.Time
}

// String tells the reason in a sentence.
func (r Reason) String() string {
	var b strings.Builder
	if r.Rule != (RuleID{}) {
		b.WriteString(r.Rule.String() + ": ")
	}
	if r.Condition != "" && r.Code != Unclear {
		if r.Condition == StartupTaints && r.Status == True {
			b.WriteString("startup taints are still there")
		} else {
			fmt.Fprintf(&b, "%s=%s", r.Condition, r.Status)
		}
		switch {
		case r.FromCreation:
			b.WriteString(" on a node created at " + stamp(r.Since))
		case !r.Since.IsZero():
			b.WriteString(" since " + stamp(r.Since))
		}
		if r.Code == DryRun { // what follows is told and not done
			b.WriteString(": ")
		} else {
			b.WriteString(", ")
		}
	}
	b.WriteString(r.tail())
	return b.String()
}

func (r Reason) tail() string {
	switch r.Code {
	case Treating:
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
	case Exhausted:
		return r.step() + " did not help, and nothing is left to try"
	case Tainted:
		if r.Foreign > 0 {
			return fmt.Sprintf("the node already has the taint %s:%s, which Autohealer cannot prove to be its own", r.Key, r.Effect)
		}
		if r.Other != "" {
			return fmt.Sprintf("taint %s:%s is asked for now, %s", r.Key, r.Effect, r.Other)
		}
		return fmt.Sprintf("taint %s:%s", r.Key, r.Effect) + r.whileUnknown("")
	case FellBack:
		sentence := fmt.Sprintf("taint %s:%s instead of NoExecute: ", r.Key, r.Effect)
		if r.Other != "" {
			return sentence + r.Other + r.whileUnknown("; it")
		}
		// Some of these may not have it yet, or not be selected any more.
		sentence += fmt.Sprintf("%d placed or under way", r.Have)
		if r.Foreign > 0 {
			sentence += fmt.Sprintf(" (%d of them not provably by Autohealer)", r.Foreign)
		}
		return sentence + fmt.Sprintf(", at most %d of %d selected nodes may have it", r.Limit, r.Of)
	case Recovering:
		sentence := "the node is healthy since " + stamp(r.Since) + ", the treatment stays until "
		if r.Until.IsZero() {
			return sentence + "somebody confirms it"
		}
		return sentence + stamp(r.Until)
	case Recovered:
		return "the node has recovered, " + r.Rule.Kind.takenBack()
	case Deselected:
		return fmt.Sprintf("the %s no longer selects this node, %s", r.Rule.Kind.noun(), r.Rule.Kind.takenBack())
	case RuleGone:
		return fmt.Sprintf("there is no such %s any more, %s", r.Rule.Kind.noun(), r.Rule.Kind.takenBack())
	case NodeGone:
		return "the node is gone, " + r.Rule.Kind.takenBack()
	case CapFull:
		// A terminated node keeps its place for a while, so these need not be
		// selected nodes, and a share of those that are left may be less by now.
		taken := fmt.Sprintf("waits: %d in treatment", r.Have)
		if r.Pool != "" {
			taken += " in " + r.Pool
		}
		if r.Departed > 0 {
			taken += fmt.Sprintf(" (%d gone and not replaced yet)", r.Departed)
		}
		return fmt.Sprintf("%s, at most %d of %d selected nodes may be", taken, r.Limit, r.Of)
	case NotAllowed:
		if r.Other == "" {
			return "waits: no more treatments may be begun now"
		}
		return "waits: " + r.Other
	case GateClosed:
		return fmt.Sprintf("waits: %d of %d selected nodes are %s, at most %d may be", r.Have, r.Of, ailing(r.Recovering, r.Departed), r.Limit)
	case CoolingDown:
		return fmt.Sprintf("waits: the storm is over since %s, nothing new before %s", stamp(r.Calm), stamp(r.Until))
	case ControlPlaneBusy:
		return fmt.Sprintf("waits: control-plane node %s is in treatment", r.Other)
	case Busy:
		return fmt.Sprintf("waits: %s treats this node", r.Other)
	case Vetoed:
		return "left alone: " + r.Other
	case OnHold:
		return "nothing new is begun: " + r.Other
	case Retrying:
		return "could not be carried out, tried again at " + stamp(r.Until)
	case DryRun:
		return "dry run, " + r.rehearsal()
	case Superseded:
		return fmt.Sprintf("superseded by %s (%s)", r.Other, r.Effect)
	case Unclear:
		return fmt.Sprintf("%s is Unknown%s in a way that this %s does not ask for: what stands stays, nothing starts", r.Condition, r.whoIsSilent(), r.Rule.Kind.noun())
	case Pending:
		return "eligible at " + stamp(r.Until)
	case Partial:
		return fmt.Sprintf("%d of %d conditions stand, all must", r.Have, r.Of)
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

// ailing says of those whom a gate counts what they are: sick, or else in treatment or
// gone and not replaced yet.
func ailing(recovering, departed int) string {
	switch {
	case recovering > 0 && departed > 0:
		return "sick, in treatment or not replaced yet"
	case departed > 0:
		return "sick or not replaced yet"
	case recovering > 0:
		return "sick or in treatment"
	}
	return "sick"
}

// rehearsal says what a rule on dry run would do, and what it does about what it
// did earlier.
func (r Reason) rehearsal() string {
	var parts []string
	switch {
	case r.Key != "":
		parts = append(parts, fmt.Sprintf("would place taint %s:%s", r.Key, r.Effect))
	case r.Steps > 0:
		parts = append(parts, "would begin "+r.step())
	}
	if r.Other != "" {
		parts = append(parts, r.Other)
	}
	return strings.Join(parts, "; ")
}

// step names the step, by its place only where there are several.
func (r Reason) step() string {
	if r.Steps == 1 {
		return r.Action.noun()
	}
	return fmt.Sprintf("step %d of %d (%s)", r.Step, r.Steps, r.Action.noun())
}

// whileUnknown says why a response stands although no signal does: only an
// Unknown keeps it.
func (r Reason) whileUnknown(and string) string {
	if r.Condition != "" {
		return ""
	}
	return and + " stays while its condition is Unknown"
}

// longestWord is how long the reason of a condition may be that is told: it is to be
// a word, and anybody may write a page.
const longestWord = 64

// whoIsSilent says why a condition is Unknown, if its reporter does.
func (r Reason) whoIsSilent() string {
	switch {
	case r.Other == AgentSilent:
		return " (" + AgentSilent + ": the node's agent has stopped reporting)"
	case r.Other == "" || len(r.Other) > longestWord:
		return ""
	}
	return " (" + r.Other + ")"
}

// noun is what those who wrote a rule of the kind call it.
func (k Kind) noun() string {
	switch k {
	case ConditionSet:
		return "set"
	case NodeHealthCheck:
		return "health check"
	case Repair:
		return "repair policy"
	case ReadyTimeout:
		return "ready timeout"
	}
	return "rule"
}

// takenBack tells that the response of a rule of the kind is taken back.
func (k Kind) takenBack() string {
	if k == ConditionSet {
		return "the taint is taken back"
	}
	return "the treatment is taken back"
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
