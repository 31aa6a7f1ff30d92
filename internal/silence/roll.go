package silence

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Roll is who has been heard, and when. It has no clock and talks to nobody.
type Roll struct {
	agents map[string]*agent // by the names of their Leases
	silent int
	// sound is since when renewals could be heard, zero while they cannot be.
	sound time.Time
}

// agent is what is kept of one. There may be ten thousand.
type agent struct {
	node    string
	uid     types.UID
	renewed time.Time // as the Lease says
	lasts   time.Duration
	heard   time.Time // by our clock
	putOff  time.Time // before which it is not judged
	gone    bool      // its Lease is
	silent  bool
}

// NewRoll returns one with nobody on it, who could not be heard either.
func NewRoll() *Roll { return &Roll{agents: map[string]*agent{}} }

// Sound notes that renewals can be heard, if they could not be before.
func (r *Roll) Sound(now time.Time) {
	if r.sound.IsZero() {
		r.sound = now
	}
}

// Broken notes that they cannot be heard. Nobody is silent until they have been able
// to speak again for as long as it takes.
func (r *Roll) Broken() { r.sound = time.Time{} }

// Doubt notes that up to now agents may have been unable to renew, although they
// could be heard.
func (r *Roll) Doubt(now time.Time) {
	if !r.sound.IsZero() {
		r.sound = now
	}
}

// Hear takes in a Lease as it is, and says whether it is one of somebody who was
// silent and is heard again. A Lease that is as it was tells nothing.
func (r *Roll) Hear(now time.Time, lease Lease) (isBack bool) {
	a := r.agents[lease.Name]
	if a == nil {
		a = &agent{}
		r.agents[lease.Name] = a
	}
	isBack = a.silent
	if a.renewed.Equal(lease.Renewed) && a.uid == lease.UID && !a.gone && !a.heard.IsZero() {
		a.lasts = lease.Lasts
		return false
	}
	if a.silent {
		r.silent--
	}
	*a = agent{node: lease.Node, uid: lease.UID, renewed: lease.Renewed, lasts: lease.Lasts, heard: now}
	return isBack
}

// Lose notes that a Lease is gone. Its agent is not heard any more, and will be silent
// when it would have been: nobody else would ever say so.
func (r *Roll) Lose(lease string) {
	if a := r.agents[lease]; a != nil {
		if a.gone = true; a.silent {
			r.Forget(lease)
		}
	}
}

// LoseOthers notes that there are no Leases but these.
func (r *Roll) LoseOthers(there map[string]bool) {
	for lease := range r.agents {
		if !there[lease] {
			r.Lose(lease)
		}
	}
}

// Forget strikes an agent off the roll.
func (r *Roll) Forget(lease string) {
	if a := r.agents[lease]; a != nil {
		if a.silent {
			r.silent--
		}
		delete(r.agents, lease)
	}
}

// Silence notes that an agent was called silent. One whose Lease is gone is not
// expected back.
func (r *Roll) Silence(lease string) {
	a := r.agents[lease]
	switch {
	case a == nil || a.silent:
	case a.gone:
		r.Forget(lease)
	default:
		a.silent = true
		r.silent++
	}
}

// PutOff notes that an agent is not to be judged before that time.
func (r *Roll) PutOff(lease string, until time.Time) {
	if a := r.agents[lease]; a != nil {
		a.putOff = until
	}
}

// Deadline returns when an agent is silent unless it is heard until then; false if it
// is already, or if nobody can be heard.
func (r *Roll) Deadline(lease string) (time.Time, bool) {
	a := r.agents[lease]
	if a == nil {
		return time.Time{}, false
	}
	return r.deadline(a)
}

func (r *Roll) deadline(a *agent) (time.Time, bool) {
	if a.silent || r.sound.IsZero() {
		return time.Time{}, false
	}
	since := a.heard
	if since.Before(r.sound) {
		since = r.sound
	}
	due := since.Add(a.lasts)
	if due.Before(a.putOff) {
		due = a.putOff
	}
	return due, true
}

// Due returns the Leases of those who are silent and were not called so, the longest
// first, and when the next one may be; zero for never.
func (r *Roll) Due(now time.Time) (leases []string, next time.Time) {
	at := map[string]time.Time{}
	for lease, a := range r.agents {
		due, ok := r.deadline(a)
		switch {
		case !ok:
		case !due.After(now):
			leases, at[lease] = append(leases, lease), due
		case next.IsZero() || due.Before(next):
			next = due
		}
	}
	slices.SortFunc(leases, func(a, b string) int { return cmp.Or(at[a].Compare(at[b]), cmp.Compare(a, b)) })
	return leases, next
}

// IsDue says whether one is silent and was not called so.
func (r *Roll) IsDue(lease string, now time.Time) bool {
	due, ok := r.Deadline(lease)
	return ok && !due.After(now)
}

// Look returns what is known of an agent's Lease, and whether that is gone.
func (r *Roll) Look(lease string) (is Lease, gone, known bool) {
	a := r.agents[lease]
	if a == nil {
		return Lease{}, false, false
	}
	return Lease{Name: lease, Node: a.node, UID: a.uid, Renewed: a.renewed, Lasts: a.lasts}, a.gone, true
}

// Count returns how many agents are heard, and how many are silent.
func (r *Roll) Count() (heard, silent int) { return len(r.agents) - r.silent, r.silent }
