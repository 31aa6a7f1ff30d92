package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/rig"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// limit bounds every wait: long enough for two busy cores.
const limit = time.Minute

var discard = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // of the client's library, which complains otherwise
	m.Run()
}

// place is a cluster with the rights and the Secret of the manifests.
type place struct {
	*testing.T
	cluster *testbed.Cluster
	api     client.Client // as the admin
}

func newPlace(t *testing.T) *place {
	t.Helper()
	c := testbed.New(t, testbed.Config{})
	if err := rig.Install(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(c.AdminConfig(), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &place{t, c, api}
}

func (p *place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *place) eventually(what string, check func() error) {
	p.Helper()
	look := time.NewTicker(glance)
	defer look.Stop()
	var err error
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); <-look.C {
		if err = check(); err == nil {
			return
		}
	}
	p.Fatalf("%s: not after %s: %v", what, limit, err)
}

// keep starts a keeper with the rights of the controller.
func (p *place) keep(names ...string) *Keeper {
	p.Helper()
	config, err := rig.Config(p.Context(), p.cluster)
	p.must(err)
	writer, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	p.must(err)
	k, err := New(Config{
		REST: config, Options: cache.Options{Scheme: scheme.Scheme}, Writer: writer,
		Secret:  types.NamespacedName{Namespace: rig.Namespace, Name: rig.WebhookSecret},
		Webhook: rig.WebhookConfig, Names: names, Logger: slog.New(slog.NewTextHandler(p.Output(), nil)),
	})
	p.must(err)
	ctx, cancel := context.WithCancel(p.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := k.Start(ctx); err != nil {
			p.Error(err)
		}
	})
	p.Cleanup(func() { cancel(); wg.Wait() })
	return k
}

func (p *place) secret() *corev1.Secret {
	p.Helper()
	secret := &corev1.Secret{}
	p.must(p.api.Get(p.Context(), types.NamespacedName{Namespace: rig.Namespace, Name: rig.WebhookSecret}, secret))
	return secret
}

func (p *place) trusted() ([]byte, error) {
	config := &admissionv1.ValidatingWebhookConfiguration{}
	if err := p.api.Get(p.Context(), client.ObjectKey{Name: rig.WebhookConfig}, config); err != nil {
		return nil, err
	}
	if len(config.Webhooks) != 2 || !bytes.Equal(config.Webhooks[0].ClientConfig.CABundle, config.Webhooks[1].ClientConfig.CABundle) {
		return nil, errors.New("the two webhooks trust different authorities")
	}
	return config.Webhooks[0].ClientConfig.CABundle, nil
}

// register makes the configuration of a webhook that nobody calls.
func (p *place) register() {
	p.Helper()
	none, path := admissionv1.SideEffectClassNone, "https://localhost:1/"
	config := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: rig.WebhookConfig}}
	for _, name := range []string{"a.example.com", "b.example.com"} {
		config.Webhooks = append(config.Webhooks, admissionv1.ValidatingWebhook{
			Name: name, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, ClientConfig: admissionv1.WebhookClientConfig{URL: &path},
		})
	}
	p.must(p.api.Create(p.Context(), config))
}

// serves says what keeps a client that trusts the bundle from talking to a server
// that shows the keeper's certificate.
func serves(k *Keeper, bundle []byte) error {
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: k.GetCertificate, MinVersion: tls.VersionTLS12})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: slog.NewLogLogger(discard.Handler(), 0), ReadHeaderTimeout: limit}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: limit}, "tcp", listener.Addr().String(), &tls.Config{RootCAs: pool, ServerName: names[0], MinVersion: tls.VersionTLS12})
	if err != nil {
		return err
	}
	return connection.Close()
}

func (p *place) served(keepers ...*Keeper) {
	p.Helper()
	p.eventually("all being served and trusted", func() error {
		bundle, err := p.trusted()
		if err != nil {
			return err
		}
		content := p.secret().Data
		for i, k := range keepers {
			if err := serves(k, bundle); err != nil {
				return fmt.Errorf("keeper %d: %w", i+1, err)
			}
			if shown := k.served.Load(); shown.text != string(content[servedCert]) {
				return fmt.Errorf("keeper %d shows another certificate than is stored", i+1)
			}
		}
		return nil
	})
}

func TestKeeper(t *testing.T) {
	p := newPlace(t)
	first := p.keep(names...)
	p.eventually("a certificate without a webhook", func() error {
		_, err := first.GetCertificate(nil)
		return err
	})
	second := p.keep(names...)
	p.register()
	p.served(first, second)

	t.Run("writes nothing while nothing changes", func(t *testing.T) {
		p := &place{t, p.cluster, p.api}
		before := p.secret().ResourceVersion
		third := p.keep(names...)
		p.served(first, second, third)
		if after := p.secret().ResourceVersion; after != before {
			t.Error("another replica has written the Secret")
		}
	})

	t.Run("refuses nobody while the authority changes", func(t *testing.T) {
		p := &place{t, p.cluster, p.api}
		const changes = 3
		for i := range changes {
			before, err := p.trusted()
			p.must(err)
			old := maps.Clone(p.secret().Data)
			secret := p.secret()
			secret.Data = nil
			p.must(p.api.Update(p.Context(), secret))
			// Whoever asks with what the API server trusts at that moment is
			// answered, by both.
			p.eventually("another certificate", func() error {
				bundle, err := p.trusted()
				p.must(err)
				for _, k := range []*Keeper{first, second} {
					shown := k.served.Load()
					if err := serves(k, bundle); err != nil {
						now, err := p.trusted() // the one above was read before the last change
						p.must(err)
						p.must(serves(k, now))
					}
					if shown.text == string(old[servedCert]) {
						return errors.New("the old one is still served")
					}
				}
				return nil
			})
			after, err := p.trusted()
			p.must(err)
			if !trusts(after, old[authorityCert]) || len(parse(after)) != len(parse(before))+1 {
				t.Errorf("change %d: the old authority is no longer trusted", i+1)
			}
			p.served(first, second)
		}
	})

	t.Run("mends what is trusted", func(t *testing.T) {
		p := &place{t, p.cluster, p.api}
		config := &admissionv1.ValidatingWebhookConfiguration{}
		p.must(p.api.Get(p.Context(), client.ObjectKey{Name: rig.WebhookConfig}, config))
		config.Webhooks[1].ClientConfig.CABundle = nil
		p.must(p.api.Update(p.Context(), config))
		p.served(first, second)
		p.must(p.api.Delete(p.Context(), config))
		p.register()
		p.served(first, second)
	})

	t.Run("goes on without the Secret, and from a new one", func(t *testing.T) {
		p := &place{t, p.cluster, p.api}
		secret := p.secret()
		p.must(p.api.Delete(p.Context(), secret))
		bundle, err := p.trusted()
		p.must(err)
		if err := errors.Join(serves(first, bundle), serves(second, bundle)); err != nil {
			t.Error(err)
		}
		secret.ResourceVersion, secret.UID, secret.Data = "", "", nil
		p.must(p.api.Create(p.Context(), secret))
		p.eventually("a new certificate", func() error {
			if len(p.secret().Data) == 0 {
				return errors.New("it is empty")
			}
			return nil
		})
		p.served(first, second)
	})

	t.Run("has no other rights", func(t *testing.T) {
		p := &place{t, p.cluster, p.api}
		config, err := rig.Config(t.Context(), p.cluster)
		p.must(err)
		us, err := client.New(config, client.Options{Scheme: scheme.Scheme})
		p.must(err)
		if err := us.List(t.Context(), &corev1.SecretList{}, client.InNamespace(rig.Namespace)); !apierrors.IsForbidden(err) {
			t.Errorf("listing all Secrets: %v", err)
		}
		if err := us.List(t.Context(), &admissionv1.ValidatingWebhookConfigurationList{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing all webhooks: %v", err)
		}
	})
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	_, err := New(Config{})
	for _, field := range []string{"REST", "Writer", "Secret", "Webhook", "Names", "Logger"} {
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(field+" is missing")) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
