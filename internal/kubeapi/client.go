package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// patience is how long one request may take.
	patience = 15 * time.Second
	// mostBytes is how much of an answer is read: the metadata of a node can have some
	// hundred KiB of annotations.
	mostBytes = 4 << 20
)

// Client asks the API server. It may be used by many at once.
type Client struct {
	access Access
	agent  string // as which it presents itself

	mu     sync.Mutex
	ca     []byte // of the transport
	cert   []byte // and key, of the transport
	client *http.Client
}

// New returns a client. userAgent is the name of the program and its version.
func New(access Access, userAgent string) (*Client, error) {
	server, err := url.Parse(access.Server)
	if err != nil || server.Host == "" || (server.Scheme != "https" && server.Scheme != "http") {
		return nil, fmt.Errorf("the address of the API server is %q: want https://host:port", access.Server)
	}
	access.Server = strings.TrimRight(access.Server, "/")
	return &Client{access: access, agent: userAgent}, nil
}

// StatusError is an answer of the server that says no.
type StatusError struct {
	Code    int
	Message string
}

// Error returns the words of the server.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.Code, e.Message)
}

// NodeLabels returns the labels of a node. What the API server has in its cache will
// do, and nothing of a node but its metadata is sent.
func (c *Client) NodeLabels(ctx context.Context, node string) (map[string]string, error) {
	var answer struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	err := c.get(ctx, "/api/v1/nodes/"+url.PathEscape(node)+"?resourceVersion=0", &answer)
	if err != nil {
		return nil, fmt.Errorf("getting the labels of node %s: %w", node, err)
	}
	if answer.Metadata.Labels == nil {
		return map[string]string{}, nil
	}
	return answer.Metadata.Labels, nil
}

func (c *Client) get(ctx context.Context, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.access.Server+path, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	request.Header.Set("User-Agent", c.agent)
	if err := c.authorize(request); err != nil {
		return err
	}
	client, err := c.connection()
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, mostBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading the answer: %w", err)
	case len(body) > mostBytes:
		return fmt.Errorf("the answer is longer than %d bytes", mostBytes)
	case response.StatusCode != http.StatusOK:
		return &StatusError{Code: response.StatusCode, Message: words(body, response.Status)}
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

// words are what the server says of its refusal, or otherwise the status line.
func words(body []byte, otherwise string) string {
	var status struct {
		Message string `json:"message"`
	}
	if err := json.Unmarshal(body, &status); err != nil || status.Message == "" {
		return otherwise
	}
	return status.Message
}

// authorize says who asks. A token that is a file is read each time: requests are
// rare, and the kubelet replaces it every hour.
func (c *Client) authorize(request *http.Request) error {
	token := c.access.Token
	if c.access.TokenFile != "" {
		text, err := os.ReadFile(c.access.TokenFile)
		if err != nil {
			return fmt.Errorf("reading the token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	switch {
	case token != "":
		request.Header.Set("Authorization", "Bearer "+token)
	case c.access.Username != "":
		request.SetBasicAuth(c.access.Username, c.access.Password)
	}
	return nil
}

// connection returns what carries requests: the one that there is, unless the CA or
// the certificate was replaced.
func (c *Client) connection() (*http.Client, error) {
	ca, err := either(c.access.CA, c.access.CAFile, "the certificate authority")
	if err != nil {
		return nil, err
	}
	cert, err := either(c.access.Cert, c.access.CertFile, "the client certificate")
	if err != nil {
		return nil, err
	}
	key, err := either(c.access.Key, c.access.KeyFile, "the client key")
	if err != nil {
		return nil, err
	}
	pair := append(append(bytes.Clone(cert), '\n'), key...)

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil && bytes.Equal(ca, c.ca) && bytes.Equal(pair, c.cert) {
		return c.client, nil
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.access.ServerName, InsecureSkipVerify: c.access.Insecure}
	if len(ca) > 0 {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("the certificate authority holds no certificate in PEM")
		}
	}
	if len(cert) > 0 {
		made, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate and its key: %w", err)
		}
		settings.Certificates = []tls.Certificate{made}
	}
	if c.client != nil {
		c.client.CloseIdleConnections()
	}
	c.ca, c.cert = ca, pair
	c.client = &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     settings,
		TLSHandshakeTimeout: patience,
		MaxIdleConns:        1,
		// Nothing is asked for minutes: a connection that is kept costs the server more
		// than one that is made anew.
		IdleConnTimeout:   30 * time.Second,
		ForceAttemptHTTP2: true,
	}}
	return c.client, nil
}

func either(data []byte, path, what string) ([]byte, error) {
	if path == "" {
		return data, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return text, nil
}
