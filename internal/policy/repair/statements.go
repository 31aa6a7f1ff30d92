package repair

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/dialect"
)

// StatementSource knows which conditions are unhealthy.
type StatementSource interface {
	// Latest returns the newest statements, and a channel that is closed when there are newer
	// ones.
	Latest() (*dialect.Statements, <-chan struct{})
	// Refuse tells whether the newest statements are not put in force.
	Refuse(is bool)
}

// refusedStatements are statements that are not in force because a policy would not be valid
// with them.
type refusedStatements struct {
	statements *dialect.Statements
	problem    string
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

// takeStatements puts new statements in force, unless a policy or a repair block that is in force
// would not be valid with them: its nodes would not be repaired any more. Refused statements are
// tried again when policies change.
func (r *Policy) takeStatements(now time.Time) {
	latest, _ := r.cfg.Statements.Latest()
	if latest == r.statements || latest == r.refused.statements && !r.changed {
		return
	}
	if problem := r.problemWith(latest); problem != "" {
		if r.refused.problem != problem {
			r.host.Logger().Error("repair statements not in force: correct the file or the policy", "why", problem)
		}
		r.refused = refusedStatements{latest, problem}
		r.cfg.Statements.Refuse(true)
		return
	}
	r.statements, r.refused, r.changed = latest, refusedStatements{}, true
	r.cfg.Statements.Refuse(false)
	for _, pol := range r.policies {
		r.judge(pol) // a version that was invalid may be valid now
	}
	r.host.Logger().Info("repair statements in force")
	r.host.Statuses().Schedule(now)
}

// problemWith returns why statements cannot be in force, empty for nothing.
func (r *Policy) problemWith(statements *dialect.Statements) string {
	for _, name := range slices.Sorted(maps.Keys(r.policies)) {
		if version := r.policies[name].inForce; version != nil {
			if err := validatePolicy(version, statements); err != nil {
				return fmt.Sprintf("RepairPolicy %s would be invalid: %v", name, err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.pools)) {
		if block := r.pools[name].Block; block != nil {
			if err := checkBlock(name, block, statements); err != nil {
				return fmt.Sprintf("the repair block of NodePool %s would be invalid: %v", name, err)
			}
		}
	}
	return ""
}
