package memory

import (
	"encoding/json"
	"fmt"
)

// state is what the file holds.
type state struct {
	Version  int                `json:"version"`
	Boot     string             `json:"boot"`
	Monitors map[string]Entry   `json:"monitors"`
	Labels   *map[string]string `json:"labels,omitempty"`
}

// version of the file. A file of another is not understood.
const version = 1

func parse(text []byte) (state, error) {
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return state{}, err
	}
	if s.Version != version {
		return state{}, fmt.Errorf("it is of version %d, and this agent knows version %d", s.Version, version)
	}
	return s, nil
}

func (s *state) text() ([]byte, error) {
	s.Version = version
	text, err := json.Marshal(s)
	return append(text, '\n'), err
}

func (e Entry) check() error {
	for _, part := range []json.RawMessage{e.Position, e.State} {
		if len(part) > 0 && !json.Valid(part) {
			return fmt.Errorf("%.40q", part)
		}
	}
	return nil
}
