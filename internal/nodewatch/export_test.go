package nodewatch

import "time"

// SetIdleTimeout changes the idle timeout.
func (s *Source) SetIdleTimeout(timeout time.Duration) { s.idleTimeout = timeout }
