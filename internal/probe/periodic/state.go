package periodic

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/times"
)

// state is the stored form of ruleStates.
type state struct {
	Boot       string                    `json:"boot,omitempty"`
	Rules      map[string]ruleState      `json:"rules,omitempty"`      // by key
	Conditions map[string]conditionState `json:"conditions,omitempty"` // by type
}

type ruleState struct {
	Verdict Verdict   `json:"verdict"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
}

type conditionState struct {
	Status  catalog.Status `json:"status"`
	Reason  string         `json:"reason,omitempty"`
	Message string         `json:"message,omitempty"`
	Since   time.Time      `json:"since"`
}

// state returns what a restarted agent needs. Of the permanent rules it contains those that found
// the node unhealthy. Healthy results are not stored: the agent must look again before it reports
// them. Temporary rules are not stored, because each of their Events stands alone.
func (b *ruleStates) state() (json.RawMessage, error) {
	s := state{Boot: b.cfg.Boot, Rules: map[string]ruleState{}, Conditions: map[string]conditionState{}}
	for _, c := range b.conditions {
		s.Conditions[c.Type] = conditionState{c.current.Status, c.current.Reason, c.current.Message, c.current.Since}
		for _, r := range c.rules {
			if r.answered() && r.last.Verdict == Unhealthy {
				s.Rules[r.key] = ruleState{r.last.Verdict, r.last.Reason, r.last.Message, r.since}
			}
		}
	}
	return b.unknown.Write(s)
}

// restore takes over the state that an earlier process stored. No time in it may be later than now.
func (b *ruleStates) restore(now time.Time, text json.RawMessage) error {
	var s state
	unknown, err := format.ReadAll(text, &s)
	if err != nil {
		return fmt.Errorf("reading the state of the monitor %s: %w", b.cfg.Key, err)
	}
	b.unknown = unknown
	rebooted := s.Boot != "" && b.cfg.Boot != "" && s.Boot != b.cfg.Boot
	for _, c := range b.conditions {
		was, ok := s.Conditions[c.Type]
		switch was.Status {
		case catalog.True, catalog.False, catalog.Unknown:
		default:
			ok = false
		}
		if ok {
			// The next state is compared with the stored one, even after a reboot.
			c.current.Status, c.current.Reason, c.current.Message, c.current.Since = was.Status, was.Reason, was.Message, times.Min(was.Since, now)
		}
		if rebooted && !c.SurvivesReboot {
			continue
		}
		c.restored = c.current.Status == catalog.True
		for _, r := range c.rules {
			was, ok := s.Rules[r.key]
			if ok && was.Verdict == Unhealthy && !was.Since.IsZero() {
				r.last, r.since = Result{Verdict: was.Verdict, Reason: was.Reason, Message: was.Message}, times.Min(was.Since, now)
			}
		}
	}
	return nil
}
