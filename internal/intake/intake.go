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
	// places are for callers who have not said yet who they are.
	places = 32
	// upkeep is how often tokens are read anew, and doors tried that would not open or
	// that nobody finds any more.
	upkeep = 10 * time.Second
	// beats is into how many parts a silence is divided. They are counted, as time in
	// which the agent itself was stopped is no silence of others.
	beats = 10
	// parting is how long statuses on their way may take when the agent ends.
	parting = time.Second
	// How long a caller may take, so that none who dawdles keeps a place.
	headerTimeout, readTimeout, writeTimeout = 5 * time.Second, 10 * time.Second, 15 * time.Second
	idleTimeout                              = 5 * time.Minute
	mostHeader                               = 8 << 10
)

// Config of an intake.
type Config struct {
	// Emit takes what the sources tell, in the order in which it counts. It must not wait,
	// and must not ask the intake; nor may whoever does hold a lock that Emit takes.
	Emit func(source string, r finding.Report)
	// Memory keeps what the sources have told over a restart. May be nil.
	Memory Memory
	// Boot is the identity of the present boot: a reboot cures what the catalogue says.
	Boot string
	// Logger is told what becomes of sources.
	Logger *slog.Logger
}

// Intake listens to sources. Its methods may be called by several at once.
type Intake struct {
	cfg    Config
	server *http.Server
	open   func(doorway) (net.Listener, error)
	read   func(path string) (digest, error)

	applying sync.Mutex    // one change at a time
	changed  chan struct{} // the beat may be another

	mu        sync.Mutex // of what follows, taken before that of a desk
	desks     []*desk
	wanted    []doorway
	doors     map[doorway]*door
	troubles  map[string]error
	reading   map[*desk]string // the files of tokens that are being read
	strangers uint64
	ended     bool
}

// Counts are what became of the reports of one source.
type Counts struct {
	Source string
	// Accepted statuses, heartbeats among them, and refused ones by their HTTP status.
	Accepted uint64
	Refused  map[int]uint64
	// Slowed is how often the source had to wait because it reported too much.
	Slowed uint64
	// Events that were passed on.
	Events uint64
	// Silent says that it has said nothing for too long.
	Silent bool
}

// New returns an intake that listens to nobody yet.
func New(cfg Config) *Intake {
	in := &Intake{
		cfg: cfg, open: doorway.open, read: readToken, changed: make(chan struct{}, 1),
		doors: map[doorway]*door{}, troubles: map[string]error{}, reading: map[*desk]string{},
	}
	in.server = &http.Server{
		Handler:           http.HandlerFunc(in.serve),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: mostHeader,
		ConnContext:    withCaller,
		ErrorLog:       slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return in
}

// Apply listens to the sources of a setup, and to no others. Sources that stay keep what
// they have told. A place where it cannot listen, and a token that cannot be read, are
// told of and tried again; an error is one of the setup, and then nothing is changed.
func (in *Intake) Apply(setup Setup) error {
	if err := setup.Validate(); err != nil {
		return err
	}
	in.applying.Lock()
	defer in.applying.Unlock()
	desks := in.settle(setup.Sources, time.Now())
	in.mu.Lock()
	in.desks, in.wanted = desks, setup.doorways()
	in.forget()
	in.mu.Unlock()
	in.readTokens()
	in.arrange()
	select {
	case in.changed <- struct{}{}:
	default: // it is known already
	}
	return nil
}

// settle returns the desks of the sources: those that are there already with what they
// know, and new ones. Nobody else changes which there are meanwhile.
func (in *Intake) settle(sources []Source, now time.Time) []*desk {
	stays := func(d *desk) int {
		return slices.IndexFunc(sources, func(s Source) bool { return s.Name == d.name })
	}
	before := map[string]*desk{}
	for _, d := range in.desks { // first those who give something up
		d.mu.Lock()
		next := d.source
		next.Conditions = nil
		if i := stays(d); i >= 0 {
			next, before[d.name] = sources[i], d
		} else {
			d.closed = true
			in.cfg.Logger.Info("a source of problem reports is heard no longer", "source", d.name)
		}
		in.emit(d, finding.Report{Source: d.name, Gone: d.resettle(next)})
		d.mu.Unlock()
	}
	desks := make([]*desk, 0, len(sources))
	for _, source := range sources {
		d := before[source.Name]
		if d == nil {
			d = newDesk(source, now)
			in.begin(d, now)
		} else {
			in.greet(d, now)
		}
		desks = append(desks, d)
	}
	return desks
}

// begin takes up what a source has told in the life before.
func (in *Intake) begin(d *desk, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if in.cfg.Memory != nil {
		if err := d.recall(in.cfg.Memory.Recall(d.name), in.cfg.Boot); err != nil {
			in.cfg.Logger.Error("what a source had told is forgotten", "source", d.name, "err", err)
		}
	}
	d.show(&finding.Report{}, now)
	in.emit(d, finding.Report{Source: d.name, Conditions: d.all()})
	in.cfg.Logger.Info("a source of problem reports is listened for", "source", d.name, "conditions", d.source.Conditions, "silence", d.source.Silence)
}

// greet shows what a source that stays keeps from now on.
func (in *Intake) greet(d *desk, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := finding.Report{Source: d.name}
	d.show(&r, now)
	in.emit(d, r)
}

// emit passes on what is new. The desk is locked, so that the order is that of the desk.
func (in *Intake) emit(d *desk, r finding.Report) {
	if !r.IsEmpty() {
		in.cfg.Emit(d.name, r)
	}
}

// keep remembers what a desk knows, after a report of it.
func (in *Intake) keep(d *desk, r finding.Report) {
	if in.cfg.Memory == nil {
		return
	}
	text, err := d.keep(in.cfg.Boot)
	if err != nil {
		// A year that JSON has no way to write, which no judge lets pass.
		in.cfg.Logger.Error("what a source has told cannot be kept", "source", d.name, "err", err)
		return
	}
	urgent := slices.ContainsFunc(r.Events, func(e finding.Event) bool { return e.Condition != "" })
	in.cfg.Memory.Keep(d.name, text, d.unknown.Len(), urgent)
}

// arrange has open the doors that are wanted, and no others.
func (in *Intake) arrange() {
	in.mu.Lock()
	wanted, ended := slices.Clone(in.wanted), in.ended
	var shut []*door
	for at, d := range in.doors {
		lost := d.missed()
		if lost != nil {
			in.note(at.String(), lost) // until it is there again
		}
		if lost != nil || !slices.Contains(wanted, at) {
			shut = append(shut, d)
			delete(in.doors, at)
		}
	}
	missing := slices.DeleteFunc(wanted, func(at doorway) bool { return in.doors[at] != nil })
	in.mu.Unlock()
	for _, d := range shut {
		in.close(d)
	}
	if ended {
		return
	}
	for _, at := range missing {
		listener, err := in.open(at)
		in.trouble(at.String(), err)
		if err != nil {
			continue
		}
		d := &door{Listener: listener, at: at, lobby: &lobby{places: places}}
		in.mu.Lock()
		in.doors[at] = d
		in.mu.Unlock()
		in.cfg.Logger.Info("listening for problem reports", "at", at.String(), "of", at.own)
		go in.attend(d)
	}
}

func (in *Intake) close(d *door) {
	if err := d.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		in.cfg.Logger.Warn("a place to report to cannot be closed", "at", d.at.String(), "err", err)
	}
}

// attend serves those who come through a door, until it is closed.
func (in *Intake) attend(d *door) {
	err := in.server.Serve(d)
	in.mu.Lock()
	broken := in.doors[d.at] == d && !in.ended
	if broken { // and not closed: it is opened again
		delete(in.doors, d.at)
	}
	in.mu.Unlock()
	if broken {
		in.trouble(d.at.String(), err)
	}
}

// trouble notes that something cannot be used, or can, and says so if that is news.
func (in *Intake) trouble(what string, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.note(what, err)
}

// forget forgets what was wrong with that which nobody asks for any more. It is locked.
func (in *Intake) forget() {
	asked := map[string]bool{}
	for _, at := range in.wanted {
		asked[at.String()] = true
	}
	for _, d := range in.desks {
		d.mu.Lock()
		asked[tokenOf(d.name)] = d.source.TokenFile != ""
		d.mu.Unlock()
	}
	maps.DeleteFunc(in.troubles, func(what string, _ error) bool { return !asked[what] })
}

// note is trouble for those who have locked it.
func (in *Intake) note(what string, err error) {
	before := in.troubles[what]
	if in.troubles[what] = err; err == nil {
		delete(in.troubles, what)
	}
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		in.cfg.Logger.Error("problem reports cannot be taken", "of", what, "err", err)
	case err == nil && before != nil:
		in.cfg.Logger.Info("problem reports can be taken again", "of", what)
	}
}

// Ailments says what hinders the intake in hearing its sources, nothing if all is well.
func (in *Intake) Ailments() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	why := make([]string, 0, len(in.troubles))
	for _, what := range slices.Sorted(maps.Keys(in.troubles)) {
		why = append(why, what+" cannot be used: "+in.troubles[what].Error())
	}
	return why
}

// Counts returns what became of the reports of all sources, in the order of the setup,
// and how many requests came from strangers.
func (in *Intake) Counts() (sources []Counts, strangers uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, d := range in.desks {
		d.mu.Lock()
		counts := d.counts
		counts.Refused, counts.Silent = maps.Clone(counts.Refused), d.whole.silent
		d.mu.Unlock()
		sources = append(sources, counts)
	}
	return sources, in.strangers
}

// Run notices who falls silent, until ctx ends. Then nobody is listened to any more.
func (in *Intake) Run(ctx context.Context) {
	defer in.end(context.WithoutCancel(ctx))
	beat := in.beat()
	pulse, slow := time.NewTicker(beat), time.NewTicker(upkeep)
	defer pulse.Stop()
	defer slow.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-in.changed:
			if next := in.beat(); next != beat {
				beat = next
				pulse.Reset(beat)
			}
		case now := <-pulse.C:
			in.lapse(beat, now)
		case <-slow.C:
			in.applying.Lock()
			in.readTokens()
			in.arrange()
			in.applying.Unlock()
		}
	}
}

// beat is a part of the shortest silence.
func (in *Intake) beat() time.Duration {
	in.mu.Lock()
	defer in.mu.Unlock()
	shortest := time.Minute
	for _, d := range in.desks {
		d.mu.Lock()
		shortest = min(shortest, d.source.Silence)
		d.mu.Unlock()
	}
	return shortest / beats
}

// lapse notes that time has passed.
func (in *Intake) lapse(passed time.Duration, now time.Time) {
	in.mu.Lock()
	desks := slices.Clone(in.desks)
	in.mu.Unlock()
	for _, d := range desks {
		d.mu.Lock()
		was := d.whole.silent
		r := d.lapse(passed, now)
		in.emit(d, r)
		if len(r.Conditions) > 0 || d.isQuiet() || d.quietKept {
			in.keep(d, r)
		}
		if d.whole.silent && !was {
			in.cfg.Logger.Warn("a source of problem reports is silent", "source", d.name, "for", d.source.Silence)
		}
		d.mu.Unlock()
	}
}

// end closes all doors.
func (in *Intake) end(ctx context.Context) {
	in.mu.Lock()
	in.ended, in.wanted = true, nil
	in.mu.Unlock()
	in.arrange()
	ctx, cancel := context.WithTimeout(ctx, parting)
	defer cancel()
	if err := in.server.Shutdown(ctx); err != nil {
		_ = in.server.Close() // there is nobody left to tell
	}
}
