package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
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
	// Kinds are what it is asked about.
	Kinds []Kind
}

// Server answers the API server. It may be started without a certificate: until
// there is one, those who connect are turned away and nobody else notices.
type Server struct {
	server  webhook.Server
	kinds   []Kind
	started func(*http.Request) error
}

// NewServer returns a server that does nothing until it is started.
func NewServer(cfg Config) (*Server, error) {
	host, port, err := SplitAddress(cfg.Address)
	if err != nil {
		return nil, err
	}
	if cfg.Certificate == nil || len(cfg.Kinds) == 0 {
		return nil, errors.New("configuring the webhook server: Certificate or Kinds are missing")
	}
	server := webhook.NewServer(webhook.Options{
		Host: host, Port: port,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.GetCertificate, c.MinVersion = cfg.Certificate, tls.VersionTLS12
		}},
	})
	for _, kind := range cfg.Kinds {
		server.Register(kind.Path(), &admission.Webhook{Handler: kind})
	}
	return &Server{server: server, kinds: cfg.Kinds, started: server.StartedChecker()}, nil
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
	if err := s.server.Start(ctx); err != nil {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	return nil
}

// Ready says why this replica cannot answer yet: it must not be asked then.
func (s *Server) Ready(r *http.Request) error {
	errs := make([]error, 0, 1+len(s.kinds))
	errs = append(errs, s.started(r))
	for _, kind := range s.kinds {
		errs = append(errs, kind.Ready())
	}
	return errors.Join(errs...)
}
