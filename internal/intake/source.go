package intake

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/problem"
)

// Reasons of conditions that a source does not report.
const (
	// Silent means that the source reported the condition before, and has stopped.
	Silent = "SourceSilent"
	// NeverHeard means that the source has never reported the condition.
	NeverHeard = "SourceNeverHeard"
	// NotHeardYet means that the source has not reported the condition yet, but still has
	// time. The condition is Unknown from the start: the agent would remove a missing
	// condition from the Node, where it may have been True.
	NotHeardYet = "SourceNotHeardYet"
)

// maxRecentEvents is how many events of a source are remembered. A source that repeats a
// status after a lost response must not produce an event twice.
const maxRecentEvents = 4 * problem.MaxEvents

// sourceState is the state of one source. Its methods are called with mu held.
type sourceState struct {
	name string // of the source; never changes

	mu     sync.Mutex // guards the fields below
	source Source
	token  *digest // nil if there is no token, or it cannot be read
	bucket tokenBucket

	reported        map[string]finding.Condition // last report of the source, by type
	published       map[string]finding.Condition // last emitted conditions, by type
	conditionTimers map[string]*silenceTimer     // by condition type
	timer           silenceTimer                 // of the source as a whole
	rejections      rejections
	// savedSilence is true if the saved state contains an elapsed silence.
	savedSilence  bool
	unknownFields *format.Rest // fields of the saved state that this version does not know

	recentEvents map[string]bool // IDs of recent events
	recentOrder  []string        // the same IDs, as a ring
	recentNext   int
	removed      bool // the source is no longer configured
	connections  int
	counts       Counts
}

// silenceTimer measures how long a condition, or the source as a whole, has not been reported.
type silenceTimer struct {
	lastHeard time.Time     // zero if not since the agent started
	elapsed   time.Duration // since lastHeard, or since the source was configured
	silent    bool          // elapsed exceeds the limit
}

// reset records a report. While rate limiting delays the source, its silence does not begin.
func (timer *silenceTimer) reset(now time.Time, delay time.Duration) {
	*timer = silenceTimer{lastHeard: now, elapsed: -delay}
}

// advance adds passed time, and reports whether the limit was just exceeded. The first tick
// may have been shorter than passed, so it does not count.
func (timer *silenceTimer) advance(passed, most time.Duration) bool {
	exceeded := timer.elapsed >= most && !timer.silent
	timer.silent = timer.elapsed >= most
	timer.elapsed += passed
	return exceeded
}

// elapsedToSave returns the elapsed silence if it is worth saving: if nothing was reported
// since the agent started, or a report is overdue. So a healthy source causes no writes.
func (timer *silenceTimer) elapsedToSave(most time.Duration) time.Duration {
	if timer.silent || !timer.lastHeard.IsZero() && timer.elapsed < most/3 {
		return 0
	}
	return max(0, timer.elapsed)
}

func newSourceState(source Source, now time.Time) *sourceState {
	src := &sourceState{
		name: source.Name, source: source, bucket: newTokenBucket(source.Rate, source.Burst, now),
		reported: map[string]finding.Condition{}, published: map[string]finding.Condition{}, conditionTimers: map[string]*silenceTimer{}, recentEvents: map[string]bool{},
		counts: Counts{Source: source.Name, Refused: map[int]uint64{}}, rejections: rejections{logged: map[int]time.Time{}},
	}
	for _, kind := range source.Conditions {
		src.conditionTimers[kind] = &silenceTimer{}
	}
	return src
}

// accept applies a status, and returns the new findings in it.
func (src *sourceState) accept(status *statusRequest, now time.Time) (finding.Report, *problem.RefusedError) {
	said, rejection := validate(status, &src.source, src.reported, now)
	if rejection != nil {
		return finding.Report{}, rejection
	}
	delay := src.bucket.borrow(len(said.Events))
	src.rejections.reset()
	src.timer.reset(now, delay)
	for _, c := range said.Conditions {
		src.reported[c.Type] = c
		src.conditionTimers[c.Type].reset(now, delay)
	}
	r := finding.Report{Source: src.name}
	for i := range said.Events {
		if src.isNew(said.Events[i].ID) {
			r.Events = append(r.Events, said.Events[i])
		}
	}
	src.counts.Events += uint64(len(r.Events))
	src.publish(&r, now)
	return r, nil
}

// hasSilenceToSave reports whether any timer has an elapsed silence that is worth saving.
func (src *sourceState) hasSilenceToSave() bool {
	for _, timer := range src.conditionTimers {
		if timer.elapsedToSave(src.source.Silence) > 0 {
			return true
		}
	}
	return src.timer.elapsedToSave(src.source.Silence) > 0
}

// isNew reports whether an event is new, and remembers it.
func (src *sourceState) isNew(id string) bool {
	if src.recentEvents[id] {
		return false
	}
	src.recentEvents[id] = true
	if len(src.recentOrder) < maxRecentEvents {
		src.recentOrder = append(src.recentOrder, id)
		return true
	}
	delete(src.recentEvents, src.recentOrder[src.recentNext])
	src.recentOrder[src.recentNext] = id
	src.recentNext = (src.recentNext + 1) % maxRecentEvents
	return true
}

// advance advances all timers, and returns the changes that this causes.
func (src *sourceState) advance(passed time.Duration, now time.Time) finding.Report {
	r := finding.Report{Source: src.name}
	src.timer.advance(passed, src.source.Silence)
	changed := false
	for _, timer := range src.conditionTimers {
		changed = timer.advance(passed, src.source.Silence) || changed
	}
	if changed {
		src.publish(&r, now)
	}
	return r
}

// publish adds to a report the conditions that changed, and their events.
func (src *sourceState) publish(r *finding.Report, now time.Time) {
	for _, kind := range src.source.Conditions {
		was, before := src.published[kind]
		current := src.conditionFor(kind, now)
		ahead := was.Since.After(now) // the clock was set back
		if before && !ahead && current.Status == was.Status && current.Reason == was.Reason && (current.Status == catalog.Unknown || current.Message == was.Message) {
			continue
		}
		known := before && was.Reason != NotHeardYet
		turns := !before || current.Status != was.Status
		switch {
		case !turns && !ahead:
			current.Since = was.Since // a restarted source may not know the original time
		case turns && known && current.Since.Before(was.Since):
			current.Since = now // the state during a silence is unknown
		}
		current.Since = earlier(current.Since, now)
		src.published[kind] = current
		r.Conditions = append(r.Conditions, current)
		if known && (turns || current.Reason != was.Reason) || !known && current.Status == catalog.True {
			at := current.Since
			if !turns {
				at = now
			}
			r.Events = append(r.Events, src.changeEvent(current, at))
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// conditionFor returns a condition as it should be published.
func (src *sourceState) conditionFor(kind string, now time.Time) finding.Condition {
	said, ok := src.reported[kind]
	timer := src.conditionTimers[kind]
	unknown := finding.Condition{Type: kind, Status: catalog.Unknown, Since: now, Reason: Silent}
	switch {
	case ok && !timer.silent:
		return said
	case ok && timer.lastHeard.IsZero():
		unknown.Message = fmt.Sprintf("%s has said nothing of it for %s, since before the agent was started; then it was %s, reason: %s",
			src.name, src.source.Silence, said.Status, said.Reason)
	case ok:
		unknown.Message = fmt.Sprintf("%s has said nothing of it since %s; then it was %s, reason: %s",
			src.name, timer.lastHeard.UTC().Format(time.RFC3339), said.Status, said.Reason)
	case timer.silent:
		unknown.Reason = NeverHeard
		unknown.Message = fmt.Sprintf("%s has never reported it", src.name)
	default:
		unknown.Reason = NotHeardYet
		unknown.Message = fmt.Sprintf("%s has not reported it yet", src.name)
	}
	unknown.Message = problem.Cut(unknown.Message + src.rejections.describe())
	return unknown
}

// changeEvent returns the event of a changed condition.
func (src *sourceState) changeEvent(c finding.Condition, at time.Time) finding.Event {
	return finding.Event{
		ID:       finding.ID("change", src.name, c.Type, string(c.Status), c.Reason, at.UTC().Format(time.RFC3339Nano)),
		Severity: finding.Info, Time: at, Reason: c.Reason, Condition: c.Type,
		Message: fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", c.Type, c.Status, c.Reason, c.Message),
	}
}

// publishedConditions returns all published conditions.
func (src *sourceState) publishedConditions() []finding.Condition {
	var list []finding.Condition
	for _, kind := range src.source.Conditions {
		if c, ok := src.published[kind]; ok {
			list = append(list, c)
		}
	}
	return list
}

// reconfigure replaces the configuration, and returns the condition types that the source no
// longer reports.
func (src *sourceState) reconfigure(source Source) (gone []string) {
	for _, kind := range src.source.Conditions {
		if slices.Contains(source.Conditions, kind) {
			continue
		}
		if _, ok := src.published[kind]; ok {
			gone = append(gone, kind)
		}
		delete(src.reported, kind)
		delete(src.published, kind)
		delete(src.conditionTimers, kind)
	}
	for _, kind := range source.Conditions {
		if src.conditionTimers[kind] == nil {
			src.conditionTimers[kind] = &silenceTimer{}
		}
	}
	if source.TokenFile != src.source.TokenFile {
		src.token = nil // until the new file has been read
	}
	src.source = source
	src.bucket.setRate(source.Rate, source.Burst)
	return gone
}
