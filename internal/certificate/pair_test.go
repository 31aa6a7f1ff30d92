package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/resourcestack/autohealer/internal/testkit"
)

var (
	noon  = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	names = []string{"hook.system.svc", "localhost"}
)

// made returns the content of a Secret that was filled at the given time.
func made(t *testing.T, at time.Time) map[string][]byte {
	t.Helper()
	return testkit.Value(renew(nil, names, oldIssuer, at)).Must(t)
}

// believes reports whether a client that trusts the bundle accepts the certificate.
func believes(t *testing.T, bundle, cert []byte, name string, at time.Time) error {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err := parse(cert)[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: at})
	return err
}

func TestRenew(t *testing.T) {
	first := made(t, noon)
	t.Run("fills_an_empty_Secret_with_a_trusted_certificate", func(t *testing.T) {
		if got := inspect(first, names, noon); got != sound {
			t.Errorf("it is found to be %v", got)
		}
		for _, name := range names {
			if err := believes(t, first[authorityCert], first[servedCert], name, noon.Add(-skew/2)); err != nil {
				t.Error(err)
			}
		}
		if _, err := tls.X509KeyPair(first[servedCert], first[servedKey]); err != nil {
			t.Error(err)
		}
	})
	t.Run("renews_a_certificate_in_time_and_keeps_its_CA", func(t *testing.T) {
		at := due(first)
		if got := inspect(first, names, at.Add(-time.Minute)); got != sound {
			t.Errorf("too early, it is found to be %v", got)
		}
		if got := inspect(first, names, at.Add(time.Minute)); got != oldCert {
			t.Fatalf("in time, it is found to be %v", got)
		}
		second := testkit.Value(renew(first, names, oldCert, at)).Must(t)
		if string(second[authorityCert]) != string(first[authorityCert]) || string(second[servedCert]) == string(first[servedCert]) {
			t.Error("the wrong one was replaced")
		}
		if got := inspect(second, names, at.Add(time.Minute)); got != sound {
			t.Errorf("it is found to be %v", got)
		}
	})
	t.Run("renews_a_CA_in_time", func(t *testing.T) {
		if got := inspect(first, names, noon.Add(authorityLife-renewBefore+time.Minute)); got != oldIssuer {
			t.Errorf("it is found to be %v", got)
		}
	})
	t.Run("adds_a_name_and_keeps_those_of_other_replicas", func(t *testing.T) {
		more := []string{names[0], "further"}
		if got := inspect(first, more, noon); got != oldCert {
			t.Fatalf("without a name, it is found to be %v", got)
		}
		second := testkit.Value(renew(first, more, oldCert, noon)).Must(t)
		if inspect(second, more, noon) != sound || inspect(second, names, noon) != sound {
			t.Errorf("it has only the names %v", parse(second[servedCert])[0].DNSNames)
		}
	})
	t.Run("treats_malformed_content_as_empty", func(t *testing.T) {
		for name, spoil := range map[string]func(map[string][]byte){
			"emptied":                 func(d map[string][]byte) { clear(d) },
			"without the key":         func(d map[string][]byte) { delete(d, authorityKey) },
			"with a word for a key":   func(d map[string][]byte) { d[authorityKey] = []byte("secret") },
			"with another's key":      func(d map[string][]byte) { d[authorityKey] = d[servedKey] },
			"with the wrong issuer":   func(d map[string][]byte) { d[authorityCert] = d[servedCert] },
			"with half a certificate": func(d map[string][]byte) { d[authorityCert] = d[authorityCert][:400] },
		} {
			data := map[string][]byte{}
			for key, value := range first {
				data[key] = slices.Clone(value)
			}
			spoil(data)
			if got := inspect(data, names, noon); got != oldIssuer {
				t.Errorf("%s: it is found to be %v", name, got)
			}
		}
		foreign := made(t, noon)
		mixed := map[string][]byte{authorityCert: first[authorityCert], authorityKey: first[authorityKey], servedCert: foreign[servedCert], servedKey: foreign[servedKey]}
		if got := inspect(mixed, names, noon); got != oldCert {
			t.Errorf("with a certificate of another authority, it is found to be %v", got)
		}
	})
}

// joined returns the bundle while the other CAs are still trusted.
func joined(before, authority []byte, at time.Time) []byte {
	return bundle(before, withOthers(parse(authority), before, at))
}

func TestBundle(t *testing.T) {
	first, second := made(t, noon), made(t, noon.Add(time.Hour))
	later := noon.Add(time.Hour)
	one := joined(nil, first[authorityCert], noon)
	both := joined(one, second[authorityCert], later)

	t.Run("trusts_the_new_CA_first_and_the_old_one_for_a_while", func(t *testing.T) {
		for _, cert := range [][]byte{first[servedCert], second[servedCert]} {
			if err := believes(t, both, cert, names[0], later); err != nil {
				t.Error(err)
			}
		}
		testkit.Check(t, parse(both)[0].Equal(parse(second[authorityCert])[0]), "the old one comes first")
	})
	t.Run("stays_the_same_text_without_a_change", func(t *testing.T) {
		for _, text := range [][]byte{both, append([]byte("# by hand\n"), both...)} {
			testkit.Check(t, string(joined(text, second[authorityCert], later)) == string(text), "it was written anew")
		}
	})
	t.Run("drops_an_expired_CA", func(t *testing.T) {
		end := noon.Add(authorityLife)
		if got := joined(both, second[authorityCert], end); trusts(got, first[authorityCert]) || !trusts(got, second[authorityCert]) {
			t.Error("it did not")
		}
	})
	t.Run("contains_a_CA_once", func(t *testing.T) {
		if got := joined(append(slices.Clone(both), both...), second[authorityCert], later); string(got) != string(both) {
			t.Errorf("it has %d", len(parse(got)))
		}
	})
	t.Run("skips_certificates_that_are_no_CA", func(t *testing.T) {
		got := joined([]byte("Cg==\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), first[authorityCert], noon)
		testkit.Check(t, len(parse(got)) == 1 && trusts(got, first[authorityCert]), "it is\n%s", got)
	})
	t.Run("has_a_maximum_size", func(t *testing.T) {
		text := both
		for range 2 * maxTrusted {
			next := made(t, later)
			text = joined(text, next[authorityCert], later)
			testkit.Require(t, trusts(text, next[authorityCert]), "the present one is missing")
		}
		if got := len(parse(text)); got != maxTrusted {
			t.Errorf("it has %d authorities", got)
		}
	})
}

// webhookTrusting returns a configuration whose webhooks trust these CAs.
func webhookTrusting(authorities ...map[string][]byte) *admissionv1.ValidatingWebhookConfiguration {
	config := &admissionv1.ValidatingWebhookConfiguration{Webhooks: make([]admissionv1.ValidatingWebhook, 2)}
	for i := range config.Webhooks {
		for _, data := range authorities {
			list := &config.Webhooks[i].ClientConfig.CABundle
			*list = append(*list, data[authorityCert]...)
		}
	}
	return config
}

// A certificate of a new CA is served only when the API servers know the CA. Until then the
// old certificate is served.
func TestSwap(t *testing.T) {
	first, second := made(t, noon), made(t, noon)
	k := &Manager{cfg: Config{Logger: discard}}
	shows := func(data map[string][]byte) {
		t.Helper()
		if got := k.served.Load(); got == nil || got.text != string(data[servedCert]) {
			t.Error("the wrong certificate is served")
		}
	}
	swap := func(data map[string][]byte, after, want time.Duration) {
		t.Helper()
		at, err := k.swap(data, noon.Add(after))
		if err != nil {
			t.Error(err)
		}
		if want == 0 && !at.IsZero() || want > 0 && !at.Equal(noon.Add(want)) {
			t.Errorf("after %s it is to be served at %s", after, at)
		}
	}
	swap(first, 0, 0) // it is unknown who trusts it, but there is no other
	shows(first)
	swap(second, 0, 0)
	shows(first) // it is unknown who trusts the second
	k.recordTrust(webhookTrusting(first), second[authorityCert], noon)
	swap(second, time.Hour, 0)
	shows(first) // no API server trusts the second
	k.recordTrust(webhookTrusting(second, first), second[authorityCert], noon)
	swap(second, 0, trustDelay)
	k.recordTrust(webhookTrusting(second, first), second[authorityCert], noon.Add(time.Second))
	swap(second, time.Second, trustDelay) // a further call does not restart the wait
	half := webhookTrusting(second, first)
	half.Webhooks[1] = webhookTrusting(first).Webhooks[0]
	k.recordTrust(half, second[authorityCert], noon.Add(time.Second))
	k.recordTrust(webhookTrusting(second, first), second[authorityCert], noon.Add(time.Second))
	swap(second, trustDelay, trustDelay+time.Second) // lost trust does
	shows(first)
	third := testkit.Value(renew(first, names, oldCert, noon)).Must(t)
	swap(third, 0, 0)
	shows(third) // it has the same CA as the first
	swap(second, trustDelay+time.Second, 0)
	shows(second)
	k.trust.Store(&trust{})
	swap(first, 0, 0)
	shows(first) // there is no webhook
}

// Which CAs the API servers trust as the content of the Secret changes.
func TestWanted(t *testing.T) {
	old, present := made(t, noon.Add(-30*24*time.Hour)), made(t, noon)
	k := &Manager{cfg: Config{Logger: discard}}
	wants := func(secret map[string][]byte, at, fading time.Time, want ...map[string][]byte) {
		t.Helper()
		list, fades := k.wanted(secret[authorityCert], at)
		testkit.Check(t, fades.Equal(fading), "the others fade at %s, want %s", fades, fading)
		if !slices.EqualFunc(list, want, func(got *x509.Certificate, want map[string][]byte) bool {
			return got.Equal(parse(want[authorityCert])[0])
		}) {
			t.Errorf("%d are to be trusted, or the wrong ones", len(list))
		}
	}
	never := time.Time{}
	k.recordTrust(webhookTrusting(), present[authorityCert], noon)
	wants(nil, noon, never)
	wants(present, noon, never, present)
	testkit.Must(t, k.serve(present))
	k.recordTrust(webhookTrusting(present), present[authorityCert], noon)
	wants(present, noon, never, present)
	wants(nil, noon.Add(time.Hour), never, present) // the Secret is gone, and the served certificate stays

	// A backup is older than the trusted CA, which does not matter.
	restored := noon.Add(time.Hour)
	wants(old, restored, restored.Add(overlap), old, present)
	k.recordTrust(webhookTrusting(), old[authorityCert], restored)
	wants(old, restored, restored.Add(overlap), old, present) // even if another client removes all trust
	k.recordTrust(webhookTrusting(old, present), old[authorityCert], restored)
	testkit.Must(t, k.serve(old))
	wants(old, restored.Add(overlap-1), restored.Add(overlap), old, present)
	wants(old, restored.Add(overlap), never, old)
}
