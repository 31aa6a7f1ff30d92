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

// shelfWriters is how many versions are kept at a time.
const shelfWriters = 2

// enforce makes a version the one that is followed.
func (l *loop) enforce(now time.Time, s *sheet, version *configmaps.Version) {
	var before []configmaps.Set
	if s.inForce != nil {
		before = s.inForce.Sets
	}
	s.inForce = version
	for _, set := range before {
		if !slices.ContainsFunc(version.Sets, func(next configmaps.Set) bool { return next.Name == set.Name }) {
			l.dropSet(now, set.Name)
		}
	}
	for _, set := range version.Sets {
		object := set.DeepCopy()
		object.Generation = l.generation(object)
		// Whoever vets sets goes by their status, which this one has nowhere: the
		// version as a whole was judged.
		object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, ObservedGeneration: object.Generation}}
		l.followSet(now, object)
	}
}

// generation counts the versions of a set, as the API server does for others.
func (l *loop) generation(set *v1alpha1.ConditionSet) int64 {
	pol := l.policies[set.Name]
	switch {
	case pol == nil || pol.set.UID != set.UID:
		return 1
	case equality.Semantic.DeepEqual(pol.set.Spec, set.Spec):
		return pol.set.Generation
	}
	return pol.set.Generation + 1
}

// shelved is what became of a write to the shelf.
type shelved struct {
	sheet   *sheet
	version *configmaps.Version // nil if everything was to go
	kept    configmaps.Kept
	err     error
}

// tendShelf keeps what is good and not kept, and returns when to look again.
func (l *loop) tendShelf(ctx context.Context, now time.Time) (due time.Time) {
	if l.sheets.shelfAt.IsZero() || now.Before(l.sheets.shelfAt) {
		return earliest(l.sheets.shelfAt, l.sheets.judgeAt)
	}
	l.sheets.shelfAt = time.Time{}
	l.sheets.leaving = slices.DeleteFunc(l.sheets.leaving, func(s *sheet) bool {
		return !s.writing && s.kept.IsEmpty() && s.trouble.tries == 0 // else something may be there all the same
	})
	for _, s := range slices.Concat(slices.Collect(maps.Values(l.sheets.known)), l.sheets.leaving) {
		switch {
		case s.writing || s.good != nil && s.kept.Version != nil && s.kept.Version.Same(s.good) && !s.untidy:
		case l.sheets.known[s.Name] == s && (s.good == nil || l.isLeaving(s.UID)): // nothing is good yet, or another's has to go first
		case now.Before(s.mayFrom):
			l.sheets.shelfAt = earliest(l.sheets.shelfAt, s.mayFrom)
		case l.sheets.writing < shelfWriters: // else the next answer makes room
			l.sendToShelf(ctx, s)
		}
	}
	return earliest(l.sheets.shelfAt, l.sheets.judgeAt)
}

// isLeaving says whether something is kept that must go first: the label was
// taken away and put back.
func (l *loop) isLeaving(uid types.UID) bool {
	return slices.ContainsFunc(l.sheets.leaving, func(s *sheet) bool { return s.UID == uid })
}

func (l *loop) sendToShelf(ctx context.Context, s *sheet) {
	s.writing = true
	l.sheets.writing++
	s.untidy = false // which is tried once
	version, kept := s.good, s.kept
	l.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		o := shelved{sheet: s, version: version}
		if version == nil {
			o.err = l.sheets.shelf.Clear(ctx, s.UID)
		} else {
			o.kept, o.err = l.sheets.shelf.Keep(ctx, kept, version)
		}
		l.sheets.done <- o
	})
}

// heedShelf takes in what became of a write to the shelf.
func (l *loop) heedShelf(now time.Time, o shelved) {
	s := o.sheet
	l.sheets.writing--
	s.writing = false
	l.sheets.shelfAt = now
	l.cfg.Metrics.wrote("controllerrevisions", treat.FateOf(o.err))
	if o.err != nil {
		isNews := s.trouble.meets(treat.FateOf(o.err), o.err)
		wait := backOff(s.trouble.tries)
		s.mayFrom = now.Add(wait)
		if isNews {
			l.cfg.Logger.Warn("version not kept", "configMap", s.Name, "retryIn", wait.String(), "err", o.err)
			if o.version != nil && s.good != nil {
				l.cfg.Announce(treat.Announcement{Policy: treat.AboutConfigMap(s.ConfigMap), Trouble: "not in force yet: " + o.err.Error()})
			}
		}
		return
	}
	isNews := o.version != nil && (s.kept.Version == nil || !s.kept.Version.Same(o.version)) // else it was only tidied up
	held := s.holds()
	s.trouble, s.mayFrom, s.kept = trouble{}, time.Time{}, o.kept
	if !isNews || s.good == nil { // or it is gone, if only meanwhile
		return
	}
	if s.inForce == nil || !s.inForce.Same(o.version) {
		l.enforce(now, s, o.version)
	}
	if held {
		l.letGo(now)
	}
	l.showSheet(s)
	l.cfg.Logger.Info("version in force", "configMap", s.Name, "sets", len(o.version.Sets))
	if !s.isBehind() {
		word := fmt.Sprintf("accepted and in force; sets: %d", len(o.version.Sets))
		l.cfg.Announce(treat.Announcement{Policy: treat.AboutConfigMap(s.ConfigMap), What: treat.Accepted, Words: strings.Join(append([]string{word}, s.warnings...), "; ")})
	}
}
