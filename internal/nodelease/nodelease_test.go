package nodelease_test

import (
	"math"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/testkit"
)

var (
	noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "node-uid"}}
)

const (
	us   = "NodeHealthCheck-workers"
	them = "node-maintenance"
)

// leaseOf returns a Lease that was acquired an hour before noon and renewed at the given time.
func leaseOf(holder string, renewed time.Time, duration int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "medik8s-leases", Name: "node-worker-1", UID: "lease-uid", ResourceVersion: "7"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: &duration, LeaseTransitions: new(int32(3)),
			AcquireTime: new(metav1.NewMicroTime(noon.Add(-time.Hour))), RenewTime: new(metav1.NewMicroTime(renewed)),
		},
	}
}

func with(lease *coordinationv1.Lease, change func(*coordinationv1.LeaseSpec)) *coordinationv1.Lease {
	change(&lease.Spec)
	return lease
}

func TestNames(t *testing.T) {
	if got := nodelease.Namespace + "/" + nodelease.NameOf("worker-1"); got != "medik8s-leases/node-worker-1" {
		t.Errorf("the Lease is %s", got)
	}
	if got, ok := nodelease.NodeOf("node-worker-1"); got != "worker-1" || !ok {
		t.Errorf("it is for %s, %v", got, ok)
	}
	if got, ok := nodelease.NodeOf("pod-x"); ok {
		t.Errorf("a pod's Lease is for the node %s", got)
	}
	if got := nodelease.HolderOf("workers"); got != us {
		t.Errorf("the holder is %s", got)
	}
}

func TestHeld(t *testing.T) {
	for _, test := range []struct {
		name  string
		lease *coordinationv1.Lease
		by    string
		until time.Duration // from noon
		held  bool
	}{
		{"there is none", nil, "", 0, false},
		{"it runs", leaseOf(them, noon.Add(-time.Minute), 600), them, 9 * time.Minute, true},
		{"it was renewed this instant", leaseOf(them, noon, 600), them, 10 * time.Minute, true},
		{"it ends this instant", leaseOf(them, noon.Add(-10*time.Minute), 600), them, 0, true},
		{"it has ended", leaseOf(them, noon.Add(-10*time.Minute-time.Microsecond), 600), "", 0, false},
		{"the holder's clock is ahead", leaseOf(them, noon.Add(5*time.Minute), 60), them, 6 * time.Minute, true},
		{"the holder's clock is too far ahead to be believed", leaseOf(them, noon.Add(5*time.Minute+time.Microsecond), 60), "", 0, false},
		{"it has no renew time", with(leaseOf(them, noon, 600), func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil }), "", 0, false},
		{"it is for no time", with(leaseOf(them, noon, 600), func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = nil }), "", 0, false},
		{"the holder gave no name", with(leaseOf(them, noon, 600), func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = nil }), "", 10 * time.Minute, true},
		{"it was never acquired, they say", with(leaseOf(them, noon, 600), func(s *coordinationv1.LeaseSpec) { s.AcquireTime = nil }), them, 10 * time.Minute, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			by, until, held := nodelease.Held(test.lease, noon)
			want := time.Time{}
			if test.held {
				want = noon.Add(test.until)
			}
			if by != test.by || !until.Equal(want) || held != test.held {
				t.Errorf("held by %q until %v: %v; want %q until %v: %v", by, until, held, test.by, want, test.held)
			}
		})
	}
}

func TestTakeWhatIsNotThere(t *testing.T) {
	got := nodelease.Take(nil, node, us, 11*time.Minute, noon)
	want := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "medik8s-leases", Name: "node-worker-1",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "worker-1", UID: "node-uid"}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(us), LeaseDurationSeconds: new(int32(660)), LeaseTransitions: new(int32(0)),
			AcquireTime: new(metav1.NewMicroTime(noon)), RenewTime: new(metav1.NewMicroTime(noon)),
		},
	}
	testkit.Equal(t, "the Lease", want, got)
}

func TestTakeWhatIsThere(t *testing.T) {
	before := noon.Add(-time.Minute)
	for _, test := range []struct {
		name        string
		existing    *coordinationv1.Lease
		acquires    bool
		transitions int32
	}{
		{"ours, which runs", leaseOf(us, before, 600), false, 3},
		{"ours, which has ended", leaseOf(us, before, 1), false, 3},
		{"ours, which has ended and was never acquired", with(leaseOf(us, before, 1), func(s *coordinationv1.LeaseSpec) { s.AcquireTime = nil }), true, 4},
		{"ours, which runs and was never acquired", with(leaseOf(us, before, 600), func(s *coordinationv1.LeaseSpec) { s.AcquireTime = nil }), false, 3},
		{"ours, never renewed", with(leaseOf(us, before, 600), func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil }), true, 4},
		{"ours, which is for no time", with(leaseOf(us, before, 600), func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = nil }), true, 4},
		{"expired, of another holder", leaseOf(them, before, 1), true, 4},
		{"without a holder", with(leaseOf(them, before, 1), func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = nil }), true, 4},
		{"of another holder, without transitions", with(leaseOf(them, before, 1), func(s *coordinationv1.LeaseSpec) { s.LeaseTransitions = nil }), true, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.existing.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "worker-1", UID: "an earlier node"}}
			untouched := test.existing.DeepCopy()
			got := nodelease.Take(test.existing, node, us, 11*time.Minute, noon)
			want := test.existing.DeepCopy()
			want.OwnerReferences[0].UID = "node-uid"
			want.Spec.HolderIdentity, want.Spec.LeaseDurationSeconds, want.Spec.RenewTime = new(us), new(int32(660)), new(metav1.NewMicroTime(noon))
			if want.Spec.LeaseTransitions = &test.transitions; test.acquires {
				want.Spec.AcquireTime = new(metav1.NewMicroTime(noon))
			}
			testkit.Equal(t, "the Lease", want, got)
			testkit.Equal(t, "the Lease that was there has changed", untouched, test.existing)
		})
	}
}

func TestNeedsRenewal(t *testing.T) {
	const wanted = 10 * time.Minute
	for _, test := range []struct {
		name  string
		lease *coordinationv1.Lease
		want  bool
	}{
		{"there is none", nil, true},
		{"fresh", leaseOf(us, noon, 600), false},
		{"almost half over", leaseOf(us, noon.Add(-5*time.Minute+time.Second), 600), false},
		{"half over", leaseOf(us, noon.Add(-5*time.Minute), 600), true},
		{"ended", leaseOf(us, noon.Add(-time.Hour), 600), true},
		{"for less than is wanted now", leaseOf(us, noon, 599), true},
		{"for more than is wanted now", leaseOf(us, noon.Add(-time.Minute), 6000), false},
		{"renewed ahead of our clock", leaseOf(us, noon.Add(time.Minute), 600), false},
		{"of another holder", leaseOf(them, noon, 600), true},
		{"never renewed", with(leaseOf(us, noon, 600), func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil }), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := nodelease.NeedsRenewal(test.lease, us, wanted, noon); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
	if at := nodelease.RenewAt(nil); !at.IsZero() {
		t.Errorf("a Lease that is not there is to be renewed at %v", at)
	}
}

// For any existing Lease and any duration: after Take the holder holds it, for as long as a
// Lease can say, and needs no renewal before RenewAt.
func TestWhoTakesHolds(t *testing.T) {
	var fresh, over int
	rapid.Check(t, func(t *rapid.T) {
		var existing *coordinationv1.Lease
		if rapid.Bool().Draw(t, "there is one") {
			renewed := noon.Add(time.Duration(rapid.IntRange(-3600, 600).Draw(t, "renewed")) * time.Second)
			existing = leaseOf(rapid.SampledFrom([]string{us, them}).Draw(t, "holder"), renewed, rapid.Int32Range(1, 3600).Draw(t, "for"))
			over++
		} else {
			fresh++
		}
		duration := time.Duration(rapid.Int64Range(int64(2*time.Second), math.MaxInt64).Draw(t, "duration"))
		lease := nodelease.Take(existing, node, us, duration, noon)
		by, until, held := nodelease.Held(lease, noon)
		testkit.Require(t, held && by == us, "held by %q: %v", by, held)
		if want := noon.Add(min(duration.Truncate(time.Second), math.MaxInt32*time.Second)); !until.Equal(want) {
			t.Fatalf("held until %v, want %v", until, want)
		}
		testkit.Require(t, !nodelease.NeedsRenewal(lease, us, duration, noon), "it is to be renewed at once")
		at := nodelease.RenewAt(lease)
		if nodelease.NeedsRenewal(lease, us, duration, at.Add(-1)) || !nodelease.NeedsRenewal(lease, us, duration, at) {
			t.Fatalf("it is not to be renewed at %v, as was said", at)
		}
		testkit.Require(t, at.Before(until), "it is to be renewed at %v, when it has ended", at)
	})
	testkit.Check(t, fresh != 0 && over != 0, "%d were new and %d were not: this test looked at nothing", fresh, over)
}
