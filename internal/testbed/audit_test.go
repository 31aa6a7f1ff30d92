package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestAuditLog(t *testing.T) {
	const line = `{"auditID":%q,"stage":%q,"verb":"patch","requestURI":"/api/v1/nodes/n?fieldManager=hand","user":{"username":"alice"},` +
		`"objectRef":{"resource":"nodes","name":"n"},"responseStatus":{"code":200},"requestObject":[{"op":"add"}],` +
		`"requestReceivedTimestamp":"2026-01-02T03:04:05.000006Z","stageTimestamp":"2026-01-02T03:04:06.000007Z"}` + "\n"
	begin := func(id string) string { return fmt.Sprintf(line, id, "RequestReceived") }
	answer := func(id string) string { return fmt.Sprintf(line, id, "ResponseComplete") }
	open := func(t *testing.T) (*auditLog, func(string)) {
		t.Helper()
		log := newAuditLog(filepath.Join(t.TempDir(), "audit.log"))
		return log, func(text string) {
			f, err := os.OpenFile(log.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err == nil {
				_, err = f.WriteString(text)
			}
			testkit.Must(t, errors.Join(err, f.Close()))
		}
	}

	t.Run("waits for the responses to running requests", func(t *testing.T) {
		log, add := open(t)
		add(begin("1") + begin("2") + answer("2"))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := log.settled(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("settled without the answer to the first: %v", err)
		}
		add(answer("1"))
		requests := testkit.Value(log.settled(t.Context())).Must(t)
		if len(requests) != 2 || !requests[0].succeeded() || !requests[1].succeeded() || requests[0].author.FieldManager != "hand" {
			t.Errorf("%v", requests)
		}
	})

	t.Run("does not wait for later requests", func(t *testing.T) {
		log, add := open(t)
		add(begin("1") + answer("1"))
		testkit.Value(log.settled(t.Context())).Must(t)
		add(answer("1") + begin("2")[:20]) // a stray response, and half a line
		if requests := testkit.Value(log.settled(within(t, time.Second))).Must(t); len(requests) != 1 {
			t.Errorf("%v", requests)
		}
	})

	t.Run("gives up the unanswered requests of a server that has ended", func(t *testing.T) {
		log, add := open(t)
		add(begin("1") + begin("2") + answer("1")[:50]) // killed in the middle of a line
		log.markEnd()
		add(begin("3") + answer("3"))
		requests := testkit.Value(log.settled(within(t, time.Second))).Must(t)
		testkit.Require(t, len(requests) == 3, "%v", requests)
		for i, uncertain := range []bool{true, true, false} {
			testkit.Check(t, requests[i].uncertain() == uncertain, "request %d is uncertain: %v", i+1, !uncertain)
		}
	})

	t.Run("reads the author of a request", func(t *testing.T) {
		for event, want := range map[string]request{
			`"verb":"patch","userAgent":"kubectl/v1 (linux)","user":{"username":"alice"},"requestURI":"/api/v1/nodes/n"`: {
				author: Author{User: "alice", UserAgent: "kubectl/v1 (linux)", Verb: "patch", FieldManager: "kubectl"}},
			`"verb":"patch","userAgent":"kubectl/v1","user":{"username":"alice"},"requestURI":"/api/v1/nodes/n?fieldManager=hand&dryRun=All"`: {
				author: Author{User: "alice", UserAgent: "kubectl/v1", Verb: "patch", FieldManager: "hand"}, dryRun: true},
			`"verb":"delete","userAgent":"kubectl/v1","user":{"username":"alice"},"impersonatedUser":{"username":"bob"},"requestURI":"/api/v1/nodes/n"`: {
				author: Author{User: "bob", UserAgent: "kubectl/v1", Verb: "delete"}},
			`"verb":"create","user":{"username":"alice"},"objectRef":{"resource":"pods","namespace":"ns","name":"p","subresource":"eviction"},"requestURI":"%"`: {
				author: Author{User: "alice", Verb: "create", Subresource: "eviction"}, namespace: "ns", name: "p"},
		} {
			log, add := open(t)
			add(`{"auditID":"1","stage":"RequestReceived",` + event + "}\n")
			if err := log.readOn(); err != nil || len(log.requests) != 1 {
				t.Fatalf("%v, %v", log.requests, err)
			}
			got := log.requests[0]
			if got.author != want.author || got.dryRun != want.dryRun || got.namespace != want.namespace || got.name != want.name {
				t.Errorf("%s:\n got %+v\nwant %+v", event, *got, want)
			}
		}
	})

	t.Run("is empty before the first line", func(t *testing.T) {
		log, _ := open(t)
		if requests, err := log.settled(t.Context()); err != nil || len(requests) != 0 {
			t.Errorf("%v, %v", requests, err)
		}
	})
}
