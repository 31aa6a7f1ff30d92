package intake

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/symptom"
	"github.com/resourcestack/autohealer/problem"
)

// The reasons of conditions that a source does not tell.
const (
	// Silent: it has told them, and says nothing of them any more.
	Silent = "SourceSilent"
	// NeverHeard: it has never told them.
	NeverHeard = "SourceNeverHeard"
)

// recent is how many events of a source are remembered, so that a status that is sent
// once more, because its answer was lost, tells nothing twice.
const recent = 4 * problem.MaxEvents

// desk is where one source reports. Its methods are called with its lock held.
type desk struct {
	name string // of the source, which stays

	mu     sync.Mutex // of what follows
	source Source
	token  *digest // nil if there is none, or it cannot be read
	bucket bucket

	told   map[string]symptom.Condition // by the source, by type
	shown  map[string]shown             // to the world
	hushes map[string]*hush             // of each condition
	whole  hush                         // of the source

	events  map[string]bool // those that were heard of lately, by ID
	order   []string        // of them, a ring
	next    int
	closed  bool // nobody listens here any more
	callers int
	counts  Counts
}

// hush is how long nothing has been said: of a condition, or at all.
type hush struct {
	heard  time.Time     // when something was, zero if the agent has not been there
	lasts  time.Duration // since then, or since it was first listened
	silent bool          // for too long
}

// broken notes that something was said.
func (h *hush) broken(now time.Time) { *h = hush{heard: now} }

// lapse notes that time has passed, and says whether it is too long now. The first part
// of that time may have been short: it is not counted.
func (h *hush) lapse(passed, most time.Duration) bool {
	ends := h.lasts >= most && !h.silent
	h.silent = h.lasts >= most
	h.lasts += passed
	return ends
}

// shown is a condition as the world knows it.
type shown struct {
	symptom.Condition

	// As of when the source has told it, which is not Since after a silence.
	As time.Time
}

func newDesk(source Source, now time.Time) *desk {
	d := &desk{
		name: source.Name, source: source, bucket: newBucket(source.Rate, source.Burst, now),
		told: map[string]symptom.Condition{}, shown: map[string]shown{}, hushes: map[string]*hush{}, events: map[string]bool{},
		counts: Counts{Source: source.Name, Refused: map[int]uint64{}},
	}
	for _, kind := range source.Conditions {
		d.hushes[kind] = &hush{}
	}
	return d
}

// hear takes a statement, and returns what is new in it.
func (d *desk) hear(s *statement, now time.Time) (symptom.Report, *problem.RefusedError) {
	said, refusal := judge(s, &d.source, d.told, now)
	if refusal != nil {
		return symptom.Report{}, refusal
	}
	d.whole.broken(now)
	for _, c := range said.Conditions {
		d.told[c.Type] = c
		d.hushes[c.Type].broken(now)
	}
	r := symptom.Report{Source: d.name}
	for i := range said.Events {
		if d.isNew(said.Events[i].ID) {
			r.Events = append(r.Events, said.Events[i])
		}
	}
	d.counts.Events += uint64(len(r.Events))
	d.show(&r, now)
	return r, nil
}

// isNew says whether an event was not heard of, and remembers it.
func (d *desk) isNew(id string) bool {
	if d.events[id] {
		return false
	}
	d.events[id] = true
	if len(d.order) < recent {
		d.order = append(d.order, id)
		return true
	}
	delete(d.events, d.order[d.next])
	d.order[d.next] = id
	d.next = (d.next + 1) % recent
	return true
}

// lapse notes that time has passed without a word, and returns what that changes.
func (d *desk) lapse(passed time.Duration, now time.Time) symptom.Report {
	r := symptom.Report{Source: d.name}
	d.whole.lapse(passed, d.source.Silence)
	fell := false
	for _, h := range d.hushes {
		fell = h.lapse(passed, d.source.Silence) || fell
	}
	if fell {
		d.show(&r, now)
	}
	return r
}

// show adds to a report the conditions that look otherwise than they did, and the events
// of that.
func (d *desk) show(r *symptom.Report, now time.Time) {
	for _, kind := range d.source.Conditions {
		was, before := d.shown[kind]
		looks, ok := d.look(kind, now)
		if !ok || before && looks.Status == was.Status && looks.Reason == was.Reason &&
			(looks.Status == catalog.Unknown || looks.Message == was.Message && looks.As.Equal(was.As)) {
			continue
		}
		if before && looks.Status != was.Status && looks.Since.Before(was.Since) {
			looks.Since = now // what a silence has hidden is known from now on
		}
		if before && looks.Status == was.Status && looks.As.Equal(was.As) {
			looks.Since = was.Since
		}
		d.shown[kind] = looks
		r.Conditions = append(r.Conditions, looks.Condition)
		if before && (looks.Status != was.Status || looks.Reason != was.Reason) || !before && looks.Status == catalog.True {
			r.Events = append(r.Events, d.change(looks, now))
		}
	}
}

// look says how a condition is to be shown. It is not ok if nothing is known of it, and
// need not be yet.
func (d *desk) look(kind string, now time.Time) (shown, bool) {
	said, ok := d.told[kind]
	h := d.hushes[kind]
	unknown := shown{Condition: symptom.Condition{Type: kind, Status: catalog.Unknown, Since: now, Reason: Silent}, As: said.Since}
	switch {
	case ok && !h.silent:
		return shown{said, said.Since}, true
	case ok && h.heard.IsZero():
		unknown.Message = fmt.Sprintf("%s has said nothing of it since the agent was started, for %s; before, it was %s, reason: %s",
			d.name, d.source.Silence, said.Status, said.Reason)
	case ok:
		unknown.Message = fmt.Sprintf("%s has said nothing of it since %s; then it was %s, reason: %s",
			d.name, h.heard.UTC().Format(time.RFC3339), said.Status, said.Reason)
	case h.silent:
		unknown.Reason = NeverHeard
		unknown.Message = fmt.Sprintf("%s has never reported it", d.name)
	default:
		return shown{}, false
	}
	return unknown, true
}

// change is the event of a condition that has changed.
func (d *desk) change(c shown, now time.Time) symptom.Event {
	at := c.As
	if c.Status == catalog.Unknown || c.Since.After(at) {
		at = now
	}
	return symptom.Event{
		ID:       identity("change", d.name, c.Type, string(c.Status), c.Reason, at.UTC().Format(time.RFC3339Nano)),
		Severity: symptom.Info, Time: at, Reason: c.Reason, Condition: c.Type,
		Message: fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", c.Type, c.Status, c.Reason, c.Message),
	}
}

// all returns every condition as it is shown.
func (d *desk) all() []symptom.Condition {
	var list []symptom.Condition
	for _, kind := range d.source.Conditions {
		if c, ok := d.shown[kind]; ok {
			list = append(list, c.Condition)
		}
	}
	return list
}

// resettle takes over another configuration of the source, and returns what it does not
// keep any more.
func (d *desk) resettle(source Source) (gone []string) {
	for _, kind := range d.source.Conditions {
		if slices.Contains(source.Conditions, kind) {
			continue
		}
		if _, ok := d.shown[kind]; ok {
			gone = append(gone, kind)
		}
		delete(d.told, kind)
		delete(d.shown, kind)
		delete(d.hushes, kind)
	}
	for _, kind := range source.Conditions {
		if d.hushes[kind] == nil {
			d.hushes[kind] = &hush{}
		}
	}
	d.source = source
	d.bucket.retune(source.Rate, source.Burst)
	return gone
}

// identity is a name for parts, the same for the same ones.
func identity(parts ...string) string {
	sum := sha256.New()
	var length [8]byte
	for _, part := range parts {
		// With their lengths, "ab" and "c" are not "a" and "bc".
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		sum.Write(length[:])
		sum.Write([]byte(part))
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}
