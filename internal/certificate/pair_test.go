package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"time"
)

var (
	noon  = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	names = []string{"hook.system.svc", "localhost"}
)

// made returns the content of a Secret that was filled at a moment.
func made(t *testing.T, at time.Time) map[string][]byte {
	t.Helper()
	data, err := renew(nil, names, oldIssuer, at)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// believes says whether who trusts the bundle would talk to who shows the
// certificate.
func believes(t *testing.T, bundle, cert []byte, name string, at time.Time) error {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err := parse(cert)[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: at})
	return err
}

func TestRenew(t *testing.T) {
	first := made(t, noon)
	t.Run("fills an empty Secret with what clients believe", func(t *testing.T) {
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
	t.Run("replaces a certificate in time and keeps its authority", func(t *testing.T) {
		at := due(first)
		if got := inspect(first, names, at.Add(-time.Minute)); got != sound {
			t.Errorf("too early, it is found to be %v", got)
		}
		if got := inspect(first, names, at.Add(time.Minute)); got != oldCert {
			t.Fatalf("in time, it is found to be %v", got)
		}
		second, err := renew(first, names, oldCert, at)
		if err != nil {
			t.Fatal(err)
		}
		if string(second[authorityCert]) != string(first[authorityCert]) || string(second[servedCert]) == string(first[servedCert]) {
			t.Error("the wrong one was replaced")
		}
		if got := inspect(second, names, at.Add(time.Minute)); got != sound {
			t.Errorf("it is found to be %v", got)
		}
	})
	t.Run("replaces an authority in time", func(t *testing.T) {
		if got := inspect(first, names, noon.Add(authorityLife-ahead+time.Minute)); got != oldIssuer {
			t.Errorf("it is found to be %v", got)
		}
	})
	t.Run("adds a name and keeps those of other replicas", func(t *testing.T) {
		more := []string{names[0], "further"}
		if got := inspect(first, more, noon); got != oldCert {
			t.Fatalf("without a name, it is found to be %v", got)
		}
		second, err := renew(first, more, oldCert, noon)
		if err != nil {
			t.Fatal(err)
		}
		if inspect(second, more, noon) != sound || inspect(second, names, noon) != sound {
			t.Errorf("it has only the names %v", parse(second[servedCert])[0].DNSNames)
		}
	})
	t.Run("takes anything else for nothing", func(t *testing.T) {
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
		stranger := made(t, noon)
		mixed := map[string][]byte{authorityCert: first[authorityCert], authorityKey: first[authorityKey], servedCert: stranger[servedCert], servedKey: stranger[servedKey]}
		if got := inspect(mixed, names, noon); got != oldCert {
			t.Errorf("with a certificate of another authority, it is found to be %v", got)
		}
	})
}

// trust returns what is to be trusted as a text.
func trust(before, authority []byte, at time.Time) []byte {
	return bundle(before, trusted(before, authority, at))
}

func TestBundle(t *testing.T) {
	first, second := made(t, noon), made(t, noon.Add(time.Hour))
	later := noon.Add(time.Hour)
	one := trust(nil, first[authorityCert], noon)
	both := trust(one, second[authorityCert], later)

	t.Run("trusts the new authority first and the old one for a while", func(t *testing.T) {
		for _, cert := range [][]byte{first[servedCert], second[servedCert]} {
			if err := believes(t, both, cert, names[0], later); err != nil {
				t.Error(err)
			}
		}
		if !parse(both)[0].Equal(parse(second[authorityCert])[0]) {
			t.Error("the old one comes first")
		}
	})
	t.Run("stays the same text when nothing is to change", func(t *testing.T) {
		for _, text := range [][]byte{both, append([]byte("# by hand\n"), both...)} {
			if string(trust(text, second[authorityCert], later)) != string(text) {
				t.Error("it was written anew")
			}
		}
	})
	t.Run("forgets the old authority", func(t *testing.T) {
		end := fades(second[authorityCert])
		if end.Before(later.Add(overlap)) {
			t.Errorf("already %s after the change", end.Sub(later))
		}
		if got := trust(both, second[authorityCert], end); trusts(got, first[authorityCert]) || !trusts(got, second[authorityCert]) {
			t.Error("it did not")
		}
	})
	t.Run("names an authority once", func(t *testing.T) {
		if got := trust(append(slices.Clone(both), both...), second[authorityCert], later); string(got) != string(both) {
			t.Errorf("it has %d", len(parse(got)))
		}
	})
	t.Run("leaves out what is no authority", func(t *testing.T) {
		got := trust([]byte("Cg==\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), first[authorityCert], noon)
		if len(parse(got)) != 1 || !trusts(got, first[authorityCert]) {
			t.Errorf("it is\n%s", got)
		}
	})
	t.Run("has an end", func(t *testing.T) {
		text := both
		for range 2 * mostTrusted {
			next := made(t, later)
			text = trust(text, next[authorityCert], later)
			if !trusts(text, next[authorityCert]) {
				t.Fatal("the present one is missing")
			}
		}
		if got := len(parse(text)); got != mostTrusted {
			t.Errorf("it has %d authorities", got)
		}
	})
}

// A new authority is used only when those who ask have heard of it.
func TestSwapAt(t *testing.T) {
	first, second := made(t, noon), made(t, noon)
	k := &Keeper{cfg: Config{Logger: discard}}
	if at := k.swapAt(first, true, noon); at.After(noon) {
		t.Error("the first certificate waits for nothing, and does")
	}
	if err := k.serve(first); err != nil {
		t.Fatal(err)
	}
	if at := k.swapAt(second, true, noon); !at.Equal(noon.Add(settle)) {
		t.Errorf("it is served after %s", at.Sub(noon))
	}
	if at := k.swapAt(second, true, noon.Add(time.Second)); !at.Equal(noon.Add(settle)) {
		t.Error("the wait begins again with every look")
	}
	if at := k.swapAt(second, false, noon); at.After(noon) {
		t.Error("nobody asks, and it waits")
	}
	third, err := renew(first, names, oldCert, noon)
	if err != nil {
		t.Fatal(err)
	}
	if at := k.swapAt(third, true, noon); at.After(noon) {
		t.Error("a certificate of the same authority waits")
	}
}
