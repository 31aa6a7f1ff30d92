package controller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// peerLease is what the leader of medik8s' node-healthcheck-operator holds, in
	// whatever namespace it runs.
	peerLease = "e1f13584.medik8s.io"
	// peerLeaseDuration is how long it lasts where it does not say so.
	peerLeaseDuration = 15 * time.Second
)

// peer is medik8s' own controller of health checks. Two that follow the same health
// check would undo what the other does.
type peer struct {
	mail *inquiry[*coordinationv1.Lease]
	// leases are those that somebody holds, by namespace.
	leases map[string]tenure
}

// tenure is what is known of a lease. When it ends is told by our own clock, from
// when its last renewal came: that of its holder may be wrong.
type tenure struct {
	holder  string
	renewed metav1.MicroTime
	lasts   time.Duration
	until   time.Time
	ended   bool
}

// peerFrom is where the leases of such a controller come from.
func peerFrom(c client.WithWatch) cache.ListerWatcherWithContext {
	byName := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector(metav1.ObjectNameField, peerLease)}
	return from(c, func() client.ObjectList { return &coordinationv1.LeaseList{} }, byName)
}

// take takes in the leases that have changed. While they cannot be read, none ends:
// it may be renewed all the time.
func (p *peer) take(now time.Time) {
	defer p.end(now)
	letter := p.mail.take()
	if letter.whole != "" {
		for key := range p.leases {
			if _, there := letter.latest[key]; !there {
				delete(p.leases, key)
			}
		}
	}
	for key, a := range letter.latest {
		spec := a.object.Spec
		if a.gone || spec.HolderIdentity == nil || *spec.HolderIdentity == "" { // it was given up
			delete(p.leases, key)
			continue
		}
		is := tenure{holder: *spec.HolderIdentity}
		if spec.RenewTime != nil {
			is.renewed = *spec.RenewTime
		}
		if was, known := p.leases[key]; known && was.holder == is.holder && was.renewed.Equal(&is.renewed) {
			continue // it was not renewed
		}
		is.lasts = peerLeaseDuration
		if spec.LeaseDurationSeconds != nil {
			is.lasts = time.Duration(*spec.LeaseDurationSeconds) * time.Second
		}
		is.until = a.at.Add(is.lasts)
		p.leases[key] = is
	}
}

// end ends the tenures whose time is over, or gives all of them time if nobody can
// tell.
func (p *peer) end(now time.Time) {
	said, _ := p.mail.said()
	for key, t := range p.leases {
		switch {
		case t.ended:
			continue
		case said == isBroken:
			t.until = now.Add(t.lasts)
		case !now.Before(t.until):
			t.ended = true
		}
		p.leases[key] = t
	}
}

// isUntold says whether nobody has been able to tell who holds what.
func (p *peer) isUntold() (is bool, why error) {
	said, why := p.mail.said()
	return said == isBarred || said == isBroken && !p.mail.hasSynced(), why
}

// isActive says whether such a controller is at work. If nobody can tell, it may be.
func (p *peer) isActive() bool {
	isUntold, _ := p.isUntold()
	return isUntold || !p.until().IsZero()
}

// until returns when the last lease ends that somebody still holds, zero if nobody
// does.
func (p *peer) until() (end time.Time) {
	for _, t := range p.leases {
		if !t.ended && t.until.After(end) {
			end = t.until
		}
	}
	return end
}

// words say why the health checks are left alone.
func (p *peer) words() string {
	if isUntold, err := p.isUntold(); isUntold {
		return fmt.Sprintf("nobody can tell whether medik8s' node-healthcheck-operator is running, so the health checks are left alone: %v", err)
	}
	for _, key := range slices.Sorted(maps.Keys(p.leases)) {
		if t := p.leases[key]; !t.ended {
			return fmt.Sprintf("medik8s' node-healthcheck-operator is running (%s holds Lease %s), so the health checks are left to it; stop it, and Autohealer takes over", t.holder, key)
		}
	}
	return ""
}
