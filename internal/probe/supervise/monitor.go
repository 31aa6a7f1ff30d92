package supervise

import (
	"context"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
)

// Monitor watches something on the node while it runs.
type Monitor interface {
	// Run watches until ctx ends and reports to the Reporter. The first report that contains a
	// condition contains all conditions of the monitor.
	//
	// Run calls the Reporter at least once per [CheckInterval], if only with Heartbeat. A monitor
	// that is silent for a minute counts as dead. If Run returns early or panics, it is called again and
	// continues where it was.
	Run(ctx context.Context, reporter Reporter) error
}

// Reporter receives what a monitor finds. Its methods do not block.
type Reporter interface {
	// Report passes on findings.
	Report(finding.Report)
	// Heartbeat is a sign of life of a monitor that has nothing to report.
	Heartbeat()
	// CanObserve reports that the monitor can read its source.
	CanObserve()
	// WaitsFor reports that the source does not exist yet, and what the monitor waits for.
	// The status shows it; it is not a failure.
	WaitsFor(what string)
	// CannotObserve reports that the monitor cannot read its source, and why. Until it can,
	// its conditions are Unknown for this reason.
	CannotObserve(reason string, err error)
}

// CheckInterval is how long a monitor may be silent.
const CheckInterval = 15 * time.Second

// The reasons of conditions whose monitor does not run or hangs.
const (
	Ended = "MonitorEnded"
	Hangs = "MonitorHangs"
)

// Health is the health of a monitor.
type Health struct {
	Monitor string
	// Dead is why the monitor counts as dead, empty if it does not.
	Dead string
	// Waits is what the monitor waits for, empty if it does not wait.
	Waits string
}
