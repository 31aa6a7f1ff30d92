package nodefacts

import "github.com/resourcestack/autohealer/internal/triage"

// Survey returns what a rule would find among the nodes, were it followed now, and
// with which other selectors it would share them. The error is that of a rule's
// Validate.
func (c *Store) Survey(rule triage.Rule, others ...triage.Selector) (triage.Survey, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Survey(rule, others...)
}
