package conditionset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
)

// maxConcurrentRevisionWrites limits concurrent writes of revisions.
const maxConcurrentRevisionWrites = 2

// enforce puts a version in force.
func (p *Policy) enforce(now time.Time, s *configMapSet, version *configmaps.Version) {
	var before []configmaps.Set
	if s.inForce != nil {
		before = s.inForce.Sets
	}
	s.inForce = version
	for _, set := range before {
		if !slices.ContainsFunc(version.Sets, func(next configmaps.Set) bool { return next.Name == set.Name }) {
			p.remove(now, set.Name)
		}
	}
	for _, set := range version.Sets {
		object := set.DeepCopy()
		object.Generation = p.generation(object)
		s.copyPause(object)
		// Validation reads the Accepted condition, and a set from a ConfigMap has no
		// stored status. The version as a whole has been validated.
		object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, ObservedGeneration: object.Generation}}
		p.upsert(now, object)
	}
}

// copyPause gives a set the pause of the newest version of its ConfigMap. That counts even if it is
// invalid or not stored: a user can always switch a set off.
func (s *configMapSet) copyPause(set *v1alpha1.ConditionSet) {
	delete(set.Annotations, v1alpha1.PausedAnnotation)
	if reason, is := s.Annotations[v1alpha1.PausedAnnotation]; is {
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.PausedAnnotation, reason)
	}
}

// applyPause pauses the sets in force, or ends their pause.
func (p *Policy) applyPause(now time.Time, s *configMapSet) {
	if s.inForce == nil {
		return
	}
	for _, set := range s.inForce.Sets {
		if pol := p.known[set.Name]; pol != nil {
			object := pol.set.DeepCopy()
			if s.copyPause(object); !maps.Equal(object.Annotations, pol.set.Annotations) {
				p.upsert(now, object)
			}
		}
	}
}

// generation returns the generation of a set, counted as the API server does.
func (p *Policy) generation(set *v1alpha1.ConditionSet) int64 {
	pol := p.known[set.Name]
	switch {
	case pol == nil || pol.set.UID != set.UID:
		return 1
	case equality.Semantic.DeepEqual(pol.set.Spec, set.Spec):
		return pol.set.Generation
	}
	return pol.set.Generation + 1
}

// revisionResult is the result of storing or deleting revisions.
type revisionResult struct {
	set     *configMapSet
	version *configmaps.Version // nil if all revisions were deleted
	stored  configmaps.Stored
	err     error
}

// writeRevisions stores valid versions that are not stored yet, and returns when to check
// again.
func (p *Policy) writeRevisions(ctx context.Context, now time.Time) (due time.Time) {
	if p.configMaps.writeAt.IsZero() || now.Before(p.configMaps.writeAt) {
		return times.Earliest(p.configMaps.writeAt, p.configMaps.validateAt)
	}
	p.configMaps.writeAt = time.Time{}
	p.configMaps.deleted = slices.DeleteFunc(p.configMaps.deleted, func(s *configMapSet) bool {
		return !s.writing && s.stored.IsEmpty() && s.storeFailure.Tries == 0 // otherwise a revision may still exist
	})
	for _, s := range slices.Concat(slices.Collect(maps.Values(p.configMaps.known)), p.configMaps.deleted) {
		switch {
		case s.writing || s.lastGood != nil && s.stored.Version != nil && s.stored.Version.Same(s.lastGood) && !s.staleRevisions:
		case p.configMaps.known[s.Name] == s && (s.lastGood == nil || p.isDeletingRevisions(s.UID)): // no valid version yet, or old revisions must be deleted first
		case now.Before(s.storeNotBefore):
			p.configMaps.writeAt = times.Earliest(p.configMaps.writeAt, s.storeNotBefore)
		case p.configMaps.writing < maxConcurrentRevisionWrites: // otherwise the next result triggers another check
			p.writeRevision(ctx, s)
		}
	}
	return times.Earliest(p.configMaps.writeAt, p.configMaps.validateAt)
}

// isDeletingRevisions reports whether old revisions must be deleted first, because the label was
// removed and added again.
func (p *Policy) isDeletingRevisions(uid types.UID) bool {
	return slices.ContainsFunc(p.configMaps.deleted, func(s *configMapSet) bool { return s.UID == uid })
}

func (p *Policy) writeRevision(ctx context.Context, s *configMapSet) {
	s.writing = true
	p.configMaps.writing++
	s.staleRevisions = false // tried once
	version, kept := s.lastGood, s.stored
	p.host.Do(ctx, func(ctx context.Context) func(time.Time) {
		result := revisionResult{set: s, version: version}
		if version == nil {
			result.err = p.configMaps.revisions.Delete(ctx, s.UID)
		} else {
			result.stored, result.err = p.configMaps.revisions.Store(ctx, kept, version)
		}
		return func(now time.Time) { p.handleRevisionResult(now, result) }
	})
}

// handleRevisionResult takes in the result of a revision write.
func (p *Policy) handleRevisionResult(now time.Time, result revisionResult) {
	s := result.set
	p.configMaps.writing--
	s.writing = false
	p.configMaps.writeAt = now
	p.cfg.Wrote("controllerrevisions", treat.Classify(result.err))
	if result.err != nil {
		isNews := s.storeFailure.Add(treat.Classify(result.err), result.err)
		wait := engine.RetryDelay(s.storeFailure.Tries)
		s.storeNotBefore = now.Add(wait)
		if isNews {
			p.cfg.Logger.Warn("revision not stored", "configMap", s.Name, "retryIn", wait.String(), "err", result.err)
			if result.version != nil && s.lastGood != nil {
				p.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), EventReason: treat.NotSaved, Failure: "not in force yet: " + result.err.Error()})
			}
		}
		return
	}
	isNews := result.version != nil && (s.stored.Version == nil || !s.stored.Version.Same(result.version)) // otherwise only old revisions were deleted
	held := s.keepsTaints()
	s.storeFailure, s.storeNotBefore, s.stored = engine.Failure{}, time.Time{}, result.stored
	if !isNews || s.lastGood == nil { // or the ConfigMap is gone meanwhile
		return
	}
	if s.inForce == nil || !s.inForce.Same(result.version) {
		p.enforce(now, s, result.version)
	}
	if held {
		p.tellUnreadable(now)
	}
	p.updateSetMetrics(s)
	p.cfg.Logger.Info("version in force", "configMap", s.Name, "sets", len(result.version.Sets))
	if !s.isBehind() {
		message := fmt.Sprintf("accepted and in force; sets: %d", len(result.version.Sets))
		p.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), EventReason: treat.Accepted, Message: strings.Join(append([]string{message}, s.warnings...), "; ")})
	}
}
