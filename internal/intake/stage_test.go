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

	"github.com/resourcestack/autohealer/internal/aggregate"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/problem"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// source returns one with a socket of its own, that has what the configuration takes
// where a file does not say.
func source(name string, conditions ...string) Source {
	return Source{
		Name: name, Socket: "/run/" + name + ".sock", Conditions: conditions,
		Silence: 2 * time.Minute, Rate: 20, Burst: 200, Connections: 4,
	}
}

// stage is what is around an intake in the agent.
type stage struct {
	tb testing.TB
	in *Intake

	mu     sync.Mutex
	chart  aggregate.Aggregate
	events []finding.Event
	gone   []string
	kept   map[string]json.RawMessage
	urgent int
	paths  map[string]*pipes
}

func newStage(tb testing.TB) *stage {
	tb.Helper()
	return &stage{tb: tb, kept: map[string]json.RawMessage{}, paths: map[string]*pipes{}}
}

// begin makes an intake that remembers what the one before it knew.
func (s *stage) begin(boot string, logs io.Writer) *Intake {
	s.in = New(Config{
		Emit: s.emit, Memory: s, Boot: boot, Logger: slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return s.in
}

func (s *stage) emit(name string, r finding.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Source != name || r.IsEmpty() {
		s.tb.Errorf("%s emits %+v", name, r)
	}
	s.events = append(s.events, r.Events...)
	s.gone = append(s.gone, s.chart.Add(name, r).Gone...)
}

func (s *stage) Recall(name string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.kept[name])
}

func (s *stage) Keep(name string, text json.RawMessage, _ int, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[name] = bytes.Clone(text)
	if urgent {
		s.urgent++
	}
}

// is returns a condition as the node has it: "True BadBlocksFound", and since when.
func (s *stage) is(kind string) (string, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.chart.Conditions() {
		if c.Type == kind {
			return string(c.Status) + " " + c.Reason, c.Since
		}
	}
	return "", time.Time{}
}

func (s *stage) want(kind, want string) time.Time {
	s.tb.Helper()
	got, since := s.is(kind)
	if got != want {
		s.tb.Errorf("%s is %q, want %q", kind, got, want)
	}
	return since
}

// told returns the reasons of the events since the last time: those that tell of a
// condition with its name.
func (s *stage) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, e := range s.events {
		list = append(list, strings.TrimPrefix(e.Condition+"/"+e.Reason, "/"))
	}
	s.events = nil
	return list
}

// pipes is a listener in a bubble, where the network of the kernel is not.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// listen stands in for the kernel.
func (s *stage) listen(at doorway) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	s.paths[at.address] = p
	return p, nil
}

// dial returns a way to a socket.
func (s *stage) dial(path string) func(context.Context) (net.Conn, error) {
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
			return nil, errors.New("nobody listens there")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// run applies a setup and runs the intake until what it returns is called.
func (s *stage) run(ctx context.Context, sources ...Source) (stop func()) {
	s.tb.Helper()
	s.in.open = s.listen
	must(s.tb, s.in.Apply(Setup{Sources: sources}))
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.in.Run(ctx) })
	return func() { cancel(); running.Wait() }
}

// daemon runs a client of a source until what it returns is called.
func (s *stage) daemon(ctx context.Context, cfg problem.Config) (c *problem.Client, stop func()) {
	s.tb.Helper()
	cfg.Dial = s.dial("/run/" + cfg.Source + ".sock")
	c, err := problem.New(cfg)
	must(s.tb, err)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	return c, func() { cancel(); running.Wait() }
}

// pass lets time go by.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a bubble this is how time goes by, and nobody waits
	synctest.Wait()
}

// poster posts bodies.
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

// post sends a body, and returns what was answered.
func (p *poster) post(body string) (int, problem.RefusedError, http.Header) {
	p.tb.Helper()
	return p.do(http.MethodPost, problem.Path, body)
}

func (p *poster) do(method, path, body string) (int, problem.RefusedError, http.Header) {
	p.tb.Helper()
	request, err := http.NewRequestWithContext(p.tb.Context(), method, "http://agent"+path, strings.NewReader(body))
	must(p.tb, err)
	if p.token != "" {
		request.Header.Set("Authorization", "Bearer "+p.token)
	}
	response, err := p.client.Do(request)
	must(p.tb, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(p.tb, err)
	var refusal problem.RefusedError
	if response.StatusCode == http.StatusNoContent {
		if len(text) > 0 {
			p.tb.Errorf("beside 204 there is %q", text)
		}
		return response.StatusCode, refusal, response.Header
	}
	if err := json.Unmarshal(text, &refusal); err != nil || refusal.Problem == "" || response.Header.Get("Content-Type") != "application/json" {
		p.tb.Errorf("%d: %q is no refusal: %v", response.StatusCode, text, err)
	}
	return response.StatusCode, refusal, response.Header
}

// status writes a status with times that are so far from now.
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

func condition(kind string, sick bool, ago time.Duration) string {
	word := map[bool]string{true: `true, "reason": "BadBlocksFound"`, false: `false, "reason": "NoBadBlocks"`}[sick]
	return `{"type": "` + kind + `", "status": ` + word + `, "transition": "` + stamp(ago) + `", "message": "m"}`
}

func event(reason string, ago time.Duration) string {
	return `{"severity": "warn", "reason": "` + reason + `", "timestamp": "` + stamp(ago) + `", "message": "m"}`
}

// refused sums up what was refused.
func refused(counts Counts) uint64 {
	sum := uint64(0)
	for n := range maps.Values(counts.Refused) {
		sum += n
	}
	return sum
}

// countsOf returns those of one source.
func (s *stage) countsOf(name string) Counts {
	s.tb.Helper()
	all, _ := s.in.Counts()
	i := slices.IndexFunc(all, func(c Counts) bool { return c.Source == name })
	if i < 0 {
		s.tb.Fatalf("%s is not counted", name)
	}
	return all[i]
}
