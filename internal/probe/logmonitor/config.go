package logmonitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// Config configures a monitor.
type Config struct {
	// Monitor is the user's configuration of the monitor.
	Monitor config.LogMonitor
	// Translator finds the timestamp and the message of lines without Records. Only a monitor
	// of a file needs it.
	Translator logs.Translator
	// Since is the earliest time of lines that count.
	Since time.Time
	// Boot is the ID of the current boot. Findings of another boot end, unless their
	// condition survives a reboot. If it is empty, the boot is unknown and no finding ends.
	Boot string
	// Clear is until when the findings of Remembered are dropped, by condition type.
	Clear map[string]time.Time
	// Remembered is the result of State before a restart, if any.
	Remembered json.RawMessage
}

// Validate returns all errors of the configuration, except those of patterns.
func (c Config) Validate() error {
	var wrong []error
	if c.Monitor.BufferSize < 1 {
		wrong = append(wrong, fmt.Errorf("bufferSize is %d; write how many lines a pattern may span, at least 1", c.Monitor.BufferSize))
	}
	if c.Monitor.Plugin == config.Filelog && c.Translator == nil {
		wrong = append(wrong, errors.New("a log of plain lines needs a translator; give it the timestamp and the message of pluginConfig"))
	}
	declared := map[string]bool{}
	for _, condition := range c.Monitor.Conditions {
		declared[condition.Type] = true
	}
	for i, rule := range c.Monitor.Rules {
		switch {
		case rule.Permanent && !declared[rule.Condition]:
			wrong = append(wrong, fmt.Errorf("rules[%d]: the condition %q is not declared; add it to conditions", i, rule.Condition))
		case rule.Count > 1 && rule.Window <= 0:
			wrong = append(wrong, fmt.Errorf("rules[%d]: a count of %d needs a window, for example \"20m\"", i, rule.Count))
		case rule.KernelOnly && c.Monitor.Plugin == config.Filelog:
			wrong = append(wrong, fmt.Errorf("rules[%d]: nothing in a file says which lines are the kernel's; leave kernelOnly out, or read %s", i, config.Kmsg))
		}
	}
	return errors.Join(wrong...)
}

// compile compiles the rules in their order.
func compile(source string, written []config.LogRule) ([]*rule, error) {
	var wrong []error
	rules := make([]*rule, 0, len(written))
	seen := map[string]int{}
	for i, w := range written {
		r := &rule{LogRule: w}
		// Two rules may agree in everything that their identity is made of, so it includes a
		// number.
		twin := finding.ID(strconv.FormatBool(w.Permanent), w.Condition, w.Reason, w.Pattern)
		seen[twin]++
		r.key = finding.ID(source, twin, strconv.Itoa(seen[twin]))
		var err error
		if r.pattern, err = newSearch(w.Pattern); err != nil {
			wrong = append(wrong, fmt.Errorf("rules[%d].pattern: %w", i, err))
		}
		if w.ClearPattern != "" {
			if r.clear, err = newSearch(w.ClearPattern); err != nil {
				wrong = append(wrong, fmt.Errorf("rules[%d].clearPattern: %w", i, err))
			}
		}
		rules = append(rules, r)
	}
	return rules, errors.Join(wrong...)
}
