package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

// source returns a source with its own socket and the default settings of the configuration
// file.
func source(name string, conditions ...string) Source {
	return Source{
		Name: name, Socket: "/run/" + name + ".sock", Conditions: conditions,
		Silence: 2 * time.Minute, Rate: 20, Burst: 200, Connections: 4,
	}
}

// fixture is an intake with the parts of the agent around it.
type fixture struct {
	tb testing.TB
	in *Intake

	mu        sync.Mutex
	aggregate finding.Aggregate
	events    []finding.Event
	gone      []string
	kept      map[string]json.RawMessage
	urgent    int
	paths     map[string]*pipeListener
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	return &fixture{tb: tb, kept: map[string]json.RawMessage{}, paths: map[string]*pipeListener{}}
}

// begin creates an intake that restores the saved state of the previous one.
func (s *fixture) begin(boot string, logs io.Writer) *Intake {
	s.in = New(Config{
		Emit: s.emit, Memory: s, Boot: boot, Logger: slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return s.in
}

func (s *fixture) emit(name string, r finding.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	testkit.Check(s.tb, r.Source == name && !r.IsEmpty(), "%s emits %+v", name, r)
	s.events = append(s.events, r.Events...)
	s.gone = append(s.gone, s.aggregate.Add(name, r).Gone...)
}

func (s *fixture) Recall(name string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.kept[name])
}

func (s *fixture) Keep(name string, text json.RawMessage, _ int, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[name] = bytes.Clone(text)
	if urgent {
		s.urgent++
	}
}

// is returns a published condition as "True BadBlocksFound", and since when.
func (s *fixture) is(kind string) (string, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.aggregate.Conditions() {
		if c.Type == kind {
			return string(c.Shown()) + " " + c.Reason, c.Since
		}
	}
	return "", time.Time{}
}

func (s *fixture) want(kind, want string) time.Time {
	s.tb.Helper()
	got, since := s.is(kind)
	testkit.Same(s.tb, got, want, "%s", kind)
	return since
}

// newEvents returns the reasons of the events since the last call. An event of a condition
// includes its type, and whether it is a Warning.
func (s *fixture) newEvents() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, e := range s.events {
		text := strings.TrimPrefix(e.Condition+"/"+e.Reason, "/")
		if e.Severity == finding.Warn && e.Condition != "" {
			text = "Warning " + text
		}
		list = append(list, text)
	}
	s.events = nil
	return list
}

// pipeListener is an in-memory listener for synctest bubbles, which cannot use real sockets.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error   { p.close.Do(func() { close(p.closed) }); return nil }
func (p *pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// listen replaces listening on a real socket.
func (s *fixture) listen(addr listenAddr) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s.paths[addr.address] = p
	return p, nil
}

// dial returns a function that connects to a socket.
func (s *fixture) dial(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		s.mu.Lock()
		p := s.paths[path]
		s.mu.Unlock()
		if p == nil {
			return nil, errors.New("there is no such socket")
		}
		ours, theirs := net.Pipe()
		select {
		case p.conns <- theirs:
			return ours, nil
		case <-p.closed:
			return nil, errors.New("no listener at this address")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// run applies a setup and runs the intake until stop is called.
func (s *fixture) run(ctx context.Context, sources ...Source) (stop func()) {
	s.tb.Helper()
	s.in.open = s.listen
	testkit.Must(s.tb, s.in.Apply(Setup{Sources: sources}))
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.in.Run(ctx) })
	return func() { cancel(); running.Wait() }
}

// daemon runs a client of a source until stop is called.
func (s *fixture) daemon(ctx context.Context, cfg problem.Config) (c *problem.Client, stop func()) {
	s.tb.Helper()
	cfg.Dial = s.dial("/run/" + cfg.Source + ".sock")
	c = testkit.Value(problem.New(cfg)).Must(s.tb)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	return c, func() { cancel(); running.Wait() }
}

// pass advances the clock.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock of the bubble advances at once, without a real wait
	synctest.Wait()
}

// poster posts request bodies.
type poster struct {
	tb     testing.TB
	client *http.Client
	token  string
}

func newPoster(tb testing.TB, dial func(context.Context) (net.Conn, error)) *poster {
	tb.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }, MaxIdleConnsPerHost: 100}
	tb.Cleanup(transport.CloseIdleConnections)
	return &poster{tb: tb, client: &http.Client{Transport: transport}}
}

// post sends a body, and returns the response.
func (p *poster) post(body string) (int, problem.RefusedError, http.Header) {
	p.tb.Helper()
	return p.do(http.MethodPost, problem.Path, body)
}

// expect posts a body and checks the status code of the response.
func (p *poster) expect(want int, body string) {
	p.tb.Helper()
	code, refusal, _ := p.post(body)
	testkit.Same(p.tb, code, want, "the status code: %v", refusal)
}

func (p *poster) do(method, path, body string) (int, problem.RefusedError, http.Header) {
	p.tb.Helper()
	request := testkit.Value(http.NewRequestWithContext(p.tb.Context(), method, "http://agent"+path, strings.NewReader(body))).Must(p.tb)
	if p.token != "" {
		request.Header.Set("Authorization", "Bearer "+p.token)
	}
	response, err := p.client.Do(request)
	testkit.Must(p.tb, err)
	defer response.Body.Close()
	text := testkit.Value(io.ReadAll(response.Body)).Must(p.tb)
	var refusal problem.RefusedError
	if response.StatusCode == http.StatusNoContent {
		testkit.Check(p.tb, len(text) == 0, "beside 204 there is %q", text)
		return response.StatusCode, refusal, response.Header
	}
	if err := json.Unmarshal(text, &refusal); err != nil || refusal.Problem == "" || response.Header.Get("Content-Type") != "application/json" {
		p.tb.Errorf("%d: %q is no refusal: %v", response.StatusCode, text, err)
	}
	return response.StatusCode, refusal, response.Header
}

// status returns a status with the given parts.
func status(source string, parts ...string) string {
	var conditions, events []string
	for _, part := range parts {
		if strings.Contains(part, `"severity"`) {
			events = append(events, part)
		} else {
			conditions = append(conditions, part)
		}
	}
	return `{"source": "` + source + `", "events": [` + strings.Join(events, ",") + `], "conditions": [` + strings.Join(conditions, ",") + `]}`
}

func stamp(ago time.Duration) string { return time.Now().Add(-ago).UTC().Format(time.RFC3339Nano) }

func condition(kind string, unhealthy bool, ago time.Duration) string {
	word := map[bool]string{true: `true, "reason": "BadBlocksFound"`, false: `false, "reason": "NoBadBlocks"`}[unhealthy]
	return `{"type": "` + kind + `", "status": ` + word + `, "transition": "` + stamp(ago) + `", "message": "m"}`
}

func event(reason string, ago time.Duration) string {
	return `{"severity": "warn", "reason": "` + reason + `", "timestamp": "` + stamp(ago) + `", "message": "m"}`
}

// refused returns the number of rejected statuses.
func refused(counts Counts) uint64 {
	sum := uint64(0)
	for n := range maps.Values(counts.Refused) {
		sum += n
	}
	return sum
}

// countsOf returns the counts of one source.
func (s *fixture) countsOf(name string) Counts {
	s.tb.Helper()
	all, _ := s.in.Counts()
	i := slices.IndexFunc(all, func(c Counts) bool { return c.Source == name })
	testkit.Require(s.tb, i >= 0, "%s is not counted", name)
	return all[i]
}
