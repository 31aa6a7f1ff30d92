package repairblock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/treat"
)

// Config is what a keeper works with.
type Config struct {
	// Client talks to the API server. It must not read from a cache, and its scheme
	// has the types of package karpenter.
	Client client.WithWatch
	// Namespace is where the copies are kept.
	Namespace string
	// Check says why a block of a pool cannot be followed, nil if it can. It is asked
	// once for every block, by the goroutine that runs the keeper.
	Check func(pool string, block *v1alpha1.RepairSpec) error
	// Restore has the schema put back when it is lost, and then the blocks that were
	// pruned.
	Restore bool
	// Schema is the JSON schema of the block. It is needed to restore, and only then.
	Schema []byte
	// Event tells users of a change. It must not block.
	Event func(treat.Event)
	// Wrote is told what became of every write to a resource.
	Wrote func(resource string, fate treat.Result)
	// Count is told how many pools are in which state, when that changes.
	Count func(Counts)
	// Changed is called when there is something to take. It must not block.
	Changed func()
	Logger  *slog.Logger
}

// Validate says everything that is missing.
func (c Config) Validate() error {
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Client", c.Client == nil}, {"Namespace", c.Namespace == ""}, {"Judge", c.Check == nil}, {"Schema", c.Restore && len(c.Schema) == 0},
		{"Announce", c.Event == nil}, {"Wrote", c.Wrote == nil}, {"Count", c.Count == nil}, {"Changed", c.Changed == nil}, {"Logger", c.Logger == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// Counts is how many pools there are in some states.
type Counts struct {
	InForce  int // with a block in force
	Refused  int // with a block that cannot be followed
	Lost     int // whose block is hidden or gone, because its schema is lost
	Vanished int // whose block has gone with its schema, or nobody can tell
	NotSaved int // with a block in force that has no copy yet
}

// Pool is a NodePool and the block that is in force for it. It is not to be changed.
type Pool struct {
	// NodePool is as it is now, and may have another block or none.
	*karpenter.NodePool
	// Block is the one in force, nil for none.
	Block *v1alpha1.RepairSpec
	// Problem says why what stands on the NodePool, or that nothing does, is not what
	// is in force. It is empty if it is.
	Problem string
	// Lost says that this is because the schema of the block is lost.
	Lost bool
}

// NeverValid says that somebody has written a block, and no version of it that could be
// followed is known. What he asks for nobody can tell, and it may be to be left alone.
func (p *Pool) NeverValid() bool { return p.Block == nil && p.Problem != "" }

// Store knows which blocks are in force.
type Store struct {
	cfg  Config
	wake chan struct{} // has room for one

	// What is the loop's own.
	pools     map[string]*pool
	writes    trouble // of copies
	asks      trouble // of looks afresh
	schema    pace    // of putting the schema back
	restores  trouble // of the right to put anything back
	counted   Counts
	unread    map[types.UID]bool // copies that were told of because they cannot be read
	barred    [3]bool            // rights that were told to be missing
	stopFeed  context.CancelFunc // of pools, nil while there is none
	feeds     sync.WaitGroup
	schemaOut bool // it was told that the schema is lost

	mu    sync.Mutex
	sight sight
	// What is there to be taken.
	known, isThere bool
	inForce        map[string]*Pool
	changed        map[string]bool
	all            bool
}

// NewStore returns one that knows nothing until it is run.
func NewStore(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the keeper of repair blocks: %w", err)
	}
	return &Store{cfg: cfg, wake: make(chan struct{}, 1), pools: map[string]*pool{}, unread: map[types.UID]bool{}, changed: map[string]bool{}}, nil
}

// Listed says whether all pools are known, and if so whether there are NodePools at
// all: without Karpenter there are none. While they are not known, the error says why,
// as far as there is more to say than that nobody has answered yet. Once they are
// known they stay so.
func (k *Store) Listed() (known, isThere bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known {
		err = k.sight.trouble()
	}
	return k.known, k.isThere, err
}

// Take returns the pools that have changed since it was last called, by name; nil
// stands for one that is gone. If all is true, there are no others than those.
func (k *Store) Take() (changed map[string]*Pool, all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed, all = make(map[string]*Pool, len(k.changed)), k.all
	for name := range k.changed {
		if is := k.inForce[name]; is != nil || !all {
			changed[name] = is
		}
	}
	k.changed, k.all = map[string]bool{}, false
	return changed, all
}

// publish makes something the state that is in force, and says what has changed.
func (k *Store) publish(isThere bool, inForce map[string]*Pool) {
	k.mu.Lock()
	isNews := !k.known || k.isThere != isThere
	k.all = k.all || isNews
	for name := range k.inForce {
		if inForce[name] == nil {
			k.changed[name] = true
		}
	}
	for name, is := range inForce {
		if before := k.inForce[name]; isNews || before == nil || !before.isLike(is) {
			k.changed[name] = true
		}
	}
	isNews = isNews || len(k.changed) > 0
	k.known, k.isThere, k.inForce = true, isThere, inForce
	k.mu.Unlock()
	if isNews {
		k.cfg.Changed()
	}
}

// isLike says whether there is nothing new in another. That somebody has written the
// pool is not: Karpenter counts its nodes there.
func (p *Pool) isLike(other *Pool) bool {
	return p.UID == other.UID && p.Problem == other.Problem && p.Lost == other.Lost && sameBlock(p.Block, other.Block) &&
		p.Generation == other.Generation && p.DeletionTimestamp.Equal(other.DeletionTimestamp) &&
		maps.Equal(p.Labels, other.Labels) && maps.Equal(p.Annotations, other.Annotations) && sameBlock(p.Spec.Repair, other.Spec.Repair)
}
