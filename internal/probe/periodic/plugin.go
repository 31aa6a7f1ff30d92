package periodic

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/subprocess"
	"github.com/resourcestack/autohealer/internal/text"
)

const (
	// pluginUnclear is the reason of a condition whose program ends with an exit code that has no
	// meaning.
	pluginUnclear = "PluginUnclear"
	// pluginPrefix turns a fault into a reason, for example "PluginTimeout".
	pluginPrefix = "Plugin"
	// notExecutable and notFound are the exit codes of a shell, and of env in a first line
	// "#!/usr/bin/env python3", for a program that they cannot run.
	notExecutable, notFound = 126, 127
)

// PluginConfig configures the monitor of a custom-plugin-monitor file.
type PluginConfig struct {
	// Key identifies the stored state of the monitor.
	Key     string
	Monitor config.PluginMonitor
	// Children runs the programs. All monitors of the process share it.
	Children *subprocess.Children
	// Boot is the id of this boot.
	Boot   string
	Memory Memory
	Logger *slog.Logger
}

// NewPlugin returns the monitor of a file, whose rules become checks that run a program.
func NewPlugin(cfg PluginConfig) (*Monitor, error) {
	m := cfg.Monitor
	made := Config{
		Key: cfg.Key, Source: m.Source, Conditions: m.Conditions, Concurrency: m.Concurrency,
		UpdateOnMessage: m.UpdateOnMessage, SkipInitialStatus: m.SkipInitialStatus,
		Boot: cfg.Boot, Memory: cfg.Memory, Logger: cfg.Logger,
	}
	for _, rule := range m.Rules {
		made.Rules = append(made.Rules, Rule{
			Name: rule.Path, Details: strings.Join(rule.Args, "\x00"), Permanent: rule.Permanent, Condition: rule.Condition, Reason: rule.Reason,
			Interval: rule.InvokeInterval, Timeout: rule.Timeout, Check: cfg.check(rule),
		})
	}
	return New(made)
}

// check returns a check that runs the program of a rule. It is never called twice at the same time.
func (c PluginConfig) check(rule config.PluginRule) Check {
	var last subprocess.Result // without its outputs
	return func(ctx context.Context) Result {
		// The context ends with the timeout of the rule.
		r := c.Children.Run(ctx, subprocess.Spec{Path: rule.Path, Args: rule.Args})
		if r.Complaint != "" && (r.Fault != last.Fault || r.Code != last.Code) {
			c.Logger.Info("plugin wrote to stderr", "monitor", c.Key, "program", rule.Path, "exitCode", r.Code, "fault", r.Fault, "stderr", r.Complaint)
		}
		last = subprocess.Result{Fault: r.Fault, Code: r.Code}
		return judgePlugin(rule.Path, r, c.Monitor.MaxOutputLength)
	}
}

// judgePlugin turns the result of a program into the result of a check.
func judgePlugin(path string, r subprocess.Result, most int) Result {
	output := text.Shorten(strings.TrimSpace(strings.ToValidUTF8(r.Output, "\uFFFD")), most, "")
	ran := r.Fault == subprocess.Timeout || r.Fault == subprocess.Hangs || r.Fault == subprocess.Killed
	switch {
	case r.Fault != "" && output != "":
		return Result{Reason: pluginPrefix + string(r.Fault), Message: fmt.Sprintf("%v; it wrote %q", r.Err, output), Unclear: ran}
	case r.Fault != "":
		return Result{Reason: pluginPrefix + string(r.Fault), Message: r.Err.Error(), Unclear: ran}
	case r.Code == 0:
		return Result{Verdict: Healthy, Message: output}
	case r.Code == 1:
		return Result{Verdict: Unhealthy, Message: output}
	case r.Code == notExecutable || r.Code == notFound:
		message := fmt.Sprintf("running %s: it exited with code %d: it could not run its interpreter or another program; add the program to the image, or mount it", path, r.Code)
		if complaint := strings.TrimSpace(r.Complaint + " " + output); complaint != "" {
			message += fmt.Sprintf("; it wrote %q", text.Shorten(complaint, most, ""))
		}
		return Result{Reason: pluginPrefix + string(subprocess.Missing), Message: message}
	case output == "":
		output = fmt.Sprintf("running %s: it exited with code %d; a plugin must exit with 0 (healthy) or 1 (unhealthy)", path, r.Code)
	}
	return Result{Reason: pluginUnclear, Message: output, Unclear: true}
}
