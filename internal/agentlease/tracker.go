package agentlease

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Tracker records when each agent last renewed its Lease. It has no clock and sends no
// requests.
type Tracker struct {
	agents map[string]*agent // by the name of the Lease
	silent int
	// lists is the number of lists so far.
	lists int
	// reachableSince is since when lists succeed, zero before the first one. lastListed is the
	// time of the last list.
	reachableSince, lastListed time.Time
}

// agent is the state of one agent. There may be ten thousand.
type agent struct {
	node              string
	uid               types.UID
	version           string
	renewed           time.Time // renewTime of the Lease
	duration          time.Duration
	lastRenewal       time.Time // by the clock of the tracker
	postponedUntil    time.Time // no check before this time
	seenInList        int       // the last list that contained the Lease
	gone              bool      // the Lease is deleted
	silent            bool
	aliveWithoutLease bool // the agent writes conditions without renewing its Lease
}

// maxRecheckInterval is the longest time between two checks of a silent agent.
const maxRecheckInterval = time.Hour

// NewTracker returns an empty tracker.
func NewTracker() *Tracker { return &Tracker{agents: map[string]*agent{}} }

// Unchanged reports whether a Lease has not changed since the last list, and marks it as seen.
func (t *Tracker) Unchanged(lease, version []byte) bool {
	a := t.agents[string(lease)]
	if a == nil || a.gone || a.version != string(version) {
		return false
	}
	a.seenInList = t.lists
	return true
}

// Renewed records a Lease that has changed. It returns true if its agent was silent and has
// renewed it now. A write that does not change renewTime is no renewal.
func (t *Tracker) Renewed(now time.Time, lease Lease) (hasReturned bool) {
	a := t.agents[lease.Name]
	if a == nil {
		a = &agent{}
		t.agents[lease.Name] = a
	}
	if a.renewed.Equal(lease.Renewed) && a.uid == lease.UID && !a.gone && !a.lastRenewal.IsZero() {
		a.duration, a.version, a.seenInList = lease.Duration, lease.Version, t.lists
		return false
	}
	if a.silent {
		t.silent--
	}
	hasReturned = a.silent || a.aliveWithoutLease
	*a = agent{node: lease.Node, uid: lease.UID, version: lease.Version, renewed: lease.Renewed, duration: lease.Duration, lastRenewal: now, seenInList: t.lists}
	return hasReturned
}

// Listed records a complete list. Leases that the list did not contain are gone. If the
// previous list is older than maxAge, agents may have been unable to renew in between, so
// every agent gets its full duration again.
func (t *Tracker) Listed(now time.Time, maxAge time.Duration) {
	for lease, a := range t.agents {
		if a.seenInList < t.lists {
			t.LeaseGone(lease)
		}
	}
	t.lists++
	if !t.ListedWithin(now, maxAge) {
		t.reachableSince = now
	}
	t.lastListed = now
}

// ListedWithin reports whether the last list is at most maxAge old.
func (t *Tracker) ListedWithin(now time.Time, maxAge time.Duration) bool {
	return !t.reachableSince.IsZero() && now.Sub(t.lastListed) <= maxAge
}

// ExtendAll records that agents may have been unable to renew until now, although lists
// succeeded.
func (t *Tracker) ExtendAll(now time.Time) { t.reachableSince = now }

// LeaseGone records that a Lease is deleted. Its agent becomes silent when its duration ends,
// because nothing else would report it. The tracker forgets an agent that is already silent,
// or that works without its Lease.
func (t *Tracker) LeaseGone(lease string) {
	if a := t.agents[lease]; a != nil {
		if a.gone = true; a.silent || a.aliveWithoutLease {
			t.forget(lease)
		}
	}
}

// forget removes an agent.
func (t *Tracker) forget(lease string) {
	if t.agents[lease].silent {
		t.silent--
	}
	delete(t.agents, lease)
}

// MarkSilent records that an agent is silent and its conditions are Unknown, or still are. It
// forgets an agent whose Lease is deleted. The next check of another agent follows after as
// long as it has been silent, but at most after maxRecheckInterval.
func (t *Tracker) MarkSilent(now time.Time, lease string) {
	a := t.agents[lease]
	switch {
	case a == nil:
		return
	case a.gone:
		t.forget(lease)
		return
	case !a.silent:
		a.silent = true
		t.silent++
	}
	a.postponedUntil = now.Add(min(now.Sub(a.lastRenewal), maxRecheckInterval))
}

// MarkAlive records that an agent writes conditions without renewing its Lease, and returns
// whether it was silent. The tracker ignores the Lease until it is renewed.
func (t *Tracker) MarkAlive(lease string) (wasSilent bool) {
	a := t.agents[lease]
	if a == nil || !a.silent {
		return false
	}
	a.silent, a.aliveWithoutLease = false, true
	t.silent--
	return true
}

// Postpone delays the next check of an agent.
func (t *Tracker) Postpone(lease string, until time.Time) {
	if a := t.agents[lease]; a != nil {
		a.postponedUntil = until
	}
}

// Due returns the Leases of agents that have become silent and are not marked yet, the longest
// first.
func (t *Tracker) Due(now time.Time) (leases []string) {
	return t.sorted(now, t.IsDue, t.deadline)
}

// IsDue reports whether an agent has become silent and is not marked yet.
func (t *Tracker) IsDue(lease string, now time.Time) bool {
	a := t.agents[lease]
	return a != nil && !a.silent && !a.aliveWithoutLease && !t.reachableSince.IsZero() && !t.deadline(a).After(now)
}

// DueAgain returns the Leases of silent agents to check again, the longest first.
func (t *Tracker) DueAgain(now time.Time) (leases []string) {
	return t.sorted(now, t.isRecheckDue, func(a *agent) time.Time { return a.postponedUntil })
}

func (t *Tracker) isRecheckDue(lease string, now time.Time) bool {
	a := t.agents[lease]
	return a.silent && !a.postponedUntil.After(now)
}

func (t *Tracker) sorted(now time.Time, wanted func(string, time.Time) bool, by func(*agent) time.Time) (leases []string) {
	for lease := range t.agents {
		if wanted(lease, now) {
			leases = append(leases, lease)
		}
	}
	slices.SortFunc(leases, func(a, b string) int {
		return cmp.Or(by(t.agents[a]).Compare(by(t.agents[b])), cmp.Compare(a, b))
	})
	return leases
}

// deadline returns when an agent becomes silent without a renewal.
func (t *Tracker) deadline(a *agent) time.Time {
	since := a.lastRenewal
	if since.Before(t.reachableSince) {
		since = t.reachableSince
	}
	due := since.Add(a.duration)
	if due.Before(a.postponedUntil) {
		due = a.postponedUntil
	}
	return due
}

// Get returns the known Lease of an agent, and whether it is deleted.
func (t *Tracker) Get(lease string) (is Lease, gone, known bool) {
	a := t.agents[lease]
	if a == nil {
		return Lease{}, false, false
	}
	return Lease{Name: lease, Version: a.version, Node: a.node, UID: a.uid, Renewed: a.renewed, Duration: a.duration}, a.gone, true
}

// Count returns the number of live and of silent agents.
func (t *Tracker) Count() (alive, silent int) { return len(t.agents) - t.silent, t.silent }
