package intake

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
)

// Memory saves the state of each source across restarts of the agent. Its methods must not
// block.
type Memory interface {
	// Recall returns the last saved state, or nil.
	Recall(source string) json.RawMessage
	// Keep saves a state. unknown is the number of its fields that this version does not know.
	// urgent means that a crash must not lose it.
	Keep(source string, state json.RawMessage, unknown int, urgent bool)
}

// savedState is the saved part of a sourceState.
type savedState struct {
	Boot string `json:"boot,omitempty"`
	// Quiet is how long the source has not reported.
	Quiet      time.Duration             `json:"quiet,omitempty"`
	Conditions map[string]savedCondition `json:"conditions"` // by type
}

type savedCondition struct {
	// Told is the last report of the source, without a type if there is none.
	Told  finding.Condition `json:"told"`
	Shown finding.Condition `json:"shown"`
	// Silent is true if the condition was not reported for too long.
	Silent bool `json:"silent,omitempty"`
	// Quiet is how long the condition was not reported, while that is not too long.
	Quiet time.Duration `json:"quiet,omitempty"`
}

// save returns the state to save.
func (src *sourceState) save(boot string) (json.RawMessage, error) {
	s := savedState{Boot: boot, Quiet: src.silence.source.elapsedToSave(src.source.Silence), Conditions: map[string]savedCondition{}}
	src.silence.saved = s.Quiet > 0
	for kind, c := range src.published {
		timer := src.silence.conditions[kind]
		s.Conditions[kind] = savedCondition{src.reported[kind], c, timer.silent, timer.elapsedToSave(src.source.Silence)}
		src.silence.saved = src.silence.saved || timer.elapsedToSave(src.source.Silence) > 0
	}
	return src.unknownFields.Write(s)
}

// restore loads a saved state. After a reboot it drops the conditions that a reboot fixes.
func (src *sourceState) restore(text json.RawMessage, boot string) error {
	if text == nil {
		return nil
	}
	var s savedState
	unknown, err := format.ReadAll(text, &s)
	if err != nil {
		return fmt.Errorf("reading the saved state of %s: %w", src.name, err)
	}
	src.unknownFields = unknown
	rebooted := s.Boot != "" && boot != "" && s.Boot != boot
	quiet := func(lasts time.Duration) silenceTimer {
		if rebooted {
			return silenceTimer{} // the source was restarted, too
		}
		return silenceTimer{elapsed: min(lasts, src.source.Silence)}
	}
	src.silence.source = quiet(s.Quiet)
	for kind, c := range s.Conditions {
		known, _ := src.source.lookup(kind)
		if !slices.Contains(src.source.Conditions, kind) || c.Shown.Inverted != src.source.inverted(kind) || rebooted && (!known.SurvivesReboot || c.Told.Status != catalog.True) {
			continue
		}
		src.published[kind] = c.Shown
		if c.Told.Type != "" {
			src.reported[kind] = c.Told
		}
		if *src.silence.conditions[kind] = quiet(c.Quiet); c.Silent {
			*src.silence.conditions[kind] = silenceTimer{silent: true, elapsed: src.source.Silence}
		}
	}
	return nil
}
