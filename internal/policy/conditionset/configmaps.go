package conditionset

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/watch"
)

// configMapSets holds the ConfigMaps that contain condition sets. The controller first
// stores a valid version as a revision, and the version takes effect afterwards. So the
// next leader continues with the same version.
type configMapSets struct {
	inbox     *watch.Inbox[*parsedConfigMap]
	revisions *configmaps.RevisionStore
	// restored holds the revisions that existed when this term began, for ConfigMaps that
	// the watch has not delivered yet.
	restored     map[types.UID]configmaps.Stored
	hasRevisions bool     // the revisions have been listed
	denied       []string // errors about missing rights to read ConfigMaps or revisions
	loaded       bool     // all existing ConfigMaps have been taken in

	known   map[string]*configMapSet
	deleted []*configMapSet // deleted ConfigMaps whose revisions still exist

	unlabelled map[types.UID]bool // reported ConfigMaps that have sets and lack the label
	writing    int
	writeAt    time.Time // when to check revisions next, zero for never
	validateAt time.Time // when to validate rejected versions again, zero for never
	changed    bool      // something has changed that may make a rejected version valid
}

func newConfigMapSets(cfg Config) *configMapSets {
	return &configMapSets{
		inbox:     newConfigMapInbox(cfg.Signal),
		revisions: configmaps.NewRevisionStore(cfg.Client, cfg.Namespace),
		known:     map[string]*configMapSet{}, unlabelled: map[types.UID]bool{},
	}
}

// configMapSet is a ConfigMap and its state.
type configMapSet struct {
	*parsedConfigMap                     // the current content
	inForce          *configmaps.Version // nil for none
	lastGood         *configmaps.Version // the last valid version; nil for none
	// refused is the current content if it is invalid, nil otherwise; problem says why.
	// While it stays the same, the problem is reported again only now and then.
	refused        *corev1.ConfigMap
	problem        error
	reportedAt     time.Time
	mayBecomeValid bool     // it may become valid when other sets or nodes change
	warnings       []string // of the valid version

	stored         configmaps.Stored
	staleRevisions bool // more revisions exist than should: an earlier process ended in the middle
	writing        bool
	storeNotBefore time.Time
	storeFailure   engine.Failure
}

// isBehind reports whether the current content is not in force.
func (s *configMapSet) isBehind() bool {
	return s.refused != nil || s.inForce == nil || !s.inForce.Same(s.lastGood)
}

// updateSetMetrics updates the metric that says whether all of a ConfigMap's current
// content is followed. A set in force may become invalid later: after a change of leader
// another set may take precedence.
func (p *Policy) updateSetMetrics(s *configMapSet) {
	isBehind := s.isBehind()
	if s.inForce != nil {
		isBehind = isBehind || slices.ContainsFunc(s.inForce.Sets, func(set configmaps.Set) bool {
			pol := p.known[set.Name]
			return pol != nil && (pol.isRefused() || pol.withholdsTaints())
		})
	}
	p.cfg.Metrics.setConfigMap(s.Name, isBehind)
}

// parsedConfigMap is a ConfigMap and its parsed content. Of a ConfigMap without the label it
// has only the metadata.
type parsedConfigMap struct {
	*corev1.ConfigMap
	version *configmaps.Version
	err     error // why version is nil
	// lacksLabel says that the ConfigMap has sets, but not the label.
	lacksLabel bool
}

// newConfigMapInbox returns an inbox that parses ConfigMaps in the watch's goroutine, so
// that the loop does not spend time on it.
func newConfigMapInbox(signal chan<- struct{}) *watch.Inbox[*parsedConfigMap] {
	box := watch.NewInbox[*parsedConfigMap](signal, nil)
	box.Convert = func(obj any) (*parsedConfigMap, bool) {
		object, ok := obj.(*corev1.ConfigMap)
		if !ok {
			return nil, false
		}
		if !configmaps.IsLabelled(object) {
			metadata := &corev1.ConfigMap{ObjectMeta: object.ObjectMeta}
			return &parsedConfigMap{ConfigMap: metadata, lacksLabel: configmaps.HasSets(object)}, true
		}
		version, err := configmaps.Read(object)
		return &parsedConfigMap{ConfigMap: object, version: version, err: err}, true
	}
	return box
}

// configMapSource lists and watches ConfigMaps, also those without the label, because a user
// may have forgotten it. It leaves out the ledger, which changes often. While a right is
// missing, it reports that and retries.
func configMapSource(c client.WithWatch, namespace string, tell func(context.Context, revisionAccess)) cache.ListerWatcherWithContext {
	source := watch.Source(c, func() client.ObjectList { return &corev1.ConfigMapList{} },
		client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: fields.OneTermNotEqualSelector("metadata.name", ledger.Name)})
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (page runtime.Object, err error) {
			err = untilAllowed(ctx, tell, func() error {
				page, err = source.ListWithContext(ctx, options)
				return err
			})
			return page, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (w apiwatch.Interface, err error) {
			err = untilAllowed(ctx, tell, func() error {
				w, err = source.WatchWithContext(ctx, options)
				return err
			})
			return w, err
		},
	}
}

// takeConfigMaps takes in changed ConfigMaps. It runs after takeNodes, because validation
// computes the impact on nodes.
func (p *Policy) takeConfigMaps(now time.Time) {
	if !p.configMaps.canBeRead() {
		return
	}
	batch := p.configMaps.inbox.Take()
	if batch.ListVersion != "" {
		for name, s := range p.configMaps.known {
			if _, there := batch.Changes[name]; !there {
				p.removeConfigMap(now, s)
			}
		}
	}
	changes := slices.SortedFunc(maps.Values(batch.Changes), func(a, b watch.Change[*parsedConfigMap]) int { // the oldest first
		return cmp.Or(a.Object.CreationTimestamp.Compare(b.Object.CreationTimestamp.Time), strings.Compare(a.Object.Name, b.Object.Name))
	})
	concerns := false
	for _, a := range changes {
		s := p.configMaps.known[a.Object.Name]
		isFollowed := !a.Gone && configmaps.IsLabelled(a.Object.ConfigMap)
		concerns = concerns || isFollowed || s != nil
		if s != nil && (!isFollowed || s.UID != a.Object.UID) {
			p.removeConfigMap(now, s)
			s = nil
		}
		if !isFollowed {
			p.reportMissingLabel(a)
			continue
		}
		delete(p.configMaps.unlabelled, a.Object.UID)
		if s == nil {
			s = p.upsertConfigMap(now, a.Object)
		}
		s.parsedConfigMap = a.Object
	}
	for _, a := range changes { // after all stored versions are in force
		if s := p.configMaps.known[a.Object.Name]; s != nil && !a.Gone {
			p.updateConfigMap(now, s)
		}
	}
	if concerns && p.configMaps.validateAt.After(now) { // a removed ConfigMap may have conflicted with another
		p.configMaps.validateAt, p.configMaps.changed = now, true
	}
	p.validateConfigMaps(now)
	for _, s := range p.configMaps.known {
		if s.refused != nil && now.Sub(s.reportedAt) >= engine.ReportRefusalEvery {
			p.reportConfigMap(now, s)
		}
	}
	if !p.configMaps.loaded {
		p.configMaps.loaded = true
		p.cfg.Metrics.configMapsRead.Set(1)
		if len(p.configMaps.denied) > 0 {
			p.cfg.Logger.Info("sets in configmaps followed", "configMaps", len(p.configMaps.known))
		}
		p.forgetRestored(now)
		p.tellUnreadable(now)
	}
}

// reportMissingLabel reports a ConfigMap that has sets and lacks the label, once.
func (p *Policy) reportMissingLabel(a watch.Change[*parsedConfigMap]) {
	uid := a.Object.UID
	if a.Gone || !a.Object.lacksLabel {
		delete(p.configMaps.unlabelled, uid)
		return
	}
	if p.configMaps.unlabelled[uid] {
		return
	}
	p.configMaps.unlabelled[uid] = true
	p.cfg.Logger.Warn("sets without the label", "configMap", a.Object.Name, "label", configmaps.Label)
	p.cfg.Event(treat.Event{
		Policy: treat.AboutConfigMap(a.Object.ConfigMap), EventReason: treat.LabelMissing,
		Message: fmt.Sprintf("it has condition sets, and none of them is in force, because it lacks a label: kubectl label configmap -n %s %s %s=%s",
			a.Object.Namespace, a.Object.Name, configmaps.Label, configmaps.LabelValue),
	})
}

// upsertConfigMap starts with the stored revision of a new ConfigMap.
func (p *Policy) upsertConfigMap(now time.Time, object *parsedConfigMap) *configMapSet {
	s := &configMapSet{parsedConfigMap: object, stored: p.configMaps.restored[object.UID]}
	s.staleRevisions = !s.stored.HasOneRevision()
	p.configMaps.writeAt = now
	delete(p.configMaps.restored, object.UID)
	p.configMaps.known[object.Name] = s
	if s.stored.Err != nil {
		p.cfg.Logger.Error("stored revision unreadable", "configMap", object.Name, "err", s.stored.Err)
	}
	if s.stored.Version != nil {
		s.lastGood = s.stored.Version
		p.enforce(now, s, s.stored.Version)
	}
	return s
}

// forgetRestored deletes the revisions of ConfigMaps that do not exist.
func (p *Policy) forgetRestored(now time.Time) {
	for uid, kept := range p.configMaps.restored {
		gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		p.configMaps.deleted = append(p.configMaps.deleted, &configMapSet{parsedConfigMap: &parsedConfigMap{ConfigMap: gone}, stored: kept})
		p.configMaps.writeAt = now
	}
	p.configMaps.restored = nil
}

// removeConfigMap removes the sets of a ConfigMap that is deleted or has lost its label.
// Its revisions are deleted too, so that they do not take effect if it comes back.
func (p *Policy) removeConfigMap(now time.Time, s *configMapSet) {
	if s.inForce != nil {
		for _, set := range s.inForce.Sets {
			p.remove(now, set.Name)
		}
	}
	held := s.keepsTaints()
	delete(p.configMaps.known, s.Name)
	p.cfg.Metrics.forgetConfigMap(s.Name)
	s.lastGood, s.inForce, s.storeNotBefore = nil, nil, time.Time{}
	p.configMaps.deleted = append(p.configMaps.deleted, s)
	p.configMaps.writeAt = now
	p.cfg.Logger.Info("configmap gone", "configMap", s.Name)
	if held {
		p.tellUnreadable(now)
	}
}
