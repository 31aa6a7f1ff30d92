// Package faultproxy forwards a controller's requests to the API server, and can hold some
// of them. A held request survives the death of its sender: a test can deliver it late,
// like a slow network, or never. It does not affect reads: use the testbed's proxy for a
// failing API server.
package faultproxy

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// Proxy forwards a controller's requests.
type Proxy struct {
	kubeconfig string
	upstream   *url.URL
	transport  http.RoundTripper
	forward    http.Handler

	mu   sync.Mutex
	held []*Held
}

// Start starts a proxy until the end of the test. Its name must be unique in the cluster.
func Start(tb testing.TB, c *testbed.Cluster, name string) *Proxy {
	tb.Helper()
	return StartThrough(tb, c, name, nil)
}

// StartThrough starts a proxy that forwards to another proxy, or to the API server if that is
// nil.
func StartThrough(tb testing.TB, c *testbed.Cluster, name string, through *testbed.Proxy) *Proxy {
	tb.Helper()
	account, err := install.Config(tb.Context(), c)
	if err != nil {
		tb.Fatal(err)
	}
	if through != nil {
		account = through.Config(account)
	}
	o := &Proxy{}
	if o.upstream, err = url.Parse(account.Host); err != nil {
		tb.Fatal(err)
	}
	// The request keeps the token of its sender.
	o.transport, err = rest.TransportFor(&rest.Config{Host: account.Host, TLSClientConfig: rest.TLSClientConfig{CAData: account.CAData}})
	if err != nil {
		tb.Fatal(err)
	}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // killed senders need no log
	o.forward = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(o.upstream) },
		Transport:     o.transport,
		FlushInterval: -1, // a watch must not wait for a full buffer
		ErrorLog:      quiet,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(o.serve))
	server.Config.ErrorLog = quiet
	server.StartTLS()
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	account.Host = server.URL
	account.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if o.kubeconfig, err = c.WriteKubeconfig(name, account); err != nil {
		tb.Fatal(err)
	}
	return o
}

// Args returns the flags that make a controller use this proxy.
func (o *Proxy) Args(more ...string) []string { return append(more, "--kubeconfig="+o.kubeconfig) }

// Hold holds the next matching requests up to the limit; 0 means all until the result is
// closed or emptied.
func (o *Proxy) Hold(match func(*Request) bool, limit int) *Held {
	if limit == 0 {
		limit = -1
	}
	b := &Held{match: match, limit: limit, moved: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = append(o.held, b)
	return b
}

func (o *Proxy) holds(l *Request) bool {
	o.mu.Lock()
	boxes := o.held
	o.mu.Unlock()
	for _, b := range boxes {
		if b.take(l) {
			return true
		}
	}
	return false
}

func (o *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		o.forward.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	where := *r.URL
	where.Scheme, where.Host = o.upstream.Scheme, o.upstream.Host
	l := &Request{
		Method: r.Method, Path: r.URL.Path, Body: body,
		proxy: o, url: where.String(), header: r.Header.Clone(), lost: make(chan struct{}), passed: make(chan struct{}),
	}
	if o.holds(l) {
		select {
		case <-l.passed:
		case <-l.lost:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	o.forward.ServeHTTP(w, r)
}

// Request is a held request.
type Request struct {
	Method, Path string
	Body         []byte

	proxy  *Proxy
	url    string
	header http.Header
	lost   chan struct{} // closed when the sender's connection is to break
	passed chan struct{} // closed when the request may continue normally
	once   sync.Once
}

// Deliver sends the request to the API server now. The sender gets no response.
func (l *Request) Deliver(ctx context.Context) (code int, err error) {
	request, err := http.NewRequestWithContext(ctx, l.Method, l.url, bytes.NewReader(l.Body))
	if err != nil {
		return 0, err
	}
	request.Header = l.header.Clone()
	response, err := l.proxy.transport.RoundTrip(request)
	if err != nil {
		return 0, fmt.Errorf("delivering %s %s late: %w", l.Method, l.Path, err)
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// DeliverAll delivers requests and checks the status code of each response; 0 means any.
func DeliverAll(tb testing.TB, requests []*Request, code int) {
	tb.Helper()
	for _, l := range requests {
		got, err := l.Deliver(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		if code != 0 && got != code {
			tb.Errorf("%s %s returned %d, want %d", l.Method, l.Path, got, code)
		}
	}
}

// Drop breaks the sender's connection: it gets no response, and the request can still be
// delivered.
func (l *Request) Drop() { l.once.Do(func() { close(l.lost) }) }

// pass forwards the request, and returns the response to the sender.
func (l *Request) pass() { l.once.Do(func() { close(l.passed) }) }

// Held has the held requests of one kind.
type Held struct {
	match func(*Request) bool
	limit int // the maximal number; negative without a limit

	mu       sync.Mutex
	requests []*Request
	moved    chan struct{} // closed, and replaced, with every request
	closed   bool
}

func (b *Held) take(l *Request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.limit == 0 || !b.match(l) {
		return false
	}
	b.limit--
	b.requests = append(b.requests, l)
	close(b.moved)
	b.moved = make(chan struct{})
	return true
}

// Await waits until n requests are held, and returns all of them.
func (b *Held) Await(ctx context.Context, n int) ([]*Request, error) {
	for {
		b.mu.Lock()
		requests, moved := b.requests, b.moved
		b.mu.Unlock()
		if len(requests) >= n {
			return requests, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %d requests, after %d: %w", n, len(requests), context.Cause(ctx))
		}
	}
}

// All returns the currently held requests.
func (b *Held) All() []*Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests
}

// Close stops holding requests, and returns the held requests, which stay held.
func (b *Held) Close() []*Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.requests
}

// Release forwards all held requests, and stops holding.
func (b *Held) Release() {
	for _, l := range b.Close() {
		l.pass()
	}
}
