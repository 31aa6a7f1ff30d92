package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// window is a time in which disruptive steps may begin.
type window struct {
	schedule cron.Schedule
	lasts    time.Duration
}

// readWindows parses the windows of a policy.
func readWindows(given []v1alpha1.Window) (list []window, err error) {
	for _, g := range given {
		schedule, err := cron.ParseStandard("TZ=" + cmp.Or(g.TimeZone, "UTC") + " " + g.Schedule)
		if err != nil {
			return nil, fmt.Errorf("the window %q: %w", g.Schedule, err)
		}
		lasts, err := duration(g.Duration)
		if err != nil {
			return nil, err
		}
		list = append(list, window{schedule, lasts})
	}
	return list, nil
}

// areClosed reports whether no window is open, now and a moment ago. A policy without windows may
// act at any time.
func (r *replay) areClosed(windows []window) bool {
	isOpen := func(at time.Time) bool {
		return slices.ContainsFunc(windows, func(w window) bool { return !w.schedule.Next(at.Add(-w.lasts)).After(at) })
	}
	return len(windows) > 0 && !isOpen(r.at.Time) && !isOpen(r.at.Time.Add(-r.cfg.Lag))
}

// isUrgent reports whether the node has a condition that does not wait for a window.
func (b *block) isUrgent(n *node) bool {
	return slices.ContainsFunc(b.urgent, func(p v1alpha1.ConditionRepair) bool {
		row := n.row(p.ConditionType)
		status, isNamed := statusIn(p.ConditionStatus)
		return (!isNamed || row.Status == status) && (p.Reason == "" || p.Reason == row.Reason)
	})
}
