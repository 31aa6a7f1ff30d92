package kubeapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const node = `{"kind":"PartialObjectMetadata","metadata":{"name":"node-1","labels":{"gpu":"true"}}}`

func put(t *testing.T, path string, text []byte) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, text, 0o600))
}

func client(t *testing.T, access kubeapi.Access) *kubeapi.Client {
	t.Helper()
	c, err := kubeapi.New(access, "autohealer-agent/test")
	testkit.Must(t, err)
	return c
}

func TestNodeLabelsRequestsOnlyCachedMetadata(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/api/v1/nodes/node-1?resourceVersion=0" || !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") ||
			r.UserAgent() != "autohealer-agent/test" {
			t.Errorf("asked for %s as %q, accepting %q", r.URL, r.UserAgent(), r.Header.Get("Accept"))
		}
		_, _ = w.Write([]byte(node))
	}))
	defer server.Close()
	got, err := client(t, kubeapi.Access{Server: server.URL + "/"}).NodeMetadata(t.Context(), "node-1")
	testkit.Must(t, err)
	if diff := cmp.Diff(map[string]string{"gpu": "true"}, got.Labels); diff != "" {
		t.Error(diff)
	}
}

func TestRefusalBecomesAnErrorWithTheMessageOfTheServer(t *testing.T) {
	for _, c := range []struct {
		name, body, want string
		code             int
	}{
		{"a Status", `{"kind":"Status","message":"nodes \"node-1\" not found"}`, `404: nodes "node-1" not found`, http.StatusNotFound},
		{"no JSON", "<html>", "502: 502 Bad Gateway", http.StatusBadGateway},
		{"no JSON, and yet well", "<html>", "reading the answer", http.StatusOK},
		{"no labels", `{"metadata":{}}`, "", http.StatusOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			node, err := client(t, kubeapi.Access{Server: server.URL}).NodeMetadata(t.Context(), "node-1")
			if c.want == "" {
				testkit.Require(t, err == nil && node.Labels != nil, "labels %v, error %v: want none of either", node.Labels, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "node-1") {
				t.Errorf("the error is %v, want it to contain %q", err, c.want)
			}
			var status *kubeapi.StatusError
			if c.code != http.StatusOK && (!errors.As(err, &status) || status.Code != c.code) {
				t.Errorf("the error %v has no HTTP status", err)
			}
		})
	}
}

func TestReplacedTokenIsUsed(t *testing.T) {
	var seen atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(node))
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "token")
	c := client(t, kubeapi.Access{Server: server.URL, TokenFile: path})
	for _, token := range []string{"first", "second"} {
		put(t, path, []byte(token+"\n"))
		if _, err := c.NodeMetadata(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		if seen.Load() != "Bearer "+token {
			t.Errorf("the server saw %q, want the token %q", seen.Load(), token)
		}
	}
	// The client sends no anonymous request: the agent would take the 403 as a missing permission.
	put(t, path, []byte("\n"))
	if _, err := c.NodeMetadata(t.Context(), "node-1"); err == nil || !strings.Contains(err.Error(), path+" is empty") || seen.Load() != "Bearer second" {
		t.Errorf("with an empty token the error is %v, and the server saw %q", err, seen.Load())
	}
	testkit.Must(t, os.Remove(path))
	if _, err := c.NodeMetadata(t.Context(), "node-1"); err == nil || !strings.Contains(err.Error(), "reading the token") {
		t.Errorf("without a token the error is %v", err)
	}
}

func TestReplacedAuthorityAndCertificateAreUsed(t *testing.T) {
	folder := t.TempDir()
	ca, cert, key := filepath.Join(folder, "ca.crt"), filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	var users []string
	serve := func() *httptest.Server {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			users = append(users, r.TLS.PeerCertificates[0].Subject.CommonName)
			_, _ = w.Write([]byte(node))
		}))
		authority, authorityKey := certificate(t, "localhost")
		pair, err := tls.X509KeyPair(authority, authorityKey)
		testkit.Must(t, err)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
		server.StartTLS()
		t.Cleanup(server.Close)
		put(t, ca, authority)
		return server
	}
	identify := func(name string) {
		certText, keyText := certificate(t, name)
		put(t, cert, certText)
		put(t, key, keyText)
	}

	server := serve()
	identify("system:node:one")
	c := client(t, kubeapi.Access{Server: server.URL, CAFile: ca, CertFile: cert, KeyFile: key})
	ask := func(c *kubeapi.Client) {
		t.Helper()
		if _, err := c.NodeMetadata(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
	}
	ask(c)
	identify("system:node:two")
	ask(c)
	if diff := cmp.Diff([]string{"system:node:one", "system:node:two"}, users); diff != "" {
		t.Error(diff)
	}

	trusted, err := os.ReadFile(ca)
	testkit.Must(t, err)
	serve() // the file contains another authority now
	if _, err := c.NodeMetadata(t.Context(), "node-1"); err == nil {
		t.Error("the client trusts a server with a certificate of another authority")
	}
	put(t, ca, trusted)
	ask(c)
	put(t, ca, []byte("nothing"))
	if _, err := c.NodeMetadata(t.Context(), "node-1"); err == nil || !strings.Contains(err.Error(), "no certificate in PEM") {
		t.Errorf("an invalid authority: %v", err)
	}
}

// certificate returns a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	testkit.Must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func TestNewRejectsInvalidAddresses(t *testing.T) {
	for _, server := range []string{"", "10.0.0.1:6443", "ftp://x", "https://"} {
		if _, err := kubeapi.New(kubeapi.Access{Server: server}, "x"); err == nil {
			t.Errorf("%q is accepted as an address", server)
		}
	}
}
