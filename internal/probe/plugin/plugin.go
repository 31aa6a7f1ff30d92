package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/resourcestack/autohealer/internal/probe/checkresult"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/interval"
	"github.com/resourcestack/autohealer/internal/probe/subprocess"
)

// Unclear is the reason of a condition whose program ends with a code that has no meaning.
const Unclear = "PluginUnclear"

// prefix makes a reason of a fault: "PluginTimeout".
const prefix = "Plugin"

// Config is what the monitor of a file needs to know.
type Config struct {
	// Key under which it is remembered.
	Key     string
	Monitor config.PluginMonitor
	// Children run the programs: those of the process, which all monitors share.
	Children *subprocess.Children
	// Boot is the id of this boot.
	Boot   string
	Memory interval.Memory
	Logger *slog.Logger
}

// New returns the monitor of a file.
func New(cfg Config) (*interval.Monitor, error) {
	m := cfg.Monitor
	made := interval.Config{
		Key: cfg.Key, Source: m.Source, Conditions: m.Conditions, Concurrency: m.Concurrency,
		UpdateOnMessage: m.UpdateOnMessage, SkipInitialStatus: m.SkipInitialStatus,
		UnknownIsProblem: true, // as it is for those who count the problems of the old agent
		Boot:             cfg.Boot, Memory: cfg.Memory, Logger: cfg.Logger,
	}
	for _, rule := range m.Rules {
		made.Rules = append(made.Rules, interval.Rule{
			Name: rule.Path, Details: strings.Join(rule.Args, "\x00"), Permanent: rule.Permanent, Condition: rule.Condition, Reason: rule.Reason,
			Interval: rule.InvokeInterval, Timeout: rule.Timeout, Exam: cfg.exam(rule),
		})
	}
	return interval.New(made)
}

// exam returns the one that runs a program. It is not asked twice at the same time.
func (c Config) exam(rule config.PluginRule) checkresult.Check {
	var last subprocess.Result // without its outputs
	return func(ctx context.Context) checkresult.Result {
		// The context lasts as long as the rule allows.
		r := c.Children.Run(ctx, subprocess.Spec{Path: rule.Path, Args: rule.Args})
		if r.Complaint != "" && (r.Fault != last.Fault || r.Code != last.Code) {
			c.Logger.Info("a program complains", "monitor", c.Key, "program", rule.Path, "exitCode", r.Code, "fault", r.Fault, "stderr", r.Complaint)
		}
		last = subprocess.Result{Fault: r.Fault, Code: r.Code}
		return meaning(rule.Path, r, c.Monitor.MaxOutputLength)
	}
}

// meaning says what became of a program means for the node.
func meaning(path string, r subprocess.Result, most int) checkresult.Result {
	output := cut(strings.TrimSpace(strings.ToValidUTF8(r.Output, "\uFFFD")), most)
	switch {
	case r.Fault != "" && output != "":
		return checkresult.Result{Reason: prefix + string(r.Fault), Message: fmt.Sprintf("%v; it wrote %q", r.Err, output)}
	case r.Fault != "":
		return checkresult.Result{Reason: prefix + string(r.Fault), Message: r.Err.Error()}
	case r.Code == 0:
		return checkresult.Result{Verdict: checkresult.Well, Message: output}
	case r.Code == 1:
		return checkresult.Result{Verdict: checkresult.Sick, Message: output}
	case output == "":
		output = fmt.Sprintf("running %s: it ended with %d; let it end with 0 if the node is well and with 1 if it is sick", path, r.Code)
	}
	return checkresult.Result{Reason: Unclear, Message: output}
}

// cut shortens a text between two of its characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
