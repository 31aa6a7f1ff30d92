package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/commandline"
	"github.com/resourcestack/autohealer/internal/finding"
)

// clearAnnotation is an annotation of the Node that asks the agent to clear conditions. Its value
// is a list like KernelDeadlock=2026-11-17T18:00:00Z. The agent may not write metadata of the
// Node, so it cannot remove the annotation: the time keeps the annotation from hiding later
// problems.
const clearAnnotation = "autohealer.resourcestack.com/clear"

// Reasons of the Events about clearing.
const (
	conditionCleared = "ConditionCleared"
	clearRefused     = "ClearRefused"
)

// clearTimeout is how long a log monitor may take to report without its cleared findings. It is
// shorter than the timeout of the command.
const clearTimeout = 6 * time.Second

// clear ends a condition that log monitors have set until a time. Nothing in a log may ever end it
// otherwise. by says in the Event how the user asked for it.
func (a *agent) clear(ctx context.Context, kind string, until time.Time, by string) (finding.Condition, error) {
	condition, err := a.clearable(kind, until)
	if err != nil {
		return condition, err
	}
	a.change(ctx, func() { a.factory.cleared[kind] = until })
	if now := a.awaitCleared(ctx, kind); now.Status == catalog.True {
		return now, fmt.Errorf("%s is still %s, reason: %s, message: %q; a later line, another file, a check or a daemon reports it", kind, now.Shown(), now.Reason, now.Message)
	}
	message := fmt.Sprintf("%s was cleared by %s; it was %s since %s, reason: %s, message: %q",
		kind, by, condition.Shown(), condition.Since.UTC().Format(time.RFC3339), condition.Reason, condition.Message)
	a.log.Info("condition cleared", "condition", kind, "by", by, "reason", condition.Reason, "since", condition.Since)
	a.reports.report(finding.Report{Source: name, Events: []finding.Event{{
		ID:       finding.ID("clear", kind, condition.Since.UTC().Format(time.RFC3339Nano), until.UTC().Format(time.RFC3339Nano)),
		Severity: finding.Info, Time: time.Now(), Reason: conditionCleared, Message: message,
	}}})
	return condition, nil
}

// awaitCleared waits until a condition is no longer unhealthy, and returns its last state.
func (a *agent) awaitCleared(ctx context.Context, kind string) (last finding.Condition) {
	ctx, cancel := context.WithTimeout(ctx, clearTimeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		last = finding.Condition{}
		for _, c := range a.reports.aggregate.Conditions() {
			if c.Type == kind {
				last = c
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return last
		}
		if last.Status != catalog.True {
			return last
		}
	}
}

// clearable returns a condition that can be cleared.
func (a *agent) clearable(kind string, until time.Time) (finding.Condition, error) {
	ofLogs := a.logConditions()
	if !slices.Contains(ofLogs, kind) {
		return finding.Condition{}, fmt.Errorf("no log monitor on this node reports %s; checks, plugins and daemons report what they find now, and only conditions of logs can be cleared: %s",
			kind, strings.Join(ofLogs, ", "))
	}
	for _, c := range a.reports.aggregate.Conditions() {
		switch {
		case c.Type != kind:
		case c.Status != catalog.True:
			return c, fmt.Errorf("%s is %s: there is nothing to clear", kind, c.Shown())
		case c.Since.After(until):
			return c, fmt.Errorf("%s is %s since %s, which is later than %s", kind, c.Shown(), c.Since.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))
		default:
			return c, nil
		}
	}
	return finding.Condition{}, fmt.Errorf("%s is not known yet: wait until the agent has read the log", kind)
}

// logConditions returns the types of the conditions of log monitors, sorted.
func (a *agent) logConditions() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var types []string
	for _, t := range a.running.tasks {
		if t.readsLog {
			types = append(types, t.conditionTypes()...)
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// mayClear reports whether a user may want to clear a condition.
func (a *agent) mayClear() bool {
	ofLogs := a.logConditions()
	return slices.ContainsFunc(a.reports.aggregate.Conditions(), func(c finding.Condition) bool {
		return c.Status == catalog.True && slices.Contains(ofLogs, c.Type)
	})
}

// clearAnnotated clears the conditions that the annotation names.
func (a *agent) clearAnnotated(ctx context.Context, value string) {
	wanted, err := parseClear(value, time.Now())
	ofLogs := a.logConditions()
	for kind, until := range wanted {
		switch _, impossible := a.clearable(kind, until); {
		case !slices.Contains(ofLogs, kind):
			err = errors.Join(err, impossible)
		case impossible == nil && !a.isCleared(kind, until):
			if _, failed := a.clear(ctx, kind, until, "the annotation "+clearAnnotation); failed != nil {
				err = errors.Join(err, failed)
			}
		}
	}
	if err == nil || value == a.refusedClear {
		return
	}
	a.refusedClear = value
	message := fmt.Sprintf("the annotation %s: %s", clearAnnotation, strings.ReplaceAll(err.Error(), "\n", "; "))
	a.log.Warn("conditions cannot be cleared", "err", message)
	a.reports.report(finding.Report{Source: name, Events: []finding.Event{{
		ID: finding.ID(clearRefused, value), Severity: finding.Warn, Time: time.Now(), Reason: clearRefused, Message: message,
	}}})
}

// isCleared reports whether the monitors were already told to clear a condition until this time.
func (a *agent) isCleared(kind string, until time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.factory.cleared[kind].Equal(until)
}

// parseClear reads the value of the annotation: until when to clear, by condition type.
func parseClear(value string, now time.Time) (map[string]time.Time, error) {
	wanted := map[string]time.Time{}
	var errs []error
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		kind, text, _ := strings.Cut(item, "=")
		until, err := time.Parse(time.RFC3339, text)
		switch {
		case item == "":
		case kind == "" || err != nil:
			errs = append(errs, fmt.Errorf("%.80q does not say until when problems are cleared: write a condition type and a time, for example KernelDeadlock=%s",
				item, now.UTC().Format(time.RFC3339)))
		case until.After(now):
			errs = append(errs, fmt.Errorf("%.80q is in the future, and would hide problems that the node does not have yet: write a time up to now, for example %s=%s",
				item, kind, now.UTC().Format(time.RFC3339)))
		default:
			wanted[kind] = until
		}
	}
	return wanted, errors.Join(errs...)
}

// controlSocket returns the path of the socket on which the running agent takes commands. Only the
// user of the agent can open the state directory.
func controlSocket(stateDir string) string { return filepath.Join(stateDir, "control.sock") }

// control returns the server for commands of the same program, nil if it cannot listen.
func (a *agent) control(ctx context.Context, stateDir string) *server {
	if stateDir == "" {
		return nil
	}
	path := controlSocket(stateDir)
	_ = os.Remove(path) // of a killed agent; the state directory is locked, so no other agent listens
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		a.log.Warn("the command clear cannot reach this agent", "err", err)
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /clear", func(w http.ResponseWriter, r *http.Request) {
		kind := r.URL.Query().Get("type")
		condition, err := a.clear(ctx, kind, time.Now(), "the command "+name+" clear")
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		fmt.Fprintf(w, "%s is cleared; it was %s since %s, reason: %s\n", kind, condition.Shown(), condition.Since.UTC().Format(time.RFC3339), condition.Reason)
	})
	return a.newServer(path, listener, mux)
}

// clearCommand asks the running agent on this machine to clear conditions.
func clearCommand(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet(name+" clear", flag.ContinueOnError)
	flags.SetOutput(out)
	stateDir := flags.String("state-dir", defaultStateDir, "`directory` of the running agent")
	flags.Usage = func() {
		fmt.Fprintf(out, "%s clear TYPE... sets conditions back that log monitors of the running agent have found, for example KernelDeadlock.\n", name)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return commandline.Usage(err)
	}
	if flags.NArg() == 0 {
		return commandline.Usage(errors.New("clear: which condition? Write its type, for example " + name + " clear KernelDeadlock"))
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", controlSocket(*stateDir))
		},
	}}
	var errs []error
	for _, kind := range flags.Args() {
		errs = append(errs, sendClear(ctx, client, kind, out))
	}
	return errors.Join(errs...)
}

// sendClear asks for one condition.
func sendClear(ctx context.Context, client *http.Client, kind string, out io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/clear?type="+url.QueryEscape(kind), nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("clear %s: the agent does not answer: %w (run the command where the agent runs, as its user; --state-dir is the agent's)", kind, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	switch {
	case err != nil:
		return fmt.Errorf("clear %s: reading the answer: %w", kind, err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("clear: %s", strings.TrimSpace(string(answer)))
	}
	_, err = out.Write(answer)
	return err
}
