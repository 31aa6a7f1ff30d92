package agentlease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/resourcestack/autohealer/internal/rewatch"
	"github.com/resourcestack/autohealer/internal/treat"
)

const (
	// A look at all Leases costs as much as there are Leases, so the rest after it grows
	// with them: 10,000 are looked at every half minute, which is often enough for
	// silences that count in minutes.
	restPerAgent = 3 * time.Millisecond
	shortestRest = 5 * time.Second
	longestRest  = time.Minute
	// lookTimeout is how long a look may take.
	lookTimeout = 30 * time.Second

	// writesPerSecond bounds what a cluster that has lost all of its agents costs.
	writesPerSecond = 10
	// tries is how often a node is written that others write too, until that is put
	// off, and how often the API server may fail until it is not believed to work.
	tries = 5
	// clockSkew is how far ahead of ours the clock of the API server may be.
	clockSkew = time.Minute

	// Many agents are silent if more are than aFew, and more than one in aPart of all.
	aFew, aPart = 10, 10
)

// Config is what a keeper works with.
type Config struct {
	// Leases is where the Leases of agents come from.
	Leases Leases
	// Client read afresh, and write.
	Client Client
	// Namespace is where the Leases are, for people.
	Namespace string
	// Event tells users of a change. It must not block.
	Event func(treat.Event)
	// Wrote is told what became of every write.
	Wrote func(treat.Result)
	// Count is told how many agents are heard and silent, those included who are yet to
	// be called so, when that changes.
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
		{"Leases", c.Leases == nil}, {"Hands", c.Client == nil}, {"Namespace", c.Namespace == ""}, {"Announce", c.Event == nil},
		{"Wrote", c.Wrote == nil}, {"Count", c.Count == nil}, {"Logger", c.Logger == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// Monitor listens to agents, and calls those silent who are.
type Monitor struct {
	cfg     Config
	pace    *rate.Limiter
	roll    *Tracker
	version string // that the last look has read
	waits   *wait.Backoff

	// What was said, so that it is said once.
	counted [2]int
	deaf    string // why nobody can be heard, empty if they can
	storm   bool   // many are silent
	refused bool   // a write was

	failures int // of the API server, one after the other
}

// NewMonitor returns one that does nothing until it is run.
func NewMonitor(cfg Config) (*Monitor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the keeper of silences: %w", err)
	}
	return &Monitor{cfg: cfg, pace: rate.NewLimiter(writesPerSecond, writesPerSecond), roll: NewTracker(), waits: rewatch.Backoff()}, nil
}

// Run works until ctx ends. Whoever runs it must be the only one.
func (k *Monitor) Run(ctx context.Context) {
	defer k.cfg.Count(0, 0)
	for ctx.Err() == nil {
		pause(ctx, k.round(ctx))
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// round looks at all Leases once, calls those silent who are, and looks at those who
// were called so, as far as there is time until the next look, and returns when that is.
func (k *Monitor) round(ctx context.Context) (rest time.Duration) {
	begun := time.Now()
	if err := k.listen(ctx); err != nil {
		return k.waits.Step()
	}
	k.waits = rewatch.Backoff()
	next := begun.Add(k.rest())
	due, unseen := k.count(), k.roll.DueAgain(time.Now())
	for _, turn := range []struct {
		leases []string
		look   func(context.Context, string) error
	}{{due, k.look}, {unseen, k.lookAgain}} {
		for _, lease := range turn.leases {
			if !time.Now().Before(next) || ctx.Err() != nil {
				break
			}
			if wait := k.attend(ctx, lease, turn.look); wait > 0 {
				return wait // and who is due is another question then
			}
		}
	}
	if len(due)+len(unseen) > 0 {
		k.count()
	}
	return time.Until(next)
}

// rest is how long after a look the next one is.
func (k *Monitor) rest() time.Duration {
	heard, silent := k.roll.Count()
	return min(max(time.Duration(heard+silent)*restPerAgent, shortestRest), longestRest)
}

// patience is how long no look may succeed until nobody is held to have been heard:
// one may fail, for agents have time for two renewals besides.
func (k *Monitor) patience() time.Duration { return 2 * k.rest() }

// listen looks at all Leases.
func (k *Monitor) listen(ctx context.Context) error {
	looking, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	version, err := k.cfg.Leases.List(looking, k.version, k.roll.Unchanged, k.hear)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	k.version = version // if it cannot be had any more, the next look asks for none
	now := time.Now()
	if err == nil {
		k.roll.Listed(now, k.patience())
	}
	if k.roll.ListedWithin(now, k.patience()) {
		k.heed(nil)
	} else {
		k.heed(err)
	}
	return err
}

// heed says whether agents can be heard, when that changes.
func (k *Monitor) heed(err error) {
	why := ""
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		why = "forbidden"
	default:
		why = "broken"
	}
	if why == k.deaf {
		return
	}
	k.deaf = why
	switch why {
	case "":
		k.cfg.Logger.Info("agents can be heard")
	case "forbidden":
		k.cfg.Logger.Warn("agents cannot be heard, so none is called silent: if the API server has not just started, the role lacks get and list of leases", "namespace", k.cfg.Namespace, "err", err)
	default:
		k.cfg.Logger.Warn("agents cannot be heard, so none is called silent until they can for as long as a lease lasts", "err", err)
	}
}

// hear takes in a Lease that is there.
func (k *Monitor) hear(lease *coordinationv1.Lease) {
	is, ours := Read(lease)
	if !ours || !k.roll.Renewed(time.Now(), is) {
		return
	}
	k.cfg.Logger.Info("agent heard again", "node", is.Node)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: is.Node, UID: is.UID}}
	k.cfg.Event(treat.Event{Node: node, EventReason: treat.AgentHeard, Message: fmt.Sprintf("The agent renews Lease %s/%s again.", k.cfg.Namespace, is.Name)})
}

// count returns who is to be called silent, and tells how many are.
func (k *Monitor) count() (due []string) {
	due = k.roll.Due(time.Now())
	heard, silent := k.roll.Count()
	heard, silent = heard-len(due), silent+len(due)
	if k.counted != [2]int{heard, silent} {
		k.counted = [2]int{heard, silent}
		k.cfg.Count(heard, silent)
	}
	if storm := silent > aFew && silent*aPart > heard+silent; storm != k.storm {
		k.storm = storm
		if storm {
			k.cfg.Logger.Warn("many agents are silent at once: look at their daemonset, and at the way from nodes to the API server; nothing is tainted for that but by sets with evenSilent",
				"silent", silent, "heard", heard, "callsPerSecond", writesPerSecond)
		} else {
			k.cfg.Logger.Info("few agents are silent again", "silent", silent, "heard", heard)
		}
	}
	return due
}

// attend looks at an agent when its turn has come. It returns how long to leave the API
// server alone.
func (k *Monitor) attend(ctx context.Context, lease string, look func(context.Context, string) error) (wait time.Duration) {
	for try := 1; ; try++ {
		if k.pace.Wait(ctx) != nil {
			return 0
		}
		err := look(ctx, lease)
		if ctx.Err() != nil {
			return 0
		}
		switch fate := treat.Classify(err); {
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
}

// putOff leaves an agent whose silence cannot be written for as long as it took to
// notice. It is said once: where a right is missing, it is missing for all.
func (k *Monitor) putOff(lease string, err error) {
	is, _, _ := k.roll.Get(lease)
	k.roll.Postpone(lease, time.Now().Add(is.Duration))
	if !k.refused {
		k.refused = true
		k.cfg.Logger.Error("silent agent not told of", "node", is.Node, "retryIn", is.Duration.String(), "err", err)
	}
}

// trouble notes that the API server has failed. If it does again and again, agents may
// have been unable to renew their Leases as well: nobody is silent by what was heard
// until now.
func (k *Monitor) trouble(err error) (wait time.Duration) {
	k.failures++
	if k.failures < tries {
		return time.Second << (k.failures - 1)
	}
	k.failures = 0
	k.cfg.Logger.Warn("nobody is called silent for a while, for the API server may not have let them speak", "err", err)
	k.roll.ExtendAll(time.Now())
	return time.Second
}

// look looks once more, at the Lease and at the node, and writes if it is so.
func (k *Monitor) look(ctx context.Context, name string) error {
	lease, err := k.relisten(ctx, name)
	if err != nil || !k.roll.IsDue(name, time.Now()) { // its turn may have come long after
		return err
	}
	is, _, _ := k.roll.Get(name)
	node, err := k.nodeOf(ctx, is)
	if err != nil {
		return err
	}
	if node == nil {
		k.roll.MarkSilent(time.Now(), name) // with its node went all that it had said
		return nil
	}
	voice, err := treat.Hear(node)
	if err != nil {
		k.putOff(name, err)
		return nil
	}
	now, why := time.Now(), k.why(is, lease)
	silence := voice.Silence(why, now)
	if silence == nil {
		k.roll.MarkSilent(now, name)
		return nil
	}
	// Who writes is not silent, whatever has become of its Lease.
	if speaks := voice.Last.Add(is.Duration); speaks.After(now) && voice.Last.Before(now.Add(clockSkew)) {
		k.roll.Postpone(name, speaks)
		return nil
	}
	err = k.cfg.Client.Apply(ctx, silence)
	k.cfg.Wrote(treat.Classify(err))
	if err != nil {
		return err
	}
	k.refused = false
	k.roll.MarkSilent(time.Now(), name)
	k.cfg.Logger.Info("agent silent", "node", is.Node, "lease", name, "conditions", len(silence.Turned))
	kinds := make([]string, len(silence.Turned))
	for i, kind := range silence.Turned {
		kinds[i] = string(kind)
	}
	k.cfg.Event(treat.Event{
		Node: silence.Node, EventReason: treat.AgentSilent, Message: fmt.Sprintf("%s Unknown until it is heard again: %s.", why, strings.Join(kinds, ", ")),
	})
	return nil
}

// lookAgain looks whether one who was called silent has made his conditions what they
// were: nobody does so but an agent that lives. One that does not renew its Lease either
// may not, and is left alone until it does; or it would be called silent over and over.
func (k *Monitor) lookAgain(ctx context.Context, name string) error {
	is, _, _ := k.roll.Get(name)
	node, err := k.nodeOf(ctx, is)
	if err != nil {
		return err
	}
	if node == nil {
		k.roll.MarkSilent(time.Now(), name)
		return nil
	}
	voice, err := treat.Hear(node)
	if err != nil {
		k.putOff(name, err)
		return nil
	}
	if voice.Silence("", time.Now()) == nil {
		k.roll.MarkSilent(time.Now(), name)
		return nil
	}
	if _, err := k.relisten(ctx, name); err != nil || !k.roll.MarkAlive(name) {
		return err
	}
	k.cfg.Logger.Warn("agent works without renewing its lease, so it is not called silent until it does: give it the right to create and patch leases, or delete the lease",
		"node", is.Node, "namespace", k.cfg.Namespace, "lease", name)
	k.cfg.Event(treat.Event{Node: node, EventReason: treat.AgentHeard, Message: fmt.Sprintf(
		"The agent writes its conditions again, and does not renew Lease %s/%s: nobody can tell when it stops. Its log says why.", k.cfg.Namespace, name)})
	return nil
}

// relisten takes in a Lease afresh, and returns it, nil if it is gone.
func (k *Monitor) relisten(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	lease, err := k.cfg.Client.Lease(ctx, name)
	switch {
	case err != nil:
	case lease == nil:
		k.roll.LeaseGone(name)
	default:
		k.hear(lease)
	}
	return lease, err
}

// nodeOf reads the node of an agent, nil if that is gone, or another now.
func (k *Monitor) nodeOf(ctx context.Context, is Lease) (*corev1.Node, error) {
	node, err := k.cfg.Client.Node(ctx, is.Node)
	if err != nil || node == nil || is.UID != "" && node.UID != is.UID {
		return nil, err
	}
	return node, nil
}

// why says since when nobody has heard of an agent whose Lease is that, or gone, and
// what to look at. Where its pod is we cannot know: agents may have taken the place of a
// node-problem-detector.
func (k *Monitor) why(is Lease, lease *coordinationv1.Lease) string {
	renewed := "never renewed"
	if !is.Renewed.IsZero() {
		renewed = "renewed last at " + is.Renewed.UTC().Format(time.RFC3339)
	}
	pods := "kubectl get pods -A --field-selector spec.nodeName=" + is.Node
	if lease == nil {
		return fmt.Sprintf("The agent is not there any more: Lease %s/%s, %s, is gone. If that is not meant, look for its pod (%s).", k.cfg.Namespace, is.Name, renewed, pods)
	}
	if by := holder(lease); by != "" {
		renewed += " by " + by
	}
	return fmt.Sprintf("The agent is silent: Lease %s/%s was %s. Look for its pod (%s), and at the log of that.", k.cfg.Namespace, is.Name, renewed, pods)
}
