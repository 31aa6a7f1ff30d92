package intake

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

// Whatever a client posts, the intake either accepts all of it and emits only what the source
// may report, or rejects it with JSON and emits nothing.
func FuzzServe(f *testing.F) {
	for _, test := range badReports {
		f.Add([]byte(test.body()))
	}
	f.Add([]byte(status("disk-watch", condition(disk, true, time.Hour), event("A", 2), event("B", 1))))
	f.Add([]byte(status("disk-watch")))
	f.Add([]byte(`{"SOURCE": "disk-watch", "source": "disk-watch", "more": [[[{}]]], "events": null, "conditions": [null]}`))
	f.Add([]byte(strings.Repeat(`{"events":[`, 6000)))
	f.Add([]byte(strings.Repeat(`[`, problem.MaxBody)))
	f.Add([]byte("{\"source\": \"disk-watch\", \"\xff\": 1, \"events\": [{\"severity\": \"warn\", \"reason\": \"A\", \"timestamp\": \"2026-11-15T12:00:00+23:59\", \"message\": \"\xff\\ud800\"}]}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		var passed []finding.Report
		in := New(Config{Emit: func(_ string, r finding.Report) { passed = append(passed, r) }, Logger: slog.New(slog.DiscardHandler)})
		mine := source("disk-watch", disk)
		src := newSourceState(mine, time.Now())
		src.publish(&finding.Report{}, time.Now())
		in.sources = []*sourceState{src}
		c := &connection{listener: &sourceListener{addr: mine.listenAddr(), limiter: &connLimiter{limit: maxUnauthenticated}}}
		request := httptest.NewRequestWithContext(withConnection(t.Context(), c), http.MethodPost, problem.Path, bytes.NewReader(body))
		answer := httptest.NewRecorder()
		in.serve(answer, request)
		switch answer.Code {
		case 204:
			testkit.Require(t, len(passed) <= 1 && answer.Body.Len() == 0 && json.Valid(body) && len(body) <= problem.MaxBody,
				"%d bytes are taken, and %d reports passed on", len(body), len(passed))
			for _, r := range passed {
				checkReport(t, r)
			}
		case 400, 403, 409, 413, 422, 425:
			var refusal problem.RefusedError
			if err := json.Unmarshal(answer.Body.Bytes(), &refusal); err != nil || refusal.Problem == "" || refusal.Hint == "" || answer.Body.Len() > 2000 {
				t.Fatalf("%d %q", answer.Code, answer.Body.Bytes())
			}
			if len(passed) > 0 || len(src.reported)+len(src.recent.ids) > 0 || src.published[disk].Reason != NotHeardYet || !src.silence.source.lastHeard.IsZero() {
				t.Fatalf("it is refused with %d, and yet something is kept: %+v", answer.Code, passed)
			}
			testkit.Require(t, answer.Code == 400 || answer.Code == 413 || refusal.Field != "", "no field is named: %+v", refusal)
		default:
			t.Fatalf("it is answered %d", answer.Code)
		}
	})
}

func checkReport(t *testing.T, r finding.Report) {
	t.Helper()
	soon := time.Now().Add(maxClockSkew)
	for _, c := range r.Conditions {
		if c.Type != disk || c.Status == catalog.Unknown || !problem.IsReason(c.Reason) || len(c.Message) > problem.MaxMessage || !utf8.ValidString(c.Message) || c.Since.After(soon) || c.Since.Unix() <= 0 {
			t.Fatalf("%+v is passed on", c)
		}
	}
	for _, e := range r.Events {
		if e.ID == "" || e.Severity != finding.Info && e.Severity != finding.Warn || !problem.IsReason(e.Reason) || e.Condition == "" && len(e.Message) > problem.MaxMessage || !utf8.ValidString(e.Message) || e.Time.After(soon) {
			t.Fatalf("%+v is passed on", e)
		}
	}
	own := slices.DeleteFunc(slices.Clone(r.Events), func(e finding.Event) bool { return e.Condition != "" })
	testkit.Require(t, slices.IsSortedFunc(own, func(a, b finding.Event) int { return a.Time.Compare(b.Time) }), "%+v are not in their order", own)
}
