package controller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/configmaps"
)

// configMapSets are the ConfigMaps that sets are written in. What is in force of one is
// what is kept of it, so that whoever takes over goes on with the same: a version
// that is found good is kept first, and in force when that is done.
type configMapSets struct {
	inbox     *inbox[*reading]
	revisions *configmaps.RevisionStore
	// restored is what was kept when this reign began, of ConfigMaps that have
	// not come yet.
	restored     map[types.UID]configmaps.Stored
	access       chan revisionAccess
	hasRevisions bool     // what was kept has been read
	denied       []string // rights that were missing to read ConfigMaps, or what was kept of them
	loaded       bool     // all that there were have come

	known   map[string]*configMapSet
	leaving []*configMapSet // that are gone, and whose kept versions are not yet

	writing int
	done    chan revisionResult
	writeAt time.Time // when the shelf is to be looked at, zero for never
	judgeAt time.Time // when refused versions are to be judged again, likewise
	changed bool      // something has changed since that could speak for them
}

func newConfigMapSets(cfg Config, signal chan<- struct{}) *configMapSets {
	return &configMapSets{
		inbox:     newConfigMapInbox(signal),
		revisions: configmaps.NewRevisionStore(cfg.Client, cfg.Namespace),
		access:    make(chan revisionAccess),
		known:     map[string]*configMapSet{},
		done:      make(chan revisionResult, revisionWriters),
	}
}

// configMapSet is a ConfigMap and what has come of it.
type configMapSet struct {
	*reading                     // as it is now
	inForce  *configmaps.Version // nil for none
	lastGood *configmaps.Version // the last one that was found good; nil for none
	// refused is the version that is there now and not good, nil if it is, and fault
	// what is wrong with it. For as long as it is the same, that is told now and then.
	refused    *corev1.ConfigMap
	fault      error
	reportedAt time.Time
	waits      bool     // it may become good as it is, when something around it changes
	warnings   []string // of the good one

	stored         configmaps.Stored
	staleRevisions bool // more is kept than should be: somebody died in the middle
	writing        bool
	mayFrom        time.Time
	trouble        writeFailure
}

// isBehind says whether what the ConfigMap says now is not in force.
func (s *configMapSet) isBehind() bool {
	return s.refused != nil || s.inForce == nil || !s.inForce.Same(s.lastGood)
}

// updateSetMetrics has a metric say whether what a ConfigMap says now is followed, all of it:
// a set may fall after it was in force, because whoever takes over finds another that
// goes before it.
func (l *loop) updateSetMetrics(s *configMapSet) {
	isBehind := s.isBehind()
	if s.inForce != nil {
		isBehind = isBehind || slices.ContainsFunc(s.inForce.Sets, func(set configmaps.Set) bool {
			pol := l.sets[set.Name]
			return pol != nil && (pol.isRefused() || pol.withholds())
		})
	}
	l.cfg.Metrics.configMap(s.Name, isBehind)
}

// reading is a ConfigMap and what it says.
type reading struct {
	*corev1.ConfigMap
	version *configmaps.Version
	err     error // why there is no version
}

// newConfigMapInbox returns a mailbox that reads ConfigMaps on their way in. Whoever
// brings them waits then, and not the loop, which has nodes to treat.
func newConfigMapInbox(signal chan<- struct{}) *inbox[*reading] {
	m := newInbox[*reading](signal, nil)
	m.open = func(brought any) (*reading, bool) {
		object, ok := brought.(*corev1.ConfigMap)
		if !ok {
			return nil, false
		}
		version, err := configmaps.Read(object)
		return &reading{object, version, err}, true
	}
	return m
}

// configMapSource is where ConfigMaps with sets come from. What is missing is told, and
// waited for.
func configMapSource(c client.WithWatch, namespace string, tell func(context.Context, revisionAccess)) cache.ListerWatcherWithContext {
	source := sourceOf(c, func() client.ObjectList { return &corev1.ConfigMapList{} },
		client.InNamespace(namespace), client.MatchingLabels{configmaps.Label: configmaps.LabelValue})
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (page runtime.Object, err error) {
			err = untilAllowed(ctx, tell, func() error {
				page, err = source.ListWithContext(ctx, options)
				return err
			})
			return page, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (w watch.Interface, err error) {
			err = untilAllowed(ctx, tell, func() error {
				w, err = source.WatchWithContext(ctx, options)
				return err
			})
			return w, err
		},
	}
}

// takeConfigMaps takes in the ConfigMaps that have changed. It comes after the nodes,
// because a version is judged by what it would do to them.
func (l *loop) takeConfigMaps(now time.Time) {
	if !l.configMaps.canBeRead() {
		return
	}
	letter := l.configMaps.inbox.take()
	if letter.listVersion != "" {
		for name, s := range l.configMaps.known {
			if _, there := letter.changes[name]; !there {
				l.removeConfigMap(now, s)
			}
		}
	}
	come := slices.SortedFunc(maps.Values(letter.changes), func(a, b change[*reading]) int { // who was there first goes first
		return cmp.Or(a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time), strings.Compare(a.object.Name, b.object.Name))
	})
	for _, a := range come {
		s := l.configMaps.known[a.object.Name]
		if s != nil && (a.gone || s.UID != a.object.UID) {
			l.removeConfigMap(now, s)
			s = nil
		}
		if a.gone {
			continue
		}
		if s == nil {
			s = l.upsertConfigMap(now, a.object)
		}
		s.reading = a.object
	}
	for _, a := range come { // when all know what is in force
		if !a.gone {
			l.queueConfigMap(now, l.configMaps.known[a.object.Name])
		}
	}
	if len(come) > 0 && l.configMaps.judgeAt.After(now) { // one that goes may have been in another's way
		l.configMaps.judgeAt, l.configMaps.changed = now, true
	}
	l.validateConfigMaps(now)
	for _, s := range l.configMaps.known {
		if s.refused != nil && now.Sub(s.reportedAt) >= reportRefusalEvery {
			l.reportConfigMap(now, s)
		}
	}
	if !l.configMaps.loaded {
		l.configMaps.loaded = true
		l.cfg.Metrics.configMapsRead.Set(1)
		if len(l.configMaps.denied) > 0 {
			l.cfg.Logger.Info("sets in configmaps followed", "configMaps", len(l.configMaps.known))
		}
		l.forgetRestored(now)
		l.releaseUnknown(now)
	}
}

// upsertConfigMap begins with what was kept of a ConfigMap.
func (l *loop) upsertConfigMap(now time.Time, object *reading) *configMapSet {
	s := &configMapSet{reading: object, stored: l.configMaps.restored[object.UID]}
	s.staleRevisions = !s.stored.HasOneRevision()
	l.configMaps.writeAt = now
	delete(l.configMaps.restored, object.UID)
	l.configMaps.known[object.Name] = s
	if s.stored.Err != nil {
		l.cfg.Logger.Error("kept version unreadable", "configMap", object.Name, "err", s.stored.Err)
	}
	if s.stored.Version != nil {
		s.lastGood = s.stored.Version
		l.enforce(now, s, s.stored.Version)
	}
	return s
}

// forgetRestored lets go what was kept of ConfigMaps that are not there.
func (l *loop) forgetRestored(now time.Time) {
	for uid, kept := range l.configMaps.restored {
		gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		l.configMaps.leaving = append(l.configMaps.leaving, &configMapSet{reading: &reading{ConfigMap: gone}, stored: kept})
		l.configMaps.writeAt = now
	}
	l.configMaps.restored = nil
}

// removeConfigMap lets the sets of a ConfigMap go that is gone, or no longer carries
// the label. What was kept of it must not come back with it.
func (l *loop) removeConfigMap(now time.Time, s *configMapSet) {
	if s.inForce != nil {
		for _, set := range s.inForce.Sets {
			l.removeSet(now, set.Name)
		}
	}
	held := s.holds()
	delete(l.configMaps.known, s.Name)
	l.cfg.Metrics.forgetConfigMap(s.Name)
	s.lastGood, s.inForce, s.mayFrom = nil, nil, time.Time{}
	l.configMaps.leaving = append(l.configMaps.leaving, s)
	l.configMaps.writeAt = now
	l.cfg.Logger.Info("configmap gone", "configMap", s.Name)
	if held {
		l.releaseUnknown(now)
	}
}
