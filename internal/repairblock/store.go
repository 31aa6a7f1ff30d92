package repairblock

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/treat"
)

// Config configures a Store.
type Config struct {
	// Client must not read from a cache. Its scheme must have the types of package
	// karpenter.
	Client client.WithWatch
	// Namespace is the namespace of the revisions.
	Namespace string
	// Check returns why a block of a pool is invalid, nil if it is valid. The store calls
	// it once per block, from the goroutine of Run.
	Check func(pool string, block *v1alpha1.RepairSpec) error
	// Restore makes the store put the schema back when it is missing, and then the pruned
	// blocks.
	Restore bool
	// Schema is the JSON schema of the block. It is required if Restore is set.
	Schema []byte
	// Event sends an Event to users. It must not block.
	Event func(treat.Event)
	// Wrote is called with the outcome of every write to a resource.
	Wrote func(resource string, fate treat.Outcome)
	// Count is called with the number of pools per state, when that changes.
	Count func(Counts)
	// Changed is called when Take has changes. It must not block.
	Changed func()
	Logger  *slog.Logger
}

// Validate returns all missing fields.
func (c Config) Validate() error {
	return required.Fields{
		"Client": c.Client == nil, "Namespace": c.Namespace == "", "Check": c.Check == nil, "Schema": c.Restore && len(c.Schema) == 0,
		"Event": c.Event == nil, "Wrote": c.Wrote == nil, "Count": c.Count == nil, "Changed": c.Changed == nil, "Logger": c.Logger == nil,
	}.Check()
}

// Counts is the number of pools per state. A pool has one state. In all of them but the first
// the last valid block is in force, if there is one.
type Counts struct {
	InForce  int // whose block is in force
	Refused  int // with an invalid block
	Lost     int // whose block is hidden or pruned, because the CRD lacks the schema
	Vanished int // whose block is gone, and was or may have been pruned
	NotSaved int // with a block in force that has no revision yet
}

// Pool is a NodePool and the block in force. Callers must not change it.
type Pool struct {
	// NodePool is the current object, which may have another block or none.
	*karpenter.NodePool
	// Block is the block in force, nil for none.
	Block *v1alpha1.RepairSpec
	// Problem says why the block on the NodePool, or its absence, is not in force. It is
	// empty if the two agree.
	Problem string
	// Lost says that the reason is a missing schema.
	Lost bool
}

// NeverValid reports whether the pool has a block of which no valid version is known. The
// controller then does not know what the user wants, which may be no repair at all.
func (p *Pool) NeverValid() bool { return p.Block == nil && p.Problem != "" }

// Store knows which blocks are in force.
type Store struct {
	cfg  Config
	wake chan struct{} // has room for one

	// Fields of the loop.
	pools          map[string]*pool
	writeBackoff   backoff     // of writes of revisions
	confirmBackoff backoff     // of confirming reads
	schemaPace     restorePace // of restoring the schema
	restoreBackoff backoff     // of the permission to restore
	counted        Counts
	logged         logged
	stopLister     context.CancelFunc // of the pools, nil while there is none
	listers        sync.WaitGroup

	mu        sync.Mutex
	snapshot  snapshot
	published published
}

// logged is what the log already says.
type logged struct {
	unreadable map[types.UID]bool // unreadable revisions
	forbidden  [3]bool            // missing permissions
	schemaLoss bool               // the schema is missing
}

// NewStore returns a store; Run starts it.
func NewStore(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the store of repair blocks: %w", err)
	}
	return &Store{cfg: cfg, wake: make(chan struct{}, 1), pools: map[string]*pool{}, logged: logged{unreadable: map[types.UID]bool{}}, published: published{changed: map[string]bool{}}}, nil
}

// Listed reports whether all pools are known, and whether the cluster has NodePools at all;
// without Karpenter it has none. While the pools are unknown, the error says why; it is nil
// while the first answer is outstanding. Once known, they stay known.
func (k *Store) Listed() (known, isThere bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.published.known {
		err = k.snapshot.readError()
	}
	return k.published.known, k.published.isThere, err
}

// Take returns the pools that have changed since the last call, by name; nil stands for a
// deleted pool. If all is true, the result is the complete list.
func (k *Store) Take() (changed map[string]*Pool, all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.published.take()
}

// publish sets the state in force and reports what has changed.
func (k *Store) publish(isThere bool, inForce map[string]*Pool) {
	k.mu.Lock()
	isNews := k.published.set(isThere, inForce)
	k.mu.Unlock()
	if isNews {
		k.cfg.Changed()
	}
}
