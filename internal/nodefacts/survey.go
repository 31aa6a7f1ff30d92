package nodefacts

import "github.com/resourcestack/autohealer/internal/triage"

// Survey returns what a rule would match among the nodes now, and with which other selectors
// it shares them. It returns the error of the rule's Validate.
func (s *Store) Survey(rule triage.Rule, others ...triage.Selector) (triage.Survey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Survey(rule, others...)
}
