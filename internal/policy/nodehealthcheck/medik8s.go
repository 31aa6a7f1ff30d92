package nodehealthcheck

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

	"github.com/resourcestack/autohealer/internal/watch"
)

const (
	// medik8sLeaseName is the leader-election Lease of medik8s'
	// node-healthcheck-operator, in any namespace.
	medik8sLeaseName = "e1f13584.medik8s.io"
	// medik8sLeaseDuration is the default if the Lease has no duration.
	medik8sLeaseDuration = 15 * time.Second
)

// medik8sLeader watches for medik8s' own controller of NodeHealthChecks. Two controllers
// that follow the same health check would undo each other's work.
type medik8sLeader struct {
	inbox *watch.Optional[*coordinationv1.Lease]
	// leases are the held Leases, by namespace and name.
	leases map[string]observedLease
}

// observedLease is a Lease and when it ends by the local clock, counted from the arrival
// of its last renewal. The clock of the holder may be wrong.
type observedLease struct {
	holder   string
	renewed  metav1.MicroTime
	duration time.Duration
	until    time.Time
	ended    bool
}

// medik8sLeases lists and watches the leader-election Leases of medik8s.
func medik8sLeases(c client.WithWatch) cache.ListerWatcherWithContext {
	byName := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector(metav1.ObjectNameField, medik8sLeaseName)}
	return watch.Source(c, func() client.ObjectList { return &coordinationv1.LeaseList{} }, byName)
}

// take takes in changed Leases. While they cannot be read, none ends, because the holder
// may be renewing it.
func (m *medik8sLeader) take(now time.Time) {
	defer m.end(now)
	batch := m.inbox.Take()
	if batch.ListVersion != "" {
		for key := range m.leases {
			if _, there := batch.Changes[key]; !there {
				delete(m.leases, key)
			}
		}
	}
	for key, change := range batch.Changes {
		spec := change.Object.Spec
		if change.Gone || spec.HolderIdentity == nil || *spec.HolderIdentity == "" { // it was released
			delete(m.leases, key)
			continue
		}
		is := observedLease{holder: *spec.HolderIdentity}
		if spec.RenewTime != nil {
			is.renewed = *spec.RenewTime
		}
		if was, known := m.leases[key]; known && was.holder == is.holder && was.renewed.Equal(&is.renewed) {
			continue // it was not renewed
		}
		is.duration = medik8sLeaseDuration
		if spec.LeaseDurationSeconds != nil {
			is.duration = time.Duration(*spec.LeaseDurationSeconds) * time.Second
		}
		is.until = change.At.Add(is.duration)
		m.leases[key] = is
	}
}

// end ends expired Leases. While they cannot be read, or their watch is interrupted, it extends all
// of them. So none ends between the first good answer and the arrival of what has changed meanwhile.
func (m *medik8sLeader) end(now time.Time) {
	current, _ := m.inbox.Availability()
	isBlind := current == watch.Failing || current == watch.AccessDenied || m.inbox.IsInterrupted()
	for key, t := range m.leases {
		switch {
		case t.ended:
			continue
		case isBlind:
			t.until = now.Add(t.duration)
		case !now.Before(t.until):
			t.ended = true
		}
		m.leases[key] = t
	}
}

// isUnknown reports whether the holders of the Leases could not be determined.
func (m *medik8sLeader) isUnknown() (is bool, why error) {
	current, why := m.inbox.Availability()
	return current == watch.AccessDenied || current == watch.Failing && !m.inbox.HasSynced(), why
}

// isActive reports whether the other controller is running or may be.
func (m *medik8sLeader) isActive() bool {
	isUnknown, _ := m.isUnknown()
	return isUnknown || !m.until().IsZero()
}

// until returns when the last held Lease ends, zero if none is held.
func (m *medik8sLeader) until() (end time.Time) {
	for _, t := range m.leases {
		if !t.ended && t.until.After(end) {
			end = t.until
		}
	}
	return end
}

// message says why this controller does not follow the health checks.
func (m *medik8sLeader) message() string {
	if isUnknown, err := m.isUnknown(); isUnknown {
		return fmt.Sprintf("cannot determine whether medik8s' node-healthcheck-operator is running, so Autohealer does not follow the health checks: %v", err)
	}
	for _, key := range slices.Sorted(maps.Keys(m.leases)) {
		if t := m.leases[key]; !t.ended {
			return fmt.Sprintf("medik8s' node-healthcheck-operator is running (%s holds Lease %s), so the health checks are left to it; stop it, and Autohealer takes over", t.holder, key)
		}
	}
	return ""
}
