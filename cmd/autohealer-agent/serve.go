package main

import (
	"context"
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

	"github.com/resourcestack/autohealer/internal/metrictext"
)

// server answers one port.
type server struct {
	what     string
	http     *http.Server
	listener net.Listener
	log      *slog.Logger
	err      error // by which it ended
}

// listen takes the ports that the command line names, so that one which is taken is
// told at the start.
func listen(ctx context.Context, o options, a *agent) ([]*server, error) {
	status, figures := http.NewServeMux(), http.NewServeMux()
	status.HandleFunc("GET /healthz", a.serveHealth)
	status.HandleFunc("GET /conditions", a.serveConditions)
	profiles(status)
	figures.HandleFunc("GET /metrics", a.serveMetrics)
	var servers []*server
	for _, of := range []struct {
		flag, address string
		port          int
		handler       http.Handler
	}{{"port", o.address, o.port, status}, {"prometheus-port", o.prometheusAddress, o.prometheusPort, figures}} {
		if of.port == 0 {
			continue
		}
		address := net.JoinHostPort(of.address, strconv.Itoa(of.port))
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			for _, s := range servers {
				s.listener.Close()
			}
			return nil, fmt.Errorf("listening on %s: %w (--%s=0 serves nothing, another number elsewhere)", address, err, of.flag)
		}
		servers = append(servers, &server{
			what: address, listener: listener, log: a.log,
			http: &http.Server{
				Handler: of.handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
				WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
				ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
			},
		})
	}
	return servers, nil
}

// profiles serves what the program is doing, where the old agent does: a monitor that
// hangs is seen in /debug/pprof/goroutine?debug=2. Whoever else reaches the port learns
// nothing of it, and cannot keep a privileged program busy.
func profiles(mux *http.ServeMux) {
	for pattern, handle := range map[string]http.HandlerFunc{
		"GET /debug/pprof/": pprof.Index, "GET /debug/pprof/cmdline": pprof.Cmdline, "GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol": pprof.Symbol, "POST /debug/pprof/symbol": pprof.Symbol, "GET /debug/pprof/trace": pprof.Trace,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !comesFromHere(r) {
				http.Error(w, "served to 127.0.0.1 only: reach it by kubectl port-forward", http.StatusForbidden)
				return
			}
			handle(w, r)
		})
	}
}

// comesFromHere says whether a request goes from loopback to loopback. Either end alone
// is not enough: kube-proxy lets other machines reach the 127.0.0.1 of a host, and a
// proxy in the pod asks in the name of others.
func comesFromHere(r *http.Request) bool {
	to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return to != nil && isLoopback(r.RemoteAddr) && isLoopback(to.String())
}

func isLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// serve answers until ctx ends. One that cannot go on ends the agent: who asks for its
// health must get an answer.
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
		s.err = fmt.Errorf("serving %s: %w", s.what, err)
		stop()
	}
}

func (a *agent) serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if why := a.ailments(); len(why) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, strings.Join(why, "\n"))
		return
	}
	fmt.Fprint(w, "ok")
}

// nodeCondition is a condition as the API of Kubernetes writes it.
type nodeCondition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	LastHeartbeatTime  string `json:"lastHeartbeatTime"`
	LastTransitionTime string `json:"lastTransitionTime"`
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
}

func (a *agent) serveConditions(w http.ResponseWriter, _ *http.Request) {
	now := time.Now().UTC().Format(time.RFC3339)
	conditions := a.chart.Conditions()
	list := make([]nodeCondition, 0, len(conditions))
	for _, c := range conditions {
		list = append(list, nodeCondition{
			Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			LastHeartbeatTime: now, LastTransitionTime: c.Since.UTC().Format(time.RFC3339),
		})
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(list); err != nil {
		a.log.Debug("who asked for the conditions does not listen", "err", err)
	}
}

func (a *agent) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", metrictext.ContentType)
	if err := metrictext.Write(w, a.metrics()...); err != nil {
		a.log.Debug("who asked for the metrics does not listen", "err", err)
	}
}
