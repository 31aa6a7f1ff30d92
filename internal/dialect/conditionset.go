package dialect

import (
	"fmt"
	"strings"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// ConditionSet places a taint while all of its conditions match.
type ConditionSet struct {
	Name     string
	TaintKey string // a qualified name that is not reserved for another component
	Effect   string // NoExecute, NoSchedule or PreferNoSchedule
	Selector triage.Selector

	Conditions []SetCondition

	// MaxUnhealthy limits how many selected nodes may have the NoExecute taint of this set
	// at the same time. Empty means [DefaultMaxUnhealthy]. A percentage is rounded down, but
	// to at least one. Weaker effects have no limit.
	MaxUnhealthy string
	// ControlPlane allows NoExecute on control-plane nodes.
	ControlPlane bool
	// DryRun evaluates the set without placing taints.
	DryRun bool
	// Hold, if not empty, is the reason why nothing new may begin.
	Hold string
	// Windows are when NoExecute taints may be placed; none means at any time.
	Windows []Window
}

// DefaultMaxUnhealthy is the default limit: less than half.
const DefaultMaxUnhealthy = "49%"

// maxConditionLength is the longest condition type that the Kubernetes API accepts.
const maxConditionLength = 316

// SetCondition is a condition of a set.
type SetCondition struct {
	Type     string
	Status   string // True, False or Unknown in any letter case
	Duration string // how long the condition must have matched; empty means zero
	// EvenSilent lets Unknown match even if it means only that the agent of the node stopped
	// reporting.
	EvenSilent bool
}

// Rule compiles the set. A condition type that occurs twice is an error, because a condition
// cannot have two statuses at once.
//
// An error names a condition by its type, because sets are written with a list or with a map
// of conditions.
func (s ConditionSet) Rule() (triage.Rule, error) {
	var f fields
	taint := &triage.TaintResponse{
		Key:          f.taintKey("spec.taintKey", s.TaintKey),
		Effect:       f.effect("spec.effect", s.Effect),
		ControlPlane: s.ControlPlane,
	}
	bound := triage.Bound{Cap: f.limit("spec.maxUnhealthy", orDefault(s.MaxUnhealthy, DefaultMaxUnhealthy))}
	if taint.Effect != triage.NoExecute {
		bound.Cap = nil
	}
	if len(s.Conditions) == 0 {
		f.fail("spec.conditions", "", "a set needs at least one condition")
	}
	when := triage.When{All: true}
	named := map[string]bool{}
	for i, c := range s.Conditions {
		path := "spec.conditions[" + c.Type + "]"
		switch {
		case c.Type == "" || len(c.Type) > maxConditionLength:
			f.fail(fmt.Sprintf("spec.conditions[%d]", i), c.Type, "want a condition type like KernelDeadlock, of at most 316 characters")
		case strings.ContainsAny(c.Type, " :="):
			f.fail(path, c.Type, "want the condition type alone, for example KernelDeadlock, without spaces, colons and equals signs")
		case named[c.Type]:
			f.fail(path, c.Type, "named twice; all conditions must stand at once")
		}
		named[c.Type] = true
		when.Signals = append(when.Signals, triage.Signal{
			Condition:  c.Type,
			Status:     f.status(path+".status", c.Status),
			For:        f.duration(path+".duration", orDefault(c.Duration, "0s")),
			EvenSilent: c.EvenSilent,
		})
	}
	return f.rule(triage.Rule{
		ID:       triage.RuleID{Kind: policykind.ConditionSet, Name: f.text("metadata.name", s.Name, "a set needs a name")},
		Stage:    policykind.StageTaint,
		Selector: s.Selector,
		When:     when,
		Bound:    bound,
		Response: triage.Response{Taint: taint},
		Hold:     s.Hold,
		DryRun:   s.DryRun,
		Window:   f.windows("spec.windows", s.Windows),
	})
}
