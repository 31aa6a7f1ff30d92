// Package nodelease is the Lease by which tools that work on nodes keep out of each
// other's way: whoever takes a node out of service holds medik8s-leases/node-<name>
// meanwhile, be it a health check or somebody's maintenance. It promises to read and
// write that Lease as the tools of medik8s do, so that they and we believe each
// other. It refuses to talk to anybody: it says who holds a Lease and what to write,
// and has no client.
package nodelease

import (
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// Namespace is where the Leases of nodes are.
	Namespace = "medik8s-leases"
	// ClockSkew is how far ahead of ours the clock may be of one who renewed a Lease.
	ClockSkew = 5 * time.Minute

	namePrefix   = "node-"
	holderPrefix = "NodeHealthCheck-"
)

// NameOf returns the name of a node's Lease.
func NameOf(node string) string { return namePrefix + strings.ToLower(node) }

// NodeOf returns the node that a Lease is for, by the Lease's name.
func NodeOf(lease string) (node string, ok bool) { return strings.CutPrefix(lease, namePrefix) }

// HolderOf returns the name under which a health check holds Leases. It is the one
// that medik8s' own controller uses, so that whoever takes over from the other holds
// what the other held.
func HolderOf(check string) string { return holderPrefix + check }

// IsHealthCheck says whether a holder is a health check, whoever follows it.
func IsHealthCheck(holder string) bool { return strings.HasPrefix(holder, holderPrefix) }

// Held says who holds a Lease, and until when if they do not renew it. One who gave
// no name is "". Without a time or a duration it is nobody's, also if there is a name;
// so it is if it was renewed at a time that is yet to come, by more than clocks are
// apart.
func Held(lease *coordinationv1.Lease, now time.Time) (by string, until time.Time, held bool) {
	due, ok := dueTime(lease)
	if !ok || due.Before(now) || lease.Spec.RenewTime.After(now.Add(ClockSkew)) {
		return "", time.Time{}, false
	}
	if lease.Spec.HolderIdentity != nil {
		by = *lease.Spec.HolderIdentity
	}
	return by, due, true
}

// dueTime is when a Lease ends, and false if it never began.
func dueTime(lease *coordinationv1.Lease) (time.Time, bool) {
	if lease == nil || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return time.Time{}, false
	}
	return lease.Spec.RenewTime.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second), true
}

// Take returns the Lease of the node as it is to be written for the holder to have it
// for so long: one to create if there is none, else one to put in place of the one
// that is there. Whether that may be taken, Held tells; it is not asked here.
func Take(existing *coordinationv1.Lease, node *corev1.Node, holder string, duration time.Duration, now time.Time) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: NameOf(node.Name)},
		Spec:       coordinationv1.LeaseSpec{LeaseTransitions: new(int32(0)), AcquireTime: new(metav1.NewMicroTime(now))},
	}
	if existing != nil {
		lease = existing.DeepCopy()
		if changesHands(existing, holder, now) {
			lease.Spec.AcquireTime = new(metav1.NewMicroTime(now))
			transitions := int32(1)
			if before := existing.Spec.LeaseTransitions; before != nil {
				transitions += *before
			}
			lease.Spec.LeaseTransitions = &transitions
		}
	}
	// The Lease goes with the node.
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	lease.Spec.HolderIdentity = &holder
	lease.Spec.LeaseDurationSeconds = new(seconds(duration))
	lease.Spec.RenewTime = new(metav1.NewMicroTime(now))
	return lease
}

// changesHands says whether who takes the Lease did not have it: somebody else did,
// or it was never acquired.
func changesHands(existing *coordinationv1.Lease, holder string, now time.Time) bool {
	if by := existing.Spec.HolderIdentity; by == nil || *by != holder {
		return true
	}
	due, ok := dueTime(existing)
	return !ok || due.Before(now) && existing.Spec.AcquireTime == nil
}

// seconds is a duration as a Lease has it. More than fits is for ever.
func seconds(duration time.Duration) int32 {
	return int32(min(duration/time.Second, math.MaxInt32))
}

// NeedsRenewal says whether one who holds the Lease, or means to, has to write it to
// be sure of it for as long as before: it is not theirs, it is for less time than they
// want, or half of that is over. When that will be, RenewAt tells.
func NeedsRenewal(lease *coordinationv1.Lease, holder string, duration time.Duration, now time.Time) bool {
	by, _, held := Held(lease, now)
	return !held || by != holder || *lease.Spec.LeaseDurationSeconds < seconds(duration) || !now.Before(RenewAt(lease))
}

// RenewAt is when a holder should renew the Lease: halfway to its end, so that one
// who is away for a while does not lose it. It is zero for a Lease that is nobody's.
func RenewAt(lease *coordinationv1.Lease) time.Time {
	due, ok := dueTime(lease)
	if !ok {
		return time.Time{}
	}
	return due.Add(-due.Sub(lease.Spec.RenewTime.Time) / 2)
}
