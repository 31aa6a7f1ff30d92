package silence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/treat"
)

// place is a cluster of agents, without an API server.
type place struct {
	t *testing.T

	mu      sync.Mutex
	version int
	leases  map[string]*coordinationv1.Lease
	nodes   map[string]*corev1.Node
	streams []*watch.FakeWatcher
	deaf    error // why the watch of Leases cannot be had
	refuse  error // why a write is not made
	behind  bool  // the watch tells nothing

	reads, writes []time.Time
	applied       []*treat.Silence
	words         []treat.Announcement
	counts        [2]int
	fates         []treat.Fate
	log           bytes.Buffer
}

// among runs a story in a place whose clock runs as fast as there is nothing to do.
func among(t *testing.T, tell func(p *place)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tell(&place{t: t, leases: map[string]*coordinationv1.Lease{}, nodes: map[string]*corev1.Node{}})
	})
}

func newKeeper(tb testing.TB, leases cache.ListerWatcherWithContext, p *place) *Keeper {
	tb.Helper()
	cfg := Config{
		Leases: leases, Hands: p, Namespace: "autohealer-system", Announce: func(treat.Announcement) {},
		Wrote: func(treat.Fate) {}, Count: func(int, int) {}, Logger: slog.New(slog.DiscardHandler),
	}
	if p != nil {
		cfg.Announce = func(word treat.Announcement) { p.do(func() { p.words = append(p.words, word) }) }
		cfg.Wrote = func(fate treat.Fate) { p.do(func() { p.fates = append(p.fates, fate) }) }
		cfg.Count = func(heard, silent int) { p.do(func() { p.counts = [2]int{heard, silent} }) }
		cfg.Logger = slog.New(slog.NewTextHandler(locked{p}, nil))
	}
	k, err := NewKeeper(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

type locked struct{ *place }

func (l locked) Write(text []byte) (n int, err error) {
	l.do(func() { n, err = l.log.Write(text) })
	return n, err
}

func (p *place) do(what func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what()
}

// keeps runs a keeper until it is told to stop.
func (p *place) keeps() (stop func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	var running sync.WaitGroup
	keeper := newKeeper(p.t, p, p)
	running.Go(func() { keeper.Run(ctx) })
	synctest.Wait()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); running.Wait() }) }
	p.t.Cleanup(stop)
	return stop
}

// pass lets time pass.
func (p *place) pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // nobody waits: the clock is the bubble's
	synctest.Wait()
}

// ListWithContext is an API server that lists.
func (p *place) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deaf != nil {
		return nil, p.deaf
	}
	list := &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(p.version)}}
	for _, lease := range p.leases {
		list.Items = append(list.Items, *lease.DeepCopy())
	}
	return list, nil
}

// WatchWithContext is one that lists first, and then watches.
func (p *place) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if options.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil) // as one would that is older
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deaf != nil {
		return nil, p.deaf
	}
	stream := watch.NewFakeWithChanSize(1000, false)
	p.streams = append(p.streams, stream)
	go func() {
		<-ctx.Done()
		stream.Stop()
	}()
	return stream, nil
}

func (p *place) tell(kind watch.EventType, lease *coordinationv1.Lease) {
	if len(p.streams) > 0 && !p.behind {
		p.streams[len(p.streams)-1].Action(kind, lease.DeepCopy())
	}
}

// breaks ends the watch, and lets nobody begin another one.
func (p *place) breaks(why error) {
	p.do(func() {
		p.deaf = why
		p.streams[len(p.streams)-1].Stop()
		p.streams = nil
	})
	synctest.Wait()
}

func (p *place) mends() { p.do(func() { p.deaf = nil }) }

// has makes a node with an agent, which says that two conditions are as they are.
func (p *place) has(name string) {
	p.t.Helper()
	p.do(func() {
		p.version++
		p.nodes[name] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: strconv.Itoa(p.version)},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}, {Type: "A", Status: "True", Reason: "Bad"}, {Type: "B", Status: "False", Reason: "Good"}}},
		}
	})
	p.says(name)
	p.renews(name)
}

// says has an agent apply its rows.
func (p *place) says(name string) {
	p.do(func() {
		node := p.nodes[name]
		p.version++
		node.ResourceVersion = strconv.Itoa(p.version)
		node.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "autohealer-agent", Operation: metav1.ManagedFieldsOperationApply, Subresource: "status", Time: new(metav1.Now()),
			FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{"k:{\"type\":\"A\"}":{".":{},"f:type":{},"f:status":{},"f:reason":{}},"k:{\"type\":\"B\"}":{".":{},"f:type":{},"f:status":{},"f:reason":{}}}}}`),
		}}
	})
}

// renews has agents renew their Leases of six minutes.
func (p *place) renews(names ...string) {
	p.do(func() {
		for _, name := range names {
			lease, kind := p.leases[namePrefix+name], watch.Modified
			if lease == nil {
				lease, kind = realLease(name, time.Now()), watch.Added
				lease.OwnerReferences[0].UID = types.UID("uid-" + name)
				p.leases[lease.Name] = lease
			}
			p.version++
			lease.ResourceVersion = strconv.Itoa(p.version)
			lease.Spec.RenewTime = new(metav1.NowMicro())
			p.tell(kind, lease)
		}
	})
	synctest.Wait()
}

// live has agents renew for a while, as often as they do.
func (p *place) live(d time.Duration, names ...string) {
	const period = 2 * time.Minute
	for ; d > 0; d -= period {
		p.pass(min(d, period))
		p.renews(names...)
	}
}

// Lease reads one.
func (p *place) Lease(_ context.Context, name string) (*coordinationv1.Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads = append(p.reads, time.Now())
	if lease := p.leases[name]; lease != nil {
		return lease.DeepCopy(), nil
	}
	return nil, nil
}

// Node reads one.
func (p *place) Node(_ context.Context, name string) (*corev1.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if node := p.nodes[name]; node != nil {
		return node.DeepCopy(), nil
	}
	return nil, nil
}

// Apply writes.
func (p *place) Apply(_ context.Context, s *treat.Silence) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes = append(p.writes, time.Now())
	if p.refuse != nil {
		return p.refuse
	}
	node := p.nodes[s.Node.Name]
	if node.ResourceVersion != s.Node.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, node.Name, errors.New("changed"))
	}
	p.applied = append(p.applied, s)
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type != "Ready" {
			c.Status, c.Reason = corev1.ConditionUnknown, "AgentSilent"
		}
	}
	return nil
}

// silenced says which nodes' agents have been called silent until now, in any order.
func (p *place) silenced(want ...string) {
	p.t.Helper()
	p.do(func() {
		got := map[string]bool{}
		for _, s := range p.applied {
			got[s.Node.Name] = true
		}
		if len(got) != len(want) || len(p.applied) != len(want) {
			p.t.Fatalf("%v were called silent in %d writes, want %v\n%s", got, len(p.applied), want, p.log.String())
		}
		for _, name := range want {
			if !got[name] {
				p.t.Fatalf("%v were called silent, want %v\n%s", got, want, p.log.String())
			}
		}
	})
}

func (p *place) count(heard, silent int) {
	p.t.Helper()
	p.do(func() {
		if p.counts != [2]int{heard, silent} {
			p.t.Errorf("%v are heard and silent, want %d and %d", p.counts, heard, silent)
		}
	})
}

func (p *place) logged(times int, words string) {
	p.t.Helper()
	p.do(func() {
		if got := strings.Count(p.log.String(), words); got != times {
			p.t.Errorf("%q was said %d times, want %d:\n%s", words, got, times, p.log.String())
		}
	})
}

func TestAnAgentThatStopsIsCalledSilentOnce(t *testing.T) {
	among(t, func(p *place) {
		stop := p.keeps()
		p.has("a")
		p.has("b")
		p.count(2, 0)
		p.live(6*time.Minute-time.Second, "b")
		p.silenced()
		p.pass(time.Second)
		p.silenced("a")
		p.count(1, 1)
		p.live(time.Hour, "b")
		p.silenced("a")
		p.do(func() {
			if got := fmt.Sprint(p.applied[0].Turned); got != "[A B]" {
				t.Errorf("turned are %s", got)
			}
			if len(p.words) != 1 || p.words[0].What != treat.AgentSilent || p.words[0].Node.Name != "a" ||
				!strings.Contains(p.words[0].Words, "Lease autohealer-system/autohealer-agent-a was renewed last at 2000-01-01T00:00:00Z") {
				t.Errorf("told was %+v", p.words)
			}
			if len(p.reads) != 1 {
				t.Errorf("%d Leases were read for one that is silent", len(p.reads))
			}
		})
		p.renews("a")
		p.count(2, 0)
		p.do(func() {
			if len(p.words) != 2 || p.words[1].What != treat.AgentHeard || p.words[1].Node.UID != "uid-a" {
				t.Errorf("told was %+v", p.words)
			}
		})
		stop()
		p.count(0, 0)
	})
}

func TestWhoTakesOverWaitsForAFullDuration(t *testing.T) {
	among(t, func(p *place) {
		p.has("a")
		p.pass(time.Hour)
		stop := p.keeps()
		p.pass(6*time.Minute - time.Second)
		p.silenced()
		stop()
		p.keeps()
		p.pass(6*time.Minute - time.Second)
		p.silenced()
		p.pass(time.Second)
		p.silenced("a")
		// One more finds that there is nothing left to say.
		p.keeps()
		p.pass(time.Hour)
		p.silenced("a")
		p.do(func() {
			if len(p.words) != 1 {
				t.Errorf("told was %+v", p.words)
			}
		})
	})
}

func TestNobodyIsSilentForAnOutage(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		p.has("a")
		p.has("b")
		p.live(4*time.Minute, "a", "b")
		p.breaks(errors.New("connection refused"))
		p.pass(10 * time.Minute)
		p.silenced()
		p.mends()
		p.pass(15 * time.Second) // until the watch is asked for again
		p.live(5*time.Minute, "a")
		p.silenced()
		p.live(time.Minute, "a")
		p.silenced("b")
		p.logged(1, "agents cannot be heard, so none is called silent until")
		p.logged(1, "agents can be heard")
	})
}

func TestNobodyIsSilentForRightsThatAreMissing(t *testing.T) {
	among(t, func(p *place) {
		p.do(func() {
			p.deaf = apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("no"))
		})
		p.has("a")
		p.keeps()
		p.pass(24 * time.Hour)
		p.silenced()
		p.count(0, 0)
		p.logged(1, "the role lacks get, list and watch of leases")
	})
}

func TestAWriteThatIsRefusedIsSaidOnceAndTriedSeldom(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		p.do(func() {
			p.refuse = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes/status"}, "", errors.New("no"))
		})
		p.has("a")
		p.has("b")
		p.pass(time.Hour)
		p.logged(1, "silent agent not told of")
		p.do(func() {
			if len(p.writes) != 2*10 || len(p.words) != 0 {
				t.Errorf("%d writes, and told was %+v", len(p.writes), p.words)
			}
			p.refuse = nil
		})
		p.pass(6 * time.Minute)
		p.silenced("a", "b")
	})
}

func TestAServerThatTakesNoWritesMakesNobodySilent(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		for _, name := range []string{"a", "b", "c"} {
			p.has(name)
		}
		p.do(func() { p.refuse = apierrors.NewInternalError(errors.New("etcdserver: mvcc: database space exceeded")) })
		p.pass(6*time.Minute + 30*time.Second) // in which nobody could renew
		p.logged(1, "nobody is called silent for a while")
		p.do(func() { p.refuse = nil })
		p.live(8*time.Minute, "a", "b", "c")
		p.silenced()
		p.count(3, 0)
		// A short trouble is none.
		p.do(func() { p.refuse = apierrors.NewServiceUnavailable("bye") })
		p.live(6*time.Minute, "a", "b")
		p.pass(2 * time.Second)
		p.do(func() { p.refuse = nil })
		p.pass(10 * time.Second)
		p.silenced("c")
	})
}

func TestAWatchThatIsBehindMakesNobodySilent(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		p.has("a")
		p.do(func() { p.behind = true })
		p.live(time.Hour, "a")
		p.silenced()
		p.pass(12 * time.Minute) // it takes one look to see the last renewal, and one to miss the next
		p.silenced("a")
	})
}

func TestWhoWritesIsNotSilent(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		p.has("a")
		p.pass(5 * time.Minute) // it may no longer renew
		p.says("a")
		p.pass(6*time.Minute - time.Second)
		p.silenced()
		p.pass(time.Second)
		p.silenced("a")
	})
}

func TestALeaseThatIsRemovedIsASilence(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		p.has("a")
		p.has("b")
		p.pass(time.Minute)
		p.do(func() {
			for name := range p.leases {
				p.tell(watch.Deleted, p.leases[name])
			}
			clear(p.leases)
			delete(p.nodes, "b") // with its Lease
		})
		p.pass(5*time.Minute - time.Second)
		p.silenced()
		p.pass(time.Second)
		p.silenced("a")
		p.count(0, 0)
		p.do(func() {
			if !strings.Contains(p.words[0].Words, "not there any more") {
				t.Errorf("told was %q", p.words[0].Words)
			}
		})
	})
}

func TestANodeMadeAgainHasAnotherAgent(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		p.has("a")
		p.pass(time.Minute)
		p.do(func() { p.nodes["a"].UID = "another" }) // and its old Lease is not collected yet
		p.pass(time.Hour)
		p.silenced()
	})
}

func TestANodeThatOthersWriteIsLookedAtAgain(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		p.has("a")
		p.do(func() {
			p.refuse = apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "a", errors.New("changed"))
		})
		p.pass(6*time.Minute + time.Second)
		p.do(func() {
			if len(p.writes) != tries {
				t.Errorf("it was tried %d times", len(p.writes))
			}
			p.refuse = nil
		})
		p.pass(6 * time.Minute)
		p.silenced("a")
	})
}

func TestACatastropheIsToldAtAPace(t *testing.T) {
	among(t, func(p *place) {
		p.keeps()
		const agents = 300
		var names []string
		for i := range agents {
			names = append(names, fmt.Sprintf("n%03d", i))
			p.has(names[i])
		}
		p.pass(6*time.Minute + 10*time.Second)
		p.do(func() {
			if n := len(p.writes); n < 100 || n > 111 {
				t.Errorf("%d writes in 10 seconds, want 10 a second", n)
			}
		})
		p.renews(names[agents-1]) // before its turn
		p.pass(30 * time.Second)
		p.silenced(names[:agents-1]...)
	})
}

func TestConfigSaysWhatIsMissing(t *testing.T) {
	_, err := NewKeeper(Config{})
	for _, field := range []string{"Leases", "Hands", "Namespace", "Announce", "Wrote", "Count", "Logger"} {
		if err == nil || !strings.Contains(err.Error(), field+" is missing") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
