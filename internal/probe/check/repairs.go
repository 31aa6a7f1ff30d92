package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/format"
)

// RepairsFolder is where the processes of a node record which units they have restarted. A reboot
// removes files below /run, which is intended.
const RepairsFolder = "/run/autohealer/repairs"

// Repairs allows one restart of a service at a time and remembers the attempts. An agent has
// exactly one.
type Repairs struct {
	// Folder is shared by all processes that restart units of the node, and survives their
	// restarts. It is created when needed. If it is empty, no other process restarts units, and the
	// attempts are kept in memory.
	Folder string

	mu         sync.Mutex // held while a unit is being restarted
	attemptsMu sync.Mutex // guards attempts and the writing of the file
	attempts   attempts   // used if there is no folder
}

// attempts are the restarts by unit.
type attempts map[string]attempt

// storedAttempts is the format of the file. Before version 1 the file was only the map of units.
type storedAttempts struct {
	Version int            `json:"version"`
	Units   attempts       `json:"units"`
	unknown format.Unknown // fields of a newer version
}

const attemptsVersion = 1

func parseAttempts(text []byte) (s storedAttempts, err error) {
	var versioned struct {
		Version *int `json:"version"`
	}
	if json.Unmarshal(text, &versioned) != nil || versioned.Version == nil {
		err := json.Unmarshal(text, &s.Units)
		return s, err
	}
	unknown, err := format.Read(text, &s)
	s.unknown = unknown
	return s, err
}

func (s storedAttempts) text() ([]byte, error) {
	s.Version = attemptsVersion
	return format.Write(s, s.unknown)
}

// attempt describes the restarts of a unit and its health since then.
type attempt struct {
	// At is when the last restart was attempted, whatever the outcome.
	At time.Time `json:"at"`
	// Times is the number of restarts. It is reset to zero when the unit has been healthy for long
	// enough.
	Times int `json:"times,omitempty"`
	// By is the check that requested the last restart.
	By string `json:"by,omitempty"`
	// Well is since when the unit is healthy again; zero if it is not.
	Well time.Time `json:"well,omitzero"`
	// Unknown are fields of a newer version.
	Unknown format.Unknown `json:"-"`
}

// UnmarshalJSON keeps unknown fields.
func (t *attempt) UnmarshalJSON(text []byte) error {
	type plain attempt
	unknown, err := format.Read(text, (*plain)(t))
	t.Unknown = unknown
	return err
}

// MarshalJSON writes unknown fields back.
func (t attempt) MarshalJSON() ([]byte, error) {
	type plain attempt
	return format.Write(plain(t), t.Unknown)
}

// The files of the folder.
const (
	attemptsFile     = "tried.json"
	lockFile         = "lock"       // held while a unit is restarted
	attemptsLockFile = "notes.lock" // held while the attempts are written
)

var errBusy = errors.New("another unit is being restarted")

// lock prevents all other processes and checks from restarting a unit. It does not wait: if another
// one holds the lock, it returns errBusy.
func (r *Repairs) lock() (unlock func(), err error) {
	if !r.mu.TryLock() {
		return nil, errBusy
	}
	if r.Folder == "" {
		return r.mu.Unlock, nil
	}
	file, err := r.lockFileAt(lockFile, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		r.mu.Unlock()
		return nil, err
	}
	return func() {
		_ = file.Close() // closing releases the lock, as would the end of the process
		r.mu.Unlock()
	}, nil
}

// lockFileAt locks a file of the folder until the caller closes it.
func (r *Repairs) lockFileAt(name string, how int) (*os.File, error) {
	// Daemons that are not root may use the parent folder.
	if err := os.MkdirAll(filepath.Dir(r.Folder), 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of repairs: %w", err)
	}
	if err := os.Mkdir(r.Folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making the folder of repairs: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(r.Folder, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the folder of repairs: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), how); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errBusy
		}
		return nil, fmt.Errorf("locking the folder of repairs %s: %w", r.Folder, err)
	}
	return file, nil
}

// load returns the attempts.
func (r *Repairs) load() (attempts, error) {
	if r.Folder == "" {
		r.attemptsMu.Lock()
		defer r.attemptsMu.Unlock()
		return maps.Clone(r.attempts), nil
	}
	was, err := r.read()
	return was.Units, err
}

func (r *Repairs) read() (storedAttempts, error) {
	path := filepath.Join(r.Folder, attemptsFile)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return storedAttempts{}, nil
	case err != nil:
		return storedAttempts{}, fmt.Errorf("reading what was restarted: %w", err)
	}
	was, err := parseAttempts(text)
	if err != nil {
		return storedAttempts{}, fmt.Errorf("reading what was restarted: %s: %w; remove it", path, err)
	}
	return was, nil
}

// update changes the attempt of a unit. It waits for other processes that do the same, which is
// always short.
func (r *Repairs) update(name string, change func(attempt) attempt) error {
	r.attemptsMu.Lock()
	defer r.attemptsMu.Unlock()
	if r.Folder == "" {
		if r.attempts == nil {
			r.attempts = attempts{}
		}
		r.attempts[name] = change(r.attempts[name])
		return nil
	}
	file, err := r.lockFileAt(attemptsLockFile, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer file.Close()
	was, err := r.read()
	if err != nil {
		return err
	}
	if was.Units == nil {
		was.Units = attempts{}
	}
	was.Units[name] = change(was.Units[name])
	return r.write(name, was)
}

func (r *Repairs) write(name string, was storedAttempts) error {
	text, err := was.text()
	if err != nil {
		return fmt.Errorf("noting the restart of %s: %w", name, err)
	}
	// The rename keeps the file complete at every moment. It needs no sync: after a power failure
	// the attempts do not matter.
	path := filepath.Join(r.Folder, attemptsFile)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("noting the restart of %s: %w", name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("noting the restart of %s: %w", name, err)
	}
	return nil
}

// updateIfChanged changes the attempt of a unit if change returns a different one. If it cannot be
// written, the next run tries again.
func (r *Repairs) updateIfChanged(name string, change func(attempt) attempt) {
	if was, err := r.load(); err == nil && change(was[name]) != was[name] {
		_ = r.update(name, change)
	}
}

// restartTimeout is how long a restarted unit may take to be back. A unit that takes longer does
// not prevent the restart of other units, on which it may depend.
const restartTimeout = 5 * time.Minute

// mayBeRestarting returns the units, except this one, that may not be back from their restart yet.
func (t attempts) mayBeRestarting(now time.Time, but string) []string {
	var names []string
	for name, tried := range t {
		if name != but && now.Sub(tried.At) < restartTimeout {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
