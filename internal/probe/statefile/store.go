package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/probe/logs"
)

const (
	// writeInterval is the longest delay of a change that is not urgent, and the delay before
	// a failed write is retried.
	writeInterval = 10 * time.Second
	// urgentInterval is the shortest time between two urgent writes. Many problems at once
	// must not cause as many fsyncs on a disk that etcd may share. A finding that is repeated
	// because of this has the same identity.
	urgentInterval = 500 * time.Millisecond
	// retention is how long the store keeps a monitor that is not configured: a replaced file
	// is missing for a moment, and a label may be missing for an hour.
	retention = 24 * time.Hour
)

// Config configures a store.
type Config struct {
	// Dir is the directory of the state file. Open creates it if needed. If it is empty,
	// nothing is written to disk.
	Dir string
	// Boot is the ID of the current boot. The state file has it for users.
	Boot string
	// Log receives failures to read or write, and recoveries. It may be nil.
	Log *slog.Logger
}

// Entry is the stored state of a monitor. Both parts belong together: State is the state
// after everything up to Position was read.
type Entry struct {
	Position logs.Position   `json:"position,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
	// Left is the time since when the monitor is not configured; zero if it is configured.
	// Ask sets it, Keep does not change it.
	Left time.Time `json:"left,omitzero"`
	// Unknown holds fields of a newer version. Keep does not change them.
	Unknown format.Unknown `json:"-"`
	// UnknownInside is the number of fields in State that the monitor does not know and
	// preserves.
	UnknownInside int `json:"-"`
}

// Store stores the state of the agent. It is safe for concurrent use.
type Store struct {
	log *slog.Logger

	volatile error // why files do not survive a restart
	stop     chan struct{}
	stopped  chan struct{}
	close    func() error
	wake     chan struct{}

	mu     sync.Mutex // guards the fields below; never held during disk access
	state  state
	due    dueness
	failed error

	writing sync.Mutex // guards the disk; locked before mu
	storage storage    // nil if nothing is written to disk
}

type dueness int

const (
	notDue dueness = iota
	dueSoon
	dueNow
)

// Open reads the stored state. If the state file is invalid, Open renames it and logs
// that. If the directory is not writable, Open logs that. Neither is an error. If another
// process uses the directory, the error wraps ErrInUse.
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

func open(in storage, boot string, log *slog.Logger) (*Store, error) {
	m := &Store{
		log:     log,
		storage: in,
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		wake:    make(chan struct{}, 1),
	}
	m.close = sync.OnceValue(m.shutdown)
	if in != nil {
		if err := m.restore(); err != nil {
			return nil, err
		}
	}
	m.state.Boot = boot
	if m.state.Monitors == nil {
		m.state.Monitors = make(map[string]Entry)
	}
	go m.run()
	return m, nil
}

// restore reads the state file if there is one.
func (m *Store) restore() error {
	if err := m.storage.Lock(); errors.Is(err, ErrInUse) {
		return err
	} else if err != nil {
		m.recordResult(err)
	} else if err := m.storage.Remove(newFile); err != nil {
		m.log.Error("cannot remove the unfinished state file of an earlier crash", "err", err)
	}
	if m.volatile = m.storage.CheckPersistent(); m.volatile != nil {
		m.log.Warn("the state does not survive a restart of the agent", "err", m.volatile)
	}
	text, err := m.storage.Read(stateFile)
	if err == nil && text != nil {
		m.state, err = parse(text)
	}
	if m.state.Version > version {
		m.log.Warn("a newer agent has written the state: fields that this version does not know are preserved", "version", m.state.Version, "known", version)
	}
	if err != nil {
		m.log.Error("the state file is invalid: starting without stored state", "err", err, "putAside", badFile)
		if err := m.storage.Rename(stateFile, badFile); err != nil {
			m.log.Error("cannot rename the invalid state file", "err", err)
		}
	}
	return nil
}

// CountUnknown returns the number of stored fields that this version does not know.
func (m *Store) CountUnknown() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.countUnknown()
}

// Monitor returns the stored state of a monitor.
func (m *Store) Monitor(key string) (Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry, ok := m.state.Monitors[key]
	return entry, ok
}

// Keep stores the state of a monitor. It never blocks. A change is urgent if, without it,
// a restarted agent would report a finding again or lose it.
func (m *Store) Keep(key string, entry Entry, urgent bool) {
	if err := entry.check(); err != nil {
		m.log.Error("the state of a monitor is not valid JSON and is not stored", "monitor", key, "err", err)
		return
	}
	// The caller may reuse its bytes.
	entry.Position, entry.State = bytes.Clone(entry.Position), bytes.Clone(entry.State)
	m.change(urgent, func(s *state) {
		entry.Left, entry.Unknown = s.Monitors[key].Left, s.Monitors[key].Unknown
		s.Monitors[key] = entry
	})
}

// Ask tells the store which monitors are configured. The store keeps others for one more
// day, so that a monitor that comes back continues where it stopped.
func (m *Store) Ask(now time.Time, keys ...string) {
	m.mu.Lock()
	_, changed := updateLeft(m.state.Monitors, now, keys)
	m.mu.Unlock()
	if changed {
		m.change(false, func(s *state) { s.Monitors, _ = updateLeft(s.Monitors, now, keys) })
	}
}

// Labels returns the stored labels of the node. It returns ok false if none were ever
// stored.
func (m *Store) Labels() (labels map[string]string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.Labels == nil {
		return nil, false
	}
	return maps.Clone(*m.state.Labels), true
}

// KeepLabels stores the labels of the node.
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

// Text returns the last valid text of a file.
func (m *Store) Text(key string) (text string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok = m.state.Texts[key]
	return text, ok
}

// KeepTexts stores the texts of files and removes all other texts.
func (m *Store) KeepTexts(texts map[string]string) {
	texts = maps.Clone(texts)
	m.mu.Lock()
	same := maps.Equal(m.state.Texts, texts)
	m.mu.Unlock()
	if !same {
		m.change(true, func(s *state) { s.Texts = texts })
	}
}

// Note returns the note that KeepNote stored, empty if there is none.
func (m *Store) Note() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Note
}

// KeepNote stores a small text that belongs to no monitor: the agent's agreements with
// other components about the node. It never blocks.
func (m *Store) KeepNote(text string) {
	if m.Note() != text {
		m.change(true, func(s *state) { s.Note = text })
	}
}

// Err returns why a restart would lose the latest state, or nil. Either the last write
// failed, or the directory does not survive a restart.
func (m *Store) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return m.failed
	}
	return m.volatile
}

// Flush writes all pending changes and waits for the disk.
func (m *Store) Flush() error { return m.write() }

// Close writes all pending changes and unlocks the directory.
func (m *Store) Close() error { return m.close() }

func (m *Store) shutdown() error {
	close(m.stop)
	<-m.stopped
	err := m.write()
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.storage != nil {
		err = errors.Join(err, m.storage.Unlock())
		m.storage = nil // another process may use the directory now
	}
	return err
}

// change changes the state and schedules a write.
func (m *Store) change(urgent bool, alter func(*state)) {
	due := dueSoon
	if urgent {
		due = dueNow
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
	default: // a wake-up is pending already
	}
}

// run writes changes when they are due.
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
			// write has logged the error, and the change stays due.
			_ = m.write()
			last = time.Now()
		}
	}
}

// wait returns the delay of the next write, given the time since the last write. It
// returns ok false if no write is due.
func (m *Store) wait(since time.Duration) (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.due == notDue:
		return 0, false
	case m.due == dueNow && m.failed == nil:
		return max(0, urgentInterval-since), true
	default:
		return max(0, writeInterval-since), true
	}
}

// write writes the state if it has changed.
func (m *Store) write() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	due := m.due
	m.due = notDue
	var text []byte
	var err error
	if due != notDue && m.storage != nil {
		text, err = m.state.text()
	}
	m.mu.Unlock()
	if text == nil && err == nil {
		return nil
	}
	if err == nil {
		err = replace(m.storage, text)
	}
	m.recordResult(err)
	if err != nil {
		m.mu.Lock()
		m.due = max(m.due, due)
		m.mu.Unlock()
	}
	return err
}

// recordResult records the result of the last write, and logs when writes begin to fail or
// to succeed.
func (m *Store) recordResult(err error) {
	m.mu.Lock()
	before := m.failed
	m.failed = err
	m.mu.Unlock()
	switch {
	case err != nil && before == nil:
		m.log.Error("cannot write the state: a restart of the agent would lose it", "err", err)
	case err == nil && before != nil:
		m.log.Info("writing the state works again")
	}
}
