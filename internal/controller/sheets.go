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

// sheets are the ConfigMaps that sets are written in. What is in force of one is
// what is kept of it, so that whoever takes over goes on with the same: a version
// that is found good is kept first, and in force when that is done.
type sheets struct {
	mail  *mailbox[*reading]
	shelf *configmaps.Shelf
	// inherited is what was kept when this reign began, of ConfigMaps that have
	// not come yet.
	inherited map[types.UID]configmaps.Kept
	access    chan access
	hasKept   bool     // what was kept has been read
	denied    []string // rights that were missing to read ConfigMaps, or what was kept of them
	loaded    bool     // all that there were have come

	known   map[string]*sheet
	leaving []*sheet // that are gone, and whose kept versions are not yet

	writing int
	done    chan shelved
	shelfAt time.Time // when the shelf is to be looked at, zero for never
	judgeAt time.Time // when refused versions are to be judged again, likewise
	moved   bool      // something has changed since that could speak for them
}

func newSheets(cfg Config, signal chan<- struct{}) *sheets {
	return &sheets{
		mail:   newSheetMailbox(signal),
		shelf:  configmaps.NewShelf(cfg.Client, cfg.Namespace),
		access: make(chan access),
		known:  map[string]*sheet{},
		done:   make(chan shelved, shelfWriters),
	}
}

// sheet is a ConfigMap and what has come of it.
type sheet struct {
	*reading                     // as it is now
	inForce  *configmaps.Version // nil for none
	good     *configmaps.Version // the last one that was found good; nil for none
	// refused is the version that is there now and not good, nil if it is, and fault
	// what is wrong with it. For as long as it is the same, that is told now and then.
	refused  *corev1.ConfigMap
	fault    error
	toldAt   time.Time
	waits    bool     // it may become good as it is, when something around it changes
	warnings []string // of the good one

	kept    configmaps.Kept
	untidy  bool // more is kept than should be: somebody died in the middle
	writing bool
	mayFrom time.Time
	trouble trouble
}

// isBehind says whether what the ConfigMap says now is not in force.
func (s *sheet) isBehind() bool {
	return s.refused != nil || s.inForce == nil || !s.inForce.Same(s.good)
}

// showSheet has a metric say whether what a ConfigMap says now is followed, all of it:
// a set may fall after it was in force, because whoever takes over finds another that
// goes before it.
func (l *loop) showSheet(s *sheet) {
	isBehind := s.isBehind()
	if s.inForce != nil {
		isBehind = isBehind || slices.ContainsFunc(s.inForce.Sets, func(set configmaps.Set) bool {
			pol := l.policies[set.Name]
			return pol != nil && (pol.isRefused() || pol.withholds())
		})
	}
	l.cfg.Metrics.sheet(s.Name, isBehind)
}

// reading is a ConfigMap and what it says.
type reading struct {
	*corev1.ConfigMap
	version *configmaps.Version
	err     error // why there is no version
}

// newSheetMailbox returns a mailbox that reads ConfigMaps on their way in. Whoever
// brings them waits then, and not the loop, which has nodes to treat.
func newSheetMailbox(signal chan<- struct{}) *mailbox[*reading] {
	m := newMailbox[*reading](signal, nil)
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

// sheetsFrom is where ConfigMaps with sets come from. What is missing is told, and
// waited for.
func sheetsFrom(c client.WithWatch, namespace string, tell func(context.Context, access)) cache.ListerWatcherWithContext {
	source := from(c, func() client.ObjectList { return &corev1.ConfigMapList{} },
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

// takeSheets takes in the ConfigMaps that have changed. It comes after the nodes,
// because a version is judged by what it would do to them.
func (l *loop) takeSheets(now time.Time) {
	if !l.sheets.canBeRead() {
		return
	}
	letter := l.sheets.mail.take()
	if letter.whole != "" {
		for name, s := range l.sheets.known {
			if _, there := letter.latest[name]; !there {
				l.dropSheet(now, s)
			}
		}
	}
	come := slices.SortedFunc(maps.Values(letter.latest), func(a, b arrival[*reading]) int { // who was there first goes first
		return cmp.Or(a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time), strings.Compare(a.object.Name, b.object.Name))
	})
	for _, a := range come {
		s := l.sheets.known[a.object.Name]
		if s != nil && (a.gone || s.UID != a.object.UID) {
			l.dropSheet(now, s)
			s = nil
		}
		if a.gone {
			continue
		}
		if s == nil {
			s = l.meetSheet(now, a.object)
		}
		s.reading = a.object
	}
	for _, a := range come { // when all know what is in force
		if !a.gone {
			l.considerSheet(now, l.sheets.known[a.object.Name])
		}
	}
	if len(come) > 0 && l.sheets.judgeAt.After(now) { // one that goes may have been in another's way
		l.sheets.judgeAt, l.sheets.moved = now, true
	}
	l.judgeSheets(now)
	for _, s := range l.sheets.known {
		if s.refused != nil && now.Sub(s.toldAt) >= complainEvery {
			l.complainOf(now, s)
		}
	}
	if !l.sheets.loaded {
		l.sheets.loaded = true
		l.cfg.Metrics.sheetsRead.Set(1)
		if len(l.sheets.denied) > 0 {
			l.cfg.Logger.Info("sets in configmaps followed", "configMaps", len(l.sheets.known))
		}
		l.disinherit(now)
		l.letGo(now)
	}
}

// meetSheet begins with what was kept of a ConfigMap.
func (l *loop) meetSheet(now time.Time, object *reading) *sheet {
	s := &sheet{reading: object, kept: l.sheets.inherited[object.UID]}
	s.untidy = !s.kept.IsTidy()
	l.sheets.shelfAt = now
	delete(l.sheets.inherited, object.UID)
	l.sheets.known[object.Name] = s
	if s.kept.Err != nil {
		l.cfg.Logger.Error("kept version unreadable", "configMap", object.Name, "err", s.kept.Err)
	}
	if s.kept.Version != nil {
		s.good = s.kept.Version
		l.enforce(now, s, s.kept.Version)
	}
	return s
}

// disinherit lets go what was kept of ConfigMaps that are not there.
func (l *loop) disinherit(now time.Time) {
	for uid, kept := range l.sheets.inherited {
		gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		l.sheets.leaving = append(l.sheets.leaving, &sheet{reading: &reading{ConfigMap: gone}, kept: kept})
		l.sheets.shelfAt = now
	}
	l.sheets.inherited = nil
}

// dropSheet lets the sets of a ConfigMap go that is gone, or no longer carries
// the label. What was kept of it must not come back with it.
func (l *loop) dropSheet(now time.Time, s *sheet) {
	if s.inForce != nil {
		for _, set := range s.inForce.Sets {
			l.dropSet(now, set.Name)
		}
	}
	held := s.holds()
	delete(l.sheets.known, s.Name)
	l.cfg.Metrics.forgetSheet(s.Name)
	s.good, s.inForce, s.mayFrom = nil, nil, time.Time{}
	l.sheets.leaving = append(l.sheets.leaving, s)
	l.sheets.shelfAt = now
	l.cfg.Logger.Info("configmap gone", "configMap", s.Name)
	if held {
		l.letGo(now)
	}
}
