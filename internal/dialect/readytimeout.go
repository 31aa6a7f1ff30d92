package dialect

import (
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// ReadyTimeout replaces nodes that do not become ready in time after their creation. It
// ignores nodes that were ready for work at some time. It has no threshold of unhealthy nodes:
// a new node counts as unhealthy until it is ready, so every scale-up would exceed it. A pool
// whose new nodes all fail is held by the caller instead.
type ReadyTimeout struct {
	Name     string
	Selector triage.Selector

	// Timeout is counted from the creation of the node; empty means 10m.
	Timeout string
	Concurrency
	// Pool names the rules that share the limit; empty means none.
	Pool string
	// Hold, if not empty, is the reason why nothing new may begin.
	Hold string
	// Windows are when replacements may begin; none means at any time.
	Windows []Window
}

// Rule compiles the timeout.
func (r ReadyTimeout) Rule() (triage.Rule, error) {
	var f fields
	timeout := f.duration("repair.readyTimeout", orDefault(r.Timeout, "10m"))
	if timeout == 0 {
		f.fail("repair.readyTimeout", r.Timeout, "a node needs some time to become ready; want a duration like 10m")
	}
	// A node is ready for work when it is Ready and has no startup taints.
	var when triage.When
	for _, status := range []triage.Status{triage.False, triage.Unknown, triage.Missing} {
		when.Signals = append(when.Signals, triage.Signal{
			Condition: triage.Ready, Status: status, For: timeout, FromCreation: true,
		})
	}
	when.Signals = append(when.Signals, triage.Signal{
		Condition: triage.StartupTaints, Status: triage.True, For: timeout, FromCreation: true,
	})
	return f.rule(triage.Rule{
		ID:       triage.RuleID{Kind: policykind.ReadyTimeout, Name: f.text("metadata.name", r.Name, "a ready timeout needs a name")},
		Stage:    policykind.StageRepair,
		Selector: r.Selector,
		When:     when,
		Bound:    triage.Bound{Cap: r.limit(&f), Pool: r.Pool},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Terminate}}},
		Hold:     r.Hold,
		Window:   f.windows("repair.windows", r.Windows),
	})
}
