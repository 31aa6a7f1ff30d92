package kmsg

import "time"

// tolerance is the deviation of a timestamp that does not adjust the clock. The boot time
// has whole seconds, and a record is read some time after it was written.
const tolerance = 2 * time.Second

// clock converts kernel timestamps to times. Kernel timestamps count from the boot on a
// separate clock. It stops while the machine is suspended, drifts, and does not follow
// changes of the system time. So the boot time is only its first reference; each record
// that was just written corrects it.
//
// After a suspend of the machine some times are wrong by its duration. Records from before
// the suspend get a time that is too late. Records that were written after it and before
// the agent started get a time that is too early.
type clock struct {
	Booted time.Time `json:"booted"` // boot time according to the kernel
	Zero   time.Time `json:"zero"`   // the time of timestamp 0
}

// resume returns the clock of an earlier reader, so that its times do not change. If the
// system time was set since, it returns c.
func (c clock) resume(earlier clock) clock {
	if earlier.Booted.Equal(c.Booted) {
		return earlier
	}
	return c
}

func (c clock) at(stamp time.Duration) time.Time { return c.Zero.Add(stamp) }

// adjust corrects the clock with the timestamp of a record that was written after the log
// was opened. If fresh is true, the record was written just now.
func (c *clock) adjust(stamp time.Duration, opened, now time.Time, fresh bool) {
	at := c.at(stamp)
	switch {
	case at.After(now.Add(tolerance)), fresh && at.Before(now.Add(-tolerance)):
		c.Zero = now.Add(-stamp)
	case at.Before(opened):
		c.Zero = opened.Add(-stamp)
	}
}
