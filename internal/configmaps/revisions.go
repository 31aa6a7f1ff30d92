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
	// RevisionLabel marks the revisions of the store. Other revisions in the namespace
	// belong to DaemonSets and StatefulSets.
	RevisionLabel = "autohealer.resourcestack.com/kept-condition-sets"
	// maxPrefixLength is how much of a ConfigMap's name fits into the name of a revision.
	maxPrefixLength = 200
	// storeAttempts is how often the store tries to find an unused number.
	storeAttempts = 5
)

// RevisionStore stores versions in the API server. It is safe for concurrent use.
type RevisionStore struct {
	client    client.Client
	namespace string

	mu   sync.Mutex
	read map[types.UID]reading // cache of the revisions of the last list
}

// reading is the decoded content of a revision, which is immutable.
type reading struct {
	version *Version
	err     error
}

// NewRevisionStore returns the store of a namespace. The client must not read from a cache.
func NewRevisionStore(c client.Client, namespace string) *RevisionStore {
	return &RevisionStore{client: c, namespace: namespace}
}

// Stored is the stored version of one ConfigMap. The zero value means none.
type Stored struct {
	// Version is the last stored version; nil if there is none or it is unreadable.
	Version *Version
	// Err says why the last stored version is unreadable.
	Err error

	number    int64    // of the last revision
	revisions []string // all names, including the last one
}

// IsEmpty reports whether there is no revision.
func (k Stored) IsEmpty() bool { return len(k.revisions) == 0 }

// HasOneRevision reports whether there is at most one revision.
func (k Stored) HasOneRevision() bool { return len(k.revisions) <= 1 }

// List returns the stored versions, by the UIDs of the ConfigMaps.
func (s *RevisionStore) List(ctx context.Context) (map[types.UID]Stored, error) {
	var list appsv1.ControllerRevisionList
	if err := s.client.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{RevisionLabel: LabelValue}); err != nil {
		return nil, fmt.Errorf("listing the kept versions: %w", err)
	}
	return s.arrange(list.Items), nil
}

// arrange returns the content of revisions, by the UIDs of the ConfigMaps.
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
			continue // not a revision of this store
		}
		owner := revision.OwnerReferences[0].UID
		said, isKnown := known[revision.UID]
		if !isKnown {
			said.version, said.err = decodeRevision(revision)
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

// InForce returns the sets in force of all ConfigMaps, which are the stored ones. It works
// on any replica, leader or not.
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

// storedVersion is the content of a revision: a copy of the ConfigMap, and the version of the
// format, which older revisions lack. Revisions are immutable, so unknown fields are never
// lost.
type storedVersion struct {
	Version int `json:"version"`
	*corev1.ConfigMap
}

const storedVersionNow = 1

// decodeRevision reads the version in a revision.
func decodeRevision(revision *appsv1.ControllerRevision) (*Version, error) {
	source := &corev1.ConfigMap{}
	if err := json.Unmarshal(revision.Data.Raw, source); err != nil {
		return nil, err
	}
	if owner := revision.OwnerReferences[0]; source.UID != owner.UID || source.Name != owner.Name || source.Namespace != revision.Namespace {
		return nil, fmt.Errorf("it is of %s/%s, and owned by %s", source.Namespace, source.Name, owner.Name)
	}
	return Read(source)
}

// Store stores a version and then deletes the previous ones; a failed deletion is repeated
// the next time. After an error, either the previous or the new version is stored, and the
// caller may call Store again.
func (s *RevisionStore) Store(ctx context.Context, before Stored, v *Version) (Stored, error) {
	text, err := json.Marshal(storedVersion{storedVersionNow, v.source})
	if err != nil {
		return before, err
	}
	if before.Version != nil && before.Version.Same(v) {
		return s.deleteOld(ctx, before), nil
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
			return s.deleteOld(ctx, Stored{Version: v, number: next.number, revisions: append(slices.Clone(next.revisions), revision.Name)}), nil
		}
		if !apierrors.IsAlreadyExists(err) || try == storeAttempts {
			return before, fmt.Errorf("keeping the version: %w", err)
		}
		// The answer was lost, or another replica was the leader meanwhile.
		all, err := s.List(ctx)
		if err != nil {
			return before, err
		}
		if next = all[v.source.UID]; next.Version != nil && next.Version.Same(v) {
			return s.deleteOld(ctx, next), nil
		}
	}
}

// deleteOld deletes all but the last revision.
func (s *RevisionStore) deleteOld(ctx context.Context, kept Stored) Stored {
	last := max(0, len(kept.revisions)-1)
	if s.remove(ctx, kept.revisions[:last]) == nil {
		kept.revisions = kept.revisions[last:]
	}
	return kept
}

// Delete deletes all revisions of a ConfigMap, including those whose creation was not
// confirmed.
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

// revisionName returns a name that depends only on the ConfigMap and the number, so that two
// concurrent leaders cannot both store a version under one number.
func revisionName(m *corev1.ConfigMap, number int64) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(m.UID))
	prefix := strings.TrimRight(m.Name[:min(len(m.Name), maxPrefixLength)], ".-")
	return fmt.Sprintf("%s-%08x-%d", prefix, hash.Sum32(), number)
}
