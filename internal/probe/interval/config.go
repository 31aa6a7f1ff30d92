package interval

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/checkresult"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
)

// Memory is where answers are kept.
type Memory interface {
	Monitor(key string) (statefile.Entry, bool)
	Keep(key string, entry statefile.Entry, urgent bool)
}

// Config is what the rounds need to know.
type Config struct {
	// Key under which they are remembered, and by which their events are told from others.
	Key string
	// Source of the reports.
	Source string
	// Conditions as they are while all is well.
	Conditions []config.Condition
	Rules      []Rule
	// Concurrency is how many exams there are at a time, at most.
	Concurrency int
	// UpdateOnMessage tells a condition anew when only its message has changed.
	UpdateOnMessage bool
	// MessagePause is how long a message that has replaced another stands at least, while
	// verdict and reason stay: one that is new each time is not told each time.
	MessagePause time.Duration
	// SkipInitialStatus says nothing at all until all conditions are known from answers of
	// this life: neither what is remembered, nor that something is not known yet.
	SkipInitialStatus bool
	// UnknownIsProblem has a temporary rule that cannot look tell its own event each time,
	// and be counted, as one does that finds the node sick. Otherwise an event says why it
	// cannot, when it begins.
	UnknownIsProblem bool
	// Boot is the id of this boot. What is remembered of another is not used, unless the
	// condition survives a reboot. Empty if it is not known.
	Boot string
	// Memory of answers; nil if nothing outlives the process.
	Memory Memory
	Logger *slog.Logger
}

// Rule is one exam, and what its answers mean.
type Rule struct {
	// Name tells the rule from others of the same condition and reason, for what is logged
	// and remembered; such as the path of a program.
	Name string
	// Details tell it from others of the same name, for what is remembered, and are not
	// logged: such as arguments, which may hold what is secret.
	Details   string
	Permanent bool
	// Condition that is changed, where Permanent.
	Condition string
	Reason    string
	Interval  time.Duration
	// Timeout is how long the exam may take. Its context lasts as long.
	Timeout time.Duration
	Exam    checkresult.Check
}

// Validate says everything that is wrong with the configuration.
func (c Config) Validate() error {
	var wrong []error
	if c.Concurrency < 1 {
		wrong = append(wrong, fmt.Errorf("the concurrency is %d; write how many exams there may be at a time, at least 1", c.Concurrency))
	}
	declared := map[string]bool{}
	for _, condition := range c.Conditions {
		declared[condition.Type] = true
	}
	for i, rule := range c.Rules {
		switch {
		case rule.Exam == nil:
			wrong = append(wrong, fmt.Errorf("rules[%d]: there is no exam; give it one", i))
		case rule.Interval <= 0 || rule.Timeout <= 0:
			wrong = append(wrong, fmt.Errorf("rules[%d]: an interval of %s and a timeout of %s leave no time; write more than zero", i, rule.Interval, rule.Timeout))
		case rule.Permanent && !declared[rule.Condition]:
			wrong = append(wrong, fmt.Errorf("rules[%d]: the condition %q is not declared; add it to conditions", i, rule.Condition))
		}
	}
	return errors.Join(wrong...)
}
