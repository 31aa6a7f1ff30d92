package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/probe/logs"
)

const (
	// calm is how long what is not urgent may wait, and how long a disk that did not
	// take the state is left alone.
	calm = 10 * time.Second
	// brisk is how far apart urgent writes are at least, so that a storm of problems
	// does not become a storm of fsyncs on a disk that etcd may share. What is found
	// twice because of it has the same identity both times.
	brisk = 500 * time.Millisecond
	// grace is how long a monitor is remembered that nobody asks for: a file that is
	// replaced is away for a moment, and a label may be for an hour.
	grace = 24 * time.Hour
)

// Config of a memory.
type Config struct {
	// Dir is the folder of the state file; it is made if it is not there. Empty means
	// that nothing outlives the process.
	Dir string
	// Boot is the identity of the present boot, kept for the next to compare.
	Boot string
	// Log is told what could not be read or written, and when it can again. May be nil.
	Log *slog.Logger
}

// Entry is what is remembered of one monitor. Both parts belong together: the state is
// what was known when everything up to the position had been read.
type Entry struct {
	Position logs.Position   `json:"position,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
	// Left is since when nobody asks for the monitor, zero if somebody does. It is what
	// Ask says, whatever is kept.
	Left time.Time `json:"left,omitzero"`
	// Unknown are fields that a newer version has kept. They stay, whatever is kept.
	Unknown format.Unknown `json:"-"`
	// UnknownInside is how many fields inside of the state the monitor does not know, and
	// keeps.
	UnknownInside int `json:"-"`
}

// Store is safe for use by several goroutines.
type Store struct {
	log *slog.Logger

	lastBoot string
	fleeting error // why what is written does not outlive the process
	stop     chan struct{}
	stopped  chan struct{}
	close    func() error
	wake     chan struct{}

	mu     sync.Mutex // of what follows; never held while the disk is busy
	state  state
	due    urgency
	failed error

	writing sync.Mutex // of the disk; taken before mu
	in      folder     // nil if nothing is kept
}

type urgency int

const (
	nothing urgency = iota
	soon
	now
)

// Open reads what was kept. A state file that cannot be used is put aside and told of,
// and a folder that cannot be written is told of: neither is an error. That somebody
// else uses the folder is one, which wraps ErrInUse.
func Open(cfg Config) (*Store, error) {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dir == "" {
		return open(nil, cfg.Boot, log)
	}
	return open(&directory{path: cfg.Dir, root: "/"}, cfg.Boot, log)
}

func open(in folder, boot string, log *slog.Logger) (*Store, error) {
	m := &Store{
		log:     log,
		in:      in,
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		wake:    make(chan struct{}, 1),
	}
	m.close = sync.OnceValue(m.end)
	if in != nil {
		if err := m.recall(); err != nil {
			return nil, err
		}
	}
	m.lastBoot = m.state.Boot
	m.state.Boot = boot
	if m.state.Monitors == nil {
		m.state.Monitors = make(map[string]Entry)
	}
	go m.run()
	return m, nil
}

// recall reads the state, if there is one to be read.
func (m *Store) recall() error {
	if err := m.in.Lock(); errors.Is(err, ErrInUse) {
		return err
	} else if err != nil {
		m.tell(err)
	} else if err := m.in.Remove(newFile); err != nil {
		m.log.Error("what a crash has left cannot be removed", "err", err)
	}
	if m.fleeting = m.in.Lasts(); m.fleeting != nil {
		m.log.Warn("the state does not outlive a restart", "err", m.fleeting)
	}
	text, err := m.in.Read(stateFile)
	if err == nil && text != nil {
		m.state, err = parse(text)
	}
	if m.state.Version > version {
		m.log.Warn("a newer agent has written the state; what this one does not know is kept", "version", m.state.Version, "known", version)
	}
	if err != nil {
		m.log.Error("what was remembered cannot be used, beginning anew", "err", err, "putAside", badFile)
		if err := m.in.Rename(stateFile, badFile); err != nil {
			m.log.Error("what was remembered cannot be put aside", "err", err)
		}
	}
	return nil
}

// CountUnknown returns how many fields of the state this version does not know.
func (m *Store) CountUnknown() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.countUnknown()
}

// LastBoot is the identity of the boot in which the state was written last, empty if
// nothing was remembered.
func (m *Store) LastBoot() string { return m.lastBoot }

// Monitor returns what is remembered of a monitor.
func (m *Store) Monitor(key string) (Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry, ok := m.state.Monitors[key]
	return entry, ok
}

// Monitors returns the keys of all that is remembered.
func (m *Store) Monitors() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.state.Monitors))
}

// Keep remembers a monitor. It never waits. It is urgent if something was found that a
// restart would otherwise find once more, or forget.
func (m *Store) Keep(key string, entry Entry, urgent bool) {
	if err := entry.check(); err != nil {
		m.log.Error("what a monitor wants to remember is not JSON, and is not kept", "monitor", key, "err", err)
		return
	}
	// The reader may use its bytes again.
	entry.Position, entry.State = bytes.Clone(entry.Position), bytes.Clone(entry.State)
	m.change(urgent, func(s *state) {
		entry.Left, entry.Unknown = s.Monitors[key].Left, s.Monitors[key].Unknown
		s.Monitors[key] = entry
	})
}

// Ask says which monitors are asked for. The others are remembered for a day more, so
// that one that comes back goes on where it was, and are forgotten then.
func (m *Store) Ask(now time.Time, keys ...string) {
	m.mu.Lock()
	_, changed := asked(m.state.Monitors, now, keys)
	m.mu.Unlock()
	if changed {
		m.change(false, func(s *state) { s.Monitors, _ = asked(s.Monitors, now, keys) })
	}
}

// Labels returns the labels of the node as they were last known. It is not ok if they
// never were.
func (m *Store) Labels() (labels map[string]string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.Labels == nil {
		return nil, false
	}
	return maps.Clone(*m.state.Labels), true
}

// KeepLabels remembers the labels of the node.
func (m *Store) KeepLabels(labels map[string]string) {
	known := make(map[string]string, len(labels))
	maps.Copy(known, labels)
	m.mu.Lock()
	same := m.state.Labels != nil && maps.Equal(*m.state.Labels, known)
	m.mu.Unlock()
	if !same {
		m.change(false, func(s *state) { s.Labels = &known })
	}
}

// Text returns the text of a file as it was last good.
func (m *Store) Text(key string) (text string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok = m.state.Texts[key]
	return text, ok
}

// KeepTexts remembers the texts of files, and forgets those of all others.
func (m *Store) KeepTexts(texts map[string]string) {
	texts = maps.Clone(texts)
	m.mu.Lock()
	same := maps.Equal(m.state.Texts, texts)
	m.mu.Unlock()
	if !same {
		m.change(true, func(s *state) { s.Texts = texts })
	}
}

// Note returns what KeepNote was given last, empty if nothing was.
func (m *Store) Note() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Note
}

// KeepNote remembers a small text of somebody who is no monitor: what was agreed upon
// with others about the node. It never waits.
func (m *Store) KeepNote(text string) {
	if m.Note() != text {
		m.change(true, func(s *state) { s.Note = text })
	}
}

// Err says why a restart would forget the latest state, nil if it would not: it could
// not be written, or not to a place that lasts.
func (m *Store) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return m.failed
	}
	return m.fleeting
}

// Flush writes now what has not been written yet, and waits for it.
func (m *Store) Flush() error { return m.write() }

// Close writes what has not been written yet, and leaves the folder to others.
func (m *Store) Close() error { return m.close() }

func (m *Store) end() error {
	close(m.stop)
	<-m.stopped
	err := m.write()
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.in != nil {
		err = errors.Join(err, m.in.Unlock())
		m.in = nil // it is somebody else's now
	}
	return err
}

// change alters the state and has it written.
func (m *Store) change(urgent bool, alter func(*state)) {
	due := soon
	if urgent {
		due = now
	}
	m.mu.Lock()
	alter(&m.state)
	raised := due > m.due
	m.due = max(m.due, due)
	m.mu.Unlock()
	if !raised {
		return
	}
	select {
	case m.wake <- struct{}{}:
	default: // it is awake already
	}
}

// run writes what is due, when it is.
func (m *Store) run() {
	defer close(m.stopped)
	var last time.Time
	for {
		wait, ok := m.wait(time.Since(last))
		var timer <-chan time.Time
		if ok {
			timer = time.After(wait)
		}
		select {
		case <-m.stop:
			return
		case <-m.wake:
		case <-timer:
			// What went wrong is told, and tried again.
			_ = m.write()
			last = time.Now()
		}
	}
}

// wait says how long the next write has to wait, if there is one, that long after the
// last.
func (m *Store) wait(since time.Duration) (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.due == nothing:
		return 0, false
	case m.due == now && m.failed == nil:
		return max(0, brisk-since), true
	default:
		return max(0, calm-since), true
	}
}

// write writes the state, if it has changed since it last was.
func (m *Store) write() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	due := m.due
	m.due = nothing
	var text []byte
	var err error
	if due != nothing && m.in != nil {
		text, err = m.state.text()
	}
	m.mu.Unlock()
	if text == nil && err == nil {
		return nil
	}
	if err == nil {
		err = replace(m.in, text)
	}
	m.tell(err)
	if err != nil {
		m.mu.Lock()
		m.due = max(m.due, due)
		m.mu.Unlock()
	}
	return err
}

// tell notes how the last write went, and says so if it went otherwise than before.
func (m *Store) tell(err error) {
	m.mu.Lock()
	before := m.failed
	m.failed = err
	m.mu.Unlock()
	switch {
	case err != nil && before == nil:
		m.log.Error("the state cannot be kept, a restart would forget it", "err", err)
	case err == nil && before != nil:
		m.log.Info("the state can be kept again")
	}
}
