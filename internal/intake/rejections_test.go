package intake

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

// onSockets runs an intake on real sockets in a directory.
func onSockets(tb testing.TB, setup func(folder string) Setup) (*fixture, string) {
	tb.Helper()
	folder := tb.TempDir()
	s := newFixture(tb)
	s.begin("boot-1", tb.Output())
	testkit.Must(tb, s.in.Apply(setup(folder)))
	why := s.in.Problems()
	testkit.Require(tb, len(why) == 0, "%v", why)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.in.Run(ctx) }()
	tb.Cleanup(func() { stop(); <-done })
	return s, folder
}

func dialUnix(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", path) }
}

// own returns a source with its own socket in a directory, and a high rate.
func own(folder, name string, conditions ...string) Source {
	s := source(name, conditions...)
	s.Socket, s.Rate, s.Burst, s.Connections = filepath.Join(folder, name+".sock"), 1_000_000, 1_000_000, 100
	return s
}

// badReports are rejected reports with the expected response. docs/reference/problem-reports.md has the
// same table for users.
var badReports = []struct {
	name  string
	body  func() string
	code  int
	field string
}{
	{"no JSON at all", func() string { return "disk is bad" }, 400, ""},
	{"nothing", func() string { return "" }, 400, ""},
	{"half of a status", func() string { return `{"source": "disk-watch", "events": [{"severity": "wa` }, 400, "events[0].severity"},
	{"two statuses", func() string { return `{"source": "disk-watch"} {"source": "disk-watch"}` }, 400, ""},
	{"a list", func() string { return `[]` }, 400, ""},
	{"a number for a text", func() string {
		return `{"source": "disk-watch", "conditions": [{}, {"type": "DiskBadBlock", "reason": 5}]}`
	}, 400, "conditions[1].reason"},
	{"an object for a text", func() string {
		return `{"source": "disk-watch", "events": [{"severity": "warn", "reason": {"a": "b"}}]}`
	}, 400, "events[0].reason"},
	{"a status that is none", func() string { return status("disk-watch", `{"type": "DiskBadBlock", "status": "yes"}`) }, 400, "conditions[0].status"},
	{"an object for a list", func() string { return `{"source": "disk-watch", "events": {"severity": "warn"}}` }, 400, "events"},
	{"no source", func() string { return status("") }, 400, "source"},
	{"no type", func() string { return status("disk-watch", `{"status": true}`) }, 400, "conditions[0].type"},
	{"no status", func() string {
		return status("disk-watch", strings.Replace(condition(disk, true, 0), `"status": true,`, "", 1))
	}, 400, "conditions[0].status"},
	{"no transition", func() string {
		return status("disk-watch", `{"type": "DiskBadBlock", "status": true, "reason": "A"}`)
	}, 400, "conditions[0].transition"},
	{"a transition that was not set", func() string {
		return status("disk-watch", `{"type": "DiskBadBlock", "status": true, "reason": "A", "transition": "0001-01-01T00:00:00Z"}`)
	}, 400, "conditions[0].transition"},
	{"a time that is none", func() string {
		return status("disk-watch", event("A", 2), `{"severity": "warn", "reason": "B", "timestamp": "yesterday"}`)
	}, 400, "events[1].timestamp"},
	{"no severity", func() string { return status("disk-watch", `{"severity": "", "reason": "B"}`) }, 400, "events[0].severity"},
	{"no reason", func() string { return status("disk-watch", event("", 2)) }, 400, "events[0].reason"},
	{"the name of another", func() string { return status("ntp-watch") }, 403, "source"},
	{"the condition of another", func() string { return status("disk-watch", condition("NTPProblem", true, 0)) }, 403, "conditions[0].type"},
	{"a condition of Kubernetes", func() string { return status("disk-watch", condition("Ready", true, 0)) }, 403, "conditions[0].type"},
	{"events in the wrong order", func() string {
		return status("disk-watch", event("A", time.Minute), event("B", time.Hour))
	}, 409, "events[1].timestamp"},
	{"a condition older than what was told", func() string { return status("disk-watch", condition(disk, true, 2*time.Hour)) }, 409, "conditions[0].transition"},
	{"a status that is too long", func() string {
		return status("disk-watch", strings.Replace(event("A", 0), `"m"`, `"`+strings.Repeat("m", problem.MaxBody)+`"`, 1))
	}, 413, ""},
	{"too many events", func() string {
		var many []string
		for range problem.MaxEvents + 1 {
			many = append(many, `{"severity": "warn", "reason": "A"}`)
		}
		return status("disk-watch", many...)
	}, 413, "events"},
	{"a type that is not in the catalogue", func() string { return status("disk-watch", condition("DiskBadBlok", true, 0)) }, 422, "conditions[0].type"},
	{"a condition that is there twice", func() string {
		return status("disk-watch", condition(disk, true, 0), condition(disk, true, 0))
	}, 422, "conditions[1].type"},
	{"a reason that is no CamelCase", func() string { return status("disk-watch", event("bad block", 0)) }, 422, "events[0].reason"},
	{"a reason that is too long", func() string { return status("disk-watch", event("A"+strings.Repeat("a", 64), 0)) }, 422, "events[0].reason"},
	{"a severity that is none", func() string { return status("disk-watch", `{"severity": "error", "reason": "A"}`) }, 422, "events[0].severity"},
	{"an event of the future", func() string { return status("disk-watch", event("A", -time.Minute)) }, 425, "events[0].timestamp"},
	{"a transition of the future", func() string { return status("disk-watch", condition(disk, true, -time.Minute)) }, 425, "conditions[0].transition"},
}

func TestBadReports(t *testing.T) {
	s, folder := onSockets(t, func(folder string) Setup {
		return Setup{Sources: []Source{own(folder, "disk-watch", disk), own(folder, "ntp-watch", "NTPProblem")}}
	})
	p := newPoster(t, dialUnix(filepath.Join(folder, "disk-watch.sock")))
	p.expect(204, status("disk-watch", condition(disk, false, time.Hour)))
	codes := map[int]bool{}
	for _, test := range badReports {
		t.Run(test.name, func(t *testing.T) {
			code, refusal, _ := p.post(test.body())
			testkit.Check(t, code == test.code && refusal.Field == test.field && refusal.Hint != "",
				"%d %+v, want %d of %s", code, refusal, test.code, test.field)
			codes[code] = true
			t.Logf("%d %s", code, refusal.Error())
		})
	}
	for _, other := range []struct {
		method, path string
		code         int
	}{{"GET", problem.Path, 405}, {"PUT", problem.Path, 405}, {"POST", "/", 404}, {"GET", "/healthz", 404}} {
		code, _, header := p.do(other.method, other.path, "")
		testkit.Check(t, code == other.code && (code != 405 || header.Get("Allow") == "POST"), "%s %s: %d %v", other.method, other.path, code, header)
	}
	// A rejected status has no effect.
	got := s.newEvents()
	testkit.Check(t, len(got) == 0, "%q is told", got)
	s.want(disk, "False NoBadBlocks")
	counts := s.countsOf("disk-watch")
	testkit.Check(t, counts.Accepted == 1 && refused(counts) == uint64(len(badReports)+4), "%+v", counts)
	testkit.Same(t, len(codes), 6, "different answers")
}

// Each kind of bad report has its own HTTP status: too large, malformed, unauthorized, out of
// order, future time and unknown type. The documentation lists all of them.
func TestEachKindOfBadReportIsDocumented(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../docs/reference/problem-reports.md")).Must(t)
	for _, code := range []int{204, 400, 401, 403, 404, 405, 408, 409, 413, 422, 425, 429} {
		testkit.Same(t, strings.Count(string(page), fmt.Sprintf("\n| %d ", code)), 1, "rows of the page for %d %s", code, http.StatusText(code))
	}
	for _, limit := range []string{"128 KiB", "100 events", "64 letters", "1024 bytes"} {
		testkit.Contains(t, string(page), limit, "the limit on the page")
	}
}

func TestLongMessageIsShortened(t *testing.T) {
	s, folder := onSockets(t, func(folder string) Setup { return Setup{Sources: []Source{own(folder, "disk-watch", disk)}} })
	p := newPoster(t, dialUnix(filepath.Join(folder, "disk-watch.sock")))
	long := `"` + strings.Repeat("ü", problem.MaxMessage) + `"`
	body := strings.ReplaceAll(status("disk-watch", condition(disk, true, 0), event("A", 0)), `"m"`, long)
	p.expect(204, body)
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.events[0].Message
	testkit.Check(t, len(got) <= problem.MaxMessage && strings.HasSuffix(got, "ü…"), "%q", got)
	got = s.aggregate.Conditions()[0].Message
	testkit.Check(t, len(got) <= problem.MaxMessage && strings.HasSuffix(got, "ü…"), "%q", got)
}

func TestBodyOfUnknownLengthIsLimited(t *testing.T) {
	_, folder := onSockets(t, func(folder string) Setup { return Setup{Sources: []Source{own(folder, "disk-watch", disk)}} })
	conn := testkit.Value(dialUnix(filepath.Join(folder, "disk-watch.sock"))(t.Context())).Must(t)
	defer conn.Close()
	go func() {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", problem.Path)
		for { // until the agent hangs up
			if _, err := fmt.Fprintf(conn, "1000\r\n%s\r\n", strings.Repeat(" ", 0x1000)); err != nil {
				return
			}
		}
	}()
	answer := make([]byte, 64)
	if n, err := conn.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 413 ") {
		t.Errorf("%q, %v", answer[:n], err)
	}
}
