package intake

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/times"
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

// isUnheard reports whether the agent has set a condition that its source does not report. The
// message of such a condition may change with every refusal.
func isUnheard(reason string) bool {
	return reason == Silent || reason == NeverHeard || reason == NotHeardYet
}

// sourceState is the state of one source. Its methods are called with mu held.
type sourceState struct {
	name string // of the source; never changes

	mu     sync.Mutex // guards the fields below
	source Source
	token  *digest // nil if there is no token, or it cannot be read
	bucket tokenBucket

	reported   map[string]finding.Condition // last report of the source, by type
	published  map[string]finding.Condition // last emitted conditions, by type
	silence    silence
	rejections rejections
	recent     recentEvents

	unknownFields *format.Rest // fields of the saved state that this version does not know
	removed       bool         // the source is no longer configured
	connections   int
	counts        Counts
}

func newSourceState(source Source, now time.Time) *sourceState {
	src := &sourceState{
		name: source.Name, source: source, bucket: newTokenBucket(source.Rate, source.Burst, now),
		reported: map[string]finding.Condition{}, published: map[string]finding.Condition{}, silence: newSilence(), recent: newRecentEvents(),
		counts: Counts{Source: source.Name, Refused: map[int]uint64{}}, rejections: rejections{logged: map[int]time.Time{}},
	}
	src.silence.watch(source.Conditions)
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
	src.silence.source.reset(now, delay)
	for _, c := range said.Conditions {
		src.reported[c.Type] = c
		src.silence.conditions[c.Type].reset(now, delay)
	}
	r := finding.Report{Source: src.name}
	for i := range said.Events {
		if src.recent.add(said.Events[i].ID) {
			r.Events = append(r.Events, said.Events[i])
		}
	}
	src.counts.Events += uint64(len(r.Events))
	src.publish(&r, now)
	return r, nil
}

// advance advances all timers, and returns the changes that this causes.
func (src *sourceState) advance(passed time.Duration, now time.Time) finding.Report {
	r := finding.Report{Source: src.name}
	if src.silence.advance(passed, src.source.Silence) {
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
		if before && !ahead && current.Status == was.Status && current.Reason == was.Reason && (isUnheard(current.Reason) || current.Message == was.Message) {
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
		current.Since = times.Min(current.Since, now)
		src.published[kind] = current
		r.Conditions = append(r.Conditions, current)
		if known && (turns || current.Reason != was.Reason) || !known && current.Status == catalog.True {
			at := current.Since
			if !turns {
				at = now
			}
			id := finding.ID("change", src.name, kind, string(current.Status), current.Reason, at.UTC().Format(time.RFC3339Nano))
			r.Events = append(r.Events, current.Changed(id, was.Status, at))
		}
	}
}

// conditionFor returns a condition as it should be published.
func (src *sourceState) conditionFor(kind string, now time.Time) finding.Condition {
	said, ok := src.reported[kind]
	timer := src.silence.conditions[kind]
	unknown := finding.Condition{Type: kind, Inverted: src.source.inverted(kind), Status: catalog.Unknown, Since: now, Reason: Silent}
	switch {
	case ok && !timer.silent:
		return said
	case ok && timer.lastHeard.IsZero():
		unknown.Message = fmt.Sprintf("%s has said nothing of it for %s, since before the agent was started; then it was %s, reason: %s",
			src.name, src.source.Silence, said.Shown(), said.Reason)
	case ok:
		unknown.Message = fmt.Sprintf("%s has said nothing of it since %s; then it was %s, reason: %s",
			src.name, timer.lastHeard.UTC().Format(time.RFC3339), said.Shown(), said.Reason)
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
		if slices.Contains(source.Conditions, kind) && source.inverted(kind) == src.source.inverted(kind) {
			continue
		}
		if _, ok := src.published[kind]; ok {
			gone = append(gone, kind)
		}
		delete(src.reported, kind)
		delete(src.published, kind)
		delete(src.silence.conditions, kind)
	}
	src.silence.watch(source.Conditions)
	if source.TokenFile != src.source.TokenFile {
		src.token = nil // until the new file has been read
	}
	src.source = source
	src.bucket.setRate(source.Rate, source.Burst)
	return gone
}
