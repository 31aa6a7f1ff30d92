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
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/problem"
)

// The reasons of conditions that a source does not tell.
const (
	// Silent: it has told them, and says nothing of them any more.
	Silent = "SourceSilent"
	// NeverHeard: it has never told them.
	NeverHeard = "SourceNeverHeard"
	// NotHeardYet: it has not told them, and still has time to. They are Unknown from the
	// start on: what is not said is removed from the node, and it may have been sick.
	NotHeardYet = "SourceNotHeardYet"
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

	told     map[string]finding.Condition // by the source, by type
	shown    map[string]finding.Condition // to the world, as of when it first was so
	hushes   map[string]*hush             // of each condition
	whole    hush                         // of the source
	refusals refusals
	// quietKept says that the memory holds how long nothing has been said.
	quietKept bool
	unknown   *format.Rest // of what was kept

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

// broken notes that something was said. For so long as the source is not let speak, on
// account of how much it has said, its silence does not begin.
func (h *hush) broken(now time.Time, gagged time.Duration) { *h = hush{heard: now, lasts: -gagged} }

// lapse notes that time has passed, and says whether it is too long now. The first part
// of that time may have been short: it is not counted.
func (h *hush) lapse(passed, most time.Duration) bool {
	ends := h.lasts >= most && !h.silent
	h.silent = h.lasts >= most
	h.lasts += passed
	return ends
}

// quiet is how long nothing has been said, as far as that is worth remembering: the agent
// has not heard anything since it was started, or a word is overdue. So nothing is written
// on account of a source that is well.
func (h *hush) quiet(most time.Duration) time.Duration {
	if h.silent || !h.heard.IsZero() && h.lasts < most/3 {
		return 0
	}
	return max(0, h.lasts)
}

func newDesk(source Source, now time.Time) *desk {
	d := &desk{
		name: source.Name, source: source, bucket: newBucket(source.Rate, source.Burst, now),
		told: map[string]finding.Condition{}, shown: map[string]finding.Condition{}, hushes: map[string]*hush{}, events: map[string]bool{},
		counts: Counts{Source: source.Name, Refused: map[int]uint64{}}, refusals: refusals{logged: map[int]time.Time{}},
	}
	for _, kind := range source.Conditions {
		d.hushes[kind] = &hush{}
	}
	return d
}

// hear takes a statement, and returns what is new in it.
func (d *desk) hear(s *statement, now time.Time) (finding.Report, *problem.RefusedError) {
	said, refusal := judge(s, &d.source, d.told, now)
	if refusal != nil {
		return finding.Report{}, refusal
	}
	gagged := d.bucket.owe(len(said.Events))
	d.refusals.forget()
	d.whole.broken(now, gagged)
	for _, c := range said.Conditions {
		d.told[c.Type] = c
		d.hushes[c.Type].broken(now, gagged)
	}
	r := finding.Report{Source: d.name}
	for i := range said.Events {
		if d.isNew(said.Events[i].ID) {
			r.Events = append(r.Events, said.Events[i])
		}
	}
	d.counts.Events += uint64(len(r.Events))
	d.show(&r, now)
	return r, nil
}

// isQuiet says whether something was not said for so long that it is worth remembering.
func (d *desk) isQuiet() bool {
	for _, h := range d.hushes {
		if h.quiet(d.source.Silence) > 0 {
			return true
		}
	}
	return d.whole.quiet(d.source.Silence) > 0
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
func (d *desk) lapse(passed time.Duration, now time.Time) finding.Report {
	r := finding.Report{Source: d.name}
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
func (d *desk) show(r *finding.Report, now time.Time) {
	for _, kind := range d.source.Conditions {
		was, before := d.shown[kind]
		looks := d.look(kind, now)
		ahead := was.Since.After(now) // somebody has set the clock back
		if before && !ahead && looks.Status == was.Status && looks.Reason == was.Reason && (looks.Status == catalog.Unknown || looks.Message == was.Message) {
			continue
		}
		known := before && was.Reason != NotHeardYet
		turns := !before || looks.Status != was.Status
		switch {
		case !turns && !ahead:
			looks.Since = was.Since // also if a source that was started again does not know
		case turns && known && looks.Since.Before(was.Since):
			looks.Since = now // what a silence has hidden is known from now on
		}
		looks.Since = earlier(looks.Since, now)
		d.shown[kind] = looks
		r.Conditions = append(r.Conditions, looks)
		if known && (turns || looks.Reason != was.Reason) || !known && looks.Status == catalog.True {
			at := looks.Since
			if !turns {
				at = now
			}
			r.Events = append(r.Events, d.change(looks, at))
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// look says how a condition is to be shown.
func (d *desk) look(kind string, now time.Time) finding.Condition {
	said, ok := d.told[kind]
	h := d.hushes[kind]
	unknown := finding.Condition{Type: kind, Status: catalog.Unknown, Since: now, Reason: Silent}
	switch {
	case ok && !h.silent:
		return said
	case ok && h.heard.IsZero():
		unknown.Message = fmt.Sprintf("%s has said nothing of it for %s, since before the agent was started; then it was %s, reason: %s",
			d.name, d.source.Silence, said.Status, said.Reason)
	case ok:
		unknown.Message = fmt.Sprintf("%s has said nothing of it since %s; then it was %s, reason: %s",
			d.name, h.heard.UTC().Format(time.RFC3339), said.Status, said.Reason)
	case h.silent:
		unknown.Reason = NeverHeard
		unknown.Message = fmt.Sprintf("%s has never reported it", d.name)
	default:
		unknown.Reason = NotHeardYet
		unknown.Message = fmt.Sprintf("%s has not reported it yet", d.name)
	}
	unknown.Message = problem.Cut(unknown.Message + d.refusals.words())
	return unknown
}

// change is the event of a condition that has changed.
func (d *desk) change(c finding.Condition, at time.Time) finding.Event {
	return finding.Event{
		ID:       identity("change", d.name, c.Type, string(c.Status), c.Reason, at.UTC().Format(time.RFC3339Nano)),
		Severity: finding.Info, Time: at, Reason: c.Reason, Condition: c.Type,
		Message: fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", c.Type, c.Status, c.Reason, c.Message),
	}
}

// all returns every condition as it is shown.
func (d *desk) all() []finding.Condition {
	var list []finding.Condition
	for _, kind := range d.source.Conditions {
		if c, ok := d.shown[kind]; ok {
			list = append(list, c)
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
	if source.TokenFile != d.source.TokenFile {
		d.token = nil // until the other one has been read
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
