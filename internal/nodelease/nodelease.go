// Package nodelease reads and writes the Lease that medik8s tools use to lock a node.
// A tool that takes a node out of service holds the Lease medik8s-leases/node-<name> for
// that time, for example a health check or a maintenance tool. The package reads and
// writes the Lease in the same way as medik8s, so that both respect each other's locks.
// It has no client: it returns the holder of a Lease and the Lease to write.
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
	// Namespace is the namespace of the node Leases.
	Namespace = "medik8s-leases"
	// ClockSkew is how far in the future a renew time may be and still count as valid.
	ClockSkew = 5 * time.Minute

	namePrefix   = "node-"
	holderPrefix = "NodeHealthCheck-"
)

// NameOf returns the name of a node's Lease.
func NameOf(node string) string { return namePrefix + strings.ToLower(node) }

// NodeOf returns the node that a Lease is for, by the Lease's name.
func NodeOf(lease string) (node string, ok bool) { return strings.CutPrefix(lease, namePrefix) }

// HolderOf returns the name under which a health check holds Leases. medik8s' own
// controller uses the same name, so either controller can take over the Leases of the
// other.
func HolderOf(check string) string { return holderPrefix + check }

// IsHealthCheck reports whether the holder is a health check of any controller.
func IsHealthCheck(holder string) bool { return strings.HasPrefix(holder, holderPrefix) }

// Held returns the holder of a Lease and the time at which the Lease expires. The holder
// is "" if the Lease names none. A Lease without a renew time or a duration is not held,
// even if it names a holder. A Lease with a renew time further in the future than
// ClockSkew is not held either.
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

// dueTime returns when a Lease expires, and false if it has no renew time or duration.
func dueTime(lease *coordinationv1.Lease) (time.Time, bool) {
	if lease == nil || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return time.Time{}, false
	}
	return lease.Spec.RenewTime.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second), true
}

// Take returns the node's Lease to write so that the holder has it for the duration. It
// is a new Lease if existing is nil, and otherwise an update of existing. Take does not
// check whether the holder may take the Lease; call Held first.
func Take(existing *coordinationv1.Lease, node *corev1.Node, holder string, duration time.Duration, now time.Time) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: NameOf(node.Name)},
		Spec:       coordinationv1.LeaseSpec{LeaseTransitions: new(int32(0)), AcquireTime: new(metav1.NewMicroTime(now))},
	}
	if existing != nil {
		lease = existing.DeepCopy()
		if isNewHolder(existing, holder, now) {
			lease.Spec.AcquireTime = new(metav1.NewMicroTime(now))
			transitions := int32(1)
			if before := existing.Spec.LeaseTransitions; before != nil {
				transitions += *before
			}
			lease.Spec.LeaseTransitions = &transitions
		}
	}
	// The garbage collector deletes the Lease together with the node.
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	lease.Spec.HolderIdentity = &holder
	lease.Spec.LeaseDurationSeconds = new(seconds(duration))
	lease.Spec.RenewTime = new(metav1.NewMicroTime(now))
	return lease
}

// isNewHolder reports whether the write makes the holder a new holder: the Lease has
// another holder, or it was never acquired.
func isNewHolder(existing *coordinationv1.Lease, holder string, now time.Time) bool {
	if by := existing.Spec.HolderIdentity; by == nil || *by != holder {
		return true
	}
	due, ok := dueTime(existing)
	return !ok || due.Before(now) && existing.Spec.AcquireTime == nil
}

// seconds converts a duration to the unit of a Lease, limited to the largest int32.
func seconds(duration time.Duration) int32 {
	return int32(min(duration/time.Second, math.MaxInt32))
}

// NeedsRenewal reports whether the holder has to write the Lease: another holder has it,
// its duration is shorter than wanted, or RenewAt has passed.
func NeedsRenewal(lease *coordinationv1.Lease, holder string, duration time.Duration, now time.Time) bool {
	by, _, held := Held(lease, now)
	return !held || by != holder || *lease.Spec.LeaseDurationSeconds < seconds(duration) || !now.Before(RenewAt(lease))
}

// RenewAt returns when the holder should renew the Lease: after half of its duration, so
// that a short interruption does not lose it. It is zero for a Lease that is not held.
func RenewAt(lease *coordinationv1.Lease) time.Time {
	due, ok := dueTime(lease)
	if !ok {
		return time.Time{}
	}
	return due.Add(-due.Sub(lease.Spec.RenewTime.Time) / 2)
}
