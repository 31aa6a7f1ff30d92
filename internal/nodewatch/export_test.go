package nodewatch

import "time"

// SetSilence makes a source give up sooner.
func (s *Source) SetSilence(silence time.Duration) { s.silence = silence }
