package budget

import (
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestParserPanicBecomesAnError(t *testing.T) {
	// The parser panics on a time zone without a schedule.
	if _, err := parse("TZ=UTC", cron.ParseStandard); err == nil || !strings.Contains(err.Error(), "five fields") {
		t.Errorf("says %v", err)
	}
}

// The parser accepts an empty list of minutes or hours.
func TestScheduleWithoutHitsIsNotSearched(t *testing.T) {
	now := time.Date(2026, time.November, 16, 9, 0, 0, 0, time.UTC)
	for _, schedule := range []string{", * * * *", "0 , * * *", "0 0 , * ,", "0 0 * , *"} {
		parsed, err := cron.ParseStandard("TZ=UTC " + schedule)
		testkit.Must(t, err)
		if hit := parsed.Next(now); !hit.IsZero() {
			t.Errorf("%s hits at %s", schedule, hit)
		}
		w, err := readWindow(karpenter.Budget{Schedule: &schedule, Duration: "1h"})
		if _, isNever := w.schedule.(neverSchedule); err != nil || !isNever {
			t.Errorf("%s is searched as %T (%v)", schedule, w.schedule, err)
		}
		if open, changes := w.at(now); !open || !changes.IsZero() {
			t.Errorf("%s: open %v until %s, which is not how Karpenter sees it", schedule, open, changes)
		}
	}
}
