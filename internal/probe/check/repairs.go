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

// RepairsFolder is where the processes of a node agree on what they have restarted. What
// is below /run goes with a boot, as it should.
const RepairsFolder = "/run/autohealer/repairs"

// Repairs sees to it that one service is restarted at a time, and remembers what was
// tried. An agent has one of it.
type Repairs struct {
	// Folder is shared by all who restart units of a node, now and after a restart of
	// their own. It is made when it is needed. Empty means that nobody else does, and that
	// nothing outlives the process.
	Folder string

	mu    sync.Mutex // held while a unit is being restarted
	notes sync.Mutex // held while something is noted, and of tried
	tried tried      // if there is no folder
}

// tried is what was tried, by unit.
type tried map[string]try

// storedTries is the file of it. Before there were versions it was the map of units
// alone.
type storedTries struct {
	Version int            `json:"version"`
	Units   tried          `json:"units"`
	unknown format.Unknown // fields of a newer version
}

const triedVersion = 1

func parseTries(text []byte) (s storedTries, err error) {
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

func (s storedTries) text() ([]byte, error) {
	s.Version = triedVersion
	return format.Write(s, s.unknown)
}

// try is what was done about a unit, and how it has been since.
type try struct {
	// At is when it was last to be restarted, whatever came of it.
	At time.Time `json:"at"`
	// Times is how often. It is none once it was well again for long enough.
	Times int `json:"times,omitempty"`
	// By is the examination that wanted it.
	By string `json:"by,omitempty"`
	// Well is since when it has been well again; zero if it is not.
	Well time.Time `json:"well,omitzero"`
	// Unknown are fields of a newer version.
	Unknown format.Unknown `json:"-"`
}

// UnmarshalJSON keeps fields that are not known.
func (t *try) UnmarshalJSON(text []byte) error {
	type plain try
	unknown, err := format.Read(text, (*plain)(t))
	t.Unknown = unknown
	return err
}

// MarshalJSON writes them back.
func (t try) MarshalJSON() ([]byte, error) {
	type plain try
	return format.Write(plain(t), t.Unknown)
}

// The files of the folder.
const (
	triedFile = "tried.json"
	lockFile  = "lock"       // of who restarts a unit
	notesFile = "notes.lock" // of who writes what was tried
)

var errBusy = errors.New("another unit is being restarted")

// lock keeps all others from restarting anything. It does not wait for them: who has it
// is told by errBusy.
func (r *Repairs) lock() (unlock func(), err error) {
	if !r.mu.TryLock() {
		return nil, errBusy
	}
	if r.Folder == "" {
		return r.mu.Unlock, nil
	}
	file, err := r.claim(lockFile, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		r.mu.Unlock()
		return nil, err
	}
	return func() {
		_ = file.Close() // which ends the lock, as the end of the process would
		r.mu.Unlock()
	}, nil
}

// claim locks a file of the folder until it is closed.
func (r *Repairs) claim(name string, how int) (*os.File, error) {
	// The one above may be that of daemons who are not root.
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

// recall returns what was tried.
func (r *Repairs) recall() (tried, error) {
	if r.Folder == "" {
		r.notes.Lock()
		defer r.notes.Unlock()
		return maps.Clone(r.tried), nil
	}
	was, err := r.read()
	return was.Units, err
}

func (r *Repairs) read() (storedTries, error) {
	path := filepath.Join(r.Folder, triedFile)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return storedTries{}, nil
	case err != nil:
		return storedTries{}, fmt.Errorf("reading what was restarted: %w", err)
	}
	was, err := parseTries(text)
	if err != nil {
		return storedTries{}, fmt.Errorf("reading what was restarted: %s: %w; remove it", path, err)
	}
	return was, nil
}

// note remembers what has become of a unit. It waits for others who do so, which is never
// long.
func (r *Repairs) note(name string, become func(try) try) error {
	r.notes.Lock()
	defer r.notes.Unlock()
	if r.Folder == "" {
		if r.tried == nil {
			r.tried = tried{}
		}
		r.tried[name] = become(r.tried[name])
		return nil
	}
	file, err := r.claim(notesFile, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer file.Close()
	was, err := r.read()
	if err != nil {
		return err
	}
	if was.Units == nil {
		was.Units = tried{}
	}
	was.Units[name] = become(was.Units[name])
	return r.write(name, was)
}

func (r *Repairs) write(name string, was storedTries) error {
	text, err := was.text()
	if err != nil {
		return fmt.Errorf("noting the restart of %s: %w", name, err)
	}
	// There is a whole file at every moment. It need not outlive the power: neither does
	// what it tells of.
	path := filepath.Join(r.Folder, triedFile)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("noting the restart of %s: %w", name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("noting the restart of %s: %w", name, err)
	}
	return nil
}

// revise notes what has become of a unit, if that is another than it was. What cannot be
// noted now is at the next round.
func (r *Repairs) revise(name string, become func(try) try) {
	if was, err := r.recall(); err == nil && become(was[name]) != was[name] {
		_ = r.note(name, become)
	}
}

// patient is how long a unit may take to be back after its restart. One that takes longer
// does not keep others from being cured, on which it may wait itself.
const patient = 5 * time.Minute

// away are the units but this one that may not be back yet.
func (t tried) away(now time.Time, but string) []string {
	var names []string
	for name, tried := range t {
		if name != but && now.Sub(tried.At) < patient {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
