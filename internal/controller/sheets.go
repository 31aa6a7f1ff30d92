package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/vet"
)

const (
	// shelfWriters is how many versions are kept at a time.
	shelfWriters = 2
	// judgeSheetsEvery is how often a version is judged again that is refused for
	// what goes on around it: how many nodes are sick, which other sets there are.
	judgeSheetsEvery = 5 * time.Second
)

// sheets are the ConfigMaps that sets are written in. What is in force of one is
// what is kept of it, so that whoever takes over goes on with the same: a version
// that is found good is kept first, and in force when that is done.
type sheets struct {
	mail  *mailbox[*corev1.ConfigMap]
	shelf *configmaps.Shelf
	// inherited is what was kept when this reign began, of ConfigMaps that have
	// not come yet.
	inherited map[types.UID]configmaps.Kept

	known   map[string]*sheet
	leaving []*sheet // that are gone, and whose kept versions are not yet

	writing int
	done    chan shelved
	shelfAt time.Time // when the shelf is to be looked at, zero for never
	judgeAt time.Time // when refused versions are to be judged again, likewise
	moved   bool      // something has changed since that could speak for them
}

// sheet is a ConfigMap and what has come of it.
type sheet struct {
	object  *corev1.ConfigMap   // as it is now
	inForce *configmaps.Version // nil for none
	good    *configmaps.Version // the last one that was found good; nil for none
	// refused is the version that is there now and not good, nil if it is. For as
	// long as it is the same, its fault is told once. It can be read if only what
	// goes on around it speaks against it.
	refused  *corev1.ConfigMap
	readable *configmaps.Version
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

// keptVersions reads what was kept. Like the ledger it is waited for: to begin
// without it would take taints off nodes that must have them.
func (c *Controller) keptVersions(ctx context.Context) (*configmaps.Shelf, map[types.UID]configmaps.Kept, error) {
	shelf := configmaps.NewShelf(c.cfg.Client, c.cfg.Namespace)
	for failures := 1; ; failures++ {
		kept, err := shelf.List(ctx)
		if err == nil {
			return shelf, kept, nil
		}
		wait := backOff(failures)
		c.cfg.Logger.Warn("kept versions not read", "retryIn", wait.String(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// sheetsFrom is where ConfigMaps with sets come from.
func sheetsFrom(c client.WithWatch, namespace string) cache.ListerWatcherWithContext {
	const selector = configmaps.Label + "=" + configmaps.LabelValue
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = selector
			page := &corev1.ConfigMapList{}
			err := c.List(ctx, page, &client.ListOptions{Namespace: namespace, Raw: &options, Limit: options.Limit, Continue: options.Continue})
			return page, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return c.Watch(ctx, &corev1.ConfigMapList{}, &client.ListOptions{Namespace: namespace, Raw: &options})
		},
	}
}

// takeSheets takes in the ConfigMaps that have changed. It comes after the nodes,
// because a version is judged by what it would do to them.
func (l *loop) takeSheets(now time.Time) {
	letter := l.sheets.mail.take()
	if letter.whole != "" {
		for name, s := range l.sheets.known {
			if _, there := letter.latest[name]; !there {
				l.dropSheet(now, s)
			}
		}
	}
	come := slices.SortedFunc(maps.Values(letter.latest), func(a, b arrival[*corev1.ConfigMap]) int { // who was there first goes first
		return cmp.Or(a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time), strings.Compare(a.object.Name, b.object.Name))
	})
	for _, a := range come {
		s := l.sheets.known[a.object.Name]
		if s != nil && (a.gone || s.object.UID != a.object.UID) {
			l.dropSheet(now, s)
			s = nil
		}
		if a.gone {
			continue
		}
		if s == nil {
			s = l.meetSheet(now, a.object)
		}
		s.object = a.object
	}
	for _, a := range come { // when all know what is in force
		if !a.gone {
			l.readSheet(now, l.sheets.known[a.object.Name])
		}
	}
	if !l.loaded {
		l.disinherit(now)
	}
	if len(come) > 0 && l.sheets.judgeAt.After(now) { // one that goes may have been in another's way
		l.sheets.judgeAt, l.sheets.moved = now, true
	}
	l.judgeSheets(now)
}

// meetSheet begins with what was kept of a ConfigMap.
func (l *loop) meetSheet(now time.Time, object *corev1.ConfigMap) *sheet {
	s := &sheet{object: object, kept: l.sheets.inherited[object.UID]}
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
		l.sheets.leaving = append(l.sheets.leaving, &sheet{object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: uid}}, kept: kept})
		l.sheets.shelfAt = now
	}
	l.sheets.inherited = nil
}

// readSheet takes in what a ConfigMap says now.
func (l *loop) readSheet(now time.Time, s *sheet) {
	defer func() { l.cfg.Metrics.sheet(s.object.Name, s.isBehind()) }()
	version, err := configmaps.Read(s.object)
	s.readable = version
	switch {
	case err != nil:
		l.refuseSheet(now, s, err)
	case s.good != nil && version.Same(s.good):
		l.acceptSheet(now, s, s.good)
	default:
		l.judgeSheet(now, s)
	}
}

// judgeSheets judges again what was refused for what goes on around it.
func (l *loop) judgeSheets(now time.Time) {
	if l.sheets.judgeAt.IsZero() || now.Before(l.sheets.judgeAt) {
		return
	}
	if !l.sheets.moved {
		l.sheets.judgeAt = now.Add(judgeSheetsEvery)
		return
	}
	l.sheets.judgeAt, l.sheets.moved = time.Time{}, false
	for _, name := range slices.Sorted(maps.Keys(l.sheets.known)) {
		if s := l.sheets.known[name]; s.refused != nil && s.readable != nil {
			l.judgeSheet(now, s)
			l.cfg.Metrics.sheet(name, s.isBehind())
		}
	}
}

// judgeSheet finds out whether a version that can be read is good.
func (l *loop) judgeSheet(now time.Time, s *sheet) {
	warnings, err := l.vetSheet(s.object, s.readable)
	if err != nil {
		l.refuseSheet(now, s, err)
		l.sheets.judgeAt = earliest(l.sheets.judgeAt, now.Add(judgeSheetsEvery))
		return
	}
	s.warnings = warnings
	l.acceptSheet(now, s, s.readable)
}

// sheetWords are what advice about a set is called where it is written in a ConfigMap.
var sheetWords = strings.NewReplacer("annotate the set", "annotate the ConfigMap", "Write status:", "Write conditionStatus:")

// vetSheet returns what is to be said of a version, and everything that speaks
// against it. All of its sets are good, or none of them is followed. It is the one
// that is being written: where it says the same as another set that is followed,
// it is the one that has to change, whichever is older.
func (l *loop) vetSheet(object *corev1.ConfigMap, version *configmaps.Version) (warnings []string, err error) {
	var others []*v1alpha1.ConditionSet
	for _, pol := range l.policies {
		if source := configmaps.IsWrittenIn(pol.set); pol.err == nil && (source == nil || source.UID != object.UID) {
			others = append(others, pol.set)
		}
	}
	reported := l.core.Reported()
	var problems configmaps.LineErrors
	for _, set := range version.Sets {
		c := vet.Case{Set: set.ConditionSet, Others: others, Reported: reported, Impact: l.core.Impact}
		if pol := l.policies[set.Name]; pol != nil {
			c.Before = pol.inForce
			if pol.stands() { // also if the reign before has kept it, and this one has not judged it yet
				c.Before = pol.set
			}
		}
		judge := vet.Judge
		if c.Before != nil && equality.Semantic.DeepEqual(c.Before.Spec, set.Spec) {
			judge = vet.Standing
		}
		verdict := judge(c)
		for _, p := range verdict.Problems {
			key, line := set.Where(p.Field)
			problems = append(problems, configmaps.LineError{Key: key, Line: line, Text: "set " + set.Spec.Type + ": " + sheetWords.Replace(p.Text)})
		}
		for _, warning := range verdict.Warnings {
			warnings = append(warnings, "set "+set.Spec.Type+": "+warning)
		}
		others = append(others, set.ConditionSet)
	}
	if len(problems) > 0 {
		return warnings, problems
	}
	return warnings, nil
}

// acceptSheet has a good version kept. It is in force when it is.
func (l *loop) acceptSheet(now time.Time, s *sheet, version *configmaps.Version) {
	wasRefused := s.refused != nil
	s.good, s.refused = version, nil
	switch {
	case s.inForce == nil && !l.loaded:
		// Nothing is kept, but somebody may have lost it: taints that stand go if no
		// set asks for them now.
		l.enforce(now, s, version)
	case wasRefused && !s.isBehind(): // the last good version was brought back
		l.cfg.Announce(treat.Announcement{ConfigMap: s.object, Word: "back to the version that is in force"})
	}
	l.sheets.shelfAt = now
}

// refuseSheet tells once for every version what is wrong with it.
func (l *loop) refuseSheet(now time.Time, s *sheet, err error) {
	before := s.refused
	s.refused = s.object
	if before != nil && configmaps.SaysTheSame(before, s.object) {
		return
	}
	what := "nothing of it is in force, because there is no good version yet"
	if s.good != nil {
		what = "the last good version stays in force"
	}
	if s.kept.Err != nil {
		what += "; " + s.kept.Err.Error()
	}
	l.cfg.Logger.Warn("configmap not accepted", "configMap", s.object.Name, "resourceVersion", s.object.ResourceVersion, "err", err)
	l.cfg.Announce(treat.Announcement{ConfigMap: s.object, Trouble: "not accepted, " + what + ": " + err.Error()})
	l.lookAtStatuses(now)
}

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

// dropSheet lets the sets of a ConfigMap go that is gone, or no longer carries
// the label. What was kept of it must not come back with it.
func (l *loop) dropSheet(now time.Time, s *sheet) {
	if s.inForce != nil {
		for _, set := range s.inForce.Sets {
			l.dropSet(now, set.Name)
		}
	}
	delete(l.sheets.known, s.object.Name)
	l.cfg.Metrics.forgetSheet(s.object.Name)
	s.good, s.inForce, s.mayFrom = nil, nil, time.Time{}
	l.sheets.leaving = append(l.sheets.leaving, s)
	l.sheets.shelfAt = now
	l.cfg.Logger.Info("configmap gone", "configMap", s.object.Name)
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
		case l.sheets.known[s.object.Name] == s && (s.good == nil || l.isLeaving(s.object.UID)): // nothing is good yet, or another's has to go first
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
	return slices.ContainsFunc(l.sheets.leaving, func(s *sheet) bool { return s.object.UID == uid })
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
			o.err = l.sheets.shelf.Clear(ctx, s.object.UID)
		} else {
			o.kept, o.err = l.sheets.shelf.Keep(ctx, kept, version)
		}
		l.sheets.done <- o
	})
}

// heedShelf takes in what became of a write to the shelf.
func (l *loop) heedShelf(o shelved) {
	now, s := time.Now(), o.sheet
	l.sheets.writing--
	s.writing = false
	l.sheets.shelfAt = now
	l.cfg.Metrics.wrote("controllerrevisions", treat.FateOf(o.err))
	if o.err != nil {
		isNews := s.trouble.meets(treat.FateOf(o.err), o.err)
		wait := backOff(s.trouble.tries)
		s.mayFrom = now.Add(wait)
		if isNews {
			l.cfg.Logger.Warn("version not kept", "configMap", s.object.Name, "retryIn", wait.String(), "err", o.err)
			if o.version != nil && s.good != nil {
				l.cfg.Announce(treat.Announcement{ConfigMap: s.object, Trouble: "not in force yet: " + o.err.Error()})
			}
		}
		return
	}
	isNews := o.version != nil && (s.kept.Version == nil || !s.kept.Version.Same(o.version)) // else it was only tidied up
	s.trouble, s.mayFrom, s.kept = trouble{}, time.Time{}, o.kept
	if !isNews || s.good == nil { // or it is gone, if only meanwhile
		return
	}
	if s.inForce == nil || !s.inForce.Same(o.version) {
		l.enforce(now, s, o.version)
	}
	l.cfg.Metrics.sheet(s.object.Name, s.isBehind())
	l.cfg.Logger.Info("version in force", "configMap", s.object.Name, "sets", len(o.version.Sets))
	if !s.isBehind() {
		word := fmt.Sprintf("accepted and in force; sets: %d", len(o.version.Sets))
		l.cfg.Announce(treat.Announcement{ConfigMap: s.object, Word: strings.Join(append([]string{word}, s.warnings...), "; ")})
	}
}
