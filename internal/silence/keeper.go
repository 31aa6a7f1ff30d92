package silence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/rewatch"
	"github.com/resourcestack/autohealer/internal/treat"
)

const (
	// writesPerSecond bounds what a cluster that has lost all of its agents costs.
	writesPerSecond = 10
	// tries is how often a node is written that others write too, until that is put
	// off, and how often the API server may fail until it is not believed to work.
	tries = 5
	// longestRest is how long nobody looks at the roll. Whoever comes onto it in
	// between calls.
	longestRest = time.Hour
	// pageSize is how many Leases are asked for at a time where the API server cannot
	// stream them.
	pageSize = 500
	// aWhile is how long a watch must have gone well for a failure to be the first one.
	aWhile = 2 * time.Minute
	// clockSkew is how far ahead of ours the clock of the API server may be.
	clockSkew = time.Minute
)

// Config is what a keeper works with.
type Config struct {
	// Leases is where the Leases of agents come from.
	Leases cache.ListerWatcherWithContext
	// Hands read afresh, and write.
	Hands Hands
	// Namespace is where the Leases are, for people.
	Namespace string
	// Announce tells users of a change. It must not block, and may be called by
	// several goroutines.
	Announce func(treat.Announcement)
	// Wrote is told what became of every write.
	Wrote func(treat.Fate)
	// Count is told how many agents are heard and silent, when that changes.
	Count  func(heard, silent int)
	Logger *slog.Logger
}

// Validate says everything that is missing.
func (c Config) Validate() error {
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Leases", c.Leases == nil}, {"Hands", c.Hands == nil}, {"Namespace", c.Namespace == ""}, {"Announce", c.Announce == nil},
		{"Wrote", c.Wrote == nil}, {"Count", c.Count == nil}, {"Logger", c.Logger == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// Keeper listens to agents, and calls those silent who are.
type Keeper struct {
	cfg    Config
	pace   *rate.Limiter
	signal chan struct{} // has room for one

	mu      sync.Mutex
	roll    *Roll
	alarm   time.Time // when the roll is looked at next; zero while that is being done
	counted [2]int
	deaf    string // why nobody can be heard, empty if they can; so that it is said once

	failures int  // of the API server, one after the other
	refused  bool // a write was, and that was said
}

// NewKeeper returns one that does nothing until it is run.
func NewKeeper(cfg Config) (*Keeper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the keeper of silences: %w", err)
	}
	return &Keeper{cfg: cfg, pace: rate.NewLimiter(writesPerSecond, writesPerSecond), signal: make(chan struct{}, 1), roll: NewRoll()}, nil
}

// Run works until ctx ends. Whoever runs it must be the only one.
func (k *Keeper) Run(ctx context.Context) {
	var listening sync.WaitGroup
	defer listening.Wait()
	defer k.cfg.Count(0, 0)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listening.Go(func() { k.listen(ctx) })
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.signal:
		case <-alarm.C:
		}
		alarm.Reset(k.round(ctx))
	}
}

// listen lists and watches Leases until ctx ends.
func (k *Keeper) listen(ctx context.Context) {
	logger := logr.FromSlogHandler(slog.DiscardHandler) // what fails is told by heed
	reflector := cache.NewReflectorWithOptions(k.ear(), &coordinationv1.Lease{}, &desk{k}, cache.ReflectorOptions{Logger: &logger, Backoff: rewatch.Backoff()})
	reflector.WatchListPageSize = pageSize
	ctx = logr.NewContext(ctx, logger)
	for waits := rewatch.Backoff(); ctx.Err() == nil; {
		began := time.Now()
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && !errors.Is(err, io.EOF) {
			k.heed(ctx, err)
		}
		if time.Since(began) > aWhile {
			waits = rewatch.Backoff()
		}
		select {
		case <-time.After(waits.Step()):
		case <-ctx.Done():
		}
	}
}

// change changes the roll, and has it looked at if somebody is due sooner than it
// would be.
func (k *Keeper) change(apply func(now time.Time, roll *Roll) (soonest time.Time)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	soonest := apply(time.Now(), k.roll)
	if heard, silent := k.roll.Count(); k.counted != [2]int{heard, silent} {
		k.counted = [2]int{heard, silent}
		k.cfg.Count(heard, silent)
	}
	if !k.alarm.IsZero() && !soonest.IsZero() && soonest.Before(k.alarm) {
		select {
		case k.signal <- struct{}{}:
		default:
		}
	}
}

// hear takes in a Lease that is there.
func (k *Keeper) hear(lease *coordinationv1.Lease) {
	is, ours := Read(lease)
	if !ours {
		return
	}
	var isBack bool
	k.change(func(now time.Time, roll *Roll) time.Time {
		isBack = roll.Hear(now, is)
		due, _ := roll.Deadline(is.Name)
		return due
	})
	if isBack {
		k.cfg.Logger.Info("agent heard again", "node", is.Node)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: is.Node, UID: is.UID}}
		k.cfg.Announce(treat.Announcement{Node: node, What: treat.AgentHeard, Words: fmt.Sprintf("The agent renews Lease %s/%s again.", k.cfg.Namespace, is.Name)})
	}
}

// round calls everybody silent who is, and returns how long to rest.
func (k *Keeper) round(ctx context.Context) time.Duration {
	for ctx.Err() == nil {
		var due []string
		var rest time.Duration
		k.change(func(now time.Time, roll *Roll) time.Time {
			var next time.Time
			due, next = roll.Due(now)
			k.alarm = now.Add(longestRest)
			if !next.IsZero() && next.Before(k.alarm) {
				k.alarm = next
			}
			rest = k.alarm.Sub(now)
			if len(due) > 0 {
				k.alarm = time.Time{}
			}
			return time.Time{}
		})
		if len(due) == 0 {
			return rest
		}
		for _, lease := range due {
			if wait := k.attend(ctx, lease); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
				}
				break // who is due is another question now
			}
		}
	}
	return longestRest
}

// attend calls an agent silent, if it still is when its turn has come. It returns how
// long to leave the API server alone.
func (k *Keeper) attend(ctx context.Context, lease string) (wait time.Duration) {
	for try := 1; k.isDue(lease); try++ {
		if k.pace.Wait(ctx) != nil {
			return 0
		}
		err := k.look(ctx, lease)
		if ctx.Err() != nil {
			return 0
		}
		switch fate := treat.FateOf(err); {
		case fate == treat.Made:
			k.failures = 0
			return 0
		case fate == treat.Stale && try < tries: // somebody else has written the node
		case fate == treat.Stale || fate == treat.Refused:
			k.failures = 0
			k.putOff(lease, err)
			return 0
		default:
			return k.trouble(err)
		}
	}
	return 0
}

func (k *Keeper) isDue(lease string) (is bool) {
	k.change(func(now time.Time, roll *Roll) time.Time {
		is = roll.IsDue(lease, now)
		return time.Time{}
	})
	return is
}

// putOff leaves an agent whose silence cannot be written for as long as it took to
// notice. It is said once: where a right is missing, it is missing for all.
func (k *Keeper) putOff(lease string, err error) {
	var is Lease
	k.change(func(now time.Time, roll *Roll) time.Time {
		is, _, _ = roll.Look(lease)
		roll.PutOff(lease, now.Add(is.Lasts))
		return time.Time{}
	})
	if !k.refused {
		k.refused = true
		k.cfg.Logger.Error("silent agent not told of", "node", is.Node, "retryIn", is.Lasts.String(), "err", err)
	}
}

// trouble notes that the API server has failed. If it does again and again, agents may
// have been unable to renew their Leases as well: nobody is silent by what was heard
// until now.
func (k *Keeper) trouble(err error) (wait time.Duration) {
	k.failures++
	if k.failures < tries {
		return time.Second << (k.failures - 1)
	}
	k.failures = 0
	k.cfg.Logger.Warn("nobody is called silent for a while, for the API server may not have let them speak", "err", err)
	k.change(func(now time.Time, roll *Roll) time.Time {
		roll.Doubt(now)
		return time.Time{}
	})
	return time.Second
}

// look looks once more, at the Lease and at the node, and writes if it is so.
func (k *Keeper) look(ctx context.Context, name string) error {
	lease, err := k.cfg.Hands.Lease(ctx, name)
	if err != nil {
		return err
	}
	if lease != nil { // the watch may be behind
		k.hear(lease)
	}
	var is Lease
	var gone, due bool
	k.change(func(now time.Time, roll *Roll) time.Time {
		if lease == nil {
			roll.Lose(name)
		}
		is, gone, _ = roll.Look(name)
		due = roll.IsDue(name, now)
		return time.Time{}
	})
	if !due {
		return nil
	}
	node, err := k.cfg.Hands.Node(ctx, is.Node)
	if err != nil {
		return err
	}
	if node == nil || is.UID != "" && node.UID != is.UID {
		k.settle(name, nil) // with its node went all that it had said
		return nil
	}
	voice, err := treat.Hear(node)
	if err != nil {
		k.putOff(name, err)
		return nil
	}
	now := time.Now()
	silence := voice.Silence(k.why(is, gone), now)
	if silence == nil {
		k.settle(name, nil)
		return nil
	}
	// Who writes is not silent, whatever has become of its Lease.
	if speaks := voice.Last.Add(is.Lasts); speaks.After(now) && voice.Last.Before(now.Add(clockSkew)) {
		k.change(func(now time.Time, roll *Roll) time.Time {
			roll.PutOff(name, speaks)
			return time.Time{}
		})
		return nil
	}
	err = k.cfg.Hands.Apply(ctx, silence)
	k.cfg.Wrote(treat.FateOf(err))
	if err != nil {
		return err
	}
	k.refused = false
	k.settle(name, silence)
	return nil
}

// settle notes that there is no more to be written for a silent agent, and tells of
// what was.
func (k *Keeper) settle(name string, silence *treat.Silence) {
	var is Lease
	var gone bool
	k.change(func(_ time.Time, roll *Roll) time.Time {
		is, gone, _ = roll.Look(name)
		roll.Silence(name)
		return time.Time{}
	})
	if silence == nil {
		return
	}
	k.cfg.Logger.Info("agent silent", "node", is.Node, "lease", name, "conditions", len(silence.Turned))
	kinds := make([]string, len(silence.Turned))
	for i, kind := range silence.Turned {
		kinds[i] = string(kind)
	}
	k.cfg.Announce(treat.Announcement{
		Node: silence.Node, What: treat.AgentSilent,
		Words: fmt.Sprintf("%s Unknown until it is heard again: %s.", k.why(is, gone), strings.Join(kinds, ", ")),
	})
}

// why says since when nobody has heard of an agent, and what to look at.
func (k *Keeper) why(is Lease, gone bool) string {
	renewed := "never renewed"
	if !is.Renewed.IsZero() {
		renewed = "renewed last at " + is.Renewed.UTC().Format(time.RFC3339)
	}
	if gone {
		return fmt.Sprintf("The agent is not there any more: Lease %s/%s, %s, is gone. If that is not meant, look at DaemonSet autohealer-agent.", k.cfg.Namespace, is.Name, renewed)
	}
	return fmt.Sprintf("The agent is silent: Lease %s/%s was %s. Look at its pod (kubectl -n %s get pods --field-selector spec.nodeName=%s) and at the log of that.",
		k.cfg.Namespace, is.Name, renewed, k.cfg.Namespace, is.Node)
}
