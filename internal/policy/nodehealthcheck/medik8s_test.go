package nodehealthcheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

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
		"without access, none ends": {
			{"held", brings(held("a", "x", past, 20)), 10 * time.Second, true},
			{"barred", hears(errForbiddenLeases), time.Hour, true},
			{"allowed, and what is new has not come yet", hears(nil), 19 * time.Second, true},
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

// The reads are refused for longer than the Lease lasts, and the holder renews it all the time. A
// reflector that has lost its watch waits before it asks again, so the last answer was good.
func TestMedik8sLeaderWhoseLeaseCannotBeRead(t *testing.T) {
	type answer struct {
		lease   *coordinationv1.Lease
		refusal error
	}
	synctest.Test(t, func(t *testing.T) {
		const lasts = 3 * time.Second // shorter than the wait before the reflector asks again
		var is atomic.Pointer[answer]
		renewed := func() *coordinationv1.Lease { return held("a", "x", time.Now(), int32(lasts/time.Second)) }
		is.Store(&answer{lease: renewed()})
		watches := make(chan *apiwatch.FakeWatcher, 10)
		box := watch.NewOptional(nil, &coordinationv1.Lease{}, &cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				a := is.Load()
				return &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []coordinationv1.Lease{*a.lease}}, a.refusal
			},
			WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
				if options.SendInitialEvents != nil {
					return nil, apierrors.NewBadRequest("this source lists")
				}
				if refusal := is.Load().refusal; refusal != nil {
					return nil, refusal
				}
				w := apiwatch.NewFake()
				watches <- w
				return w, nil
			},
		})
		box.Namespaced = true
		go box.Run(t.Context())
		p := medik8sLeader{inbox: box, leases: map[string]observedLease{}}
		passes := func(what string, d time.Duration) {
			t.Helper()
			for range int(d / (100 * time.Millisecond)) { // a round each time
				enginetest.Pass(100 * time.Millisecond)
				p.take(time.Now())
				testkit.Require(t, p.isActive(), "%s: the Lease has ended", what)
			}
		}
		w := <-watches
		passes("it is read", lasts/2)
		for _, refusal := range []error{enginetest.ErrBroken, errForbiddenLeases} {
			is.Store(&answer{is.Load().lease, refusal})
			w.Stop() // the connection is lost
			passes(fmt.Sprintf("the reads fail with %v", refusal), 100*lasts)
			is.Store(&answer{lease: renewed()})
			w = <-watches
			passes("it can be read again", lasts/2)
			is.Store(&answer{lease: renewed()})
			for range 10 { // the connection is lost again and again
				w.Stop()
				for w = nil; w == nil; {
					select {
					case w = <-watches:
					default:
						passes("the reflector waits", 100*time.Millisecond)
					}
				}
			}
			is.Store(&answer{lease: renewed()})
			w.Error(&apierrors.NewResourceExpired("for a test").ErrStatus) // it lists again
			w = <-watches
		}
		enginetest.Pass(lasts)
		p.take(time.Now())
		testkit.Check(t, !p.isActive(), "a Lease that is not renewed has not ended")
	})
}
