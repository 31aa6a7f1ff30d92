package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// inside returns an agent in the process of the test, with monitors of the test.
func inside(t *testing.T) *agent {
	t.Helper()
	a := testkit.Value(newAgent(options{stateDir: t.TempDir()}, none, slog.New(slog.DiscardHandler))).Must(t)
	t.Cleanup(func() {
		a.supervisor.Stop()
		testkit.Must(t, a.state.Close())
	})
	return a
}

func asked(handler http.HandlerFunc) string {
	answer := httptest.NewRecorder()
	handler(answer, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	return answer.Body.String()
}

// deaf is a monitor that hangs and ignores the end of its context.
type deaf chan struct{}

func (d deaf) Run(ctx context.Context, _ supervise.Reporter) error {
	<-d
	return ctx.Err()
}

func TestAgentAnswersWhileAChangeWaitsForAHangingMonitor(t *testing.T) {
	a := inside(t)
	hangs := make(deaf)
	a.supervisor.Apply(t.Context(), []supervise.Job{{Name: "hangs", Make: func() supervise.Monitor { return hangs }}})
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		a.change(t.Context(), func() {}) // no file asks for the monitor now
	}()
	testkit.Until(t, "the change", func() bool {
		if a.changeMu.TryLock() {
			a.changeMu.Unlock()
			return false
		}
		return true
	})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for _, handler := range []http.HandlerFunc{a.serveHealth, a.serveConditions, a.serveMetrics} {
			asked(handler)
		}
	}()
	select {
	case <-answered:
	case <-changed:
		t.Error("the agent answers only after the change")
	}
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Error("the change waits for ever")
	}
	testkit.Contains(t, asked(a.serveMetrics), "\nautohealer_agent_abandoned_monitors 1\n", "the metrics count the hanging monitor")
	close(hangs)
	testkit.Until(t, "its end", func() bool {
		return strings.Contains(asked(a.serveMetrics), "\nautohealer_agent_abandoned_monitors 0\n")
	})
}

// overrun is a log that has lost records.
type overrun struct{ said bool }

func (o *overrun) Next(ctx context.Context) (logs.Chunk, error) {
	if o.said {
		<-ctx.Done()
		return logs.Chunk{}, ctx.Err()
	}
	o.said = true
	text := []byte("all is well\n")
	return logs.Chunk{Text: text, Records: []logs.Record{{End: len(text), Time: time.Now(), Number: 8}}, Next: logs.Position(`8`), Lost: 7}, nil
}

func (o *overrun) Close() error { return nil }

func TestLostRecordsAreCounted(t *testing.T) {
	a := inside(t)
	a.supervisor.Apply(t.Context(), []supervise.Job{{Name: "kernel", Make: func() supervise.Monitor {
		return logwatch.New(logwatch.Config{
			Key: "kernel", Boot: a.factory.boot, Memory: a.state, Logger: a.log,
			Monitor: config.LogMonitor{Plugin: config.Kmsg, Source: "kernel-monitor", BufferSize: 10},
			Open:    func(logs.Position, time.Time) (logs.Reader, error) { return &overrun{}, nil },
		})
	}}})
	testkit.Until(t, "the metric", func() bool {
		return strings.Contains(asked(a.serveMetrics), "\n"+`autohealer_agent_lost_records_total{monitor="kernel"} 7`+"\n")
	})
}

func TestCutLinesAndGapsAreCounted(t *testing.T) {
	s := newScene(t)
	metric := func(name string) string { return "autohealer_agent_" + name + `{monitor="` + monitorOf(s) + `"}` }
	s.log.write("all is well")
	p := start(t, s.args()...)
	p.waitFor("metrics that are 0 at first", func() bool {
		return p.metric(metric("cut_lines_total"))+p.metric(metric("log_gaps_total"))+p.metric(metric("lost_records_total")) == "000"
	})
	s.log.write(strings.Repeat("long ", 20<<10), "all is well")
	p.waitFor("the cut line", func() bool { return p.metric(metric("cut_lines_total")) == "1" })
	p.stop()
	// Replace the log while no agent runs.
	put(t, s.log.path+".new", "")
	kernelLog{t, s.log.path + ".new"}.write("another log")
	testkit.Must(t, os.Rename(s.log.path+".new", s.log.path))
	p = start(t, s.args()...)
	p.waitFor("the gap", func() bool { return p.metric(metric("log_gaps_total")) == "1" })
}
