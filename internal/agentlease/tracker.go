package agentlease

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Tracker is who has been heard, and when. It has no clock and talks to nobody.
type Tracker struct {
	agents map[string]*agent // by the names of their Leases
	silent int
	// looks is how many of all Leases there were.
	looks int
	// sound is since when renewals could be heard, zero before they could be at all,
	// and last when they were looked for.
	sound, last time.Time
}

// agent is what is kept of one. There may be ten thousand.
type agent struct {
	node    string
	uid     types.UID
	version string
	renewed time.Time // as the Lease says
	lasts   time.Duration
	heard   time.Time // by our clock
	putOff  time.Time // before which it is not judged, or not looked at again if it is silent
	seen    int       // in which look
	gone    bool      // its Lease is
	silent  bool
	vouched bool // it speaks, and so its Lease says nothing
}

// longestUnseen is how long one who is silent is not looked at, at most.
const longestUnseen = time.Hour

// NewTracker returns one with nobody on it, who could not be heard either.
func NewTracker() *Tracker { return &Tracker{agents: map[string]*agent{}} }

// Unchanged says whether a Lease is there as it was, which tells nothing but that it is.
func (r *Tracker) Unchanged(lease, version []byte) bool {
	a := r.agents[string(lease)]
	if a == nil || a.gone || a.version != string(version) {
		return false
	}
	a.seen = r.looks
	return true
}

// Renewed takes in a Lease as it is, and says whether it is one of somebody who was
// silent and is heard again. One that was written but not renewed tells nothing.
func (r *Tracker) Renewed(now time.Time, lease Lease) (isBack bool) {
	a := r.agents[lease.Name]
	if a == nil {
		a = &agent{}
		r.agents[lease.Name] = a
	}
	if a.renewed.Equal(lease.Renewed) && a.uid == lease.UID && !a.gone && !a.heard.IsZero() {
		a.lasts, a.version, a.seen = lease.Duration, lease.Version, r.looks
		return false
	}
	if a.silent {
		r.silent--
	}
	isBack = a.silent || a.vouched
	*a = agent{node: lease.Node, uid: lease.UID, version: lease.Version, renewed: lease.Renewed, lasts: lease.Duration, heard: now, seen: r.looks}
	return isBack
}

// Listed notes that all Leases were looked at: those that were neither known nor heard
// since the look before are gone. If that was longer ago than patience, agents may have
// been unable to renew in between, and get all of their time anew.
func (r *Tracker) Listed(now time.Time, patience time.Duration) {
	for lease, a := range r.agents {
		if a.seen < r.looks {
			r.LeaseGone(lease)
		}
	}
	r.looks++
	if !r.ListedWithin(now, patience) {
		r.sound = now
	}
	r.last = now
}

// ListedWithin says whether renewals can be heard: whether the last look is no longer ago than
// patience.
func (r *Tracker) ListedWithin(now time.Time, patience time.Duration) bool {
	return !r.sound.IsZero() && now.Sub(r.last) <= patience
}

// ExtendAll notes that up to now agents may have been unable to renew, although they
// could be heard.
func (r *Tracker) ExtendAll(now time.Time) { r.sound = now }

// LeaseGone notes that a Lease is gone. Its agent is not heard any more, and will be silent
// when it would have been: nobody else would ever say so. If it is already, it is not
// expected back, and if it speaks without, it is like one that never had a Lease.
func (r *Tracker) LeaseGone(lease string) {
	if a := r.agents[lease]; a != nil {
		if a.gone = true; a.silent || a.vouched {
			r.forget(lease)
		}
	}
}

// forget strikes an agent off the roll.
func (r *Tracker) forget(lease string) {
	if r.agents[lease].silent {
		r.silent--
	}
	delete(r.agents, lease)
}

// MarkSilent notes that an agent is silent, and that this is told; or that it is so still. One whose
// Lease is gone is not expected back. The others are looked at again after as long as
// they have not been heard: who has been away for days has no more than an hour to wait
// until it is seen that he writes.
func (r *Tracker) MarkSilent(now time.Time, lease string) {
	a := r.agents[lease]
	switch {
	case a == nil:
		return
	case a.gone:
		r.forget(lease)
		return
	case !a.silent:
		a.silent = true
		r.silent++
	}
	a.putOff = now.Add(min(now.Sub(a.heard), longestUnseen))
}

// MarkAlive notes that an agent speaks, and says whether it was silent until now. Its Lease
// says nothing of it then, until it is renewed.
func (r *Tracker) MarkAlive(lease string) (wasSilent bool) {
	a := r.agents[lease]
	if a == nil || !a.silent {
		return false
	}
	a.silent, a.vouched = false, true
	r.silent--
	return true
}

// Postpone notes that an agent is not to be judged before that time.
func (r *Tracker) Postpone(lease string, until time.Time) {
	if a := r.agents[lease]; a != nil {
		a.putOff = until
	}
}

// Due returns the Leases of those who are silent and were not called so, the longest
// first.
func (r *Tracker) Due(now time.Time) (leases []string) {
	return r.sorted(now, r.IsDue, r.deadline)
}

// IsDue says whether one is silent and was not called so.
func (r *Tracker) IsDue(lease string, now time.Time) bool {
	a := r.agents[lease]
	return a != nil && !a.silent && !a.vouched && !r.sound.IsZero() && !r.deadline(a).After(now)
}

// DueAgain returns the Leases of those who were called silent and are to be looked at
// again, the longest first.
func (r *Tracker) DueAgain(now time.Time) (leases []string) {
	return r.sorted(now, r.isUnseen, func(a *agent) time.Time { return a.putOff })
}

func (r *Tracker) isUnseen(lease string, now time.Time) bool {
	a := r.agents[lease]
	return a.silent && !a.putOff.After(now)
}

func (r *Tracker) sorted(now time.Time, wanted func(string, time.Time) bool, by func(*agent) time.Time) (leases []string) {
	for lease := range r.agents {
		if wanted(lease, now) {
			leases = append(leases, lease)
		}
	}
	slices.SortFunc(leases, func(a, b string) int {
		return cmp.Or(by(r.agents[a]).Compare(by(r.agents[b])), cmp.Compare(a, b))
	})
	return leases
}

// deadline is when an agent is silent unless it is heard until then.
func (r *Tracker) deadline(a *agent) time.Time {
	since := a.heard
	if since.Before(r.sound) {
		since = r.sound
	}
	due := since.Add(a.lasts)
	if due.Before(a.putOff) {
		due = a.putOff
	}
	return due
}

// Get returns what is known of an agent's Lease, and whether that is gone.
func (r *Tracker) Get(lease string) (is Lease, gone, known bool) {
	a := r.agents[lease]
	if a == nil {
		return Lease{}, false, false
	}
	return Lease{Name: lease, Version: a.version, Node: a.node, UID: a.uid, Renewed: a.renewed, Duration: a.lasts}, a.gone, true
}

// Count returns how many agents are heard, and how many are silent.
func (r *Tracker) Count() (heard, silent int) { return len(r.agents) - r.silent, r.silent }
