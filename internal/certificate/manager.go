package certificate

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/times"
)

const (
	// trustDelay is how long a new CA must be trusted before a certificate of it is served.
	// All API servers have read the webhook configuration by then.
	trustDelay = 2 * time.Second
	// minInterval is the shortest and seldom the longest interval between two reconciliations
	// without a change.
	minInterval = 50 * time.Millisecond
	maxInterval = time.Hour
	// firstRetry is the delay after a failure. It doubles with every further failure, up to
	// weary, because creating a key is expensive.
	firstRetry = time.Second
	maxRetry   = 16 * time.Second
)

// Config configures a Manager.
type Config struct {
	// Client reads, watches and writes the two objects only: permissions are limited to
	// their names. It must not read from a cache.
	Client client.WithWatch
	// Secret is where the certificate is stored. It must exist, but may be empty.
	Secret types.NamespacedName
	// Webhook is the ValidatingWebhookConfiguration that gets the CA bundle. It need not
	// exist.
	Webhook string
	// Names are the DNS names of the server.
	Names  []string
	Logger *slog.Logger
}

// Validate returns all missing fields.
func (c Config) Validate() error {
	return required.Fields{
		"Client": c.Client == nil, "Secret": c.Secret.Name == "" || c.Secret.Namespace == "",
		"Webhook": c.Webhook == "", "Names": len(c.Names) == 0, "Logger": c.Logger == nil,
	}.Check()
}

// Manager manages one certificate. Every replica runs one and may renew the certificate;
// the resourceVersion of the Secret resolves conflicts.
type Manager struct {
	cfg Config

	served atomic.Pointer[served]
	trust  atomic.Pointer[trust] // last observed state; nil before the first

	mu              sync.Mutex
	currentFailures map[string]string // current failures, by activity

	// Only the loop uses these fields.
	secretCA       []byte    // the CA in the Secret
	secretCASince  time.Time // since when
	trustedCA      []byte    // the CA in the Secret, if it is trusted
	trustedCASince time.Time // since when the API servers can know it
	failures       int       // consecutive failures
}

// served is the certificate that the server presents.
type served struct {
	pair      tls.Certificate
	text      string // tls.crt, to detect a change
	authority []byte
}

// trust is which CAs the API servers trust.
type trust struct {
	hasWebhooks bool     // whether the configuration has any webhook
	bundles     [][]byte // of every webhook
}

// has reports whether every webhook trusts the CA.
func (t *trust) has(authority []byte) bool {
	return t.hasWebhooks && !slices.ContainsFunc(t.bundles, func(bundle []byte) bool { return !trusts(bundle, authority) })
}

// New returns a manager; Start starts it.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the certificate manager: %w", err)
	}
	return &Manager{cfg: cfg, currentFailures: map[string]string{}}, nil
}

// NeedLeaderElection returns false: every replica serves.
func (k *Manager) NeedLeaderElection() bool { return false }

var errNone = errors.New("there is no certificate yet")

// GetCertificate returns the certificate to serve, for tls.Config.
func (k *Manager) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := k.served.Load(); s != nil {
		return &s.pair, nil
	}
	return nil, errNone
}

// Ready returns why API servers would not trust this server. Failures that do not affect
// that are logged only.
func (k *Manager) Ready() error {
	shown, trusted := k.served.Load(), k.trust.Load()
	var err error
	switch {
	case shown == nil:
		err = errNone
	case trusted == nil:
		err = errors.New("it is not known yet whether the API servers trust the certificate")
	case trusted.hasWebhooks && !trusted.has(shown.authority):
		err = errors.New("the API servers do not trust the certificate yet")
	default:
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.currentFailures) == 0 {
		return err
	}
	told := make([]string, 0, len(k.currentFailures))
	for _, what := range slices.Sorted(maps.Keys(k.currentFailures)) {
		told = append(told, what+": "+k.currentFailures[what])
	}
	return fmt.Errorf("%w: %s", err, strings.Join(told, "; "))
}

// Start manages the certificate until ctx ends. It never fails: it retries until missing
// objects exist, and blocks no other part of the controller.
func (k *Manager) Start(ctx context.Context) error {
	signal := make(chan struct{}, 1)
	nudge := func() {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.follow(ctx, "watching "+k.secret(), &corev1.SecretList{}, k.cfg.Secret, nudge) })
	wg.Go(func() {
		k.follow(ctx, "watching "+k.webhook(), &admissionv1.ValidatingWebhookConfigurationList{}, types.NamespacedName{Name: k.cfg.Webhook}, nudge)
	})
	for {
		wait := k.reconcile(ctx)
		select {
		case <-signal:
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// follow calls nudge when an object may have changed, until ctx ends.
func (k *Manager) follow(ctx context.Context, what string, kind client.ObjectList, name types.NamespacedName, nudge func()) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := k.watchOnce(ctx, what, kind, name, nudge)
		if ctx.Err() != nil {
			return
		}
		if failures++; err == nil { // every watch ends after a while
			failures = 0
		}
		k.logChange(what, err)
		select {
		case <-time.After(time.Until(began.Add(times.Backoff(failures, firstRetry, maxRetry)))):
		case <-ctx.Done():
		}
	}
}

// watchOnce runs one watch of an object.
func (k *Manager) watchOnce(ctx context.Context, what string, kind client.ObjectList, name types.NamespacedName, nudge func()) error {
	changes, err := k.cfg.Client.Watch(ctx, kind, client.InNamespace(name.Namespace), client.MatchingFields{"metadata.name": name.Name})
	if err != nil {
		return err
	}
	defer changes.Stop()
	k.logChange(what, nil)
	nudge() // the object may have changed while there was no watch
	for change := range changes.ResultChan() {
		if change.Type == watch.Error {
			return apierrors.FromObject(change.Object)
		}
		nudge()
	}
	return nil
}

// reconcile reconciles once and returns the delay until the next time if nothing changes.
func (k *Manager) reconcile(ctx context.Context) time.Duration {
	next, isWell := k.ensureAll(ctx)
	if !isWell {
		k.failures++
		return times.Backoff(k.failures, firstRetry, maxRetry)
	}
	k.failures = 0
	return min(max(time.Until(next), minInterval), maxInterval)
}

// ensureAll reads the Secret and the webhook configuration and writes what has to change: first
// the Secret, then the CA bundle, and only then the served certificate. It reports a
// failure and continues with the other steps if possible.
func (k *Manager) ensureAll(ctx context.Context) (next time.Time, isWell bool) {
	data, secretErr := k.ensureSecret(ctx, time.Now())
	fading, trustErr := k.ensureTrust(ctx, data[authorityCert], time.Now())
	if ctx.Err() != nil {
		return next, false
	}
	swap, swapErr := k.swap(data, time.Now()) // a new time, because creating and writing a key takes a while
	for what, err := range map[string]error{
		"keeping the certificate in " + k.secret():                        cmp.Or(secretErr, swapErr),
		"having the API servers trust the certificate, by " + k.webhook(): trustErr,
	} {
		if !apierrors.IsConflict(err) { // on a conflict, another replica has renewed it
			k.logChange(what, err)
		}
	}
	next = due(data)
	for _, at := range []time.Time{swap, fading} {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return next, secretErr == nil && trustErr == nil && swapErr == nil
}

func (k *Manager) secret() string { return "Secret " + k.cfg.Secret.String() }

func (k *Manager) webhook() string { return "ValidatingWebhookConfiguration " + k.cfg.Webhook }

// ensureSecret returns the content of the Secret, renewed if necessary.
func (k *Manager) ensureSecret(ctx context.Context, now time.Time) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	if err := k.cfg.Client.Get(ctx, k.cfg.Secret, secret); err != nil {
		return nil, fmt.Errorf("reading it: %w", err)
	}
	what := inspect(secret.Data, k.cfg.Names, now)
	if what == sound {
		return secret.Data, nil
	}
	made, err := renew(secret.Data, k.cfg.Names, what, now)
	if err != nil {
		return nil, err
	}
	changed := secret.DeepCopy()
	changed.Data = made
	// The update requires the version that was read, so only one replica succeeds.
	if err := k.cfg.Client.Update(ctx, changed); err != nil {
		return nil, fmt.Errorf("writing a new one: %w", err)
	}
	k.cfg.Logger.Info("webhook certificate created", "names", k.cfg.Names, "newAuthority", what == oldIssuer, "replacedAt", due(made))
	return made, nil
}

// ensureTrust makes the API servers trust the CA in the Secret, and the CA of the served
// certificate as long as it differs. It returns when all other CAs are to be removed; zero
// if there are none.
func (k *Manager) ensureTrust(ctx context.Context, authority []byte, now time.Time) (fading time.Time, err error) {
	config := &admissionv1.ValidatingWebhookConfiguration{}
	switch err := k.cfg.Client.Get(ctx, client.ObjectKey{Name: k.cfg.Webhook}, config); {
	case apierrors.IsNotFound(err):
		k.trustedCA = nil
		k.trust.Store(&trust{})
		return fading, nil
	case err != nil:
		return fading, fmt.Errorf("reading it: %w", err)
	}
	k.recordTrust(config, authority, now)
	wanted, fading := k.wanted(authority, now)
	if len(wanted) == 0 {
		return fading, nil
	}
	changed, differs := config.DeepCopy(), false
	for i := range changed.Webhooks {
		list := &changed.Webhooks[i].ClientConfig.CABundle
		text := bundle(*list, wanted)
		differs = differs || string(text) != string(*list)
		*list = text
	}
	if !differs {
		return fading, nil
	}
	patch := client.StrategicMergeFrom(config, client.MergeFromWithOptimisticLock{})
	if err := k.cfg.Client.Patch(ctx, changed, patch); err != nil {
		return fading, fmt.Errorf("writing its authority: %w", err)
	}
	k.recordTrust(changed, authority, time.Now())
	k.cfg.Logger.Info("CA bundle written", "webhook", k.cfg.Webhook, "authorities", len(wanted))
	return fading, nil
}

// wanted returns the CAs to trust now, and when only the CA in the Secret remains.
func (k *Manager) wanted(authority []byte, now time.Time) (list []*x509.Certificate, fading time.Time) {
	if len(authority) > 0 && string(k.secretCA) != string(authority) {
		k.secretCA, k.secretCASince = authority, now
	}
	list = parse(authority)
	if shown := k.served.Load(); shown != nil && string(shown.authority) != string(authority) {
		list = append(list, parse(shown.authority)...)
	}
	// The time since which the Secret has the CA counts, not the age of the CA: it may come
	// from a backup. Without a CA in the Secret, nothing is replaced.
	fades := k.secretCASince.Add(overlap)
	if len(list) == 0 || len(authority) > 0 && !now.Before(fades) {
		return list, fading
	}
	if list = withOthers(list, slices.Concat(k.trust.Load().bundles...), now); len(list) > 1 {
		fading = fades
	}
	return list, fading
}

// recordTrust records which CAs the API servers trust, from the stored configuration.
func (k *Manager) recordTrust(config *admissionv1.ValidatingWebhookConfiguration, authority []byte, now time.Time) {
	seen := &trust{hasWebhooks: true}
	for _, hook := range config.Webhooks {
		seen.bundles = append(seen.bundles, append(slices.Clone(hook.ClientConfig.CABundle), '\n'))
	}
	k.trust.Store(seen)
	switch {
	case !seen.has(authority):
		k.trustedCA = nil
	case string(k.trustedCA) != string(authority):
		k.trustedCA, k.trustedCASince = authority, now
	}
}

// swap serves the content of the Secret once the API servers have had time to read its CA;
// until then it keeps the old certificate and returns when to try again. If nothing is
// served yet, or there is no webhook, it does not wait.
func (k *Manager) swap(data map[string][]byte, now time.Time) (at time.Time, err error) {
	if data == nil {
		return at, nil
	}
	authority := data[authorityCert]
	shown, trusted := k.served.Load(), k.trust.Load()
	if shown != nil && string(shown.authority) != string(authority) && (trusted == nil || trusted.hasWebhooks) {
		if k.trustedCA == nil {
			return at, nil
		}
		if at = k.trustedCASince.Add(trustDelay); now.Before(at) {
			return at, nil
		}
	}
	return time.Time{}, k.serve(data)
}

// serve presents the content of the Secret to new connections.
func (k *Manager) serve(data map[string][]byte) error {
	text := string(data[servedCert])
	if shown := k.served.Load(); shown != nil && shown.text == text {
		return nil
	}
	pair, err := tls.X509KeyPair(data[servedCert], data[servedKey])
	if err != nil {
		return fmt.Errorf("reading it: %w", err)
	}
	k.served.Store(&served{pair: pair, text: text, authority: data[authorityCert]})
	k.cfg.Logger.Info("webhook certificate served", "until", pair.Leaf.NotAfter)
	return nil
}

// logChange logs a failure when it starts, changes and ends.
func (k *Manager) logChange(what string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		if _, was := k.currentFailures[what]; was {
			delete(k.currentFailures, what)
			k.cfg.Logger.Info("webhook certificate: failure resolved", "what", what)
		}
		return
	}
	if k.currentFailures[what] == err.Error() {
		return
	}
	k.currentFailures[what] = err.Error()
	log := k.cfg.Logger
	if apierrors.IsForbidden(err) {
		log = log.With("manifest", "deploy/install.yaml")
	}
	log.Warn("webhook certificate: failure", "what", what, "err", err)
}
