package agentlease

import (
	"context"
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

	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/watch"
)

const (
	// The cost of a list grows with the number of Leases, so the interval does too: 10,000
	// Leases are listed every half minute. That is enough for durations of minutes.
	intervalPerAgent = 3 * time.Millisecond
	minInterval      = 5 * time.Second
	maxInterval      = time.Minute
	// listTimeout is the timeout of a list.
	listTimeout = 30 * time.Second

	// writesPerSecond limits the load when a cluster loses all its agents.
	writesPerSecond = 10
	// maxAttempts is how often a write is retried after conflicts until it is postponed, and
	// how many consecutive failures of the API server pause the detection.
	maxAttempts = 5
	// clockSkew is how far the clock of the API server may be ahead.
	clockSkew = time.Minute

	// Many agents are silent if there are more than manySilentMin, and more than one in
	// manySilentFraction of all.
	manySilentMin, manySilentFraction = 10, 10
)

// Config is the configuration of a Monitor.
type Config struct {
	// Leases lists the Leases of agents.
	Leases Leases
	// Client reads and writes single objects.
	Client Client
	// Namespace is the namespace of the Leases, for messages.
	Namespace string
	// Event records a Kubernetes Event. It must not block.
	Event func(treat.Event)
	// Wrote receives the result of every write.
	Wrote func(treat.Outcome)
	// Count receives the number of live and silent agents when it changes. Silent ones include
	// those whose conditions are not written yet.
	Count  func(alive, silent int)
	Logger *slog.Logger
}

// Validate returns an error for every missing field.
func (c Config) Validate() error {
	return required.Fields{
		"Leases": c.Leases == nil, "Client": c.Client == nil, "Namespace": c.Namespace == "", "Event": c.Event == nil,
		"Wrote": c.Wrote == nil, "Count": c.Count == nil, "Logger": c.Logger == nil,
	}.Check()
}

// Monitor detects silent agents and sets their conditions to Unknown.
type Monitor struct {
	cfg         Config
	limiter     *rate.Limiter
	tracker     *Tracker
	listVersion string // version of the last list
	backoff     *wait.Backoff

	// The fields below are the last logged states, so that only changes are logged.
	counted      [2]int
	listFailure  string // why Leases cannot be listed, empty if they can
	storm        bool   // many agents are silent
	writeRefused bool   // a write was refused

	failures int // consecutive failures of the API server
}

// NewMonitor returns a monitor that does nothing until Run is called.
func NewMonitor(cfg Config) (*Monitor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the monitor of agent Leases: %w", err)
	}
	return &Monitor{cfg: cfg, limiter: rate.NewLimiter(writesPerSecond, writesPerSecond), tracker: NewTracker(), backoff: watch.Backoff()}, nil
}

// Run works until ctx ends. Only one replica may call it at a time.
func (m *Monitor) Run(ctx context.Context) {
	defer m.cfg.Count(0, 0)
	for ctx.Err() == nil {
		pause(ctx, m.runOnce(ctx))
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// runOnce lists all Leases, marks agents that have become silent, and checks silent agents
// again, as far as there is time until the next list. It returns how long to wait.
func (m *Monitor) runOnce(ctx context.Context) (wait time.Duration) {
	begun := time.Now()
	if err := m.list(ctx); err != nil {
		return m.backoff.Step()
	}
	m.backoff = watch.Backoff()
	next := begun.Add(m.interval())
	due, recheck := m.count(), m.tracker.DueAgain(time.Now())
	for _, turn := range []struct {
		leases []string
		look   func(context.Context, string) error
	}{{due, m.check}, {recheck, m.recheck}} {
		for _, lease := range turn.leases {
			if !time.Now().Before(next) || ctx.Err() != nil {
				break
			}
			if wait := m.checkWithRetry(ctx, lease, turn.look); wait > 0 {
				return wait // which agents are due may have changed
			}
		}
	}
	if len(due)+len(recheck) > 0 {
		m.count()
	}
	return time.Until(next)
}

// interval returns the time between two lists.
func (m *Monitor) interval() time.Duration {
	alive, silent := m.tracker.Count()
	return min(max(time.Duration(alive+silent)*intervalPerAgent, minInterval), maxInterval)
}

// maxListAge is the age of the last list beyond which renewals may have been missed. One list
// may fail, because agents have time for two more renewals.
func (m *Monitor) maxListAge() time.Duration { return 2 * m.interval() }

// list lists all Leases.
func (m *Monitor) list(ctx context.Context) error {
	listCtx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	version, err := m.cfg.Leases.List(listCtx, m.listVersion, m.tracker.Unchanged, m.observe)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m.listVersion = version // empty after an error, so that the next list asks for the newest
	now := time.Now()
	if err == nil {
		m.tracker.Listed(now, m.maxListAge())
	}
	if m.tracker.ListedWithin(now, m.maxListAge()) {
		m.logReachability(nil)
	} else {
		m.logReachability(err)
	}
	return err
}

// logReachability logs whether Leases can be listed, when that changes.
func (m *Monitor) logReachability(err error) {
	why := ""
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		why = "forbidden"
	default:
		why = "broken"
	}
	if why == m.listFailure {
		return
	}
	m.listFailure = why
	switch why {
	case "":
		m.cfg.Logger.Info("can list the Leases of agents again")
	case "forbidden":
		m.cfg.Logger.Warn("cannot list the Leases of agents, so no agent is considered silent: if the API server has not just started, the role lacks get and list of leases", "namespace", m.cfg.Namespace, "err", err)
	default:
		m.cfg.Logger.Warn("cannot list the Leases of agents, so no agent is considered silent until the controller has listed them for as long as a Lease lasts", "err", err)
	}
}

// observe records a Lease that was read.
func (m *Monitor) observe(lease *coordinationv1.Lease) {
	is, ours := Read(lease)
	if !ours || !m.tracker.Renewed(time.Now(), is) {
		return
	}
	m.cfg.Logger.Info("agent heard again", "node", is.Node)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: is.Node, UID: is.UID}}
	m.cfg.Event(treat.Event{Node: node, EventReason: treat.AgentHeard, Message: fmt.Sprintf("The agent renews Lease %s/%s again.", m.cfg.Namespace, is.Name)})
}

// count returns the agents that have become silent, and publishes the number of silent agents.
func (m *Monitor) count() (due []string) {
	due = m.tracker.Due(time.Now())
	alive, silent := m.tracker.Count()
	alive, silent = alive-len(due), silent+len(due)
	if m.counted != [2]int{alive, silent} {
		m.counted = [2]int{alive, silent}
		m.cfg.Count(alive, silent)
	}
	if storm := silent > manySilentMin && silent*manySilentFraction > alive+silent; storm != m.storm {
		m.storm = storm
		if storm {
			m.cfg.Logger.Warn("many agents are silent at once: check their DaemonSet and the network from the nodes to the API server; only sets with evenSilent taint these nodes",
				"silent", silent, "heard", alive, "callsPerSecond", writesPerSecond)
		} else {
			m.cfg.Logger.Info("few agents are silent again", "silent", silent, "heard", alive)
		}
	}
	return due
}

// checkWithRetry checks an agent within the rate limit, and retries after conflicts. It
// returns how long to leave the API server alone.
func (m *Monitor) checkWithRetry(ctx context.Context, lease string, look func(context.Context, string) error) (wait time.Duration) {
	for try := 1; ; try++ {
		if m.limiter.Wait(ctx) != nil {
			return 0
		}
		err := look(ctx, lease)
		if ctx.Err() != nil {
			return 0
		}
		switch result := treat.Classify(err); {
		case result == treat.Made:
			m.failures = 0
			return 0
		case result == treat.Stale && try < maxAttempts: // another client has written the node
		case result == treat.Stale || result == treat.Refused:
			m.failures = 0
			m.postpone(lease, err)
			return 0
		default:
			return m.serverFailed(err)
		}
	}
}

// postpone delays an agent whose conditions cannot be written by the duration of its Lease. It
// logs once, because a missing permission affects all agents.
func (m *Monitor) postpone(lease string, err error) {
	is, _, _ := m.tracker.Get(lease)
	m.tracker.Postpone(lease, time.Now().Add(is.Duration))
	if !m.writeRefused {
		m.writeRefused = true
		m.cfg.Logger.Error("cannot set conditions of silent agent to Unknown", "node", is.Node, "retryIn", is.Duration.String(), "err", err)
	}
}

// serverFailed records a failure of the API server. After several failures agents may have
// been unable to renew too, so every agent gets its full duration again.
func (m *Monitor) serverFailed(err error) (wait time.Duration) {
	m.failures++
	if m.failures < maxAttempts {
		return time.Second << (m.failures - 1)
	}
	m.failures = 0
	m.cfg.Logger.Warn("pausing agent-silence detection: agents may have been unable to reach the API server", "err", err)
	m.tracker.ExtendAll(time.Now())
	return time.Second
}

// check reads the Lease and the node again, and sets the conditions to Unknown if the agent is
// silent.
func (m *Monitor) check(ctx context.Context, name string) error {
	lease, err := m.refreshLease(ctx, name)
	if err != nil || !m.tracker.IsDue(name, time.Now()) { // the check may run long after the list
		return err
	}
	is, _, _ := m.tracker.Get(name)
	node, err := m.nodeOf(ctx, is)
	if err != nil {
		return err
	}
	if node == nil {
		m.tracker.MarkSilent(time.Now(), name) // the conditions went with the node
		return nil
	}
	written, err := treat.ReadAgentOwnership(node)
	if err != nil {
		m.postpone(name, err)
		return nil
	}
	now, why := time.Now(), m.describe(is, lease)
	silence := written.MarkUnknown(why, now)
	if silence == nil {
		m.tracker.MarkSilent(now, name)
		return nil
	}
	// An agent that writes conditions is not silent, whatever its Lease says.
	if aliveUntil := written.Last.Add(is.Duration); aliveUntil.After(now) && written.Last.Before(now.Add(clockSkew)) {
		m.tracker.Postpone(name, aliveUntil)
		return nil
	}
	err = m.cfg.Client.Apply(ctx, silence)
	m.cfg.Wrote(treat.Classify(err))
	if err != nil {
		return err
	}
	m.writeRefused = false
	m.tracker.MarkSilent(time.Now(), name)
	m.cfg.Logger.Info("agent silent", "node", is.Node, "lease", name, "conditions", len(silence.Turned))
	kinds := make([]string, len(silence.Turned))
	for i, kind := range silence.Turned {
		kinds[i] = string(kind)
	}
	m.cfg.Event(treat.Event{
		Node: silence.Node, EventReason: treat.AgentSilent, Message: fmt.Sprintf("%s Unknown until it is heard again: %s.", why, strings.Join(kinds, ", ")),
	})
	return nil
}

// recheck checks whether a silent agent has written its conditions again, which only a live
// agent does. If it does not renew its Lease, for lack of permission, it is left alone until
// it does. Otherwise it would be marked silent over and over.
func (m *Monitor) recheck(ctx context.Context, name string) error {
	is, _, _ := m.tracker.Get(name)
	node, err := m.nodeOf(ctx, is)
	if err != nil {
		return err
	}
	if node == nil {
		m.tracker.MarkSilent(time.Now(), name)
		return nil
	}
	written, err := treat.ReadAgentOwnership(node)
	if err != nil {
		m.postpone(name, err)
		return nil
	}
	if written.MarkUnknown("", time.Now()) == nil {
		m.tracker.MarkSilent(time.Now(), name)
		return nil
	}
	if _, err := m.refreshLease(ctx, name); err != nil || !m.tracker.MarkAlive(name) {
		return err
	}
	m.cfg.Logger.Warn("agent works without renewing its lease, so silence detection ignores it until it does: let it create and patch leases, or delete the lease",
		"node", is.Node, "namespace", m.cfg.Namespace, "lease", name)
	m.cfg.Event(treat.Event{Node: node, EventReason: treat.AgentHeard, Message: fmt.Sprintf(
		"The agent writes its conditions again, but does not renew Lease %s/%s, so the controller cannot detect when it stops. See the log of the agent.", m.cfg.Namespace, name)})
	return nil
}

// refreshLease reads a Lease and records it. It returns nil if the Lease is deleted.
func (m *Monitor) refreshLease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	lease, err := m.cfg.Client.Lease(ctx, name)
	switch {
	case err != nil:
	case lease == nil:
		m.tracker.LeaseGone(name)
	default:
		m.observe(lease)
	}
	return lease, err
}

// nodeOf reads the node of an agent. It returns nil if the node is deleted or was recreated.
func (m *Monitor) nodeOf(ctx context.Context, is Lease) (*corev1.Node, error) {
	node, err := m.cfg.Client.Node(ctx, is.Node)
	if err != nil || node == nil || is.UID != "" && node.UID != is.UID {
		return nil, err
	}
	return node, nil
}

// describe returns since when the agent is silent, and what to check. It cannot name the pod:
// agents may run in the DaemonSet of a node-problem-detector.
func (m *Monitor) describe(is Lease, lease *coordinationv1.Lease) string {
	renewed := "never renewed"
	if !is.Renewed.IsZero() {
		renewed = "renewed last at " + is.Renewed.UTC().Format(time.RFC3339)
	}
	pods := "kubectl get pods -A --field-selector spec.nodeName=" + is.Node
	if lease == nil {
		return fmt.Sprintf("The agent is gone: its Lease %s/%s, %s, was deleted. If this is not intended, find its pod (%s).", m.cfg.Namespace, is.Name, renewed, pods)
	}
	if by := holder(lease); by != "" {
		renewed += " by " + by
	}
	return fmt.Sprintf("The agent is silent: Lease %s/%s was %s. Look for its pod (%s) and read its log.", m.cfg.Namespace, is.Name, renewed, pods)
}
