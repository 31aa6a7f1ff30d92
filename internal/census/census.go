package census

import (
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// Census is what is known of all nodes. Its methods may be called by anybody at any
// time.
type Census struct {
	mu       sync.RWMutex
	core     *triage.Core
	complete bool
	present  map[string]struct{} // nodes that there are
	told     map[string]struct{} // nodes that the leader's loop has spoken of; nil once it has taken over
	taken    chan struct{}       // closed when it has
}

// New returns a census of nobody.
func New() *Census {
	return &Census{core: triage.New(), present: map[string]struct{}{}, told: map[string]struct{}{}, taken: make(chan struct{})}
}

// Observe takes in all that is known of some nodes now.
func (c *Census) Observe(facts ...triage.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range facts {
		c.speak(facts[i].Name)
		c.enter(&facts[i])
	}
}

// Forget tells that a node is gone.
func (c *Census) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.speak(name)
	c.strike(name)
}

// Complete tells that every node has been told once.
func (c *Census) Complete() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complete = true
}

// Take tells that every node has been told by [Census.Observe], and that this will
// go on: what only a watch has told is forgotten, and the watch ends.
func (c *Census) Take() {
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
func (c *Census) Ready() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.complete
}

// Impact returns what a rule would find among the nodes, were it followed now. The
// error is that of the rule's Validate.
func (c *Census) Impact(rule triage.Rule) (triage.Impact, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.core.Impact(rule)
}

// Reported returns the types of all conditions that some node has, sorted.
func (c *Census) Reported() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.core.Reported()
}

// Nodes returns how many nodes there are.
func (c *Census) Nodes() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.present)
}

// speak notes that the leader's loop has the word about a node.
func (c *Census) speak(name string) {
	if c.told != nil {
		c.told[name] = struct{}{}
	}
}

// hears says whether a watch still has a say about a node.
func (c *Census) hears(name string) bool {
	_, told := c.told[name]
	return c.told != nil && !told
}

// enter takes over what a rule could ask about a node. No rule is followed here, so
// the time does not matter, nor what is being done about the node.
func (c *Census) enter(facts *triage.Node) {
	c.core.Observe(time.Time{}, triage.Node{
		Name: facts.Name, UID: facts.UID, Labels: facts.Labels, Created: facts.Created,
		Initialized: facts.Initialized, Conditions: facts.Conditions,
	})
	c.present[facts.Name] = struct{}{}
	// Nobody asks here whose plan may have changed, and the list of them would keep
	// nodes alive that are gone.
	for _, more := c.core.NextWoken(); more; _, more = c.core.NextWoken() {
	}
}

func (c *Census) strike(name string) {
	c.core.Forget(time.Time{}, name)
	delete(c.present, name)
}
