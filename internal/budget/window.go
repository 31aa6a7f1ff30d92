package budget

import (
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/schedule"
)

// window is when a budget is active; nil means always.
type window struct{ *schedule.Window }

// readWindow parses the schedule of a budget with the parser of Karpenter and in UTC, so
// that both accept the same schedules.
func readWindow(budget karpenter.Budget) (window, error) {
	if budget.Schedule == nil && budget.Duration == "" {
		return window{}, nil
	}
	var expression string
	if budget.Schedule != nil {
		expression = *budget.Schedule
	}
	var length time.Duration
	var badLength error
	if budget.Duration != "" {
		length, badLength = time.ParseDuration(budget.Duration)
	}
	w, err := schedule.New(expression, "UTC", length)
	switch {
	case err != nil:
		return window{}, fmt.Errorf("its schedule %q: %w", expression, err)
	case badLength != nil:
		return window{}, fmt.Errorf("its duration: want one like 8h, not %q", budget.Duration)
	}
	return window{&w}, nil
}

// at says whether the window is open, and until when that cannot change; zero means for
// ever. A schedule that never hits is always open, as in Karpenter.
func (w window) at(now time.Time) (open bool, changes time.Time) {
	if w.Window == nil || !w.Hits(now) {
		return true, time.Time{}
	}
	return w.Open(now)
}
