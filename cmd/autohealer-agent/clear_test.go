package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestClearEndsAConditionOfALog(t *testing.T) {
	s := newScene(t)
	run := func(args ...string) (string, error) {
		var out strings.Builder
		err := command(t.Context(), append([]string{"clear", "--state-dir", s.state}, args...), none, &out, io.Discard)
		return out.String(), err
	}
	refuses := func(part string, args ...string) {
		t.Helper()
		out, err := run(args...)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), part) && out == "", "clear %q: the error is %v, want %q", args, err, part)
	}
	refuses("the agent does not answer", "KernelDeadlock")
	refuses("which condition?")
	p := start(t, s.args()...)
	p.waitFor("the condition", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
	refuses("KernelDeadlock is False: there is nothing to clear", "KernelDeadlock")
	refuses("no log monitor on this node reports Kernel;", "Kernel")

	s.log.write(hung)
	p.waitFor("the problem", p.is("KernelDeadlock", "True", "DockerHung"))
	out, err := run("KernelDeadlock")
	testkit.Check(t, err == nil && strings.Contains(out, "KernelDeadlock is cleared; it was True since ") && strings.Contains(out, "reason: DockerHung"), "%v: the output is %q", err, out)
	p.waitFor("the end", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
	testkit.Same(t, p.logged("condition cleared", "the command autohealer-agent clear", "DockerHung"), 1, "log lines")
	p.kill()

	p = start(t, s.args()...)
	p.waitFor("the condition after a restart", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
	s.log.write(hung)
	p.waitFor("the next problem", p.is("KernelDeadlock", "True", "DockerHung"))
	p.stop()
}

func TestParseClear(t *testing.T) {
	now := time.Date(2026, time.November, 17, 18, 0, 0, 0, time.UTC)
	at := func(minute int) time.Time { return now.Add(time.Duration(minute-60) * time.Minute) }
	for _, test := range []struct {
		value string
		want  map[string]time.Time
		err   string
	}{
		{"", map[string]time.Time{}, ""},
		{"KernelDeadlock=2026-11-17T17:59:00Z", map[string]time.Time{"KernelDeadlock": at(59)}, ""},
		{" KernelDeadlock=2026-11-17T17:59:00Z , XfsShutdown=2026-11-17T17:30:00Z,", map[string]time.Time{"KernelDeadlock": at(59), "XfsShutdown": at(30)}, ""},
		{"KernelDeadlock", map[string]time.Time{}, `"KernelDeadlock" does not say until when problems are cleared: write a condition type and a time, for example KernelDeadlock=2026-11-17T18:00:00Z`},
		{"=2026-11-17T17:59:00Z", map[string]time.Time{}, "does not say until when"},
		{"KernelDeadlock=yesterday,XfsShutdown=2026-11-17T17:30:00Z", map[string]time.Time{"XfsShutdown": at(30)}, "does not say until when"},
		{"KernelDeadlock=2026-11-17T18:00:01Z", map[string]time.Time{}, "is in the future"},
	} {
		got, err := parseClear(test.value, now)
		testkit.Equal(t, test.value, test.want, got)
		testkit.Check(t, (err == nil) == (test.err == "") && (err == nil || strings.Contains(err.Error(), test.err)), "%s: %v, want %q", test.value, err, test.err)
	}
}

// A daemon reports the condition, too: the log monitors cannot end it.
func TestClearSaysThatAnotherSourceReportsTheCondition(t *testing.T) {
	a := inside(t)
	a.running.tasks = map[string]task{"log": {readsLog: true, conditions: []config.Condition{{Type: "DiskBadBlock"}}}}
	a.reports.aggregate.Add("daemon", finding.Report{Conditions: []finding.Condition{{Type: "DiskBadBlock", Status: catalog.True, Reason: "BadBlocksFound"}}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := a.clear(ctx, "DiskBadBlock", time.Now(), "a test")
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "DiskBadBlock is still True, reason: BadBlocksFound"), "the error is %v", err)
}
