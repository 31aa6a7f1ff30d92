package logwatch

import (
	"slices"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

const (
	// soon is how long a log may take to show what was written before.
	soon = 500 * time.Millisecond
	// atLast is when conditions are told though there is still more to read.
	atLast = 5 * time.Second
)

// beginning is a desk that gets the conditions of a watch when the log was read to its
// end for the first time. Whoever told them before would tell of a sick node first that
// it is well, as nothing was read yet, and a taint would go and come again.
type beginning struct {
	supervise.Reporter

	mu     sync.Mutex // for a log may hang, and then time ends it
	isOver bool
	held   finding.Report
}

func (b *beginning) lasts() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isOver
}

// over says that what was to be read is read, or will not be.
func (b *beginning) over() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOver {
		b.isOver = true
		b.Reporter.Report(b.held)
	}
}

// Report hands over events at once, and of conditions in the end the newest.
func (b *beginning) Report(r finding.Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOver {
		b.held.Source = r.Source
		b.held.Conditions = newest(b.held.Conditions, r.Conditions)
		r.Conditions = nil
		if r.IsEmpty() {
			return
		}
	}
	b.Reporter.Report(r)
}

// Waits ends the beginning: there is nothing to be read.
func (b *beginning) Waits(what string) {
	b.over()
	b.Reporter.Waits(what)
}

// Blind ends it too.
func (b *beginning) Blind(reason string, err error) {
	b.over()
	b.Reporter.Blind(reason, err)
}

// newest returns conditions with those in the place of earlier ones that are told later.
func newest(told, later []finding.Condition) []finding.Condition {
	for _, c := range later {
		at := slices.IndexFunc(told, func(t finding.Condition) bool { return t.Type == c.Type })
		if at < 0 {
			told = append(told, c)
		} else {
			told[at] = c
		}
	}
	return told
}
