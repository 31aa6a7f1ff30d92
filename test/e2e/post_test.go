package e2e

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

// post carries a controller's requests to the API server, and can keep some of
// them back. What it keeps it still has when the sender is dead: it can be
// delivered late, as a slow network would, or never.
type post struct {
	kubeconfig string
	upstream   *url.URL
	transport  http.RoundTripper
	forward    http.Handler

	mu    sync.Mutex
	boxes []*box
}

// newPost opens a post office. It closes with the test.
func (w *ward) newPost(name string) *post {
	w.t.Helper()
	account, err := rig.Config(w.t.Context(), w.Cluster)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &post{}
	if p.upstream, err = url.Parse(account.Host); err != nil {
		w.t.Fatal(err)
	}
	// The sender's own token goes with its letter.
	p.transport, err = rest.TransportFor(&rest.Config{Host: account.Host, TLSClientConfig: rest.TLSClientConfig{CAData: account.CAData}})
	if err != nil {
		w.t.Fatal(err)
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(p.upstream) },
		Transport:     p.transport,
		FlushInterval: -1, // a watch must not wait for a full buffer
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	server.Config.ErrorLog = nil
	server.StartTLS()
	w.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	account.Host = server.URL
	account.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if p.kubeconfig, err = w.WriteKubeconfig(name, account); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// args make a controller send everything through the post.
func (p *post) args(more ...string) []string { return append(more, "--kubeconfig="+p.kubeconfig) }

// letter is a request that is kept.
type letter struct {
	method, path string
	body         []byte

	post   *post
	url    *url.URL
	header http.Header
	lost   chan struct{} // closed when the sender is to learn that its connection broke
	passed chan struct{} // closed when the request may go its ordinary way
	once   sync.Once
}

// deliver lets the request take effect now. The sender, dead or alive, hears
// nothing of it.
func (l *letter) deliver(ctx context.Context) (code int, err error) {
	request, err := http.NewRequestWithContext(ctx, l.method, l.url.String(), bytes.NewReader(l.body))
	if err != nil {
		return 0, err
	}
	request.Header = l.header.Clone()
	response, err := l.post.transport.RoundTrip(request)
	if err != nil {
		return 0, fmt.Errorf("delivering %s %s late: %w", l.method, l.path, err)
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// lose breaks the sender's connection: it gets no answer, and the letter can
// still be delivered.
func (l *letter) lose() { l.once.Do(func() { close(l.lost) }) }

// pass sends the letter on, and the answer back.
func (l *letter) pass() { l.once.Do(func() { close(l.passed) }) }

// node returns whom a letter about a node is about.
func (l *letter) node() string { return strings.TrimPrefix(l.path, "/api/v1/nodes/") }

// box is where letters are kept.
type box struct {
	match func(*letter) bool
	limit int // how many it takes; negative when there is no limit

	mu      sync.Mutex
	letters []*letter
	moved   chan struct{} // closed, and replaced, with every letter
	closed  bool
}

// keep keeps the next letters that match, as many as limit says; 0 means all
// until the box is emptied.
func (p *post) keep(match func(*letter) bool, limit int) *box {
	if limit == 0 {
		limit = -1
	}
	b := &box{match: match, limit: limit, moved: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.boxes = append(p.boxes, b)
	return b
}

func (b *box) take(l *letter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.limit == 0 || !b.match(l) {
		return false
	}
	b.limit--
	b.letters = append(b.letters, l)
	close(b.moved)
	b.moved = make(chan struct{})
	return true
}

// wait waits until n letters are in the box, and returns them.
func (b *box) wait(w *ward, n int) []*letter {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for {
		b.mu.Lock()
		letters, moved := b.letters, b.moved
		b.mu.Unlock()
		if len(letters) >= n {
			return letters[:n]
		}
		select {
		case <-moved:
		case <-ctx.Done():
			w.t.Fatalf("waiting for %d letters, after %d\n%s", n, len(letters), w.lastWords())
		}
	}
}

// all returns the letters that are in the box now.
func (b *box) all() []*letter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.letters
}

// empty sends everything on its way, and keeps nothing more.
func (b *box) empty() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, l := range b.letters {
		l.pass()
	}
}

// close keeps nothing more. What is in the box stays there.
func (b *box) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

func (p *post) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		p.forward.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	where := *r.URL
	where.Scheme, where.Host = p.upstream.Scheme, p.upstream.Host
	l := &letter{
		method: r.Method, path: r.URL.Path, body: body,
		post: p, url: &where, header: r.Header.Clone(), lost: make(chan struct{}), passed: make(chan struct{}),
	}
	if p.keeps(l) {
		select {
		case <-l.passed:
		case <-l.lost:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	p.forward.ServeHTTP(w, r)
}

func (p *post) keeps(l *letter) bool {
	p.mu.Lock()
	boxes := p.boxes
	p.mu.Unlock()
	for _, b := range boxes {
		if b.take(l) {
			return true
		}
	}
	return false
}

// The kinds of writes that a controller makes.

func about(method, resource string) func(*letter) bool {
	return func(l *letter) bool { return l.method == method && strings.Contains(l.path+"/", "/"+resource+"/") }
}

var (
	createsLedger = about(http.MethodPost, "configmaps")
	updatesLedger = about(http.MethodPut, "configmaps")
	changesNode   = about(http.MethodPatch, "nodes")
	tellsStatus   = about(http.MethodPatch, "conditionsets")
	tellsEvent    = about(http.MethodPost, "events")
	claimsLease   = about(http.MethodPost, "leases")
	renewsLease   = about(http.MethodPut, "leases")
)

// names says that a page of the ledger names somebody.
func names(l *letter) bool {
	return updatesLedger(l) && bytes.Contains(bytes.ReplaceAll(l.body, []byte(`\`), nil), []byte(`"grants":[{`))
}

// placesNoExecute and the others tell what a patch makes of the taints of a node
// that has none from others.
func placesNoExecute(l *letter) bool {
	return changesNode(l) && bytes.Contains(l.body, []byte(`"effect":"NoExecute"`))
}

func placesNoSchedule(l *letter) bool {
	return changesNode(l) && bytes.Contains(l.body, []byte(`"effect":"NoSchedule"`))
}

func removesTaint(l *letter) bool {
	return changesNode(l) && bytes.Contains(l.body, []byte(`"taints":null`))
}

// fences says that a patch does nothing but give the node a new version.
func fences(l *letter) bool {
	return changesNode(l) && bytes.Contains(l.body, []byte(`\"fence\":`))
}
