package statefile

import (
	"maps"
	"slices"
)

// Monitors returns the keys of all stored monitors.
func (m *Store) Monitors() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.state.Monitors))
}
