package problem_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

// fakeAgent answers as the test defines, over pipes: time in a bubble stands still while a
// goroutine waits for a pipe.
type fakeAgent struct {
	t      *testing.T
	conns  chan net.Conn
	closed chan struct{}

	mu     sync.Mutex
	away   bool                                       // connections fail
	answer func(problem.Status) *problem.RefusedError // nil accepts everything
	after  string                                     // Retry-After of refusals
	tried  []time.Time
	got    []problem.Status // accepted
	tokens []string
}

func newAgent(t *testing.T) *fakeAgent {
	t.Helper()
	a := &fakeAgent{t: t, conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: a}
	go func() { _ = server.Serve(a) }()
	t.Cleanup(func() { _ = server.Close() })
	return a
}

func (a *fakeAgent) Accept() (net.Conn, error) {
	select {
	case conn := <-a.conns:
		return conn, nil
	case <-a.closed:
		return nil, net.ErrClosed
	}
}

func (a *fakeAgent) Close() error   { close(a.closed); return nil }
func (a *fakeAgent) Addr() net.Addr { return &net.UnixAddr{} }

func (a *fakeAgent) dial(ctx context.Context) (net.Conn, error) {
	a.mu.Lock()
	away := a.away
	if away {
		a.tried = append(a.tried, time.Now())
	}
	a.mu.Unlock()
	if away {
		return nil, errors.New("the agent is down")
	}
	ours, theirs := net.Pipe()
	select {
	case a.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *fakeAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	testkit.Check(a.t, err == nil && r.URL.Path == problem.Path && r.Method == http.MethodPost, "%s %s: %v", r.Method, r.URL.Path, err)
	var status problem.Status
	if err := json.Unmarshal(body, &status); err != nil || len(body) > problem.MaxBody || len(status.Events) > problem.MaxEvents {
		a.t.Errorf("%d bytes, %d events: %v", len(body), len(status.Events), err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tried = append(a.tried, time.Now())
	a.tokens = append(a.tokens, r.Header.Get("Authorization"))
	if a.answer != nil {
		if refusal := a.answer(status); refusal != nil {
			if a.after != "" {
				w.Header().Set("Retry-After", a.after)
			}
			w.WriteHeader(refusal.Code)
			_ = json.NewEncoder(w).Encode(refusal)
			return
		}
	}
	a.got = append(a.got, status)
	w.WriteHeader(http.StatusNoContent)
}

func (a *fakeAgent) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// statuses returns the accepted statuses since the last call, and the times of all attempts.
func (a *fakeAgent) statuses() (got []problem.Status, tried []time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	got, tried = a.got, a.tried
	a.got, a.tried = nil, nil
	return got, tried
}

// scene runs a client in a bubble.
func runClient(t *testing.T, cfg problem.Config, play func(t *testing.T, a *fakeAgent, c *problem.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t)
		cfg.Source, cfg.Dial = "disk-watch", a.dial
		c := testkit.Value(problem.New(cfg)).Must(t)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		play(t, a, c)
		stop()
		running.Wait()
	})
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock of the bubble advances at once, without a real wait
	synctest.Wait()
}
