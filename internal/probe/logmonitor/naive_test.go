package logmonitor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// naive is the naive implementation: it adds every line to the window and tries every rule
// on every window. It follows doc.go and shares no logic with the monitor.
type naive struct {
	size     int
	since    time.Time
	rules    []*naiveRule
	defaults map[string]string // how each condition is reported while it is False
	survives map[string]bool

	log      []naiveLine // since the last gap or reboot
	lastLine time.Time
	behind   bool
	stood    int
	told     map[string]string // how each condition is reported now, without its time
	lines    []string          // all events

	hits, spanning, cleared, expired int
}

type naiveLine struct {
	text          string
	at            time.Time
	shown, kernel bool // shown if it has a timestamp and does not match the skip list
}

type naiveRule struct {
	reason, condition string // condition is empty for a temporary rule
	suffix            string
	pattern           *regexp.Regexp // with \z, and with ^ as the start of a line
	clear             *regexp.Regexp
	clearAfter        time.Duration
	count             int
	window            time.Duration
	kernelOnly        bool

	matches []time.Time // all matches since the rule was added
	latest  time.Time
	stands  bool
	order   int
	message string
}

func newNaive(size int, since time.Time) *naive {
	return &naive{size: size, since: since, defaults: map[string]string{}, survives: map[string]bool{}, told: map[string]string{}}
}

// line handles the next line.
func (n *naive) line(now time.Time, l naiveLine) {
	n.log = append(n.log, l)
	if !n.counts(l) {
		return
	}
	window := n.window()
	at := l.at
	if at.After(now) {
		at = now
	}
	for _, r := range n.rules {
		if r.kernelOnly && !l.kernel {
			continue
		}
		var texts []string
		for _, w := range window {
			if w.kernel || !r.kernelOnly {
				texts = append(texts, w.text)
			}
		}
		text := strings.Join(texts, "\n")
		if where := r.pattern.FindStringIndex(text); where != nil {
			begin := 0
			for i := range where[0] {
				if text[i] == '\n' {
					begin = i + 1
				}
			}
			n.hits++
			if strings.Contains(text[where[0]:], "\n") {
				n.spanning++
			}
			n.match(r, l.at, at, text[begin:])
		} else if r.clear != nil && r.clear.MatchString(text) {
			n.pass(at)
			r.matches, r.latest = nil, time.Time{}
			if r.stands {
				n.cleared++
			}
			n.stop(r, l.at)
		}
	}
}

// window returns the last lines that count, within the limit of lines.
func (n *naive) window() []naiveLine {
	var window []naiveLine
	for _, l := range n.log[max(0, len(n.log)-32*n.size):] {
		if n.counts(l) {
			window = append(window, l)
		}
	}
	return window[max(0, len(window)-n.size):]
}

func (n *naive) counts(l naiveLine) bool { return l.shown && !l.at.Before(n.since) }

func (n *naive) match(r *naiveRule, stamp, at time.Time, lines string) {
	n.pass(at)
	if at.After(r.latest) {
		r.latest = at
	}
	r.matches = append(r.matches, at)
	if r.count > 1 {
		if len(r.matches) < r.count {
			return
		}
		recent := slices.SortedFunc(slices.Values(r.matches[len(r.matches)-r.count:]), time.Time.Compare)
		if recent[r.count-1].Sub(recent[0]) >= r.window {
			return
		}
	}
	if r.stands {
		return
	}
	message := strings.ToValidUTF8(lines, "\uFFFD")
	if r.suffix != "" {
		message += "; " + r.suffix
	}
	if r.condition == "" {
		r.matches = nil
		n.lines = append(n.lines, fmt.Sprintf("warn %s %s: %s", stamp.Format(time.TimeOnly), r.reason, message))
		return
	}
	n.stood++
	r.stands, r.order, r.message = true, n.stood, message
	n.tell(r.condition, stamp)
}

// pass advances time.
func (n *naive) pass(to time.Time) {
	for {
		r, at := n.nextEnd()
		if r == nil || at.After(to) {
			return
		}
		if r.clearAfter > 0 {
			r.matches, r.latest = nil, time.Time{}
		}
		n.expired++
		n.stop(r, at)
	}
}

// nextEnd returns the rule whose deadline is first.
func (n *naive) nextEnd() (*naiveRule, time.Time) {
	var first *naiveRule
	var soonest time.Time
	for _, r := range n.rules {
		var at time.Time
		switch {
		case !r.stands:
			continue
		case r.clearAfter > 0:
			at = r.latest.Add(r.clearAfter)
		case r.count > 1 && r.clear == nil:
			at = slices.MinFunc(r.matches[len(r.matches)-r.count:], time.Time.Compare).Add(r.window)
		default:
			continue
		}
		if first == nil || at.Before(soonest) {
			first, soonest = r, at
		}
	}
	return first, soonest
}

func (n *naive) stop(r *naiveRule, at time.Time) {
	if r.stands {
		r.stands = false
		n.tell(r.condition, at)
	}
}

// tell reports a condition if it has changed.
func (n *naive) tell(condition string, at time.Time) {
	status, words, order := "False", n.defaults[condition], 0
	for _, r := range n.rules {
		if r.stands && r.condition == condition && (order == 0 || r.order < order) {
			status, words, order = "True", fmt.Sprintf("reason: %s, message: %q", r.reason, r.message), r.order
		}
	}
	now := fmt.Sprintf("%s %d %s", status, order, words)
	if now == n.told[condition] {
		return
	}
	n.told[condition] = now
	severity := map[string]string{"True": "warn", "False": "info"}[status]
	n.lines = append(n.lines, fmt.Sprintf("%s %s %s is now: %s, %s", severity, at.Format(time.TimeOnly), condition, status, words))
}

// reboot ends everything that a reboot ends.
func (n *naive) reboot() {
	n.log = nil
	for _, r := range n.rules {
		if !n.survives[r.condition] {
			r.matches, r.latest, r.stands = nil, time.Time{}, false
		}
	}
}
