package repairblock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/treat"
)

const (
	// RevisionLabel marks the revisions; its value is the name of the pool.
	RevisionLabel = "autohealer.resourcestack.com/kept-repair-block"
	// revisionPrefix starts the names of revisions, and longestPool is how much of a pool's name
	// fits into them.
	revisionPrefix = "autohealer-repair-"
	maxPoolName    = 180
	// revisionVersion is the format version of new revisions. Older revisions have no version and
	// the same format.
	revisionVersion = 1
)

// lastGood is the last valid block of a pool, as stored in its revision.
type lastGood struct {
	// Version is the format version, which newCopy sets.
	Version int       `json:"version"`
	Pool    string    `json:"pool"`
	UID     types.UID `json:"uid"`
	// Generation is the pool's generation when the block was last seen.
	Generation int64 `json:"generation"`
	// Definition is the version of the CRD under which the block was last seen; empty if
	// that is uncertain.
	Definition string               `json:"definition,omitempty"`
	Block      *v1alpha1.RepairSpec `json:"repair"`
	// Unknown are fields of a newer version, which the next revision keeps.
	Unknown format.Unknown `json:"-"`
}

// isEquivalent reports whether another revision is equally good for a new leader. A new generation
// of the pool alone needs no new revision.
func (g *lastGood) isEquivalent(other *lastGood) bool {
	return other != nil && g.UID == other.UID && g.Definition == other.Definition && sameBlock(g.Block, other.Block)
}

// poolRevisions are the revisions of one pool in the order of their numbers. A revision is
// immutable, so the next one is created before the previous ones are deleted.
type poolRevisions []*appsv1.ControllerRevision

// lastNumber returns the highest number of all revisions for pools of a name, including
// unreadable ones.
func lastNumber(revisions map[string]*appsv1.ControllerRevision, name string) (last int64) {
	for _, revision := range revisions {
		if revision.Labels[RevisionLabel] == revisionLabelValue(name) {
			last = max(last, revision.Revision)
		}
	}
	return last
}

// arrange groups revisions by the UIDs of their pools. It calls unreadable for revisions that
// cannot be read.
func arrange(revisions map[string]*appsv1.ControllerRevision, unreadable func(*appsv1.ControllerRevision, error)) (byPool map[types.UID]poolRevisions, last map[types.UID]*lastGood) {
	byPool, last = map[types.UID]poolRevisions{}, map[types.UID]*lastGood{}
	for _, revision := range slices.SortedFunc(maps.Values(revisions), func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Name, b.Name))
	}) {
		read, err := readRevision(revision)
		if err != nil {
			unreadable(revision, err)
			continue
		}
		byPool[read.UID], last[read.UID] = append(byPool[read.UID], revision), read
	}
	return byPool, last
}

// readRevision returns the block in a revision.
func readRevision(revision *appsv1.ControllerRevision) (*lastGood, error) {
	read := &lastGood{}
	unknown, err := format.Read(revision.Data.Raw, read)
	read.Version, read.Unknown = 0, unknown
	switch {
	case err != nil:
		return nil, err
	case read.UID == "":
		return nil, errors.New("it does not say of which NodePool it is")
	case read.Block == nil:
		return nil, errors.New("there is no block in it")
	case read.Block.Unreadable != "":
		return nil, errors.New(read.Block.Unreadable)
	}
	return read, nil
}

// newRevision returns a revision. Its name depends only on the pool and the number, so that two
// concurrent leaders cannot both create it.
func newRevision(namespace string, number int64, g *lastGood) (*appsv1.ControllerRevision, error) {
	versioned := *g
	versioned.Version = revisionVersion
	text, err := format.Write(versioned, g.Unknown)
	if err != nil {
		return nil, fmt.Errorf("writing the copy of the block of NodePool %s: %w", g.Pool, err)
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(g.UID))
	name := strings.TrimRight(g.Pool[:min(len(g.Pool), maxPoolName)], ".-")
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s%s-%08x-%d", revisionPrefix, name, hash.Sum32(), number),
			Labels: map[string]string{RevisionLabel: revisionLabelValue(g.Pool), "app.kubernetes.io/part-of": "autohealer"},
		},
		Data:     runtime.RawExtension{Raw: text},
		Revision: number,
	}, nil
}

// revisionLabelValue returns the label value for a pool's revisions. Karpenter itself cannot use a pool
// whose name does not fit into a label.
func revisionLabelValue(pool string) string {
	return strings.TrimRight(pool[:min(len(pool), validation.LabelValueMaxLength)], ".-")
}

// listRevisions reads all revisions from the API server.
func (k *Store) listRevisions(ctx context.Context) (map[string]*appsv1.ControllerRevision, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list := &appsv1.ControllerRevisionList{}
	if err := k.cfg.Client.List(ctx, list, client.InNamespace(k.cfg.Namespace), client.HasLabels{RevisionLabel}); err != nil {
		return nil, fmt.Errorf("listing the copies of repair blocks: %w", err)
	}
	all := make(map[string]*appsv1.ControllerRevision, len(list.Items))
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all, nil
}

func (k *Store) createRevision(ctx context.Context, revision *appsv1.ControllerRevision) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := k.cfg.Client.Create(ctx, revision, client.FieldOwner(treat.FieldManager))
	k.cfg.Wrote("controllerrevisions", treat.Classify(err))
	if err != nil {
		return fmt.Errorf("creating ControllerRevision %s/%s: %w", revision.Namespace, revision.Name, err)
	}
	return nil
}

// deleteRevision deletes this revision by UID, because its name may be used again.
func (k *Store) deleteRevision(ctx context.Context, revision *appsv1.ControllerRevision) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := k.cfg.Client.Delete(ctx, revision, client.Preconditions{UID: &revision.UID})
	k.cfg.Wrote("controllerrevisions", treat.Classify(err))
	if treat.Classify(err) != treat.Made && treat.Classify(err) != treat.Stale { // Stale: gone or replaced
		return fmt.Errorf("deleting ControllerRevision %s/%s: %w", revision.Namespace, revision.Name, err)
	}
	return nil
}
