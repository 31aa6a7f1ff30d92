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

// Unclear is the reason of a condition whose program ends with an exit code that has no meaning.
const Unclear = "PluginUnclear"

// prefix turns a fault into a reason, such as "PluginTimeout".
const prefix = "Plugin"

// Config configures the monitor of a file.
type Config struct {
	// Key identifies the stored state of the monitor.
	Key     string
	Monitor config.PluginMonitor
	// Children runs the programs. All monitors of the process share it.
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
		UnknownIsProblem: true, // as in node-problem-detector, whose users count such problems
		Boot:             cfg.Boot, Memory: cfg.Memory, Logger: cfg.Logger,
	}
	for _, rule := range m.Rules {
		made.Rules = append(made.Rules, interval.Rule{
			Name: rule.Path, Details: strings.Join(rule.Args, "\x00"), Permanent: rule.Permanent, Condition: rule.Condition, Reason: rule.Reason,
			Interval: rule.InvokeInterval, Timeout: rule.Timeout, Check: cfg.check(rule),
		})
	}
	return interval.New(made)
}

// check returns a check that runs the program of a rule. It is never called twice at the same time.
func (c Config) check(rule config.PluginRule) checkresult.Check {
	var last subprocess.Result // without its outputs
	return func(ctx context.Context) checkresult.Result {
		// The context ends with the timeout of the rule.
		r := c.Children.Run(ctx, subprocess.Spec{Path: rule.Path, Args: rule.Args})
		if r.Complaint != "" && (r.Fault != last.Fault || r.Code != last.Code) {
			c.Logger.Info("plugin wrote to stderr", "monitor", c.Key, "program", rule.Path, "exitCode", r.Code, "fault", r.Fault, "stderr", r.Complaint)
		}
		last = subprocess.Result{Fault: r.Fault, Code: r.Code}
		return judge(rule.Path, r, c.Monitor.MaxOutputLength)
	}
}

// judge turns the result of a program into the result of a check.
func judge(path string, r subprocess.Result, most int) checkresult.Result {
	output := cut(strings.TrimSpace(strings.ToValidUTF8(r.Output, "\uFFFD")), most)
	switch {
	case r.Fault != "" && output != "":
		return checkresult.Result{Reason: prefix + string(r.Fault), Message: fmt.Sprintf("%v; it wrote %q", r.Err, output)}
	case r.Fault != "":
		return checkresult.Result{Reason: prefix + string(r.Fault), Message: r.Err.Error()}
	case r.Code == 0:
		return checkresult.Result{Verdict: checkresult.Healthy, Message: output}
	case r.Code == 1:
		return checkresult.Result{Verdict: checkresult.Unhealthy, Message: output}
	case output == "":
		output = fmt.Sprintf("running %s: it exited with code %d; a plugin must exit with 0 (healthy) or 1 (unhealthy)", path, r.Code)
	}
	return checkresult.Result{Reason: Unclear, Message: output}
}

// cut shortens a text to most bytes without splitting a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
