package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// limit bounds every wait: long enough for two busy cores.
const limit = time.Minute

var discard = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // client libraries complain without a logger
	m.Run()
}

// fixture is a cluster with the permissions and the Secret of the manifests.
type fixture struct {
	*testing.T
	cluster *testbed.Cluster
	api     client.Client // as the admin
	looks   *atomic.Int64 // reads of the Secret by managers
}

func newPlace(t *testing.T) *fixture {
	t.Helper()
	c := testbed.New(t, testbed.Config{})
	testkit.Must(t, install.Install(t.Context(), c))
	api := testkit.Value(client.New(c.AdminConfig(), client.Options{Scheme: scheme.Scheme})).Must(t)
	return &fixture{t, c, api, new(atomic.Int64)}
}

// in returns the place for a part of a test.
func (p *fixture) in(t *testing.T) *fixture {
	t.Helper()
	return &fixture{t, p.cluster, p.api, p.looks}
}

// keep starts a manager with the permissions of the controller.
func (p *fixture) keep() *Manager {
	p.Helper()
	return p.keepAloud(p.Output())
}

// keepAloud is keep with a log.
func (p *fixture) keepAloud(log io.Writer) *Manager {
	p.Helper()
	config := testkit.Value(install.Config(p.Context(), p.cluster)).Must(p)
	us := testkit.Value(client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})).Must(p)
	counted := interceptor.NewClient(us, interceptor.Funcs{
		Get: func(ctx context.Context, us client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
			if _, ok := into.(*corev1.Secret); ok {
				p.looks.Add(1)
			}
			return us.Get(ctx, key, into, options...)
		},
	})
	k := testkit.Value(New(Config{
		Client: counted, Secret: types.NamespacedName{Namespace: install.Namespace, Name: install.WebhookSecret},
		Webhook: install.WebhookConfig, Names: names, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})).Must(p)
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

func (p *fixture) secret() *corev1.Secret {
	p.Helper()
	secret := &corev1.Secret{}
	testkit.Must(p, p.api.Get(p.Context(), types.NamespacedName{Namespace: install.Namespace, Name: install.WebhookSecret}, secret))
	return secret
}

func (p *fixture) trusted() ([]byte, error) {
	config := &admissionv1.ValidatingWebhookConfiguration{}
	if err := p.api.Get(p.Context(), client.ObjectKey{Name: install.WebhookConfig}, config); err != nil {
		return nil, err
	}
	if len(config.Webhooks) != 2 || !bytes.Equal(config.Webhooks[0].ClientConfig.CABundle, config.Webhooks[1].ClientConfig.CABundle) {
		return nil, errors.New("the two webhooks trust different authorities")
	}
	return config.Webhooks[0].ClientConfig.CABundle, nil
}

// register creates the configuration of a webhook that is never called.
func (p *fixture) register() {
	p.Helper()
	none, path := admissionv1.SideEffectClassNone, "https://localhost:1/"
	config := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: install.WebhookConfig}}
	for _, name := range []string{"a.example.com", "b.example.com"} {
		config.Webhooks = append(config.Webhooks, admissionv1.ValidatingWebhook{
			Name: name, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, ClientConfig: admissionv1.WebhookClientConfig{URL: &path},
		})
	}
	testkit.Must(p, p.api.Create(p.Context(), config))
}

// serves returns why a client that trusts the bundle cannot talk to a server with the
// manager's certificate.
func serves(k *Manager, bundle []byte) error {
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

func (p *fixture) served(managers ...*Manager) {
	p.Helper()
	testkit.Eventually(p, "all being served and trusted", func() error {
		bundle, err := p.trusted()
		if err != nil {
			return err
		}
		content := p.secret().Data
		for i, k := range managers {
			if err := serves(k, bundle); err != nil {
				return fmt.Errorf("manager %d: %w", i+1, err)
			}
			if shown := k.served.Load(); shown.text != string(content[servedCert]) {
				return fmt.Errorf("manager %d shows another certificate than is stored", i+1)
			}
		}
		return nil
	})
}

// swapped returns when the managers serve another certificate. Until then, all of them
// answer a client that trusts the current bundle.
func (p *fixture) swapped(old string, managers ...*Manager) {
	p.Helper()
	testkit.Eventually(p, "another certificate", func() error {
		bundle := testkit.Value(p.trusted()).Must(p)
		for _, k := range managers {
			shown := k.served.Load()
			if err := serves(k, bundle); err != nil {
				now := testkit.Value(p.trusted()).Must(p) // the one above was read before the last change
				testkit.Must(p, serves(k, now))
			}
			if shown.text == old {
				return errors.New("the old one is still served")
			}
		}
		return nil
	})
}

// forget makes the API servers trust only the CA in the Secret.
func (p *fixture) forget() {
	p.Helper()
	config := &admissionv1.ValidatingWebhookConfiguration{}
	testkit.Must(p, p.api.Get(p.Context(), client.ObjectKey{Name: install.WebhookConfig}, config))
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = p.secret().Data[authorityCert]
	}
	testkit.Must(p, p.api.Update(p.Context(), config))
}

func TestManager(t *testing.T) {
	p := newPlace(t)
	first := p.keep()
	testkit.Eventually(p, "a certificate without a webhook", func() error {
		_, err := first.GetCertificate(nil)
		return err
	})
	second := p.keep()
	p.register()
	p.served(first, second)

	t.Run("writes_nothing_while_nothing_changes", func(t *testing.T) {
		p := p.in(t)
		before := p.secret().ResourceVersion
		third := p.keep()
		p.served(first, second, third)
		if after := p.secret().ResourceVersion; after != before {
			t.Error("another replica has written the Secret")
		}
	})

	t.Run("rejects_no_client_while_the_CA_changes", func(t *testing.T) {
		p := p.in(t)
		const changes = 3
		for i := range changes {
			before := testkit.Value(p.trusted()).Must(p)
			old := maps.Clone(p.secret().Data)
			secret := p.secret()
			secret.Data = nil
			testkit.Must(p, p.api.Update(p.Context(), secret))
			p.swapped(string(old[servedCert]), first, second)
			after := testkit.Value(p.trusted()).Must(p)
			if !trusts(after, old[authorityCert]) || len(parse(after)) != len(parse(before))+1 {
				t.Errorf("change %d: the old authority is no longer trusted", i+1)
			}
			p.served(first, second)
		}
	})

	t.Run("rejects_no_client_while_a_backup_is_restored", func(t *testing.T) {
		p := p.in(t)
		old := maps.Clone(p.secret().Data)
		secret := p.secret()
		secret.Data = nil
		testkit.Must(p, p.api.Update(p.Context(), secret))
		p.swapped(string(old[servedCert]), first, second)
		p.served(first, second)
		p.forget() // as if the overlap were over
		between := maps.Clone(p.secret().Data)
		secret = p.secret()
		secret.Data = old
		testkit.Must(p, p.api.Update(p.Context(), secret))
		p.swapped(string(between[servedCert]), first, second)
		p.served(first, second)
		after := testkit.Value(p.trusted()).Must(p)
		testkit.Check(t, trusts(after, between[authorityCert]), "what was served before the backup came is no longer trusted")
		if got := string(p.secret().Data[servedCert]); got != string(old[servedCert]) {
			t.Error("the backup was replaced")
		}
	})

	t.Run("repairs_the_CA_bundle", func(t *testing.T) {
		p := p.in(t)
		config := &admissionv1.ValidatingWebhookConfiguration{}
		testkit.Must(p, p.api.Get(p.Context(), client.ObjectKey{Name: install.WebhookConfig}, config))
		config.Webhooks[1].ClientConfig.CABundle = nil
		testkit.Must(p, p.api.Update(p.Context(), config))
		p.served(first, second)
		testkit.Must(p, p.api.Delete(p.Context(), config))
		p.register()
		p.served(first, second)
	})

	t.Run("continues_without_the_Secret_and_with_a_new_one", func(t *testing.T) {
		p := p.in(t)
		secret := p.secret()
		testkit.Must(p, p.api.Delete(p.Context(), secret))
		bundle := testkit.Value(p.trusted()).Must(p)
		if err := errors.Join(serves(first, bundle), serves(second, bundle)); err != nil {
			t.Error(err)
		}
		secret.ResourceVersion, secret.UID, secret.Data = "", "", nil
		testkit.Must(p, p.api.Create(p.Context(), secret))
		testkit.Until(p, "a new certificate", func() bool { return len(p.secret().Data) != 0 })
		p.served(first, second)
	})

	t.Run("has_no_other_permissions", func(t *testing.T) {
		p := p.in(t)
		config := testkit.Value(install.Config(t.Context(), p.cluster)).Must(p)
		us := testkit.Value(client.New(config, client.Options{Scheme: scheme.Scheme})).Must(p)
		if err := us.List(t.Context(), &corev1.SecretList{}, client.InNamespace(install.Namespace)); !apierrors.IsForbidden(err) {
			t.Errorf("listing all Secrets: %v", err)
		}
		if err := us.List(t.Context(), &admissionv1.ValidatingWebhookConfigurationList{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing all webhooks: %v", err)
		}
	})
}

// allow gives the controller only these permissions on the Secret and on the webhook.
func (p *fixture) allow(onSecret, onWebhook []string) {
	p.Helper()
	replace := func(rules []rbacv1.PolicyRule, resource string, verbs []string) {
		at := slices.IndexFunc(rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) })
		rules[at].Verbs = append(slices.Clone(verbs), "deletecollection") // a rule needs a verb, and this one is unused
	}
	role := &rbacv1.Role{}
	testkit.Must(p, p.api.Get(p.Context(), client.ObjectKey{Namespace: install.Namespace, Name: install.Account}, role))
	replace(role.Rules, "secrets", onSecret)
	testkit.Must(p, p.api.Update(p.Context(), role))
	clusterRole := &rbacv1.ClusterRole{}
	testkit.Must(p, p.api.Get(p.Context(), client.ObjectKey{Name: install.Account}, clusterRole))
	replace(clusterRole.Rules, "validatingwebhookconfigurations", onWebhook)
	testkit.Must(p, p.api.Update(p.Context(), clusterRole))
}

// nudge changes the webhook without an effect.
func (p *fixture) nudge() {
	p.Helper()
	config := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: install.WebhookConfig}}
	patch := fmt.Sprintf(`{"metadata": {"annotations": {"example.com/nudge": "%d"}}}`, p.looks.Load())
	testkit.Must(p, p.api.Patch(p.Context(), config, client.RawPatch(types.MergePatchType, []byte(patch))))
}

func TestManagerReportsMissingPermissions(t *testing.T) {
	p := newPlace(t)
	p.register()
	log := &testkit.Log{}
	p.allow(nil, nil)
	k := p.keepAloud(log)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(k)
	metric := func(name string) float64 {
		t.Helper()
		families := testkit.Value(registry.Gather()).Must(p)
		for _, family := range families {
			if family.GetName() == "autohealer_webhook_certificate_"+name {
				return family.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	for _, step := range []struct {
		onSecret, onWebhook []string
		lacks               []string // as the API server names it
		reason              string   // why it is not ready; empty if it is
		isTrusted           float64
		times               int // how often all of this was logged by then
	}{
		{nil, nil, []string{`cannot get resource \"secrets\"`, `cannot watch resource \"secrets\"`, `cannot get resource \"validatingwebhookconfigurations\"`, `cannot watch resource \"validatingwebhookconfigurations\"`}, "there is no certificate yet", 0, 1},
		{[]string{"get", "watch"}, []string{"watch"}, []string{`cannot update resource \"secrets\"`}, "there is no certificate yet", 0, 1},
		{[]string{"get", "watch", "update"}, []string{"watch"}, []string{`cannot get resource \"validatingwebhookconfigurations\"`}, "it is not known yet whether the API servers trust the certificate", 0, 1},
		{[]string{"get", "watch", "update"}, []string{"get", "watch"}, []string{`cannot patch resource \"validatingwebhookconfigurations\"`}, "the API servers do not trust the certificate yet", 0, 1},
		{[]string{"get", "watch", "update"}, []string{"get", "watch", "patch"}, nil, "", 1, 0},
		// A failure does not remove what already works.
		{[]string{"watch"}, []string{"watch"}, []string{`cannot get resource \"secrets\"`}, "", 1, 2},
	} {
		p.allow(step.onSecret, step.onWebhook)
		testkit.Eventually(p, fmt.Sprint("what is told with the rights ", step.onSecret, step.onWebhook), func() error {
			p.nudge()
			for _, lack := range step.lacks {
				if got := log.Count("level=WARN", lack, "manifest=deploy/install.yaml"); got != step.times {
					return fmt.Errorf("the log says %d times: %s", got, lack)
				}
			}
			err := k.Ready()
			if step.reason == "" {
				return err
			}
			if err == nil {
				return errors.New("it is ready")
			}
			for _, part := range append(step.lacks, step.reason) {
				if !strings.Contains(err.Error(), strings.ReplaceAll(part, `\`, "")) {
					return fmt.Errorf("it does not say %q: %w", part, err)
				}
			}
			return nil
		})
		if got := metric("trusted"); got != step.isTrusted {
			t.Errorf("with %v and %v, trusted is %v", step.onSecret, step.onWebhook, got)
		}
	}
	if got, want := metric("expiration_timestamp_seconds"), float64(parse(p.secret().Data[servedCert])[0].NotAfter.Unix()); got != want {
		t.Errorf("it ends at %v, want %v", got, want)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	// Every reconciliation fails in the same way, and only the first is logged.
	const lack = `cannot get resource \"secrets\"`
	before, looks := log.Count(lack), p.looks.Load()
	testkit.Eventually(p, "further looks", func() error {
		p.nudge()
		if p.looks.Load() < looks+3 {
			return errors.New("there were none")
		}
		return nil
	})
	if after := log.Count(lack); after != before {
		t.Errorf("the same trouble was told %d times more", after-before)
	}
}

func TestNewListsMissingFields(t *testing.T) {
	_, err := New(Config{})
	for _, field := range []string{"Client", "Secret", "Webhook", "Names", "Logger"} {
		testkit.Check(t, err != nil && bytes.Contains([]byte(err.Error()), []byte(field+" is missing")), "%s: %v", field, err)
	}
}
