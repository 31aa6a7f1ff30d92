package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/kubeapi"
)

const (
	// Prometheus shows the same token at each scrape, so the agent asks rarely.
	allowedFor = 5 * time.Minute
	refusedFor = 30 * time.Second
	// A client with a bad token waits this long, and others with an unknown token wait for it.
	// So unauthenticated clients cannot make the agent flood the API server.
	refusalDelay = 200 * time.Millisecond
	maxVerdicts  = 100
)

// metricsAccess serves the metrics only to clients whose token may get /metrics, as the
// controller does with --metrics-secure. The API server decides.
type metricsAccess struct {
	api  *kubeapi.Client
	slot chan struct{} // held while the agent asks the API server

	mu       sync.Mutex
	verdicts map[[sha256.Size]byte]verdict // by token
}

// verdict says whether a token may read the metrics.
type verdict struct {
	status  int // http.StatusOK, StatusUnauthorized or StatusForbidden
	message string
	until   time.Time
}

func newMetricsAccess(api *kubeapi.Client) *metricsAccess {
	return &metricsAccess{api: api, slot: make(chan struct{}, 1), verdicts: map[[sha256.Size]byte]verdict{}}
}

// protect returns a handler that calls next for clients with access.
func (m *metricsAccess) protect(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, hasToken := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !hasToken {
			http.Error(w, "the metrics need the token of a service account: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		v, err := m.verdict(r.Context(), token)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case v.status != http.StatusOK:
			http.Error(w, v.message, v.status)
		default:
			next(w, r)
		}
	}
}

// verdict returns the known verdict about a token, or asks the API server.
func (m *metricsAccess) verdict(ctx context.Context, token string) (verdict, error) {
	key := sha256.Sum256([]byte(token))
	if v, known := m.known(key); known {
		return v, nil
	}
	select {
	case m.slot <- struct{}{}:
		defer func() { <-m.slot }()
	case <-ctx.Done():
		return verdict{}, context.Cause(ctx)
	}
	if v, known := m.known(key); known { // the answer to a request with the same token
		return v, nil
	}
	v, err := m.ask(ctx, token)
	if err != nil {
		return verdict{}, fmt.Errorf("asking the API server for the rights of this token: %w", err)
	}
	v.until = time.Now().Add(allowedFor)
	if v.status != http.StatusOK {
		v.until = time.Now().Add(refusedFor)
		select {
		case <-time.After(refusalDelay):
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.verdicts) >= maxVerdicts {
		clear(m.verdicts)
	}
	m.verdicts[key] = v
	return v, nil
}

func (m *metricsAccess) known(key [sha256.Size]byte) (verdict, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, known := m.verdicts[key]
	return v, known && time.Now().Before(v.until)
}

// reviewedUser is the part of a TokenReview's status and of a SubjectAccessReview's spec with
// the same names.
type reviewedUser struct {
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

// ask asks the API server whose token it is, and whether that user may get /metrics.
func (m *metricsAccess) ask(ctx context.Context, token string) (verdict, error) {
	var authentication struct {
		Authenticated bool
		User          struct {
			Username string
			reviewedUser
		}
	}
	if err := m.review(ctx, "authentication.k8s.io/v1", "TokenReview", map[string]any{"token": token}, &authentication); err != nil {
		return verdict{}, err
	}
	user := authentication.User
	if !authentication.Authenticated {
		return verdict{status: http.StatusUnauthorized, message: "the API server does not accept this token: it may have expired"}, nil
	}
	spec := struct {
		User string `json:"user"`
		reviewedUser
		NonResource map[string]string `json:"nonResourceAttributes"`
	}{user.Username, user.reviewedUser, map[string]string{"path": "/metrics", "verb": "get"}}
	var authorization struct{ Allowed bool }
	if err := m.review(ctx, "authorization.k8s.io/v1", "SubjectAccessReview", spec, &authorization); err != nil {
		return verdict{}, err
	}
	if !authorization.Allowed {
		return verdict{status: http.StatusForbidden, message: user.Username + " may not get /metrics: bind the ClusterRole autohealer-metrics-reader to it"}, nil
	}
	return verdict{status: http.StatusOK}, nil
}

// review creates an object that only has an answer, and reads the answer into status.
func (m *metricsAccess) review(ctx context.Context, version, kind string, spec, status any) error {
	body, err := json.Marshal(map[string]any{"apiVersion": version, "kind": kind, "spec": spec})
	if err != nil {
		return err
	}
	answer, err := m.api.Do(ctx, kubeapi.Request{
		Method: http.MethodPost, Path: "/apis/" + version + "/" + strings.ToLower(kind) + "s", ContentType: "application/json", Body: body,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	if err := json.Unmarshal(answer.Body, &struct{ Status any }{status}); err != nil {
		return fmt.Errorf("%s: reading the answer: %w", kind, err)
	}
	return nil
}

// metricsTLS returns the TLS configuration of the metrics. Without a folder the agent makes a
// certificate that clients cannot verify.
func metricsTLS(folder, node string) (*tls.Config, error) {
	load := func() (*tls.Certificate, error) { return selfSigned(node) }
	if folder != "" {
		load = func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
			return &pair, err
		}
	}
	first, err := load()
	if err != nil {
		return nil, fmt.Errorf("--metrics-cert-dir=%s: %w", folder, err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if folder == "" {
			return first, nil
		}
		return load() // the kubelet replaces the files when the Secret changes
	}}, nil
}

func selfSigned(node string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	// The agent is restarted long before the certificate expires.
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{node},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return &tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}, err
}
