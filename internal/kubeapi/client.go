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
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// requestTimeout is the timeout of one request.
	requestTimeout = 15 * time.Second
	// maxResponseBytes is the maximum size of a response. The metadata of a node can have
	// several hundred KiB of annotations.
	maxResponseBytes = 4 << 20
	// idleTimeout is how long an unused connection stays open. It is longer than the two
	// minutes between two renewals of the Lease, so writes need no new connection. A new
	// connection takes about 30 ms; an open one needs less than 200 KiB.
	idleTimeout = 3 * time.Minute
)

// Client sends requests to the API server. It is safe for concurrent use.
type Client struct {
	access    Access
	userAgent string

	mu     sync.Mutex
	ca     []byte // used by client
	cert   []byte // certificate and key, used by client
	client *http.Client
}

// New returns a client. userAgent is the name of the program and its version.
func New(access Access, userAgent string) (*Client, error) {
	server, err := url.Parse(access.Server)
	if err != nil || server.Host == "" || (server.Scheme != "https" && server.Scheme != "http") {
		return nil, fmt.Errorf("the address of the API server is %q: want https://host:port", access.Server)
	}
	access.Server = strings.TrimRight(access.Server, "/")
	return &Client{access: access, userAgent: userAgent}, nil
}

// Request is a request to the API server.
type Request struct {
	Method string
	// Path includes the query, for example /api/v1/nodes/node-1?resourceVersion=0.
	Path string
	// ContentType is the type of Body. It may be empty.
	ContentType string
	Body        []byte
	// MetadataOnly requests only the metadata of the object. For a node with many images that
	// is a tenth.
	MetadataOnly bool
}

// Answer is a successful response.
type Answer struct {
	Body []byte
	// Date is the clock of the server, in whole seconds, or zero.
	Date time.Time
}

// Metadata is the part of an object's metadata that the agent reads.
type Metadata struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// NodeMetadata returns the metadata of a node, from the cache of the API server.
func (c *Client) NodeMetadata(ctx context.Context, node string) (Metadata, error) {
	var answer struct {
		Metadata Metadata `json:"metadata"`
	}
	path := "/api/v1/nodes/" + url.PathEscape(node) + "?resourceVersion=0"
	got, err := c.Do(ctx, Request{Method: http.MethodGet, Path: path, MetadataOnly: true})
	if err != nil {
		return Metadata{}, fmt.Errorf("getting the metadata of node %s: %w", node, err)
	}
	if err := json.Unmarshal(got.Body, &answer); err != nil {
		return Metadata{}, fmt.Errorf("getting the metadata of node %s: reading the answer: %w", node, err)
	}
	if answer.Metadata.Labels == nil {
		answer.Metadata.Labels = map[string]string{} // nil would mean that they are not known
	}
	return answer.Metadata, nil
}

// Do sends a request once. If the server refuses it, the error is a StatusError. Any other
// error means that there was no response, and the request may or may not have been executed.
func (c *Client) Do(ctx context.Context, req Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, req.Method, c.access.Server+req.Path, bytes.NewReader(req.Body))
	if err != nil {
		return Answer{}, err
	}
	request.Header.Set("Accept", "application/json")
	if req.MetadataOnly {
		request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	}
	if req.ContentType != "" {
		request.Header.Set("Content-Type", req.ContentType)
	}
	request.Header.Set("User-Agent", c.userAgent)
	if err := c.authorize(request); err != nil {
		return Answer{}, err
	}
	client, err := c.connection()
	if err != nil {
		return Answer{}, err
	}
	answer, err := exchange(client, request)
	if refused := (*StatusError)(nil); err != nil && !errors.As(err, &refused) {
		// The connection may be dead, and the next request must not use it.
		client.CloseIdleConnections()
	}
	return answer, err
}

func exchange(client *http.Client, request *http.Request) (Answer, error) {
	response, err := client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBytes+1))
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("reading the answer: %w", err)
	case len(body) > maxResponseBytes:
		return Answer{}, fmt.Errorf("the answer is longer than %d bytes", maxResponseBytes)
	case response.StatusCode < 200 || response.StatusCode > 299:
		return Answer{}, newStatusError(response, body)
	}
	date, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		date = time.Time{}
	}
	return Answer{Body: body, Date: date}, nil
}

// authorize adds the credentials. It reads a token file each time: requests are rare, and the
// kubelet replaces the token every hour.
func (c *Client) authorize(request *http.Request) error {
	token := c.access.Token
	if c.access.TokenFile != "" {
		text, err := os.ReadFile(c.access.TokenFile)
		if err != nil {
			return fmt.Errorf("reading the token: %w", err)
		}
		if token = strings.TrimSpace(string(text)); token == "" {
			// Without a token the server would answer an anonymous request with 403.
			return fmt.Errorf("reading the token: %s is empty", c.access.TokenFile)
		}
	}
	switch {
	case token != "":
		request.Header.Set("Authorization", "Bearer "+token)
	case c.access.Username != "":
		request.SetBasicAuth(c.access.Username, c.access.Password)
	}
	return nil
}

// connection returns the HTTP client. It creates a new one if the CA or the certificate has
// changed.
func (c *Client) connection() (*http.Client, error) {
	ca, err := dataOrFile(c.access.CA, c.access.CAFile, "the certificate authority")
	if err != nil {
		return nil, err
	}
	cert, err := dataOrFile(c.access.Cert, c.access.CertFile, "the client certificate")
	if err != nil {
		return nil, err
	}
	key, err := dataOrFile(c.access.Key, c.access.KeyFile, "the client key")
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
			return nil, errors.New("the certificate authority contains no certificate in PEM")
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
		TLSHandshakeTimeout: requestTimeout,
		MaxIdleConns:        1,
		IdleConnTimeout:     idleTimeout,
		DialContext:         (&net.Dialer{Timeout: requestTimeout, KeepAliveConfig: keepAlive()}).DialContext,
		ForceAttemptHTTP2:   true,
	}}
	return c.client, nil
}

// keepAlive makes the kernel detect a dead server within half a minute, so that the next
// request does not wait for its timeout.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
}

func dataOrFile(data []byte, path, what string) ([]byte, error) {
	if path == "" {
		return data, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return text, nil
}
