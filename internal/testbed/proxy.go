package testbed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	"k8s.io/client-go/rest"
)

// Proxy forwards requests of clients to the API server and injects faults. Every proxy has
// its own rules, so that a test can cut off one client and not another.
type Proxy struct {
	url       string
	server    *http.Server
	listener  *gate
	transport *http.Transport
	forward   http.Handler
	done      chan struct{} // closed when the server has ended
	handlers  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	rules   []*Rule
	watches map[*http.Request]context.CancelFunc
}

// Proxy starts a proxy in front of the API server. It stops with the cluster.
func (c *Cluster) Proxy() (*Proxy, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, fmt.Errorf("starting a proxy: the cluster is stopped")
	}
	p, err := newProxy(c.admin.Host, c.ca, c.server)
	if err != nil {
		return nil, fmt.Errorf("starting a proxy: %w", err)
	}
	c.proxies = append(c.proxies, p)
	return p, nil
}

func newProxy(target string, ca *authority, pair keyPair) (*Proxy, error) {
	upstream, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(pair.cert, pair.key)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	p := &Proxy{
		url:      "https://" + listener.Addr().String(),
		listener: newGate(listener),
		transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots},
			ForceAttemptHTTP2: true,
		},
		done:    make(chan struct{}),
		watches: make(map[*http.Request]context.CancelFunc),
	}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // injected faults need no log
	p.forward = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		Transport:     p.transport,
		FlushInterval: -1, // a watch must not wait for a full buffer
		ErrorLog:      quiet,
		// If the API server is down, the proxy does not answer either. No client of a real
		// API server ever sees a 502.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = &http.Server{
		Handler:   http.HandlerFunc(p.serve),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		ErrorLog:  quiet,
	}
	go func() {
		defer close(p.done)
		_ = p.server.ServeTLS(p.listener, "", "") // always returns an error
	}()
	return p, nil
}

// Config returns base with the proxy in place of the API server. The client keeps its
// identity if it has a token, like all configurations of a Cluster. A client certificate
// does not work, because the proxy terminates the TLS connection.
func (p *Proxy) Config(base *rest.Config) *rest.Config {
	config := rest.CopyConfig(base)
	config.Host = p.url
	config.CertData, config.CertFile = nil, ""
	config.KeyData, config.KeyFile = nil, ""
	return config
}

// Inject adds a rule: the fault affects the next matching requests up to the limit; 0 means
// all until the rule is lifted. If several rules match, the first one applies.
func (p *Proxy) Inject(match func(Request) bool, fault Fault, limit int) *Rule {
	if limit <= 0 {
		limit = -1
	}
	rule := &Rule{match: match, fault: fault, left: limit, moved: make(chan struct{}), lifted: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		rule.Lift()
	}
	p.rules = append(p.rules, rule)
	return rule
}

// DropWatches cuts all open watches and returns their number.
func (p *Proxy) DropWatches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	dropped := len(p.watches)
	for r, cancel := range p.watches {
		cancel()
		delete(p.watches, r)
	}
	return dropped
}

// Partition cuts all connections and refuses new ones until Heal.
func (p *Proxy) Partition() { p.listener.shut() }

// Heal ends the partition.
func (p *Proxy) Heal() { p.listener.open() }

// Refused returns how many connections the partition has cut or refused.
func (p *Proxy) Refused() int { return p.listener.refusals() }

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		panic(http.ErrAbortHandler)
	}
	defer p.handlers.Done()
	asked := parseRequest(r)
	if asked.Verb == "watch" {
		ctx, cancel := context.WithCancel(r.Context())
		r = r.WithContext(ctx)
		p.track(r, cancel)
		defer p.untrack(r, cancel)
	}
	for _, rule := range p.ruleList() {
		if rule.hits(asked) {
			rule.fault.inject(&injection{w: w, r: r, asked: asked, forward: p.forward, lifted: rule.lifted})
			return
		}
	}
	p.forward.ServeHTTP(w, r)
}

// enter counts a handler, unless the proxy is closing.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.handlers.Add(1)
	return true
}

func (p *Proxy) track(r *http.Request, cancel context.CancelFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[r] = cancel
}

func (p *Proxy) untrack(r *http.Request, cancel context.CancelFunc) {
	cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watches, r)
}

func (p *Proxy) ruleList() []*Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rules
}

// close ends the proxy and waits for all running handlers.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	rules := p.rules
	p.mu.Unlock()
	_ = p.server.Close()
	for _, rule := range rules {
		rule.Lift()
	}
	p.DropWatches()
	p.handlers.Wait()
	<-p.done
	p.transport.CloseIdleConnections()
}
