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
)

// Kind is one kind of policies that a server is asked about.
type Kind interface {
	admission.Handler
	// Path is where the API server asks.
	Path() string
	// Ready says what is still missing for a verdict.
	Ready() error
}

// Config is what a server works with.
type Config struct {
	// Address is where it listens, as host:port.
	Address string
	// Certificate is what it shows to those who connect.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Clients are who is answered.
	Clients Clients
	// Kinds are what it is asked about.
	Kinds   []Kind
	Metrics *Metrics
	Logger  *slog.Logger
}

// Validate says everything that is missing.
func (c Config) Validate() error {
	_, _, err := SplitAddress(c.Address)
	return errors.Join(err, c.Clients.Validate(), complete(
		part{"Certificate", c.Certificate == nil}, part{"Kinds", len(c.Kinds) == 0}, part{"Metrics", c.Metrics == nil}, part{"Logger", c.Logger == nil},
	))
}

const (
	// maxConnections is how many clients may be connected. The API server needs a few.
	maxConnections = 256
	// requestTime is how long a client may take to send a request. It is longer than the
	// API server waits for an answer.
	requestTime = 10 * time.Second
	idleTime    = time.Minute
	maxHeader   = 16 << 10
	// shutdownTime is how long requests may take that are being answered when the server ends.
	shutdownTime = time.Minute
)

// Server answers the API server. It may be started without a certificate: until
// there is one, those who connect are turned away and nobody else notices.
type Server struct {
	cfg       Config
	handler   http.Handler
	isStarted atomic.Bool
}

// NewServer returns a server that does nothing until it is started.
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

// SplitAddress reads an address to listen on.
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

// NeedLeaderElection says that every replica answers.
func (s *Server) NeedLeaderElection() bool { return false }

// Start answers until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	config := &tls.Config{GetCertificate: s.cfg.Certificate, MinVersion: tls.VersionTLS12}
	s.cfg.Clients.guard(config)
	// Without HTTP/2: one connection of it may carry any number of requests.
	server := &http.Server{
		Handler: s.handler, ReadTimeout: requestTime, WriteTimeout: 2 * requestTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		// Any client can make a handshake fail, and so fill a log.
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

// Ready says why this replica cannot answer yet: it must not be asked then.
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
