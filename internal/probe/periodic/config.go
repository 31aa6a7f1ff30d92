package periodic

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
)

// Memory stores the state of monitors.
type Memory interface {
	Monitor(key string) (statefile.Entry, bool)
	Keep(key string, entry statefile.Entry, urgent bool)
}

// Config configures a monitor.
type Config struct {
	// Key identifies the stored state of the monitor, and is part of the identity of its Events.
	Key string
	// Source is the source of the reports.
	Source string
	// Conditions are the conditions of the monitor, with their healthy reasons and messages.
	Conditions []config.Condition
	Rules      []Rule
	// Concurrency is the maximum number of checks that run at a time.
	Concurrency int
	// UpdateOnMessage reports a condition again when only its message has changed.
	UpdateOnMessage bool
	// MessagePause is the minimum time between two changes of the message while verdict and reason
	// stay the same. It limits checks whose message differs each time.
	MessagePause time.Duration
	// SkipInitialStatus delays all reports until every condition is known from results of this
	// process. Neither restored conditions nor Unknown conditions are reported before.
	SkipInitialStatus bool
	// Boot is the id of this boot, empty if it is not known. State from another boot is used only
	// for conditions that survive a reboot.
	Boot string
	// Memory stores the state. If it is nil, nothing outlives the process.
	Memory Memory
	Logger *slog.Logger
}

// Rule is a check and what its results mean.
type Rule struct {
	// Name distinguishes the rule from others with the same condition and reason, for example the
	// path of a program. It appears in logs and in the key of the stored state.
	Name string
	// Details distinguish the rule from others with the same name, for example the arguments of a
	// program. They are part of the key of the stored state. They are not logged, because they may
	// contain secrets.
	Details   string
	Permanent bool
	// Condition is the condition that the rule changes, if Permanent.
	Condition string
	Reason    string
	Interval  time.Duration
	// Timeout is how long the check may take. Its context ends then.
	Timeout time.Duration
	Check   Check
}

// validate returns everything that is wrong with the configuration.
func (c Config) validate() error {
	var wrong []error
	if c.Concurrency < 1 {
		wrong = append(wrong, fmt.Errorf("the concurrency is %d; set how many checks may run at a time, at least 1", c.Concurrency))
	}
	declared := map[string]bool{}
	for _, condition := range c.Conditions {
		declared[condition.Type] = true
	}
	for i, rule := range c.Rules {
		switch {
		case rule.Check == nil:
			wrong = append(wrong, fmt.Errorf("rules[%d]: the check is missing; set it", i))
		case rule.Interval <= 0 || rule.Timeout <= 0:
			wrong = append(wrong, fmt.Errorf("rules[%d]: an interval of %s and a timeout of %s are not allowed; both must be more than zero", i, rule.Interval, rule.Timeout))
		case rule.Permanent && !declared[rule.Condition]:
			wrong = append(wrong, fmt.Errorf("rules[%d]: the condition %q is not declared; add it to conditions", i, rule.Condition))
		}
	}
	return errors.Join(wrong...)
}
