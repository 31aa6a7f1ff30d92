package statefile

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/format"
)

// state is the content of the state file.
type state struct {
	Version  int                `json:"version"`
	Boot     string             `json:"boot"`
	Monitors map[string]Entry   `json:"monitors"`
	Labels   *map[string]string `json:"labels,omitempty"`
	Texts    map[string]string  `json:"texts,omitempty"`
	Note     string             `json:"note,omitempty"`
	Unknown  format.Unknown     `json:"-"`
}

// version is the version of the format. Unknown fields of newer versions are preserved.
const version = 1

func parse(text []byte) (state, error) {
	var s state
	unknown, err := format.Read(text, &s)
	if err != nil {
		return state{}, err
	}
	if s.Version < version {
		return state{}, fmt.Errorf("version %d is invalid: the lowest version is 1", s.Version)
	}
	s.Unknown = unknown
	return s, nil
}

func (s *state) text() ([]byte, error) {
	s.Version = version
	text, err := format.Write(s, s.Unknown)
	return append(text, '\n'), err
}

// countUnknown returns the number of fields that this version does not know.
func (s *state) countUnknown() int {
	n := s.Unknown.Len()
	for _, entry := range s.Monitors {
		n += entry.Unknown.Len() + entry.UnknownInside
	}
	return n
}

// UnmarshalJSON keeps unknown fields in Unknown.
func (e *Entry) UnmarshalJSON(text []byte) error {
	type plain Entry
	unknown, err := format.Read(text, (*plain)(e))
	e.Unknown = unknown
	return err
}

// MarshalJSON writes the fields in Unknown back.
func (e Entry) MarshalJSON() ([]byte, error) {
	type plain Entry
	return format.Write(plain(e), e.Unknown)
}

// updateLeft sets Left of each entry according to the configured keys and removes expired
// entries. It also says whether an entry has changed.
func updateLeft(monitors map[string]Entry, now time.Time, keys []string) (map[string]Entry, bool) {
	next, changed := make(map[string]Entry, len(monitors)), false
	for key, entry := range monitors {
		left := entry.Left
		if now.Sub(left) > retention && !left.IsZero() {
			changed = true
			continue
		}
		switch {
		case slices.Contains(keys, key):
			left = time.Time{}
		case left.IsZero(), left.After(now): // in the future if the clock was set back
			left = now.Round(0).UTC()
		}
		changed = changed || !left.Equal(entry.Left)
		entry.Left = left
		next[key] = entry
	}
	return next, changed
}

func (e Entry) check() error {
	for _, part := range []json.RawMessage{e.Position, e.State} {
		if len(part) > 0 && !json.Valid(part) {
			return fmt.Errorf("%.40q", part)
		}
	}
	return nil
}
