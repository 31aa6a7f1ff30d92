package nodehealthcheck

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/watch"
)

// held returns a Lease of medik8s, renewed at that time by its own clock.
func held(namespace, holder string, renewed time.Time, lasts int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: medik8sLeaseName},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: new(metav1.NewMicroTime(renewed)), LeaseDurationSeconds: &lasts},
	}
}

var errForbiddenLeases = apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("for a test"))

func TestMedik8sLeader(t *testing.T) {
	type step struct {
		name     string
		happens  func(q *watch.Optional[*coordinationv1.Lease]) error
		passes   time.Duration
		isActive bool
	}
	past, future := time.Unix(1, 0), time.Unix(1<<33, 0)
	brings := func(l *coordinationv1.Lease) func(*watch.Optional[*coordinationv1.Lease]) error {
		return func(q *watch.Optional[*coordinationv1.Lease]) error { return q.Update(l) }
	}
	hears := func(err error) func(*watch.Optional[*coordinationv1.Lease]) error {
		return func(q *watch.Optional[*coordinationv1.Lease]) error { q.SetAvailability(err); return nil }
	}
	for name, steps := range map[string][]step{
		"no lease": {{"at once", nil, 0, false}},
		"a lease lasts by our own clock": {
			{"renewed in the past", brings(held("a", "x", past, 20)), 19 * time.Second, true},
			{"not renewed", nil, time.Second, false},
			{"renewed in the future", brings(held("a", "x", future, 20)), 19 * time.Second, true},
			{"renewed again", brings(held("a", "x", future.Add(time.Second), 20)), 19 * time.Second, true},
			{"not renewed", nil, time.Second, false},
		},
		"a lease that is only delivered again is not renewed": {
			{"first", brings(held("a", "x", past, 20)), 15 * time.Second, true},
			{"the same", brings(held("a", "x", past, 20)), 5 * time.Second, false},
			{"the same after its end", brings(held("a", "x", past, 20)), 0, false},
			{"listed", func(q *watch.Optional[*coordinationv1.Lease]) error {
				return q.Replace([]any{held("a", "x", past, 20)}, "7")
			}, 0, false},
			{"by another", brings(held("a", "y", past, 20)), 19 * time.Second, true},
		},
		"a released lease ends at once": {
			{"held", brings(held("a", "x", past, 20)), time.Second, true},
			{"given up", brings(held("a", "", past, 1)), 0, false},
		},
		"a deleted lease ends at once": {
			{"held", brings(held("a", "x", past, 20)), time.Second, true},
			{"deleted", func(q *watch.Optional[*coordinationv1.Lease]) error { return q.Delete(held("a", "x", past, 20)) }, 0, false},
		},
		"a lease that is not in the list is gone": {
			{"held", brings(held("a", "x", past, 20)), time.Second, true},
			{"listed", func(q *watch.Optional[*coordinationv1.Lease]) error { return q.Replace(nil, "7") }, 0, false},
		},
		"two leases with different ends": {
			{"the first", brings(held("a", "x", past, 20)), 10 * time.Second, true},
			{"the second", brings(held("b", "y", past, 20)), 15 * time.Second, true},
			{"both have ended", nil, 5 * time.Second, false},
		},
		"a lease without a duration uses the default": {
			{"held", brings(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: medik8sLeaseName}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("x")}}), medik8sLeaseDuration - 1, true},
			{"over", nil, 1, false},
		},
		"without access to Leases it defers": {
			{"barred", hears(errForbiddenLeases), time.Hour, true},
			{"allowed", hears(nil), 0, false},
		},
		"while they cannot be read, none ends": {
			{"held", brings(held("a", "x", past, 20)), 10 * time.Second, true},
			{"broken", hears(enginetest.ErrBroken), 9 * time.Second, true},
			{"still", nil, time.Hour, true},
			{"it can be read, and what is new has not come yet", hears(nil), 19 * time.Second, true},
			{"nothing new has come", nil, time.Second, false},
		},
		"while they cannot be read, none comes back": {
			{"held", brings(held("a", "x", past, 20)), 20 * time.Second, false},
			{"broken", hears(enginetest.ErrBroken), time.Hour, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := medik8sLeader{inbox: enginetest.Empty(t, &coordinationv1.Lease{}), leases: map[string]observedLease{}}
				p.inbox.Namespaced = true
				for _, s := range steps {
					if s.happens != nil {
						testkit.Must(t, s.happens(p.inbox))
					}
					p.take(time.Now())
					if !p.until().IsZero() && time.Until(p.until()) <= 0 {
						t.Errorf("%s: it is looked at again at %v, which is over", s.name, p.until())
					}
					enginetest.Pass(s.passes)
					p.take(time.Now())
					if p.isActive() != s.isActive || (p.message() != "") != s.isActive {
						t.Errorf("%s: active %t (%q), want %t", s.name, p.isActive(), p.message(), s.isActive)
					}
				}
			})
		})
	}
}

// A controller that could never read the Leases does not know that no leader exists.
func TestMedik8sLeaderThatCouldNeverBeRead(t *testing.T) {
	p := medik8sLeader{inbox: watch.NewOptional(nil, &coordinationv1.Lease{}, nil), leases: map[string]observedLease{}}
	p.inbox.SetAvailability(enginetest.ErrBroken)
	p.take(time.Now())
	if !p.isActive() || !strings.Contains(p.message(), enginetest.ErrBroken.Error()) {
		t.Errorf("active: %t (%q)", p.isActive(), p.message())
	}
}
