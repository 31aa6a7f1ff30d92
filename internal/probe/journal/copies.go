package journal

// copies recognizes the entries that journald copies from /run to /var when /var becomes
// available.
type copies struct {
	flushed *moment // the last entry that was read in /run
	last    entry   // the last entry that was returned
	lastOf  id      // its file
}

// has says whether the next entry of a file was already returned from another file.
func (c *copies) has(s *source) bool {
	if c.lastOf != s.header.file && c.last.isCopyOf(&s.next) {
		return true
	}
	return !s.volatile && c.flushed != nil && c.flushed.Boot == s.next.boot && s.next.monotonic <= c.flushed.Monotonic
}

// note records that the next entry of a file is returned.
func (c *copies) note(s *source) {
	c.last, c.lastOf = s.next, s.header.file
	if s.volatile {
		c.flushed = &moment{Boot: s.next.boot, Monotonic: s.next.monotonic}
	}
}
