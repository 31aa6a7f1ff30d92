package controller

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
	"github.com/resourcestack/autohealer/internal/treat"
)

// revisionWriters limits concurrent writes of revisions.
const revisionWriters = 2

// enforce puts a version in force.
func (l *loop) enforce(now time.Time, s *configMapSet, version *configmaps.Version) {
	var before []configmaps.Set
	if s.inForce != nil {
		before = s.inForce.Sets
	}
	s.inForce = version
	for _, set := range before {
		if !slices.ContainsFunc(version.Sets, func(next configmaps.Set) bool { return next.Name == set.Name }) {
			l.removeSet(now, set.Name)
		}
	}
	for _, set := range version.Sets {
		object := set.DeepCopy()
		object.Generation = l.generation(object)
		// Validation reads the Accepted condition, and a set from a ConfigMap has no
		// stored status. The version as a whole has been validated.
		object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, ObservedGeneration: object.Generation}}
		l.followSet(now, object)
	}
}

// generation returns the generation of a set, counted as the API server does.
func (l *loop) generation(set *v1alpha1.ConditionSet) int64 {
	pol := l.sets[set.Name]
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
func (l *loop) writeRevisions(ctx context.Context, now time.Time) (due time.Time) {
	if l.configMaps.writeAt.IsZero() || now.Before(l.configMaps.writeAt) {
		return earliest(l.configMaps.writeAt, l.configMaps.judgeAt)
	}
	l.configMaps.writeAt = time.Time{}
	l.configMaps.leaving = slices.DeleteFunc(l.configMaps.leaving, func(s *configMapSet) bool {
		return !s.writing && s.stored.IsEmpty() && s.trouble.tries == 0 // otherwise a revision may still exist
	})
	for _, s := range slices.Concat(slices.Collect(maps.Values(l.configMaps.known)), l.configMaps.leaving) {
		switch {
		case s.writing || s.lastGood != nil && s.stored.Version != nil && s.stored.Version.Same(s.lastGood) && !s.staleRevisions:
		case l.configMaps.known[s.Name] == s && (s.lastGood == nil || l.isLeaving(s.UID)): // no valid version yet, or old revisions must be deleted first
		case now.Before(s.mayFrom):
			l.configMaps.writeAt = earliest(l.configMaps.writeAt, s.mayFrom)
		case l.configMaps.writing < revisionWriters: // otherwise the next result triggers another check
			l.writeRevision(ctx, s)
		}
	}
	return earliest(l.configMaps.writeAt, l.configMaps.judgeAt)
}

// isLeaving reports whether old revisions must be deleted first, because the label was
// removed and added again.
func (l *loop) isLeaving(uid types.UID) bool {
	return slices.ContainsFunc(l.configMaps.leaving, func(s *configMapSet) bool { return s.UID == uid })
}

func (l *loop) writeRevision(ctx context.Context, s *configMapSet) {
	s.writing = true
	l.configMaps.writing++
	s.staleRevisions = false // tried once
	version, kept := s.lastGood, s.stored
	l.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		o := revisionResult{set: s, version: version}
		if version == nil {
			o.err = l.configMaps.revisions.Delete(ctx, s.UID)
		} else {
			o.stored, o.err = l.configMaps.revisions.Store(ctx, kept, version)
		}
		l.configMaps.done <- o
	})
}

// handleRevisionResult takes in the result of a revision write.
func (l *loop) handleRevisionResult(now time.Time, o revisionResult) {
	s := o.set
	l.configMaps.writing--
	s.writing = false
	l.configMaps.writeAt = now
	l.cfg.Metrics.wrote("controllerrevisions", treat.Classify(o.err))
	if o.err != nil {
		isNews := s.trouble.add(treat.Classify(o.err), o.err)
		wait := backOff(s.trouble.tries)
		s.mayFrom = now.Add(wait)
		if isNews {
			l.cfg.Logger.Warn("version not kept", "configMap", s.Name, "retryIn", wait.String(), "err", o.err)
			if o.version != nil && s.lastGood != nil {
				l.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), Failure: "not in force yet: " + o.err.Error()})
			}
		}
		return
	}
	isNews := o.version != nil && (s.stored.Version == nil || !s.stored.Version.Same(o.version)) // otherwise only old revisions were deleted
	held := s.holds()
	s.trouble, s.mayFrom, s.stored = writeFailure{}, time.Time{}, o.stored
	if !isNews || s.lastGood == nil { // or the ConfigMap is gone meanwhile
		return
	}
	if s.inForce == nil || !s.inForce.Same(o.version) {
		l.enforce(now, s, o.version)
	}
	if held {
		l.releaseUnknown(now)
	}
	l.updateSetMetrics(s)
	l.cfg.Logger.Info("version in force", "configMap", s.Name, "sets", len(o.version.Sets))
	if !s.isBehind() {
		word := fmt.Sprintf("accepted and in force; sets: %d", len(o.version.Sets))
		l.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), EventReason: treat.Accepted, Message: strings.Join(append([]string{word}, s.warnings...), "; ")})
	}
}
