package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
)

// Keys of the Secret.
const (
	authorityCert = "ca.crt"
	authorityKey  = "ca.key"
	servedCert    = "tls.crt"
	servedKey     = "tls.key"
)

const (
	authorityName = "autohealer-webhook-ca"

	authorityLife = 10 * 365 * 24 * time.Hour
	servedLife    = 365 * 24 * time.Hour
	// renewBefore is how long before its expiry a certificate is renewed.
	renewBefore = 90 * 24 * time.Hour
	// skew is how far the clocks of a cluster may differ. Certificates are valid from that
	// long before their creation.
	skew = time.Hour

	// overlap is how long an old CA stays trusted after a new one has replaced it. All
	// replicas serve the new certificate by then.
	overlap = 10 * time.Minute
	// maxTrusted limits the number of CAs in the bundle.
	maxTrusted = 8
)

var forServers = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

// state is the check result of the content of a Secret.
type state int

const (
	sound     state = iota
	oldCert         // the CA is valid, the serving certificate is not
	oldIssuer       // CA and certificate have to be created again
)

// inspect checks the content of a Secret at the given time.
func inspect(data map[string][]byte, names []string, at time.Time) state {
	if !signed(data, data[authorityCert], data[authorityKey], authorityName, nil, at) {
		return oldIssuer
	}
	for _, name := range names {
		if !signed(data, data[servedCert], data[servedKey], name, &forServers, at) {
			return oldCert
		}
	}
	return sound
}

func signed(data map[string][]byte, cert, key []byte, name string, usages *[]x509.ExtKeyUsage, at time.Time) bool {
	valid, err := rotator.ValidCert(data[authorityCert], cert, key, name, usages, at.Add(renewBefore))
	return err == nil && valid
}

// renew returns the content of a Secret with the invalid parts created again. It keeps the
// names of the old certificate. Otherwise replicas with different names would renew in
// turns during an update.
func renew(data map[string][]byte, names []string, what state, now time.Time) (map[string][]byte, error) {
	names = slices.Clone(names)
	if old := parse(data[servedCert]); len(old) > 0 && what == oldCert {
		for _, name := range old[0].DNSNames {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	maker := &rotator.CertRotator{
		CAName: authorityName, CAOrganization: "autohealer",
		DNSName: names[0], ExtraDNSNames: names[1:], ExtKeyUsages: &forServers,
	}
	var issuer *rotator.KeyPairArtifacts
	var err error
	if what == oldIssuer {
		issuer, err = maker.CreateCACert(now.Add(-skew), now.Add(authorityLife))
	} else {
		issuer, err = readIssuer(data)
	}
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	cert, key, err := maker.CreateCertPEM(issuer, now.Add(-skew), now.Add(servedLife))
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	return map[string][]byte{authorityCert: issuer.CertPEM, authorityKey: issuer.KeyPEM, servedCert: cert, servedKey: key}, nil
}

// readIssuer reads the CA from a Secret that inspect has checked.
func readIssuer(data map[string][]byte) (*rotator.KeyPairArtifacts, error) {
	pair, err := tls.X509KeyPair(data[authorityCert], data[authorityKey])
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data[authorityKey])
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	return &rotator.KeyPairArtifacts{Cert: pair.Leaf, Key: key, CertPEM: data[authorityCert], KeyPEM: data[authorityKey]}, nil
}

// due returns when the content of a Secret has to be renewed.
func due(data map[string][]byte) time.Time {
	var first time.Time
	for _, cert := range slices.Concat(parse(data[authorityCert]), parse(data[servedCert])) {
		if end := cert.NotAfter.Add(-renewBefore); first.IsZero() || end.Before(first) {
			first = end
		}
	}
	return first
}

// parse returns the certificates in a PEM text and skips everything else.
func parse(text []byte) []*x509.Certificate {
	var found []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return found
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			found = append(found, cert)
		}
	}
}

// trusts reports whether a bundle contains the CA.
func trusts(bundle, authority []byte) bool {
	want := parse(authority)
	return len(want) == 1 && slices.ContainsFunc(parse(bundle), want[0].Equal)
}

// withOthers adds the previously trusted CAs to the list.
func withOthers(list []*x509.Certificate, before []byte, now time.Time) []*x509.Certificate {
	for _, other := range parse(before) {
		if len(list) < maxTrusted && now.Before(other.NotAfter) && !slices.ContainsFunc(list, other.Equal) {
			list = append(list, other)
		}
	}
	return list
}

// bundle returns the CAs in PEM. If before already contains them, it returns before
// unchanged.
func bundle(before []byte, authorities []*x509.Certificate) []byte {
	if slices.EqualFunc(authorities, parse(before), (*x509.Certificate).Equal) {
		return before
	}
	var b bytes.Buffer
	for _, cert := range authorities {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // a buffer never fails
	}
	return b.Bytes()
}
