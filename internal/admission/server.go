package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/internal/required"
)

// Kind is the handler for one kind of policy.
type Kind interface {
	admission.Handler
	// Path is the URL path of the webhook.
	Path() string
	// Ready returns why the handler cannot validate yet.
	Ready() error
}

// Config configures a server.
type Config struct {
	// Address is the listen address, as host:port.
	Address string
	// Certificate returns the serving certificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Clients selects the clients that the server answers.
	Clients Clients
	// Kinds are the handlers.
	Kinds   []Kind
	Metrics *Metrics
	Logger  *slog.Logger
}

// Validate returns all missing or wrong fields.
func (c Config) Validate() error {
	_, _, err := SplitAddress(c.Address)
	return errors.Join(err, c.Clients.Validate(), required.Fields{
		"Certificate": c.Certificate == nil, "Kinds": len(c.Kinds) == 0, "Metrics": c.Metrics == nil, "Logger": c.Logger == nil,
	}.Check())
}

const (
	// maxConnections limits the open connections. The API server needs only a few.
	maxConnections = 256
	// requestTime is how long a client may take to send a request. It is longer than the
	// timeout of the API server.
	requestTime = 10 * time.Second
	idleTime    = time.Minute
	maxHeader   = 16 << 10
	// shutdownTime is how long requests in progress may take when the server stops.
	shutdownTime = time.Minute
)

// Server serves the webhooks. It can start without a certificate: until there is one, TLS
// handshakes fail and the rest of the controller works.
type Server struct {
	cfg       Config
	handler   http.Handler
	isStarted atomic.Bool
}

// NewServer returns a server; Start starts it.
func NewServer(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the webhook server: %w", err)
	}
	paths := http.NewServeMux()
	for _, kind := range cfg.Kinds {
		paths.Handle(kind.Path(), &admission.Webhook{Handler: kind})
	}
	return &Server{cfg: cfg, handler: newLimiter(paths, cfg.Metrics)}, nil
}

// SplitAddress parses a listen address.
func SplitAddress(address string) (host string, port int, err error) {
	host, service, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(service)
	}
	if err == nil && (port < 1 || port > 65535) {
		err = fmt.Errorf("port %d is none", port)
	}
	if err != nil {
		return "", 0, fmt.Errorf("address %q: want host:port or :port: %w", address, err)
	}
	return host, port, nil
}

// NeedLeaderElection returns false: every replica answers.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	config := &tls.Config{GetCertificate: s.cfg.Certificate, MinVersion: tls.VersionTLS12}
	s.cfg.Clients.restrict(config)
	// HTTP/2 stays off: one of its connections may carry any number of requests.
	server := &http.Server{
		Handler: s.handler, ReadTimeout: requestTime, WriteTimeout: 2 * requestTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		// At debug level, because any client can make a handshake fail and so fill the log.
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		ended <- server.Shutdown(ctx)
	}()
	s.isStarted.Store(true)
	if err := server.Serve(tls.NewListener(netutil.LimitListener(listener, maxConnections), config)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	return <-ended
}

// Ready returns why this replica cannot answer yet; Kubernetes then routes no request to it.
func (s *Server) Ready(*http.Request) error {
	errs := make([]error, 0, 1+len(s.cfg.Kinds))
	if !s.isStarted.Load() {
		errs = append(errs, errors.New("the webhook server has not been started"))
	}
	for _, kind := range s.cfg.Kinds {
		errs = append(errs, kind.Ready())
	}
	return errors.Join(errs...)
}
