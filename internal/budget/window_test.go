package budget

import (
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestScheduleWithoutHitsIsAlwaysActive(t *testing.T) {
	now := time.Date(2026, time.November, 16, 9, 0, 0, 0, time.UTC)
	for _, schedule := range []string{", * * * *", "0 0 30 2 *"} {
		w := testkit.Value(readWindow(karpenter.Budget{Schedule: &schedule, Duration: "1h"})).Must(t)
		if open, changes := w.at(now); !open || !changes.IsZero() {
			t.Errorf("%s: open %v until %s, which is not how Karpenter sees it", schedule, open, changes)
		}
	}
}
