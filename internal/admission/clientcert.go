package admission

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
)

// Clients selects the clients that the server answers: they present a certificate of the
// CA, with one of the names. The zero value admits all clients.
type Clients struct {
	// CAFile has the certificates of the CA. The server reads it for every connection, so
	// that a new CA needs no restart.
	CAFile string
	// Names are common names or DNS names. A cluster's CA also signs the certificates of
	// kubelets, so the CA alone is not sufficient.
	Names []string
}

// Validate returns what is wrong with the configuration.
func (c Clients) Validate() error {
	switch {
	case c.CAFile == "" && len(c.Names) == 0:
		return nil
	case c.CAFile == "":
		return errors.New("names of clients are given without the file of their authority")
	case len(c.Names) == 0 || slices.Contains(c.Names, ""):
		return errors.New("want the name in the API server's client certificate: an authority signs certificates for others, too")
	}
	_, err := c.caPool()
	return err
}

func (c Clients) caPool() (*x509.CertPool, error) {
	text, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading the authority of webhook clients: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("reading the authority of webhook clients: %s has no certificate in PEM", c.CAFile)
	}
	return pool, nil
}

// restrict makes a TLS configuration reject all other clients.
func (c Clients) restrict(config *tls.Config) {
	if c.CAFile == "" {
		return
	}
	base := config.Clone()
	base.ClientAuth = tls.RequireAndVerifyClientCert
	base.VerifyConnection = func(state tls.ConnectionState) error {
		leaf := state.PeerCertificates[0]
		if slices.Contains(c.Names, leaf.Subject.CommonName) || slices.ContainsFunc(leaf.DNSNames, func(name string) bool { return slices.Contains(c.Names, name) }) {
			return nil
		}
		return fmt.Errorf("the certificate of %q is of none of the clients %q", leaf.Subject.CommonName, c.Names)
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := c.caPool()
		if err != nil {
			return nil, err
		}
		next := base.Clone()
		next.ClientCAs = pool
		return next, nil
	}
}
