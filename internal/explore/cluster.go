package explore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/engine"
)

const (
	// grid is the unit of time. The delays of retries are random, so the explorer continues
	// at multiples of the longest of the usual delays.
	grid = 5 * time.Second
	// quietAfter is how long nothing must happen until a cluster counts as quiet. It is longer
	// than every wait of the engine for a write that may still arrive.
	quietAfter = engine.MaxInFlight + time.Minute
	// maxLive is how many replicas run at the same time, and maxStarts how many start.
	maxLive, maxStarts = 2, 3
)

// cluster is one run of a scenario in a synctest bubble: the API server, the replicas of the
// controller, and everything that is on its way between them. The explorer decides what
// arrives next.
type cluster struct {
	ctx      context.Context
	scenario *Scenario
	faults   *faults

	mu       sync.Mutex // guards the following fields while goroutines of replicas run
	model    *model
	replicas []*replica
	sent     []*request // since the last settle
	arrived  chan struct{}

	waiting  []*request // in the order of their arrival
	orphans  []*request // without a caller; they may still arrive
	applying *request   // the request that is being applied, nil for a change by another component
	order    int        // counts everything that is on its way
	ranks    map[*request]int
	isQuiet  bool
	starts   []start // that replicas have sent
	found    *Violation
}

// newCluster returns the initial state of a scenario. It must be called in a bubble.
func newCluster(ctx context.Context, s *Scenario, f *faults) *cluster {
	c := &cluster{ctx: ctx, scenario: s, faults: f, arrived: make(chan struct{}, 1), ranks: map[*request]int{}}
	c.model = newModel(func(change) {})
	if s.isWindowed() {
		sleep(firstInWindow)
	}
	s.populate(c.model)
	c.model.committed = c.committed
	return c
}

// end stops all replicas.
func (c *cluster) end() {
	for _, r := range c.replicas {
		r.cancel()
	}
	sleep(grid) // a caller may wait for its turn
	synctest.Wait()
}

// send registers a request of a replica.
func (c *cluster) send(r *request) {
	c.mu.Lock()
	c.sent = append(c.sent, r)
	c.mu.Unlock()
	c.wake()
}

// abandon takes in that the caller of a request gave up.
func (c *cluster) abandon(r *request) {
	c.mu.Lock()
	r.isLost = true
	c.mu.Unlock()
	c.wake()
}

// turn returns a short time that is longer for later requests, so that their callers continue
// in a fixed order.
func (c *cluster) turn(r *request) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.ranks[r]) * time.Microsecond
}

func (c *cluster) wake() {
	select {
	case c.arrived <- struct{}{}:
	default: // a signal is pending already
	}
}

// noteRead records that a replica has read an object.
func (c *cluster) noteRead(r *replica, key objectKey) {
	if r != nil {
		r.reads[key] = true
	}
}

// committed delivers a change to the watches and checks it.
func (c *cluster) committed(ch change) {
	for _, r := range c.replicas {
		if s := r.streams[ch.key.kind]; s != nil && !r.hasEnded && !s.needsList {
			c.order++
			s.events = append(s.events, event{order: c.order, change: ch})
		}
	}
	for i := range invariants {
		if c.found != nil {
			return
		}
		if message := invariants[i].check(c, c.applying, ch); message != "" {
			c.found = &Violation{Invariant: invariants[i].name, Message: message}
		}
	}
}

// settle waits until no replica can continue without the explorer, and sorts what they have
// sent. Requests of one moment have no order, so they get one.
func (c *cluster) settle() {
	synctest.Wait()
	for _, r := range c.replicas {
		select {
		case <-r.done:
			r.hasEnded = true
		default:
		}
	}
	slices.SortFunc(c.sent, func(a, b *request) int {
		return cmp.Or(cmp.Compare(a.replica.id, b.replica.id), strings.Compare(a.verb, b.verb), strings.Compare(a.key.String(), b.key.String()))
	})
	for _, r := range c.sent {
		c.order++
		c.ranks[r] = c.order
		r.label = r.replica.name + " " + r.verb + " " + r.key.String()
		for n := 2; slices.ContainsFunc(c.waiting, func(other *request) bool { return other.label == r.label }); n++ {
			r.label = r.replica.name + " " + r.verb + " " + r.key.String() + " #" + strconv.Itoa(n)
		}
		c.waiting = append(c.waiting, r)
		c.checkSent(r)
	}
	c.sent = c.sent[:0]
	select {
	case <-c.arrived:
	default:
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(r *request) bool {
		if r.isLost {
			c.orphans = append(c.orphans, r)
		}
		return r.isLost
	})
	// The API server does not work on a request for longer.
	c.orphans = slices.DeleteFunc(c.orphans, func(r *request) bool { return time.Since(r.sentAt) >= engine.MaxInFlight-grid })
}

// checkSent checks a request when its replica sends it.
func (c *cluster) checkSent(r *request) {
	for i := range sendRules {
		if c.found != nil {
			return
		}
		if message := sendRules[i].check(c, r); message != "" {
			c.found = &Violation{Invariant: sendRules[i].name, Message: message}
		}
	}
	c.noteStart(r)
}

// answer removes a request and answers it.
func (c *cluster) answer(r *request, a answer) {
	c.waiting = slices.DeleteFunc(c.waiting, func(other *request) bool { return other == r })
	r.answer <- a
}

// apply lets a request arrive at the API server.
func (c *cluster) apply(r *request) answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applying = r
	a := r.apply(c.model)
	c.applying = nil
	return a
}

// advance waits until something is sent or given up, until a window turns while a write is on its way, or
// until the cluster is quiet.
func (c *cluster) advance() {
	wait := quietAfter
	turns := c.scenario.isWindowed() && len(c.waiting) > 0
	if turns {
		wait = untilTurn(time.Now())
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.arrived:
		sleep(grid - time.Duration(time.Now().UnixNano()%int64(grid)))
	case <-timer.C:
		c.isQuiet = !turns
	}
}

// sleep advances the clock of the bubble.
func sleep(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // it advances the clock of the bubble

// live returns the replicas that run.
func (c *cluster) live() (live []*replica) {
	for _, r := range c.replicas {
		if !r.hasEnded {
			live = append(live, r)
		}
	}
	return live
}

// sortByName sorts objects by namespace and name.
func sortByName(objects []client.Object) {
	slices.SortFunc(objects, func(a, b client.Object) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
}
