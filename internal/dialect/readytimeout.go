package dialect

import (
	"github.com/resourcestack/autohealer/internal/triage"
)

// ReadyTimeout replaces nodes that have not become ready in time after their
// creation. A node that once was ready for work is none of its business.
type ReadyTimeout struct {
	Name     string
	Selector triage.Selector

	// Timeout is the time a node has from its creation; empty means 10m.
	Timeout string
	// MaxUnhealthy is how many of the selected nodes may be under replacement
	// at once; empty means 20%. A share is rounded down, but to no less than
	// one.
	MaxUnhealthy string
	// Pool is who shares the bound; empty shares it with nobody.
	Pool string
	// Hold, when not empty, says why nothing new may begin.
	Hold string
}

// Rule compiles the timeout.
func (r ReadyTimeout) Rule() (triage.Rule, error) {
	var f fields
	timeout := f.duration("repair.readyTimeout", or(r.Timeout, "10m"))
	if timeout == 0 {
		f.refuse("repair.readyTimeout", r.Timeout, "a node needs some time to become ready; want a duration such as 10m")
	}
	// Ready for work means Ready, and no startup taint left.
	var when triage.When
	for _, status := range []triage.Status{triage.False, triage.Unknown, triage.Missing} {
		when.Signals = append(when.Signals, triage.Signal{
			Condition: triage.Ready, Status: status, For: timeout, FromCreation: true,
		})
	}
	when.Signals = append(when.Signals, triage.Signal{
		Condition: triage.StartupTaints, Status: triage.True, For: timeout, FromCreation: true,
	})
	limit := f.limit("repair.maxUnhealthy", or(r.MaxUnhealthy, "20%"))
	return f.rule(triage.Rule{
		ID:       triage.RuleID{Kind: triage.ReadyTimeout, Name: f.text("metadata.name", r.Name, "a ready timeout needs a name")},
		Who:      r.Selector,
		When:     when,
		Bound:    triage.Bound{Cap: limit, Pool: r.Pool},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
		Hold:     r.Hold,
	})
}
