package settings

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
)

// Name identifies a file by its flag and path.
type Name struct {
	Kind config.Kind
	Path string
}

// String returns the name of the file's monitor.
func (n Name) String() string { return string(n.Kind) + ":" + n.Path }

// Setting is the state of a file.
type Setting struct {
	Name
	// File is the last valid version, nil if there is none.
	File *config.File
	// Text is the text of File. The caller stores it and returns it from Last after a restart.
	Text string
	// Version is a hash of the last valid version.
	Version string
	// Warnings are those of the last valid version.
	Warnings []string
	// Err is why the current content is not in effect, nil if it is.
	Err error

	found string // hash of the current content; empty if it cannot be read
}

// Change is a change of a file.
type Change struct {
	Before, Now Setting
}

// The reasons of the Events about changes.
const (
	Invalid = "ConfigInvalid"
	Loaded  = "ConfigLoaded"
	Removed = "ConfigRemoved"
)

// Reason returns the kind of the change. It is empty if a valid version replaces a valid one, which
// needs no Event.
func (c Change) Reason() string {
	switch {
	case c.Now.Err != nil && c.Now.File == nil && c.Before.File != nil:
		return Removed
	case c.Now.Err != nil:
		return Invalid
	case c.Before.Err != nil:
		return Loaded
	}
	return ""
}

// Event returns the Event about the change, and false if the change needs none. The ID stays the
// same while the content of the file does.
func (c Change) Event(now time.Time) (event finding.Event, ok bool) {
	event = finding.Event{Severity: finding.Warn, Time: now, Reason: c.Reason()}
	switch event.Reason {
	case "":
		return finding.Event{}, false
	case Loaded:
		event.Severity = finding.Info
		event.Message = fmt.Sprintf("%s is valid again and in effect.", c.Now.Path)
	case Removed:
		event.Message = fmt.Sprintf("%s was deleted; its monitor has stopped.", c.Now.Path)
	case Invalid:
		event.Message = "no version of the file is in effect: " + c.Now.Err.Error()
		if c.Now.File != nil {
			event.Message = "the last good version stays in force: " + c.Now.Err.Error()
		}
	}
	event.ID = sum([]byte(event.Reason + "\x00" + c.Now.String() + "\x00" + c.Now.found + "\x00" + c.Before.found))
	return event, true
}

// Config configures a Store.
type Config struct {
	Names []Name
	// Parse parses a version and returns an error if it is invalid.
	Parse func(path string, kind config.Kind, text []byte) (file *config.File, warnings []string, err error)
	// Last returns the last valid version that an earlier process knew. It is in effect while the
	// file is invalid. May be nil.
	Last func(Name) (text string, ok bool)
	// Nudges make Watch read the files at once, for edits without a notification. May be nil.
	Nudges <-chan os.Signal
	// Logger receives problems with watching files.
	Logger *slog.Logger
}

// Store keeps the files. It is not safe for concurrent use.
type Store struct {
	cfg  Config
	held []Setting

	unwatched map[string]bool // folders whose watch has failed and was logged
}

// New returns a Store that has not read the files yet. It ignores duplicate names.
func New(cfg Config) *Store {
	s := &Store{cfg: cfg, unwatched: map[string]bool{}}
	for _, name := range cfg.Names {
		if !slices.ContainsFunc(s.held, func(h Setting) bool { return h.Name == name }) {
			s.held = append(s.held, s.restore(Setting{Name: name}))
		}
	}
	return s
}

// restore takes over the last valid version of an earlier process, if it is still valid.
func (s *Store) restore(known Setting) Setting {
	if s.cfg.Last == nil {
		return known
	}
	if text, ok := s.cfg.Last(known.Name); ok {
		if file, warnings, err := s.cfg.Parse(known.Path, known.Kind, []byte(text)); err == nil {
			known.File, known.Text, known.Version, known.Warnings = file, text, sum([]byte(text)), warnings
		}
	}
	return known
}

// sum returns a hash of a text.
func sum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Settings returns the state of all files.
func (s *Store) Settings() []Setting { return slices.Clone(s.held) }

// Read reads all files and returns the changes since the last call.
func (s *Store) Read() []Change {
	var changes []Change
	for i := range s.held {
		before := s.held[i]
		if now := s.look(before); now.found != before.found || words(now.Err) != words(before.Err) {
			s.held[i] = now
			changes = append(changes, Change{Before: before, Now: now})
		}
	}
	return changes
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// look reads a file and returns its new state.
func (s *Store) look(known Setting) Setting {
	text, err := read(known.Path)
	if err != nil {
		known.found, known.Err = "", err
		if errors.Is(err, fs.ErrNotExist) {
			known.File, known.Text, known.Version, known.Warnings = nil, "", "", nil
		}
		return known
	}
	found := sum(text)
	if found == known.found {
		return known
	}
	known.found = found
	if found == known.Version { // the valid version is back
		known.Err = nil
		return known
	}
	file, warnings, err := s.cfg.Parse(known.Path, known.Kind, text)
	if known.Err = err; err == nil {
		known.File, known.Text, known.Version, known.Warnings = file, string(text), found, warnings
	}
	return known
}

// mostBytes is larger than any valid file. A longer file is read up to here, so that Parse can
// report its length.
const mostBytes = 2 << 20

func read(path string) ([]byte, error) {
	// Opening a named pipe would block.
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: there is no such file: %w", path, fs.ErrNotExist)
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", path, err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("reading %s: it is no file; name a file, not a folder or a device", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, mostBytes))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return text, nil
}
