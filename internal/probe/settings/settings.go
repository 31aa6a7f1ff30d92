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

// Name is what the command line says of a file.
type Name struct {
	Kind config.Kind
	Path string
}

// String is the name of the monitor that the file makes.
func (n Name) String() string { return string(n.Kind) + ":" + n.Path }

// Setting is what is known of one file.
type Setting struct {
	Name
	// File is the last good version, nil if there is none.
	File *config.File
	// Text of it, to be given as Last in the next life.
	Text string
	// Version tells the good versions of a file apart.
	Version string
	// Warnings are what the good version had better not say.
	Warnings []string
	// Err says why what stands there now is not in force, nil if it is.
	Err error

	found string // what stands there now; empty if it cannot be read
}

// Change is a file that is no longer what it was.
type Change struct {
	Before, Now Setting
}

// The reasons of the Events that tell of changes.
const (
	Invalid = "ConfigInvalid"
	Loaded  = "ConfigLoaded"
	Removed = "ConfigRemoved"
)

// Reason says what kind of change it is, empty if nobody need hear of it: a file that
// was good is replaced by another that is.
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

// Event tells of the change. It is not ok if nobody need hear of it. It has the same
// identity as long as the same stands in the file.
func (c Change) Event(now time.Time) (event finding.Event, ok bool) {
	event = finding.Event{Severity: finding.Warn, Time: now, Reason: c.Reason()}
	switch event.Reason {
	case "":
		return finding.Event{}, false
	case Loaded:
		event.Severity = finding.Info
		event.Message = fmt.Sprintf("%s can be used again, and is in force.", c.Now.Path)
	case Removed:
		event.Message = fmt.Sprintf("%s is gone, and what it asked for with it.", c.Now.Path)
	case Invalid:
		event.Message = "nothing of it is in force: " + c.Now.Err.Error()
		if c.Now.File != nil {
			event.Message = "the last good version stays in force: " + c.Now.Err.Error()
		}
	}
	event.ID = sum([]byte(event.Reason + "\x00" + c.Now.String() + "\x00" + c.Now.found + "\x00" + c.Before.found))
	return event, true
}

// Config is what a shelf needs to know.
type Config struct {
	Names []Name
	// Judge reads a version and says whether it is good, and what is odd about it.
	Judge func(path string, kind config.Kind, text []byte) (file *config.File, warnings []string, err error)
	// Last returns the last good version of a file that the life before knew. It is in
	// force as long as something bad stands there. May be nil.
	Last func(Name) (text string, ok bool)
	// Nudges have Watch look at once, where nothing tells it of an edit. May be nil.
	Nudges <-chan os.Signal
	// Logger is told what hinders the shelf in seeing edits.
	Logger *slog.Logger
}

// Store keeps the files. It is used by one at a time.
type Store struct {
	cfg  Config
	held []Setting

	unwatched map[string]bool // folders of which it was said that they cannot be watched
}

// New returns a shelf on which nothing stands yet. A file that is named twice is one.
func New(cfg Config) *Store {
	s := &Store{cfg: cfg, unwatched: map[string]bool{}}
	for _, name := range cfg.Names {
		if !slices.ContainsFunc(s.held, func(h Setting) bool { return h.Name == name }) {
			s.held = append(s.held, s.recall(Setting{Name: name}))
		}
	}
	return s
}

// recall takes up the last good version of the life before, if it is good still.
func (s *Store) recall(known Setting) Setting {
	if s.cfg.Last == nil {
		return known
	}
	if text, ok := s.cfg.Last(known.Name); ok {
		if file, warnings, err := s.cfg.Judge(known.Path, known.Kind, []byte(text)); err == nil {
			known.File, known.Text, known.Version, known.Warnings = file, text, sum([]byte(text)), warnings
		}
	}
	return known
}

// sum tells texts apart.
func sum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Settings returns all files as they are.
func (s *Store) Settings() []Setting { return slices.Clone(s.held) }

// Read looks at all files, and returns those that have changed since the last time.
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

// look returns what is known of a file when it has been read once more.
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
	if found == known.Version { // the good one is back
		known.Err = nil
		return known
	}
	file, warnings, err := s.cfg.Judge(known.Path, known.Kind, text)
	if known.Err = err; err == nil {
		known.File, known.Text, known.Version, known.Warnings = file, string(text), found, warnings
	}
	return known
}

// mostBytes is more than any file may have: what is longer is read so far that
// whoever judges it can say so.
const mostBytes = 2 << 20

func read(path string) ([]byte, error) {
	// A pipe would keep us waiting when it is opened.
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
