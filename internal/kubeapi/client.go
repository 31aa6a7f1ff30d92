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
	// patience is how long one request may take.
	patience = 15 * time.Second
	// mostBytes is how much of an answer is read: the metadata of a node can have some
	// hundred KiB of annotations.
	mostBytes = 4 << 20
	// keepOpen is for how long a connection is kept that nobody uses: longer than the two
	// minutes from one renewal of the Lease to the next, so that what is to be told goes
	// out at once. To make one anew takes some 30 ms, to keep it less than 200 KiB.
	keepOpen = 3 * time.Minute
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

// Request is what is asked of the API server.
type Request struct {
	Method string
	// Path with its query, such as /api/v1/nodes/node-1?resourceVersion=0.
	Path string
	// ContentType of Body, which may be empty.
	ContentType string
	Body        []byte
	// MetadataOnly asks for no more than the metadata of the object: of a node with many
	// images that is a tenth.
	MetadataOnly bool
}

// Answer is what the server says to a request that it has granted.
type Answer struct {
	Body []byte
	// Date is what the server's clock says, to the second; zero if it does not tell.
	Date time.Time
}

// NodeLabels returns the labels of a node. What the API server has in its cache will
// do, and nothing of a node but its metadata is sent.
func (c *Client) NodeLabels(ctx context.Context, node string) (map[string]string, error) {
	var answer struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	path := "/api/v1/nodes/" + url.PathEscape(node) + "?resourceVersion=0"
	got, err := c.Do(ctx, Request{Method: http.MethodGet, Path: path, MetadataOnly: true})
	if err != nil {
		return nil, fmt.Errorf("getting the labels of node %s: %w", node, err)
	}
	if err := json.Unmarshal(got.Body, &answer); err != nil {
		return nil, fmt.Errorf("getting the labels of node %s: reading the answer: %w", node, err)
	}
	if answer.Metadata.Labels == nil {
		return map[string]string{}, nil
	}
	return answer.Metadata.Labels, nil
}

// Do asks once. An answer that says no is a StatusError; every other error means that
// there was no answer, and nobody knows whether the request was carried out.
func (c *Client) Do(ctx context.Context, asked Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, asked.Method, c.access.Server+asked.Path, bytes.NewReader(asked.Body))
	if err != nil {
		return Answer{}, err
	}
	request.Header.Set("Accept", "application/json")
	if asked.MetadataOnly {
		request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	}
	if asked.ContentType != "" {
		request.Header.Set("Content-Type", asked.ContentType)
	}
	request.Header.Set("User-Agent", c.agent)
	if err := c.authorize(request); err != nil {
		return Answer{}, err
	}
	client, err := c.connection()
	if err != nil {
		return Answer{}, err
	}
	answer, err := exchange(client, request)
	if said := (*StatusError)(nil); err != nil && !errors.As(err, &said) {
		// A connection that has died without a word would swallow the next request too.
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
	body, err := io.ReadAll(io.LimitReader(response.Body, mostBytes+1))
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("reading the answer: %w", err)
	case len(body) > mostBytes:
		return Answer{}, fmt.Errorf("the answer is longer than %d bytes", mostBytes)
	case response.StatusCode < 200 || response.StatusCode > 299:
		return Answer{}, refusal(response, body)
	}
	date, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		date = time.Time{}
	}
	return Answer{Body: body, Date: date}, nil
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
		if token = strings.TrimSpace(string(text)); token == "" {
			// Who asks without a token is nobody, and is told that nobody may.
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
		IdleConnTimeout:     keepOpen,
		DialContext:         (&net.Dialer{Timeout: patience, KeepAliveConfig: lifeSigns()}).DialContext,
		ForceAttemptHTTP2:   true,
	}}
	return c.client, nil
}

// lifeSigns has the kernel find out within half a minute that a server is gone without a
// word: what is told first would wait in vain for an answer otherwise.
func lifeSigns() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
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
