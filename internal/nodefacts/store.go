package nodefacts

import (
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// turn is how many nodes are changed before those who ask have their turn. It takes
// about half a millisecond.
const turn = 50

// Store is what is known of all nodes. Its methods may be called by anybody at any
// time.
type Store struct {
	mu       sync.RWMutex
	core     *triage.Core
	complete bool
	present  map[string]struct{} // nodes that there are
	told     map[string]struct{} // nodes that the leader's loop has spoken of; nil once it has taken over
	taken    chan struct{}       // closed when it has
}

// New returns a census of nobody.
func New() *Store {
	return &Store{core: triage.New(), present: map[string]struct{}{}, told: map[string]struct{}{}, taken: make(chan struct{})}
}

// Observe takes in all that is known of some nodes now.
func (c *Store) Observe(facts ...triage.Node) {
	c.inTurns(len(facts), func(i int) {
		c.speak(facts[i].Name)
		c.enter(&facts[i])
	})
}

// inTurns changes many nodes, a few at a time: who asks in between has its answer
// from those that are known by then, and waits for no more than a turn.
func (c *Store) inTurns(count int, change func(i int)) {
	for from := 0; from < count; from += turn {
		c.mu.Lock()
		for i := from; i < min(from+turn, count); i++ {
			change(i)
		}
		c.mu.Unlock()
	}
}

// Forget tells that a node is gone.
func (c *Store) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.speak(name)
	c.strike(name)
}

// Takeover tells that every node has been told by [Census.Observe], and that this will
// go on: what only a watch has told is forgotten, and the watch ends.
func (c *Store) Takeover() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		return
	}
	for name := range c.present {
		if _, told := c.told[name]; !told {
			c.strike(name)
		}
	}
	c.told, c.complete = nil, true
	close(c.taken)
}

// Ready says whether every node has been told at least once.
func (c *Store) Ready() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.complete
}

// Impact returns what a rule would find among the nodes, were it followed now, beyond
// what others find. The error is that of a rule's Validate.
func (c *Store) Impact(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.core.Impact(rule, beyond...)
}

// Reported returns the types of all conditions that some node has, sorted, and never
// nil.
func (c *Store) Reported() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.core.Reported()
}

// speak notes that the leader's loop has the word about a node.
func (c *Store) speak(name string) {
	if c.told != nil {
		c.told[name] = struct{}{}
	}
}

// hears says whether a watch still has a say about a node.
func (c *Store) hears(name string) bool {
	_, told := c.told[name]
	return c.told != nil && !told
}

// enter takes over what a rule could find out about a node. No rule is followed here, so
// the time does not matter, nor what is being done about the node.
func (c *Store) enter(facts *triage.Node) {
	c.core.Observe(time.Time{}, triage.Node{
		Name: facts.Name, UID: facts.UID, Labels: facts.Labels, Created: facts.Created,
		ControlPlane: facts.ControlPlane, Initialized: facts.Initialized, Conditions: facts.Conditions,
	})
	c.present[facts.Name] = struct{}{}
	// Nobody asks here whose plan may have changed, and the list of them would keep
	// nodes alive that are gone.
	for _, more := c.core.NextWoken(); more; _, more = c.core.NextWoken() {
	}
}

func (c *Store) strike(name string) {
	c.core.Forget(time.Time{}, name)
	delete(c.present, name)
}
