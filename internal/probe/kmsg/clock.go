package kmsg

import "time"

// slack is how far a stamp may be off before the clock is set by it. The time of the
// boot is in whole seconds, and a record is read some time after it was written.
const slack = 2 * time.Second

// clock makes times of the stamps of the kernel, which count from the boot by a clock
// of their own: it stands still while the machine sleeps, nobody keeps it exact, and it
// does not know when somebody sets the machine's. So the time of the boot is only where
// the clock begins; a record that has just been written shows what it is by now.
//
// Records from before the machine slept are thereby told too late, and those from after
// it that were written before the agent came too early, by as long as it slept.
type clock struct {
	Booted time.Time `json:"booted"` // as the kernel told it
	Zero   time.Time `json:"zero"`   // when the stamps began to count
}

// resume returns the clock of an earlier reader, whose times stay what they were, unless
// the machine's clock has been set since.
func (c clock) resume(earlier clock) clock {
	if earlier.Booted.Equal(c.Booted) {
		return earlier
	}
	return c
}

func (c clock) at(stamp time.Duration) time.Time { return c.Zero.Add(stamp) }

// settle sets the clock by a record that was written after the log was opened, and just
// now if it is fresh, where its stamp says otherwise.
func (c *clock) settle(stamp time.Duration, opened, now time.Time, fresh bool) {
	at := c.at(stamp)
	switch {
	case at.After(now.Add(slack)), fresh && at.Before(now.Add(-slack)):
		c.Zero = now.Add(-stamp)
	case at.Before(opened):
		c.Zero = opened.Add(-stamp)
	}
}
