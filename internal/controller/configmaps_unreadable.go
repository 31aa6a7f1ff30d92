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

// What is written in ConfigMaps is read by rights of their own, which an older role
// does not give. Without them ConditionSets are followed all the same, and what sets
// of ConfigMaps have placed stays: to begin without knowing them would take taints
// off nodes that must have them. Every other error is waited for, because it passes.

// revisionAccess is word of whether ConfigMaps with sets, and what was kept of them, can be
// read.
type revisionAccess struct {
	kept   map[types.UID]configmaps.Stored
	denied error // the right that is missing; nil for none
}

// setAccess lets the loop know, unless it has ended.
func (s *configMapSets) setAccess(ctx context.Context, a revisionAccess) {
	select {
	case s.access <- a:
	case <-ctx.Done():
	}
}

// untilAllowed does something, again and again while a right is missing for it.
func untilAllowed(ctx context.Context, tell func(context.Context, revisionAccess), do func() error) error {
	for failures := 1; ; failures++ {
		err := do()
		if !apierrors.IsForbidden(err) {
			return err
		}
		tell(ctx, revisionAccess{denied: err})
		select {
		case <-time.After(backOff(failures)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readRevisions reads what was kept, and tells it.
func (s *configMapSets) readRevisions(ctx context.Context, log *slog.Logger) {
	for failures := 1; ; failures++ {
		var kept map[types.UID]configmaps.Stored
		err := untilAllowed(ctx, s.setAccess, func() (err error) {
			kept, err = s.revisions.List(ctx)
			return err
		})
		if err == nil {
			s.setAccess(ctx, revisionAccess{kept: kept})
			return
		}
		wait := backOff(failures)
		log.Warn("kept versions not read", "retryIn", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// handleAccess takes in whether ConfigMaps with sets can be read. Every right that is
// missing is told once.
func (l *loop) handleAccess(a revisionAccess) {
	switch {
	case a.denied == nil:
		l.configMaps.restored, l.configMaps.hasRevisions = a.kept, true
	case !slices.Contains(l.configMaps.denied, a.denied.Error()):
		l.configMaps.denied = append(l.configMaps.denied, a.denied.Error())
		l.cfg.Logger.Error("sets in configmaps not followed for want of a right", "rightsAreIn", "deploy/controller/2-rights.yaml", "err", a.denied)
	}
}

// canBeRead says whether everything has come that ConfigMaps are judged by.
func (s *configMapSets) canBeRead() bool { return s.hasRevisions && s.inbox.hasSynced() }

// holds says whether what a rule has placed must stay as it is, because what the
// rule says cannot be read. Only sets of ConfigMaps have such names.
func (s *configMapSets) holds(rule triage.RuleID) bool {
	configMap, isWritten := configmaps.ConfigMapName(rule.Name)
	switch {
	case rule.Kind != triage.ConditionSet || !isWritten:
		return false
	case !s.loaded:
		return true
	}
	of := s.known[configMap]
	return of != nil && of.holds()
}

// holds says whether the last good version of a ConfigMap can no longer be read, and
// there is no other one that is in force.
func (s *configMapSet) holds() bool { return s.stored.Err != nil && s.inForce == nil }

// holdsAny says whether there may be anything that must stay as it is.
func (s *configMapSets) holdsAny() bool {
	if !s.loaded {
		return true
	}
	for _, of := range s.known {
		if of.holds() {
			return true
		}
	}
	return false
}

// planOf returns the plan of a node, with what must stay on it as it is. The core
// knows nothing of a rule that cannot be read, and would have all of it go.
func (l *loop) planOf(p *nodeState) (triage.Plan, bool) {
	plan, ok := l.core.Plan(p.node.Name)
	plan.Initialized = plan.Initialized && l.recordsStart(p)
	if !ok || !l.configMaps.holdsAny() {
		return plan, ok
	}
	note, _ := ownership.Read(p.node.Annotations) // unreadable: nothing on the node counts as ours
	for _, t := range p.ours {
		if l.configMaps.holds(t.Rule) {
			plan.Taints = append(plan.Taints, triage.PlannedTaint{Taint: t})
		}
	}
	for _, m := range note.Starts {
		if rule := triage.RuleID(m.Rule); l.configMaps.holds(rule) {
			plan.Remember = append(plan.Remember, triage.Memory{Rule: rule, Condition: m.Condition, Since: m.Since, Transition: m.Transition})
		}
	}
	// In the order of the rules, as they were noted: else the note would be written again.
	slices.SortStableFunc(plan.Taints, func(a, b triage.PlannedTaint) int { return compareRules(a.Rule, b.Rule) })
	slices.SortStableFunc(plan.Remember, func(a, b triage.Memory) int { return compareRules(a.Rule, b.Rule) })
	return plan, true
}

func compareRules(a, b triage.RuleID) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}

// releaseUnknown looks again at every node with something on it that had to stay.
func (l *loop) releaseUnknown(now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(l.nodeStates)) {
		p := l.nodeStates[name]
		if slices.ContainsFunc(p.ours, func(t triage.Taint) bool { _, isWritten := configmaps.ConfigMapName(t.Rule.Name); return isWritten }) {
			l.reconcileNode(now, p)
		}
	}
}
