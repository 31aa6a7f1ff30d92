package dialect

import (
	"fmt"
	"strings"

	"github.com/resourcestack/autohealer/internal/triage"
)

// ConditionSet is a combination of conditions that becomes a taint: while all of
// them stand, work is kept off the node.
type ConditionSet struct {
	Name     string
	TaintKey string // a qualified name that Kubernetes has not reserved
	Effect   string // NoExecute, NoSchedule or PreferNoSchedule
	Selector triage.Selector

	Conditions []SetCondition

	// MaxUnhealthy is how many of the selected nodes may carry the NoExecute taint
	// of this set at once; empty means [DefaultMaxUnhealthy]. A share is rounded down, but
	// to no less than one. The weaker effects are not bounded.
	MaxUnhealthy string
	// ControlPlane lets NoExecute be placed on control-plane nodes too.
	ControlPlane bool
	// DryRun: the set is judged, but places no taint.
	DryRun bool
	// Hold, when not empty, says why nothing new may begin.
	Hold string
}

// DefaultMaxUnhealthy is the bound of a policy that says none: less than half.
const DefaultMaxUnhealthy = "49%"

// longestCondition is how long a condition type can be in the Kubernetes API.
const longestCondition = 316

// SetCondition is one condition of a set.
type SetCondition struct {
	Type     string
	Status   string // True, False or Unknown in any letter case
	Duration string // how long it must have stood; empty means not at all
	// EvenSilent lets Unknown match also when it only says that the node's
	// agent has stopped reporting.
	EvenSilent bool
}

// Rule compiles the set. A condition type that is named twice is an error: no
// condition has two statuses at once, so the set could never match.
//
// An error names a condition by its type, because some write the conditions of a
// set as a list and others as a map.
func (s ConditionSet) Rule() (triage.Rule, error) {
	var f fields
	taint := &triage.TaintResponse{
		Key:          f.taintKey("spec.taintKey", s.TaintKey),
		Effect:       f.effect("spec.effect", s.Effect),
		ControlPlane: s.ControlPlane,
	}
	bound := triage.Bound{Cap: f.limit("spec.maxUnhealthy", or(s.MaxUnhealthy, DefaultMaxUnhealthy))}
	if taint.Effect != triage.NoExecute {
		bound.Cap = nil
	}
	if len(s.Conditions) == 0 {
		f.refuse("spec.conditions", "", "a set needs at least one condition")
	}
	when := triage.When{All: true}
	named := map[string]bool{}
	for i, c := range s.Conditions {
		path := "spec.conditions[" + c.Type + "]"
		switch {
		case c.Type == "" || len(c.Type) > longestCondition:
			f.refuse(fmt.Sprintf("spec.conditions[%d]", i), c.Type, "want a condition type such as KernelDeadlock, of at most 316 characters")
		case strings.ContainsAny(c.Type, " :="):
			f.refuse(path, c.Type, "want the condition type alone, such as KernelDeadlock, without spaces, colons and equals signs")
		case named[c.Type]:
			f.refuse(path, c.Type, "named twice; all conditions must stand at once")
		}
		named[c.Type] = true
		when.Signals = append(when.Signals, triage.Signal{
			Condition:  c.Type,
			Status:     f.status(path+".status", c.Status),
			For:        f.duration(path+".duration", or(c.Duration, "0s")),
			EvenSilent: c.EvenSilent,
		})
	}
	return f.rule(triage.Rule{
		ID:       triage.RuleID{Kind: triage.ConditionSet, Name: f.text("metadata.name", s.Name, "a set needs a name")},
		Who:      s.Selector,
		When:     when,
		Bound:    bound,
		Response: triage.Response{Taint: taint},
		Hold:     s.Hold,
		DryRun:   s.DryRun,
	})
}
