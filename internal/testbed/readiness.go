package testbed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// check returns why something is not ready yet, or nil.
type check = func(context.Context) error

// prober checks whether servers are ready.
type prober struct {
	client *http.Client
	token  string
}

// newProber returns a prober that trusts ca and authenticates with token. It opens a new
// connection every time: an old connection may be to a server that was killed or paused
// since.
func newProber(ca *authority, token string) prober {
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return prober{token: token, client: &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots},
			DisableKeepAlives: true,
		},
	}}
}

// socketProber returns a prober that connects through a Unix socket, for any host in the
// URL.
func socketProber(path string) prober {
	return prober{client: &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			DialContext:       dialSocket(path),
			DisableKeepAlives: true,
		},
	}}
}

func dialSocket(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
}

// ok checks that every URL returns 200.
func (p prober) ok(urls ...string) check {
	return func(ctx context.Context) error {
		for _, url := range urls {
			if err := p.get(ctx, url); err != nil {
				return err
			}
		}
		return nil
	}
}

func (p prober) get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	// The API server lists its checks; skip those that passed.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 8<<10))
	var pending []string
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, "[+]") {
			pending = append(pending, strings.TrimSpace(line))
		}
	}
	return fmt.Errorf("%s: %s: %s", url, resp.Status, strings.Join(pending, "; "))
}
