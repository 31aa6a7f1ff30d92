package report

import "time"

const (
	firstWait   = 500 * time.Millisecond
	longestWait = time.Minute
)

// pace says when to try again after something went wrong.
type pace struct {
	failures int
	until    time.Time
	told     bool      // somebody was told that it goes wrong
	began    time.Time // to go wrong
}

// fail waits twice as long as the last time, at random less, and never longer than most.
// The agents of a cluster lose their API server together, and must not return together.
func (p *pace) fail(now time.Time, most time.Duration, random func() float64) {
	if p.failures == 0 {
		p.began = now
	}
	wait := min(firstWait<<min(p.failures, 16), most)
	p.failures++
	p.pause(now, wait/10+time.Duration(random()*float64(wait-wait/10)))
}

// turnedAway waits as fail does, and in the end for as long as most, or a little less. Who
// has no right today has none tomorrow, as a rule. But rights may come a moment after the
// agent, and an API server that has just begun may not know of them yet.
func (p *pace) turnedAway(now time.Time, most time.Duration, random func() float64) {
	if firstWait<<min(p.failures, 16) < most {
		p.fail(now, most, random)
		return
	}
	p.pause(now, jitter(most, random))
}

// pause waits for so long.
func (p *pace) pause(now time.Time, wait time.Duration) { p.until = now.Add(wait) }

// firstTime says whether nobody was told yet, and takes it that somebody is now.
func (p *pace) firstTime() bool {
	first := !p.told
	p.told = true
	return first
}

// jitter is a duration, or up to a tenth less.
func jitter(d time.Duration, random func() float64) time.Duration {
	return d - time.Duration(random()*float64(d)/10)
}
