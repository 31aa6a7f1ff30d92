package controller

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// ConfigMaps and revisions need rights of their own, which an older ClusterRole does not
// grant. Without them the controller still follows ConditionSets and leaves all taints of
// ConfigMap sets in place: without those sets it would remove taints that nodes need. All
// other errors are retried, because they pass.

// revisionAccess says whether the controller can read ConfigMaps with sets and their
// revisions.
type revisionAccess struct {
	stored map[types.UID]configmaps.Stored
	denied error // the missing right; nil for none
}

// sendAccess passes the access to the loop, unless the loop has ended.
func (s *configMapSets) sendAccess(ctx context.Context, a revisionAccess) {
	select {
	case s.access <- a:
	case <-ctx.Done():
	}
}

// untilAllowed calls do, and retries while the API server denies it.
func untilAllowed(ctx context.Context, tell func(context.Context, revisionAccess), do func() error) error {
	for failures := 1; ; failures++ {
		err := do()
		if !apierrors.IsForbidden(err) {
			return err
		}
		tell(ctx, revisionAccess{denied: err})
		select {
		case <-time.After(retryDelay(failures)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readRevisions lists the revisions and passes them to the loop.
func (s *configMapSets) readRevisions(ctx context.Context, log *slog.Logger) {
	for failures := 1; ; failures++ {
		var kept map[types.UID]configmaps.Stored
		err := untilAllowed(ctx, s.sendAccess, func() (err error) {
			kept, err = s.revisions.List(ctx)
			return err
		})
		if err == nil {
			s.sendAccess(ctx, revisionAccess{stored: kept})
			return
		}
		wait := retryDelay(failures)
		log.Warn("revisions not read", "retryIn", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// handleAccess takes in whether ConfigMaps with sets can be read. It logs every missing
// right once.
func (l *loop) handleAccess(a revisionAccess) {
	switch {
	case a.denied == nil:
		l.configMaps.restored, l.configMaps.hasRevisions = a.stored, true
	case !slices.Contains(l.configMaps.denied, a.denied.Error()):
		l.configMaps.denied = append(l.configMaps.denied, a.denied.Error())
		l.cfg.Logger.Error("cannot read the sets in configmaps: permission missing", "manifest", "deploy/controller/2-rights.yaml", "err", a.denied)
	}
}

// canBeRead reports whether ConfigMaps and revisions are loaded.
func (s *configMapSets) canBeRead() bool { return s.hasRevisions && s.inbox.HasSynced() }

// keepsTaints reports whether the taints of a rule must stay unchanged because the rule cannot
// be read. Only sets from ConfigMaps have rule names of this form.
func (s *configMapSets) keepsTaints(rule triage.RuleID) bool {
	configMap, isWritten := configmaps.ConfigMapName(rule.Name)
	switch {
	case rule.Kind != triage.ConditionSet || !isWritten:
		return false
	case !s.loaded:
		return true
	}
	of := s.known[configMap]
	return of != nil && of.keepsTaints()
}

// keepsTaints reports whether the stored version of a ConfigMap is unreadable and no other
// version is in force.
func (s *configMapSet) keepsTaints() bool { return s.stored.Err != nil && s.inForce == nil }

// keepsAnyTaints reports whether any taint may have to stay unchanged.
func (s *configMapSets) keepsAnyTaints() bool {
	if !s.loaded {
		return true
	}
	for _, of := range s.known {
		if of.keepsTaints() {
			return true
		}
	}
	return false
}

// planOf returns the plan of a node, extended by everything that must stay unchanged. The
// core does not know unreadable rules and would remove their taints.
func (l *loop) planOf(state *nodeState) (triage.Plan, bool) {
	plan, ok := l.core.Plan(state.node.Name)
	plan.Initialized = plan.Initialized && l.recordsStart(state)
	if !ok || !l.configMaps.keepsAnyTaints() {
		return plan, ok
	}
	note, _ := ownership.Read(state.node.Annotations) // with an unreadable record, no taint counts as ours
	for _, t := range state.ownTaints {
		if l.configMaps.keepsTaints(t.Rule) {
			plan.Taints = append(plan.Taints, triage.PlannedTaint{Taint: t})
		}
	}
	for _, m := range note.Starts {
		if rule := triage.RuleID(m.Rule); l.configMaps.keepsTaints(rule) {
			plan.Remember = append(plan.Remember, triage.Memory{Rule: rule, Condition: m.Condition, Since: m.Since, Transition: m.Transition})
		}
	}
	// Keep the recorded order of rules, so that the record does not change.
	slices.SortStableFunc(plan.Taints, func(a, b triage.PlannedTaint) int { return compareRules(a.Rule, b.Rule) })
	slices.SortStableFunc(plan.Remember, func(a, b triage.Memory) int { return compareRules(a.Rule, b.Rule) })
	return plan, true
}

func compareRules(a, b triage.RuleID) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}

// releaseUnknown reconciles every node with taints of ConfigMap sets.
func (l *loop) releaseUnknown(now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(l.nodeStates)) {
		state := l.nodeStates[name]
		if slices.ContainsFunc(state.ownTaints, func(t triage.Taint) bool { _, isWritten := configmaps.ConfigMapName(t.Rule.Name); return isWritten }) {
			l.reconcileNode(now, state)
		}
	}
}
