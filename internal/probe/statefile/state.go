package statefile

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/format"
)

// state is what the file holds.
type state struct {
	Version  int                `json:"version"`
	Boot     string             `json:"boot"`
	Monitors map[string]Entry   `json:"monitors"`
	Labels   *map[string]string `json:"labels,omitempty"`
	Texts    map[string]string  `json:"texts,omitempty"`
	Note     string             `json:"note,omitempty"`
	Unknown  format.Unknown     `json:"-"`
}

// version of the file. Of a newer one, what is not known is kept.
const version = 1

func parse(text []byte) (state, error) {
	var s state
	unknown, err := format.Read(text, &s)
	if err != nil {
		return state{}, err
	}
	if s.Version < version {
		return state{}, fmt.Errorf("it is of version %d, which no agent has written", s.Version)
	}
	s.Unknown = unknown
	return s, nil
}

func (s *state) text() ([]byte, error) {
	s.Version = version
	text, err := format.Write(s, s.Unknown)
	return append(text, '\n'), err
}

// countUnknown returns how many fields this version does not know.
func (s *state) countUnknown() int {
	n := s.Unknown.Len()
	for _, entry := range s.Monitors {
		n += entry.Unknown.Len() + entry.UnknownInside
	}
	return n
}

// UnmarshalJSON keeps fields that are not known.
func (e *Entry) UnmarshalJSON(text []byte) error {
	type plain Entry
	unknown, err := format.Read(text, (*plain)(e))
	e.Unknown = unknown
	return err
}

// MarshalJSON writes them back.
func (e Entry) MarshalJSON() ([]byte, error) {
	type plain Entry
	return format.Write(plain(e), e.Unknown)
}

// asked returns what is remembered when it is known which monitors are asked for, and
// whether that is something else than before.
func asked(remembered map[string]Entry, now time.Time, keys []string) (map[string]Entry, bool) {
	next, changed := make(map[string]Entry, len(remembered)), false
	for key, entry := range remembered {
		left := entry.Left
		if now.Sub(left) > grace && !left.IsZero() {
			changed = true
			continue
		}
		switch {
		case slices.Contains(keys, key):
			left = time.Time{}
		case left.IsZero(), left.After(now): // or else the clock was set back since
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
