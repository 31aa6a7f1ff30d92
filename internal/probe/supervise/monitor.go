package supervise

import (
	"context"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
)

// Monitor looks at something for as long as it is run.
type Monitor interface {
	// Run looks until ctx ends, and tells the desk. The first report that holds a condition
	// holds all of them. It says something at least once in [Breath], if only that it is
	// there: one that is silent for a minute hangs, and counts as dead. Whether it
	// returns early or panics, it is run again: then it goes on where it was.
	Run(ctx context.Context, desk Reporter) error
}

// Reporter takes what one monitor has to tell. It does not keep the monitor waiting.
type Reporter interface {
	// Report hands over what was found.
	Report(finding.Report)
	// Here says that the monitor is there, when it has nothing else to say.
	Here()
	// Sees says that the monitor can look.
	Sees()
	// Waits says that there is nothing to look at yet, and what is waited for. That is
	// shown, and no sickness.
	Waits(what string)
	// Blind says that the monitor cannot look, and why: the reason is one word for the
	// conditions that nobody knows while it lasts.
	Blind(reason string, err error)
}

// CheckInterval is how long a monitor may be silent.
const CheckInterval = 15 * time.Second

// The reasons of conditions whose monitor does not run, or says nothing.
const (
	Ended = "MonitorEnded"
	Hangs = "MonitorHangs"
)

// Health is how a monitor is.
type Health struct {
	Monitor string
	// Dead says why the monitor counts as dead, empty if it does not.
	Dead string
	// Waits says what the monitor waits for, empty if it does not.
	Waits string
}
