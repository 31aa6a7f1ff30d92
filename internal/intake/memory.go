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

// Memory keeps what must outlive the agent, by source. Neither method waits.
type Memory interface {
	// Recall returns what was kept last, nil if nothing was.
	Recall(source string) json.RawMessage
	// Keep keeps something, of which so many fields are unknown to this version. It is
	// urgent if a restart must not forget it.
	Keep(source string, state json.RawMessage, unknown int, urgent bool)
}

// state is what is kept of a desk.
type state struct {
	Boot string `json:"boot,omitempty"`
	// Quiet is for how long the source had been listened for without a word.
	Quiet      time.Duration             `json:"quiet,omitempty"`
	Conditions map[string]conditionState `json:"conditions"` // by type
}

type conditionState struct {
	// Told is what the source has said, without a type if it has said nothing.
	Told  finding.Condition `json:"told"`
	Shown finding.Condition `json:"shown"`
	// Silent says that nothing had been said of it for too long.
	Silent bool `json:"silent,omitempty"`
	// Quiet is for how long nothing had been said of it, if it was not too long yet.
	Quiet time.Duration `json:"quiet,omitempty"`
}

// keep returns what must outlive the agent.
func (d *desk) keep(boot string) (json.RawMessage, error) {
	s := state{Boot: boot, Quiet: d.whole.quiet(d.source.Silence), Conditions: map[string]conditionState{}}
	d.quietKept = s.Quiet > 0
	for kind, c := range d.shown {
		h := d.hushes[kind]
		s.Conditions[kind] = conditionState{d.told[kind], c, h.silent, h.quiet(d.source.Silence)}
		d.quietKept = d.quietKept || h.quiet(d.source.Silence) > 0
	}
	return d.unknown.Write(s)
}

// recall takes up what the life before knew. A reboot makes forgotten what it cures.
func (d *desk) recall(text json.RawMessage, boot string) error {
	if text == nil {
		return nil
	}
	var s state
	unknown, err := format.ReadAll(text, &s)
	if err != nil {
		return fmt.Errorf("reading what was kept of %s: %w", d.name, err)
	}
	d.unknown = unknown
	rebooted := s.Boot != "" && boot != "" && s.Boot != boot
	quiet := func(lasts time.Duration) hush {
		if rebooted {
			return hush{} // the source was started again, too
		}
		return hush{lasts: min(lasts, d.source.Silence)}
	}
	d.whole = quiet(s.Quiet)
	for kind, c := range s.Conditions {
		known, _ := catalog.Lookup(kind)
		if !slices.Contains(d.source.Conditions, kind) || rebooted && (!known.SurvivesReboot || c.Told.Status != catalog.True) {
			continue
		}
		d.shown[kind] = c.Shown
		if c.Told.Type != "" {
			d.told[kind] = c.Told
		}
		if *d.hushes[kind] = quiet(c.Quiet); c.Silent {
			*d.hushes[kind] = hush{silent: true, lasts: d.source.Silence}
		}
	}
	return nil
}
