package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// parseWindows parses the windows in the annotation of a health check.
func parseWindows(text string) ([]window, error) {
	var given []v1alpha1.Window
	for one := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(text), ";"), ";") {
		schedule, rest, is := strings.Cut(one, " for ")
		if !is {
			return nil, fmt.Errorf("the windows are %q", text)
		}
		lasts, zone, _ := strings.Cut(rest, " in ")
		given = append(given, v1alpha1.Window{Schedule: strings.TrimSpace(schedule), TimeZone: strings.TrimSpace(zone), Duration: strings.TrimSpace(lasts)})
	}
	return readWindows(given)
}

// isOpen reports whether the window is open at some time between two times.
func (w window) isOpen(from, to time.Time) bool {
	return !w.schedule.Next(from.Add(-w.lasts)).After(to)
}

// areClosed reports whether no window was open within the lag, or will be: clocks differ. A policy
// without windows may act at any time.
func (r *replay) areClosed(windows []window) bool {
	isOpen := func(w window) bool { return w.isOpen(r.horizon(), r.at.Time.Add(r.cfg.Lag)) }
	return len(windows) > 0 && !slices.ContainsFunc(windows, isOpen)
}

// mayBeClosed reports whether no window was open for all of the lag.
func (r *replay) mayBeClosed(windows []window) bool {
	isOpen := func(w window) bool { return w.isOpen(r.at.Time, r.at.Time) && w.isOpen(r.horizon(), r.horizon()) }
	return len(windows) > 0 && !slices.ContainsFunc(windows, isOpen)
}

// judgeWindows judges a step on a node by the windows of every version of its policy that the writer
// may have known.
func (r *replay) judgeWindows(n *node, rule string, asked []*block, wrong func(Kind, string, ...any)) {
	isTimeout := strings.HasPrefix(rule, timeoutKind)
	for _, b := range asked {
		if !r.areClosed(b.windows) || !isTimeout && (b.isUrgent(n) || r.recent(n.caused)) {
			return
		}
	}
	wrong(Unjustified, "but the windows of the policy are closed")
}

// isUrgent reports whether the node has a condition that does not wait for a window.
func (b *block) isUrgent(n *node) bool {
	return slices.ContainsFunc(b.urgent, func(p v1alpha1.ConditionRepair) bool {
		row := n.row(p.ConditionType)
		status, isNamed := statusIn(p.ConditionStatus)
		return (!isNamed || row.Status == status) && (p.Reason == "" || p.Reason == row.Reason)
	})
}
