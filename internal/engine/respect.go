package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/dialect"
)

// Respect returns which work of others keeps treatments from starting. It is nil before the policy of
// the Guardrails has set it, and in tests without that policy: then each policy has its own rules.
// Without a Guardrails object the defaults apply, so it is not nil.
func (l *Engine) Respect() *dialect.Respect { return l.respect }

// SetRespect sets which work of others keeps treatments from starting, nil for the rules of each
// policy. A change concerns the facts of all nodes.
func (l *Engine) SetRespect(now time.Time, respect *dialect.Respect) {
	if isSame := respect == nil && l.respect == nil || respect != nil && l.respect != nil && *respect == *l.respect; isSame {
		return
	}
	if l.respect = nil; respect != nil {
		l.respect = new(*respect)
	}
	l.Reobserve(now, slices.Sorted(maps.Keys(l.nodeStates))...)
}
