package repair

import (
	"context"
	"time"

	"github.com/resourcestack/autohealer/internal/dialect"
)

// StatementSource knows which conditions are unhealthy.
type StatementSource interface {
	// Latest returns the newest statements, and a channel that is closed when there are newer
	// ones.
	Latest() (*dialect.Statements, <-chan struct{})
}

// watchStatements wakes the engine when there are new statements.
func (r *Policy) watchStatements(ctx context.Context) {
	for {
		_, changed := r.cfg.Statements.Latest()
		select {
		case <-ctx.Done():
			return
		case <-changed:
			r.inbox.Wake()
		}
	}
}

// takeStatements puts new statements in force. They make no policy invalid: every provider states
// conditions of its own, and an entry of a policy may name a condition that no provider states.
func (r *Policy) takeStatements(now time.Time) {
	latest, _ := r.cfg.Statements.Latest()
	if latest == r.statements {
		return
	}
	r.statements, r.changed = latest, true
	r.host.Logger().Info("repair statements in force")
	r.host.Statuses().Schedule(now)
}
