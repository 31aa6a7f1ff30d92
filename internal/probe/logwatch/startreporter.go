package logwatch

import (
	"slices"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

const (
	// startPatience is how long the first read waits for lines that were written earlier.
	startPatience = 500 * time.Millisecond
	// startTimeout limits how long conditions are held back while there is more to read.
	startTimeout = 5 * time.Second
)

// startReporter holds back the conditions of a watch until the log was read to its end for
// the first time. Before that, an unhealthy node would be reported healthy, and its taint
// would be removed and added again.
type startReporter struct {
	supervise.Reporter

	mu         sync.Mutex // the timer of Run may call finish while a read hangs
	isFinished bool
	held       finding.Report
}

func (b *startReporter) isHolding() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isFinished
}

// finish reports the held conditions, and passes later ones on at once.
func (b *startReporter) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isFinished {
		b.isFinished = true
		b.Reporter.Report(b.held)
	}
}

// Report passes events on at once. While conditions are held back, it keeps the newest of
// each type.
func (b *startReporter) Report(r finding.Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isFinished {
		b.held.Source = r.Source
		b.held.Conditions = mergeConditions(b.held.Conditions, r.Conditions)
		r.Conditions = nil
		if r.IsEmpty() {
			return
		}
	}
	b.Reporter.Report(r)
}

// WaitsFor calls finish, because there is nothing to read.
func (b *startReporter) WaitsFor(what string) {
	b.finish()
	b.Reporter.WaitsFor(what)
}

// CannotObserve calls finish, because the log cannot be read.
func (b *startReporter) CannotObserve(reason string, err error) {
	b.finish()
	b.Reporter.CannotObserve(reason, err)
}

// mergeConditions returns conditions in which each newer condition replaces the older one
// of its type.
func mergeConditions(conditions, newer []finding.Condition) []finding.Condition {
	for _, c := range newer {
		at := slices.IndexFunc(conditions, func(t finding.Condition) bool { return t.Type == c.Type })
		if at < 0 {
			conditions = append(conditions, c)
		} else {
			conditions[at] = c
		}
	}
	return conditions
}
