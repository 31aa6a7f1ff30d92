package nodefacts

import (
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// batchSize is the number of nodes that change before other callers get the lock. A batch
// takes about half a millisecond.
const batchSize = 50

// Store contains the facts of all nodes. It is safe for concurrent use.
type Store struct {
	mu         sync.RWMutex
	core       *triage.Core
	complete   bool
	present    map[string]struct{} // existing nodes
	fromLeader map[string]struct{} // nodes that the leader's loop has passed; nil after Takeover
	takenOver  chan struct{}       // closed by Takeover
}

// New returns an empty store.
func New() *Store {
	return &Store{core: triage.New(), present: map[string]struct{}{}, fromLeader: map[string]struct{}{}, takenOver: make(chan struct{})}
}

// Observe sets the facts of nodes.
func (s *Store) Observe(facts ...triage.Node) {
	s.inBatches(len(facts), func(i int) {
		s.markFromLeader(facts[i].Name)
		s.set(&facts[i])
	})
}

// inBatches changes many nodes in batches. Other callers may read between two batches.
func (s *Store) inBatches(count int, change func(i int)) {
	for from := 0; from < count; from += batchSize {
		s.mu.Lock()
		for i := from; i < min(from+batchSize, count); i++ {
			change(i)
		}
		s.mu.Unlock()
	}
}

// Forget removes a deleted node.
func (s *Store) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.markFromLeader(name)
	s.remove(name)
}

// Takeover states that Observe was called for every node, and will be for every change. The
// store removes nodes that only the watch has reported, and ends the watch.
func (s *Store) Takeover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fromLeader == nil {
		return
	}
	for name := range s.present {
		if _, known := s.fromLeader[name]; !known {
			s.remove(name)
		}
	}
	s.fromLeader, s.complete = nil, true
	close(s.takenOver)
}

// Ready reports whether every node is known.
func (s *Store) Ready() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.complete
}

// Impact returns what a rule would match among the nodes now, beyond the matches of other
// rules. It returns the error of the rule's Validate.
func (s *Store) Impact(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.core.Impact(rule, beyond...)
}

// Reported returns the sorted types of all conditions of all nodes. It is never nil.
func (s *Store) Reported() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.core.Reported()
}

// markFromLeader records that the leader's loop has passed a node.
func (s *Store) markFromLeader(name string) {
	if s.fromLeader != nil {
		s.fromLeader[name] = struct{}{}
	}
}

// acceptsWatch reports whether the watch may still change a node.
func (s *Store) acceptsWatch(name string) bool {
	_, known := s.fromLeader[name]
	return s.fromLeader != nil && !known
}

// set stores the facts that a rule can match. The store evaluates no rule over time, so it
// passes neither a time nor the remediation of the node.
func (s *Store) set(facts *triage.Node) {
	s.core.Observe(time.Time{}, triage.Node{
		Name: facts.Name, UID: facts.UID, Labels: facts.Labels, Created: facts.Created,
		ControlPlane: facts.ControlPlane, Initialized: facts.Initialized, Conditions: facts.Conditions,
	})
	s.present[facts.Name] = struct{}{}
	// The store does not use the list of nodes whose plan may have changed. Clear it,
	// because it would keep deleted nodes in memory.
	for _, more := s.core.NextWoken(); more; _, more = s.core.NextWoken() {
	}
}

func (s *Store) remove(name string) {
	s.core.Forget(time.Time{}, name)
	delete(s.present, name)
}
