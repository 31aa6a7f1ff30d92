package configmaps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

const (
	// RevisionLabel is what the revisions carry. Others of the namespace belong to
	// DaemonSets and the like.
	RevisionLabel = "autohealer.resourcestack.com/kept-condition-sets"
	// longestPrefix is how much of a ConfigMap's name fits into that of a revision.
	longestPrefix = 200
	// keepTries is how often a number is looked for that nobody has taken.
	keepTries = 5
)

// RevisionStore keeps versions in the API server. It may be asked by many at once.
type RevisionStore struct {
	client    client.Client
	namespace string

	mu   sync.Mutex
	read map[types.UID]reading // of the revisions that were there the last time
}

// reading is what a revision says, which never changes.
type reading struct {
	version *Version
	err     error
}

// NewRevisionStore returns the shelf of a namespace. The client must not read from a cache.
func NewRevisionStore(c client.Client, namespace string) *RevisionStore {
	return &RevisionStore{client: c, namespace: namespace}
}

// Stored is what the shelf holds of one ConfigMap. The zero value is nothing.
type Stored struct {
	// Version that was kept last, nil if there is none or it cannot be read.
	Version *Version
	// Err says why a version that is there cannot be read.
	Err error

	number    int64    // of the last revision
	revisions []string // by name, the last one included
}

// IsEmpty says whether there is nothing on the shelf.
func (k Stored) IsEmpty() bool { return len(k.revisions) == 0 }

// HasOneRevision says whether there is no more than the last revision.
func (k Stored) HasOneRevision() bool { return len(k.revisions) <= 1 }

// List returns what is kept, by the UIDs of the ConfigMaps.
func (s *RevisionStore) List(ctx context.Context) (map[types.UID]Stored, error) {
	var list appsv1.ControllerRevisionList
	if err := s.client.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{RevisionLabel: LabelValue}); err != nil {
		return nil, fmt.Errorf("listing the kept versions: %w", err)
	}
	return s.arrange(list.Items), nil
}

// arrange returns what revisions say, by the UIDs of the ConfigMaps.
func (s *RevisionStore) arrange(revisions []appsv1.ControllerRevision) map[types.UID]Stored {
	slices.SortFunc(revisions, func(a, b appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.read
	s.read = make(map[types.UID]reading, len(revisions))
	all := map[types.UID]Stored{}
	for i := range revisions {
		revision := &revisions[i]
		if len(revision.OwnerReferences) != 1 {
			continue // no work of ours
		}
		owner := revision.OwnerReferences[0].UID
		said, isKnown := known[revision.UID]
		if !isKnown {
			said.version, said.err = open(revision)
		}
		s.read[revision.UID] = said
		kept := Stored{Version: said.version, number: revision.Revision, revisions: append(all[owner].revisions, revision.Name)}
		if said.err != nil {
			kept.Err = fmt.Errorf("the kept version in ControllerRevision %s cannot be read: %w", revision.Name, said.err)
		}
		all[owner] = kept
	}
	return all
}

// InForce returns the sets of all ConfigMaps that are followed: what is in force is
// what is kept. Any replica can ask, whether it leads or not.
func (s *RevisionStore) InForce(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
	all, err := s.List(ctx)
	return inForce(all), err
}

func inForce(all map[types.UID]Stored) (sets []*v1alpha1.ConditionSet) {
	for _, kept := range all {
		if kept.Version == nil {
			continue
		}
		for _, set := range kept.Version.Sets {
			sets = append(sets, set.ConditionSet)
		}
	}
	return sets
}

// storedVersion is what a revision holds: a copy of the ConfigMap, and since there are
// versions that of the format. A revision is never changed, so a field that is not known
// stays where it is.
type storedVersion struct {
	Version int `json:"version"`
	*corev1.ConfigMap
}

const storedVersionNow = 1

// open reads the version that a revision holds.
func open(revision *appsv1.ControllerRevision) (*Version, error) {
	source := &corev1.ConfigMap{}
	if err := json.Unmarshal(revision.Data.Raw, source); err != nil {
		return nil, err
	}
	if owner := revision.OwnerReferences[0]; source.UID != owner.UID || source.Name != owner.Name || source.Namespace != revision.Namespace {
		return nil, fmt.Errorf("it is of %s/%s, and owned by %s", source.Namespace, source.Name, owner.Name)
	}
	return Read(source)
}

// Store makes a version the one that is kept. Those before go when it is there; if
// they could not be deleted, they are the next time. With an error what was kept
// before still is, or this one is: Keep may be tried again.
func (s *RevisionStore) Store(ctx context.Context, before Stored, v *Version) (Stored, error) {
	text, err := json.Marshal(storedVersion{storedVersionNow, v.source})
	if err != nil {
		return before, err
	}
	if before.Version != nil && before.Version.Same(v) {
		return s.tidy(ctx, before), nil
	}
	next := before
	for try := 1; ; try++ {
		next.number++
		revision := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.namespace, Name: revisionName(v.source, next.number),
				Labels:          map[string]string{RevisionLabel: LabelValue, "app.kubernetes.io/part-of": "autohealer"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: v.source.Name, UID: v.source.UID}},
			},
			Data:     runtime.RawExtension{Raw: text},
			Revision: next.number,
		}
		err := s.client.Create(ctx, revision)
		if err == nil {
			return s.tidy(ctx, Stored{Version: v, number: next.number, revisions: append(slices.Clone(next.revisions), revision.Name)}), nil
		}
		if !apierrors.IsAlreadyExists(err) || try == keepTries {
			return before, fmt.Errorf("keeping the version: %w", err)
		}
		// An answer was lost, or another has led meanwhile.
		all, err := s.List(ctx)
		if err != nil {
			return before, err
		}
		if next = all[v.source.UID]; next.Version != nil && next.Version.Same(v) {
			return s.tidy(ctx, next), nil
		}
	}
}

// tidy deletes all but the last revision.
func (s *RevisionStore) tidy(ctx context.Context, kept Stored) Stored {
	last := max(0, len(kept.revisions)-1)
	if s.remove(ctx, kept.revisions[:last]) == nil {
		kept.revisions = kept.revisions[last:]
	}
	return kept
}

// Delete deletes everything that is kept of a ConfigMap, also what nobody knows of
// because the answer was lost.
func (s *RevisionStore) Delete(ctx context.Context, of types.UID) error {
	all, err := s.List(ctx)
	if err != nil {
		return err
	}
	return s.remove(ctx, all[of].revisions)
}

func (s *RevisionStore) remove(ctx context.Context, revisions []string) error {
	var errs []error
	for _, name := range revisions {
		revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
		if err := client.IgnoreNotFound(s.client.Delete(ctx, revision)); err != nil {
			errs = append(errs, fmt.Errorf("deleting ControllerRevision %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// revisionName is the same for everyone who wants to keep a version under that
// number, so that two who lead at once cannot both.
func revisionName(m *corev1.ConfigMap, number int64) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(m.UID))
	prefix := strings.TrimRight(m.Name[:min(len(m.Name), longestPrefix)], ".-")
	return fmt.Sprintf("%s-%08x-%d", prefix, hash.Sum32(), number)
}
