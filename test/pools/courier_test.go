package pools

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/rig"
)

// courier carries a controller's requests to the API server, and can keep some of them.
// What it keeps it still has when the sender is dead: it can be delivered late, as a slow
// network would, or never.
type courier struct {
	kubeconfig string
	upstream   *url.URL
	transport  http.RoundTripper
	forward    http.Handler

	mu    sync.Mutex
	boxes []*box
}

// newCourier is at work for as long as the test.
func (p *pool) newCourier() *courier {
	p.t.Helper()
	account, err := rig.Config(p.t.Context(), p.Cluster)
	p.must(err)
	c := &courier{}
	c.upstream, err = url.Parse(account.Host)
	p.must(err)
	// The sender's own token goes with its letter.
	c.transport, err = rest.TransportFor(&rest.Config{Host: account.Host, TLSClientConfig: rest.TLSClientConfig{CAData: account.CAData}})
	p.must(err)
	c.forward = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(c.upstream) },
		Transport:     c.transport,
		FlushInterval: -1, // a watch must not wait for a full buffer
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewTLSServer(http.HandlerFunc(c.serve))
	p.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	account.Host = server.URL
	account.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	c.kubeconfig, err = p.WriteKubeconfig("courier-"+p.name, account)
	p.must(err)
	return c
}

// args make a controller send everything by the courier.
func (c *courier) args(more ...string) []string { return append(more, "--kubeconfig="+c.kubeconfig) }

// letter is a request that is kept.
type letter struct {
	method, path string
	body         []byte

	courier *courier
	url     url.URL
	header  http.Header
	passed  chan struct{} // closed when it may go its ordinary way
}

// deliver lets the request take effect now. The sender, dead or alive, hears nothing of
// it.
func (l *letter) deliver(ctx context.Context) (code int, err error) {
	request, err := http.NewRequestWithContext(ctx, l.method, l.url.String(), bytes.NewReader(l.body))
	if err != nil {
		return 0, err
	}
	request.Header = l.header.Clone()
	response, err := l.courier.transport.RoundTrip(request)
	if err != nil {
		return 0, fmt.Errorf("delivering %s %s late: %w", l.method, l.path, err)
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// arrive delivers letters, and says with what answer; 0 for any.
func (p *pool) arrive(letters []*letter, code int) {
	p.t.Helper()
	for _, l := range letters {
		got, err := l.deliver(p.t.Context())
		p.must(err)
		if code != 0 && got != code {
			p.t.Errorf("%s %s was answered with %d, want %d", l.method, l.path, got, code)
		}
	}
}

// box is where letters of a kind are kept.
type box struct {
	match func(*letter) bool

	mu      sync.Mutex
	letters []*letter
	moved   chan struct{} // closed, and replaced, with every letter
	closed  bool
}

// keep keeps all letters that match, until the box is closed or emptied.
func (c *courier) keep(match func(*letter) bool) *box {
	b := &box{match: match, moved: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boxes = append(c.boxes, b)
	return b
}

func (b *box) take(l *letter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.match(l) {
		return false
	}
	b.letters = append(b.letters, l)
	close(b.moved)
	b.moved = make(chan struct{})
	return true
}

// wait waits until there is a letter, and returns all that there are.
func (b *box) wait(p *pool) []*letter {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		b.mu.Lock()
		letters, moved := b.letters, b.moved
		b.mu.Unlock()
		if len(letters) > 0 {
			return letters
		}
		select {
		case <-moved:
		case <-ctx.Done():
			p.t.Fatalf("no letter came\n%s", p.lastWords())
		}
	}
}

// close keeps nothing more. What is in the box stays there, and is returned.
func (b *box) close() []*letter {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.letters
}

// empty sends everything on its way, and keeps nothing more.
func (b *box) empty() {
	for _, l := range b.close() {
		close(l.passed)
	}
}

func (c *courier) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		c.forward.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	where := *r.URL
	where.Scheme, where.Host = c.upstream.Scheme, c.upstream.Host
	l := &letter{method: r.Method, path: r.URL.Path, body: body, courier: c, url: where, header: r.Header.Clone(), passed: make(chan struct{})}
	if c.keeps(l) {
		select {
		case <-l.passed:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	c.forward.ServeHTTP(w, r)
}

func (c *courier) keeps(l *letter) bool {
	c.mu.Lock()
	boxes := c.boxes
	c.mu.Unlock()
	for _, b := range boxes {
		if b.take(l) {
			return true
		}
	}
	return false
}

// The kinds of writes of which a termination is made.

// namesClaim says that a page of the ledger names a claim.
func namesClaim(l *letter) bool {
	return l.method == http.MethodPut && strings.HasSuffix(l.path, "/configmaps/"+ledgerName) && bytes.Contains(l.body, []byte("NodeClaim.karpenter.sh"))
}

func aboutClaim(method string, l *letter) bool {
	return l.method == method && strings.Contains(l.path, "/karpenter.sh/v1/nodeclaims/")
}

func marks(l *letter) bool {
	return aboutClaim(http.MethodPatch, l) && bytes.Contains(l.body, []byte(`"`+markAnnotation+`":"`))
}

func spares(l *letter) bool {
	return aboutClaim(http.MethodPatch, l) && bytes.Contains(l.body, []byte(`"`+markAnnotation+`":null`))
}

func deletes(l *letter) bool { return aboutClaim(http.MethodDelete, l) }
