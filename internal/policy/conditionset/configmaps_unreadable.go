package conditionset

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/policykind"
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

// sendAccess passes the access to the goroutine of the engine.
func (p *Policy) sendAccess(ctx context.Context, a revisionAccess) {
	p.host.Post(ctx, func(time.Time) { p.handleAccess(a) })
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
		case <-time.After(engine.RetryDelay(failures)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readRevisions lists the revisions and passes them to the goroutine of the engine.
func (p *Policy) readRevisions(ctx context.Context) {
	for failures := 1; ; failures++ {
		var kept map[types.UID]configmaps.Stored
		err := untilAllowed(ctx, p.sendAccess, func() (err error) {
			kept, err = p.configMaps.revisions.List(ctx)
			return err
		})
		if err == nil {
			p.sendAccess(ctx, revisionAccess{stored: kept})
			return
		}
		wait := engine.RetryDelay(failures)
		p.cfg.Logger.Warn("revisions not read", "retryIn", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// handleAccess takes in whether ConfigMaps with sets can be read. It logs every missing
// right once.
func (p *Policy) handleAccess(a revisionAccess) {
	switch {
	case a.denied == nil:
		p.configMaps.restored, p.configMaps.hasRevisions = a.stored, true
	case !slices.Contains(p.configMaps.denied, a.denied.Error()):
		p.configMaps.denied = append(p.configMaps.denied, a.denied.Error())
		p.cfg.Logger.Error("cannot read the sets in configmaps: permission missing", "manifest", "deploy/install.yaml", "err", a.denied)
	}
}

// canBeRead reports whether ConfigMaps and revisions are loaded.
func (s *configMapSets) canBeRead() bool { return s.hasRevisions && s.inbox.HasSynced() }

// keepsTaints reports whether the taints of a rule must stay unchanged because the rule cannot
// be read. Only sets from ConfigMaps have rule names of this form.
func (s *configMapSets) keepsTaints(rule triage.RuleID) bool {
	configMap, isWritten := configmaps.ConfigMapName(rule.Name)
	switch {
	case rule.Kind != policykind.ConditionSet || !isWritten:
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

// tellUnreadable tells the core which rules cannot be read now.
func (p *Policy) tellUnreadable(now time.Time) {
	p.host.Core().Keep(now, policykind.ConditionSet, p.configMaps.keepsTaints)
}
