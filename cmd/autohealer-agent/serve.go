package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/metrictext"
)

// server serves one address.
type server struct {
	address  string
	http     *http.Server
	listener net.Listener
	log      *slog.Logger
	err      error // error that ended it
}

// listen opens the ports of the command line, so that a port in use is reported at the
// start.
func listen(ctx context.Context, o options, a *agent, api *kubeapi.Client) ([]*server, error) {
	status, metrics := http.NewServeMux(), http.NewServeMux()
	status.HandleFunc("GET /healthz", a.serveHealth)
	status.HandleFunc("GET /conditions", a.serveConditions)
	handlePprof(status)
	serveMetrics, secured := http.HandlerFunc(a.serveMetrics), (*tls.Config)(nil)
	if o.metricsSecure {
		var err error
		if secured, err = metricsTLS(o.metricsCerts, o.node); err != nil {
			return nil, err
		}
		serveMetrics = newMetricsAccess(api).protect(serveMetrics)
	}
	metrics.HandleFunc("GET /metrics", serveMetrics)
	var servers []*server
	for _, of := range []struct {
		flag, address string
		port          int
		handler       http.Handler
		tls           *tls.Config
	}{{"port", o.address, o.port, status, nil}, {"prometheus-port", o.prometheusAddress, o.prometheusPort, metrics, secured}} {
		if of.port == 0 {
			continue
		}
		address := net.JoinHostPort(of.address, strconv.Itoa(of.port))
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			for _, s := range servers {
				s.listener.Close()
			}
			return nil, fmt.Errorf("listening on %s: %w (set --%s to a free port, or to 0 to disable it)", address, err, of.flag)
		}
		if of.tls != nil {
			listener = tls.NewListener(listener, of.tls)
		}
		servers = append(servers, a.newServer(address, listener, of.handler))
	}
	if control := a.control(ctx, o.stateDir); control != nil {
		servers = append(servers, control)
	}
	return servers, nil
}

func (a *agent) newServer(address string, listener net.Listener, handler http.Handler) *server {
	return &server{
		address: address, listener: listener, log: a.log,
		http: &http.Server{
			Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
			WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
			ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
		},
	}
}

// handlePprof serves profiles under the paths of node-problem-detector:
// /debug/pprof/goroutine?debug=2 shows a hanging monitor. Only local clients may use them,
// because profiles reveal data and keep a privileged program busy.
func handlePprof(mux *http.ServeMux) {
	for pattern, handle := range map[string]http.HandlerFunc{
		"GET /debug/pprof/": pprof.Index, "GET /debug/pprof/cmdline": pprof.Cmdline, "GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol": pprof.Symbol, "POST /debug/pprof/symbol": pprof.Symbol, "GET /debug/pprof/trace": pprof.Trace,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !isLocal(r) {
				http.Error(w, "served to 127.0.0.1 only: reach it by kubectl port-forward", http.StatusForbidden)
				return
			}
			handle(w, r)
		})
	}
}

// isLocal reports whether a request goes from loopback to loopback. One end is not enough:
// kube-proxy lets other machines reach 127.0.0.1 of a host, and a proxy in the pod forwards
// requests of others.
func isLocal(r *http.Request) bool {
	to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return to != nil && isLoopback(r.RemoteAddr) && isLoopback(to.String())
}

func isLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// serve serves until ctx ends. If a server fails, the agent exits: health checks must get
// an answer.
func (s *server) serve(ctx context.Context, stop func()) {
	ended := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
		case <-ended:
		}
		s.http.Close()
	}()
	err := s.http.Serve(s.listener)
	close(ended)
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.err = fmt.Errorf("serving %s: %w", s.address, err)
		stop()
	}
}

func (a *agent) serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if reasons := a.unhealthyReasons(); len(reasons) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, strings.Join(reasons, "\n"))
		return
	}
	fmt.Fprint(w, "ok")
}

// nodeCondition is a condition in the JSON format of node-problem-detector.
type nodeCondition struct {
	Type       string `json:"type"`
	Status     string `json:"status"`
	Transition string `json:"transition"`
	Reason     string `json:"reason"`
	Message    string `json:"message"`
}

func (a *agent) serveConditions(w http.ResponseWriter, _ *http.Request) {
	conditions := a.reports.aggregate.Conditions()
	list := make([]nodeCondition, 0, len(conditions))
	for _, c := range conditions {
		list = append(list, nodeCondition{
			Type: c.Type, Status: string(c.Shown()), Transition: c.Since.UTC().Format(time.RFC3339), Reason: c.Reason, Message: c.Message,
		})
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(list); err != nil {
		a.log.Debug("sending the conditions failed", "err", err)
	}
}

func (a *agent) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", metrictext.ContentType)
	if err := metrictext.Write(w, a.metrics()...); err != nil {
		a.log.Debug("sending the metrics failed", "err", err)
	}
}
