package intake

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
)

const (
	// maxUnauthenticated is the maximum number of connections per listener that have not
	// authenticated yet.
	maxUnauthenticated = 32
	// retryInterval is how often the intake reads tokens again, retries listeners that failed
	// to open, and replaces sockets whose file is gone.
	retryInterval = 10 * time.Second
	// ticksPerSilence is how many ticks the shortest silence has. Silence is counted in ticks,
	// so time during which the agent itself was stopped does not count.
	ticksPerSilence = 10
	// shutdownTimeout is how long requests in flight may take when the agent stops.
	shutdownTimeout = time.Second
	// These timeouts keep a slow client from holding a connection.
	headerTimeout, readTimeout, writeTimeout = 5 * time.Second, 10 * time.Second, 15 * time.Second
	idleTimeout                              = 5 * time.Minute
	maxHeaderBytes                           = 8 << 10
)

// Config is the configuration of an Intake.
type Config struct {
	// Emit receives the findings of a source, in order. It must not block, and must not call
	// the intake. A caller of the intake must not hold a lock that Emit takes.
	Emit func(source string, r finding.Report)
	// Memory saves the reports of the sources across restarts of the agent. May be nil.
	Memory Memory
	// Boot is the ID of the current boot. Conditions that a reboot fixes are dropped after
	// one.
	Boot string
	// Logger receives changes in the state of sources.
	Logger *slog.Logger
}

// Intake receives reports from sources. It is safe for concurrent use.
type Intake struct {
	cfg    Config
	server *http.Server
	open   func(listenAddr) (net.Listener, error)
	read   func(path string) (digest, error)

	applyMu sync.Mutex    // serializes changes of the sources and listeners
	changed chan struct{} // the tick interval may have changed

	mu              sync.Mutex // guards the fields below; locked before that of a sourceState
	sources         []*sourceState
	wantedAddrs     []listenAddr
	listeners       map[listenAddr]*sourceListener
	failures        map[string]error
	reading         map[*sourceState]string // token files that are being read
	unauthenticated uint64
	stopped         bool
}

// Counts are the results of the reports of one source.
type Counts struct {
	Source string
	// Accepted counts accepted statuses, including heartbeats. Refused counts rejected ones by
	// HTTP status.
	Accepted uint64
	Refused  map[int]uint64
	// Slowed counts how often the source had to wait because it sent too much.
	Slowed uint64
	// Events counts the events passed to Emit.
	Events uint64
	// Silent is true if the source has not reported for too long.
	Silent bool
}

// New returns an intake without sources.
func New(cfg Config) *Intake {
	in := &Intake{
		cfg: cfg, open: listenAddr.open, read: readToken, changed: make(chan struct{}, 1),
		listeners: map[listenAddr]*sourceListener{}, failures: map[string]error{}, reading: map[*sourceState]string{},
	}
	in.server = &http.Server{
		Handler:           http.HandlerFunc(in.serve),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ConnContext:    withConnection,
		ErrorLog:       slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return in
}

// Apply replaces the configured sources. Sources that stay keep their state. The intake logs
// and retries listeners that cannot be opened and tokens that cannot be read. Apply returns an
// error only if the setup is invalid; then it changes nothing.
func (in *Intake) Apply(setup Setup) error {
	if err := setup.Validate(); err != nil {
		return err
	}
	in.applyMu.Lock()
	defer in.applyMu.Unlock()
	states := in.updateSources(setup.Sources, time.Now())
	in.mu.Lock()
	in.sources, in.wantedAddrs = states, setup.listenAddrs()
	in.forgetFailures()
	in.mu.Unlock()
	in.readTokens()
	in.updateListeners()
	select {
	case in.changed <- struct{}{}:
	default: // a change is already signalled
	}
	return nil
}

// updateSources returns the states of the sources. Existing sources keep their state. The
// caller holds applyMu.
func (in *Intake) updateSources(sources []Source, now time.Time) []*sourceState {
	indexOf := func(src *sourceState) int {
		return slices.IndexFunc(sources, func(s Source) bool { return s.Name == src.name })
	}
	before := map[string]*sourceState{}
	for _, src := range in.sources { // first release conditions, because another source may take them over
		src.mu.Lock()
		next := src.source
		next.Conditions = nil
		if i := indexOf(src); i >= 0 {
			next, before[src.name] = sources[i], src
		} else {
			src.removed = true
			in.cfg.Logger.Info("a source of problem reports is heard no longer", "source", src.name)
		}
		in.emit(src, finding.Report{Source: src.name, Gone: src.reconfigure(next)})
		src.mu.Unlock()
	}
	states := make([]*sourceState, 0, len(sources))
	for _, source := range sources {
		src := before[source.Name]
		if src == nil {
			src = newSourceState(source, now)
			in.startSource(src, now)
		} else {
			in.publishCurrent(src, now)
		}
		states = append(states, src)
	}
	return states
}

// startSource restores the saved state of a new source.
func (in *Intake) startSource(src *sourceState, now time.Time) {
	src.mu.Lock()
	defer src.mu.Unlock()
	if in.cfg.Memory != nil {
		if err := src.restore(in.cfg.Memory.Recall(src.name), in.cfg.Boot); err != nil {
			in.cfg.Logger.Error("saved state of a source cannot be read and is dropped", "source", src.name, "err", err)
		}
	}
	src.publish(&finding.Report{}, now)
	in.emit(src, finding.Report{Source: src.name, Conditions: src.publishedConditions()})
	in.cfg.Logger.Info("source of problem reports added", "source", src.name, "conditions", src.source.Conditions, "silence", src.source.Silence)
}

// publishCurrent emits changes of a source whose configuration has changed.
func (in *Intake) publishCurrent(src *sourceState, now time.Time) {
	src.mu.Lock()
	defer src.mu.Unlock()
	r := finding.Report{Source: src.name}
	src.publish(&r, now)
	in.emit(src, r)
}

// emit passes new findings on. The caller holds the lock of the source, which keeps the order.
func (in *Intake) emit(src *sourceState, r finding.Report) {
	if !r.IsEmpty() {
		in.cfg.Emit(src.name, r)
	}
}

// save passes the state of a source to Memory, after it emitted a report.
func (in *Intake) save(src *sourceState, r finding.Report) {
	if in.cfg.Memory == nil {
		return
	}
	text, err := src.save(in.cfg.Boot)
	if err != nil {
		// Only a year that JSON cannot encode fails, and validate rejects it.
		in.cfg.Logger.Error("state of a source cannot be saved", "source", src.name, "err", err)
		return
	}
	urgent := slices.ContainsFunc(r.Events, func(e finding.Event) bool { return e.Condition != "" })
	in.cfg.Memory.Keep(src.name, text, src.unknownFields.Len(), urgent)
}

// updateListeners opens the wanted listeners and closes all others.
func (in *Intake) updateListeners() {
	in.mu.Lock()
	wanted, ended := slices.Clone(in.wantedAddrs), in.stopped
	var toClose []*sourceListener
	for addr, l := range in.listeners {
		lost := l.checkFile()
		if lost != nil {
			in.setFailureLocked(addr.String(), lost) // cleared when the listener is open again
		}
		if lost != nil || !slices.Contains(wanted, addr) {
			toClose = append(toClose, l)
			delete(in.listeners, addr)
		}
	}
	missing := slices.DeleteFunc(wanted, func(addr listenAddr) bool { return in.listeners[addr] != nil })
	in.mu.Unlock()
	for _, l := range toClose {
		in.close(l)
	}
	if ended {
		return
	}
	for _, addr := range missing {
		listener, err := in.open(addr)
		in.setFailure(addr.String(), err)
		if err != nil {
			continue
		}
		l := &sourceListener{Listener: listener, addr: addr, limiter: &connLimiter{limit: maxUnauthenticated}}
		in.mu.Lock()
		in.listeners[addr] = l
		in.mu.Unlock()
		in.cfg.Logger.Info("listening for problem reports", "at", addr.String(), "of", addr.owner)
		go in.serveListener(l)
	}
}

func (in *Intake) close(l *sourceListener) {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		in.cfg.Logger.Warn("listener cannot be closed", "at", l.addr.String(), "err", err)
	}
}

// serveListener serves the connections of a listener until it is closed.
func (in *Intake) serveListener(l *sourceListener) {
	err := in.server.Serve(l)
	in.mu.Lock()
	broken := in.listeners[l.addr] == l && !in.stopped
	if broken { // it was not closed on purpose, so open it again
		delete(in.listeners, l.addr)
	}
	in.mu.Unlock()
	if broken {
		in.setFailure(l.addr.String(), err)
	}
}

// setFailure records that a listener or token cannot be used, or can again. It logs changes.
func (in *Intake) setFailure(what string, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.setFailureLocked(what, err)
}

// forgetFailures drops failures of listeners and tokens that are no longer configured. The
// caller holds mu.
func (in *Intake) forgetFailures() {
	asked := map[string]bool{}
	for _, addr := range in.wantedAddrs {
		asked[addr.String()] = true
	}
	for _, src := range in.sources {
		src.mu.Lock()
		asked[tokenName(src.name)] = src.source.TokenFile != ""
		src.mu.Unlock()
	}
	maps.DeleteFunc(in.failures, func(what string, _ error) bool { return !asked[what] })
}

// setFailureLocked is setFailure for a caller that holds mu.
func (in *Intake) setFailureLocked(what string, err error) {
	before := in.failures[what]
	if in.failures[what] = err; err == nil {
		delete(in.failures, what)
	}
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		in.cfg.Logger.Error("problem reports cannot be received", "of", what, "err", err)
	case err == nil && before != nil:
		in.cfg.Logger.Info("problem reports can be received again", "of", what)
	}
}

// Problems returns what keeps the intake from receiving reports, or nothing.
func (in *Intake) Problems() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	why := make([]string, 0, len(in.failures))
	for _, what := range slices.Sorted(maps.Keys(in.failures)) {
		why = append(why, what+" cannot be used: "+in.failures[what].Error())
	}
	return why
}

// Counts returns the results of the reports of all sources, in the order of the setup, and the
// number of unauthenticated requests.
func (in *Intake) Counts() (sources []Counts, unauthenticated uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, src := range in.sources {
		src.mu.Lock()
		counts := src.counts
		counts.Refused, counts.Silent = maps.Clone(counts.Refused), src.silence.source.silent
		src.mu.Unlock()
		sources = append(sources, counts)
	}
	return sources, in.unauthenticated
}

// Run detects silent sources until ctx ends. Then it closes all listeners.
func (in *Intake) Run(ctx context.Context) {
	defer in.shutdown(context.WithoutCancel(ctx))
	beat := in.tickInterval()
	ticker, retry := time.NewTicker(beat), time.NewTicker(retryInterval)
	defer ticker.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-in.changed:
			if next := in.tickInterval(); next != beat {
				beat = next
				ticker.Reset(beat)
			}
		case now := <-ticker.C:
			in.tick(beat, now)
		case <-retry.C:
			in.applyMu.Lock()
			in.readTokens()
			in.updateListeners()
			in.applyMu.Unlock()
		}
	}
}

// tickInterval returns a fraction of the shortest configured silence.
func (in *Intake) tickInterval() time.Duration {
	in.mu.Lock()
	defer in.mu.Unlock()
	shortest := time.Minute
	for _, src := range in.sources {
		src.mu.Lock()
		shortest = min(shortest, src.source.Silence)
		src.mu.Unlock()
	}
	return shortest / ticksPerSilence
}

// tick advances the silence timers of all sources.
func (in *Intake) tick(passed time.Duration, now time.Time) {
	in.mu.Lock()
	states := slices.Clone(in.sources)
	in.mu.Unlock()
	for _, src := range states {
		src.mu.Lock()
		wasSilent := src.silence.source.silent
		r := src.advance(passed, now)
		in.emit(src, r)
		if len(r.Conditions) > 0 || src.silence.mustSave(src.source.Silence) {
			in.save(src, r)
		}
		if src.silence.source.silent && !wasSilent {
			in.cfg.Logger.Warn("a source of problem reports is silent", "source", src.name, "for", src.source.Silence)
		}
		src.mu.Unlock()
	}
}

// shutdown closes all listeners and waits shortly for requests in flight.
func (in *Intake) shutdown(ctx context.Context) {
	in.mu.Lock()
	in.stopped, in.wantedAddrs = true, nil
	in.mu.Unlock()
	in.updateListeners()
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	if err := in.server.Shutdown(ctx); err != nil {
		_ = in.server.Close() // the intake stops anyway
	}
}
