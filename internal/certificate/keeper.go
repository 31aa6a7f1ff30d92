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
)

const (
	// settle is how long a new authority must have been trusted before anything
	// is served that it has signed: the API servers have heard of it by then.
	settle = 2 * time.Second
	// glance is the least time between two looks that nothing asked for, and seldom
	// the most.
	glance = 50 * time.Millisecond
	seldom = time.Hour
	// often is how long the keeper waits after something went wrong, and twice as
	// long after every further time, up to weary: to make a key is work.
	often = time.Second
	weary = 16 * time.Second
)

// Config is what a keeper works with.
type Config struct {
	// Client reads, watches and writes the two objects, and no others: rights are
	// bound to their names. What it reads must be fresh.
	Client client.WithWatch
	// Secret is where the certificate is kept. It must be there, if only empty.
	Secret types.NamespacedName
	// Webhook is the ValidatingWebhookConfiguration whose API servers are to
	// trust the certificate. It need not be there.
	Webhook string
	// Names are what the server is called by those who ask it.
	Names  []string
	Logger *slog.Logger
}

// Validate says everything that is missing.
func (c Config) Validate() error {
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Client", c.Client == nil}, {"Secret", c.Secret.Name == "" || c.Secret.Namespace == ""},
		{"Webhook", c.Webhook == ""}, {"Names", len(c.Names) == 0}, {"Logger", c.Logger == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// Manager keeps one certificate. Every replica has one, and any of them may renew
// it: they agree through the version of the Secret.
type Manager struct {
	cfg Config

	served atomic.Pointer[served]
	trust  atomic.Pointer[trust] // as it was last seen; nil before that

	mu       sync.Mutex
	troubles map[string]string // what goes wrong now, by what is being done

	// Only the loop touches these.
	present   []byte    // the authority in the Secret
	presentAt time.Time // since when
	heard     []byte    // the authority in the Secret, if it is trusted
	heardAt   time.Time // since when the API servers could have heard so
	failures  int       // in a row
}

// served is what is shown to those who connect.
type served struct {
	pair      tls.Certificate
	text      string // tls.crt, to know it again
	authority []byte
}

// trust is whom the API servers trust.
type trust struct {
	asks    bool     // whether they ask anybody
	bundles [][]byte // of every webhook
}

// has says whether they all trust an authority.
func (t *trust) has(authority []byte) bool {
	return t.asks && !slices.ContainsFunc(t.bundles, func(bundle []byte) bool { return !trusts(bundle, authority) })
}

// New returns a keeper that does nothing until it is started.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the keeper of certificates: %w", err)
	}
	return &Manager{cfg: cfg, troubles: map[string]string{}}, nil
}

// NeedLeaderElection says that every replica serves.
func (k *Manager) NeedLeaderElection() bool { return false }

var errNone = errors.New("there is no certificate yet")

// GetCertificate is what a TLS server asks.
func (k *Manager) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := k.served.Load(); s != nil {
		return &s.pair, nil
	}
	return nil, errNone
}

// Ready says why the API servers would not talk to whoever shows the certificate.
// What goes wrong while they do is no reason: it is told by the log.
func (k *Manager) Ready() error {
	shown, trusted := k.served.Load(), k.trust.Load()
	var err error
	switch {
	case shown == nil:
		err = errNone
	case trusted == nil:
		err = errors.New("it is not known yet whether the API servers trust the certificate")
	case trusted.asks && !trusted.has(shown.authority):
		err = errors.New("the API servers do not trust the certificate yet")
	default:
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.troubles) == 0 {
		return err
	}
	told := make([]string, 0, len(k.troubles))
	for _, what := range slices.Sorted(maps.Keys(k.troubles)) {
		told = append(told, what+": "+k.troubles[what])
	}
	return fmt.Errorf("%w: %s", err, strings.Join(told, "; "))
}

// Start keeps the certificate until ctx ends. It never gives up: what is missing
// is waited for, and nobody else has to wait for that.
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
		wait := k.look(ctx)
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
		err := k.hear(ctx, what, kind, name, nudge)
		if ctx.Err() != nil {
			return
		}
		if failures++; err == nil { // every watch ends after a while
			failures = 0
		}
		k.tell(what, err)
		select {
		case <-time.After(time.Until(began.Add(pause(failures)))):
		case <-ctx.Done():
		}
	}
}

// hear is one watch of an object.
func (k *Manager) hear(ctx context.Context, what string, kind client.ObjectList, name types.NamespacedName, nudge func()) error {
	changes, err := k.cfg.Client.Watch(ctx, kind, client.InNamespace(name.Namespace), client.MatchingFields{"metadata.name": name.Name})
	if err != nil {
		return err
	}
	defer changes.Stop()
	k.tell(what, nil)
	nudge() // of what has changed while nobody watched
	for change := range changes.ResultChan() {
		if change.Type == watch.Error {
			return apierrors.FromObject(change.Object)
		}
		nudge()
	}
	return nil
}

// pause returns how long to wait after something went wrong so many times.
func pause(failures int) time.Duration {
	wait := often
	for ; failures > 1 && wait < weary; failures-- {
		wait *= 2
	}
	return wait
}

// look does what is to be done, and returns how long there is nothing more to do
// if nothing changes.
func (k *Manager) look(ctx context.Context) time.Duration {
	next, isWell := k.keep(ctx)
	if !isWell {
		k.failures++
		return pause(k.failures)
	}
	k.failures = 0
	return min(max(time.Until(next), glance), seldom)
}

// keep reads the Secret and the webhook, decides, and writes what has to change:
// first the Secret, then whom to trust, and only then what is served. What does
// not succeed is told, and keeps nothing from being done that can be.
func (k *Manager) keep(ctx context.Context) (next time.Time, isWell bool) {
	data, secretErr := k.keepSecret(ctx, time.Now())
	fading, trustErr := k.keepTrust(ctx, data[authorityCert], time.Now())
	if ctx.Err() != nil {
		return next, false
	}
	swap, swapErr := k.swap(data, time.Now()) // to make a key and to write it takes a while
	for what, err := range map[string]error{
		"keeping the certificate in " + k.secret():                        cmp.Or(secretErr, swapErr),
		"having the API servers trust the certificate, by " + k.webhook(): trustErr,
	} {
		if !apierrors.IsConflict(err) { // somebody was faster, and is as good
			k.tell(what, err)
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

// keepSecret returns the content of the Secret, which is sound.
func (k *Manager) keepSecret(ctx context.Context, now time.Time) (map[string][]byte, error) {
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
	// With the version that was read: of several replicas one succeeds.
	if err := k.cfg.Client.Update(ctx, changed); err != nil {
		return nil, fmt.Errorf("writing a new one: %w", err)
	}
	k.cfg.Logger.Info("certificate made", "names", k.cfg.Names, "newAuthority", what == oldIssuer, "replacedAt", due(made))
	return made, nil
}

// keepTrust has the API servers trust the authority in the Secret, and for as long
// as it is served what another has signed, that one. It returns when they are to
// trust nobody else any more, which is never if they already do so.
func (k *Manager) keepTrust(ctx context.Context, authority []byte, now time.Time) (fading time.Time, err error) {
	config := &admissionv1.ValidatingWebhookConfiguration{}
	switch err := k.cfg.Client.Get(ctx, client.ObjectKey{Name: k.cfg.Webhook}, config); {
	case apierrors.IsNotFound(err):
		k.heard = nil
		k.trust.Store(&trust{})
		return fading, nil
	case err != nil:
		return fading, fmt.Errorf("reading it: %w", err)
	}
	k.see(config, authority, now)
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
	k.see(changed, authority, time.Now())
	k.cfg.Logger.Info("authority trusted", "webhook", k.cfg.Webhook, "authorities", len(wanted))
	return fading, nil
}

// wanted returns whom the API servers are to trust at a moment, and when nobody
// else than the authority in the Secret any more.
func (k *Manager) wanted(authority []byte, now time.Time) (list []*x509.Certificate, fading time.Time) {
	if len(authority) > 0 && string(k.present) != string(authority) {
		k.present, k.presentAt = authority, now
	}
	list = parse(authority)
	if shown := k.served.Load(); shown != nil && string(shown.authority) != string(authority) {
		list = append(list, parse(shown.authority)...)
	}
	// Since when the authority is there counts, and not since when it exists: it may
	// have come from a backup. While there is none, nobody has taken a place.
	fades := k.presentAt.Add(overlap)
	if len(list) == 0 || len(authority) > 0 && !now.Before(fades) {
		return list, fading
	}
	if list = withOthers(list, slices.Concat(k.trust.Load().bundles...), now); len(list) > 1 {
		fading = fades
	}
	return list, fading
}

// see takes down whom the API servers trust at a moment, by what is stored.
func (k *Manager) see(config *admissionv1.ValidatingWebhookConfiguration, authority []byte, now time.Time) {
	seen := &trust{asks: true}
	for _, hook := range config.Webhooks {
		seen.bundles = append(seen.bundles, append(slices.Clone(hook.ClientConfig.CABundle), '\n'))
	}
	k.trust.Store(seen)
	switch {
	case !seen.has(authority):
		k.heard = nil
	case string(k.heard) != string(authority):
		k.heard, k.heardAt = authority, now
	}
}

// swap serves the content of the Secret, once the API servers have had time to hear
// of its authority; until then, what is served stays. It returns when they will
// have. Where nothing is served, or nobody asks, there is nothing to wait for.
func (k *Manager) swap(data map[string][]byte, now time.Time) (at time.Time, err error) {
	if data == nil {
		return at, nil
	}
	authority := data[authorityCert]
	shown, trusted := k.served.Load(), k.trust.Load()
	if shown != nil && string(shown.authority) != string(authority) && (trusted == nil || trusted.asks) {
		if k.heard == nil {
			return at, nil
		}
		if at = k.heardAt.Add(settle); now.Before(at) {
			return at, nil
		}
	}
	return time.Time{}, k.serve(data)
}

// serve shows the content of the Secret to those who connect from now on.
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
	k.cfg.Logger.Info("certificate served", "until", pair.Leaf.NotAfter)
	return nil
}

// tell logs what goes wrong when it begins, changes and ends.
func (k *Manager) tell(what string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		if _, was := k.troubles[what]; was {
			delete(k.troubles, what)
			k.cfg.Logger.Info("webhook certificate: trouble is over", "what", what)
		}
		return
	}
	if k.troubles[what] == err.Error() {
		return
	}
	k.troubles[what] = err.Error()
	log := k.cfg.Logger
	if apierrors.IsForbidden(err) {
		log = log.With("rightsAreIn", "deploy/controller/2-rights.yaml")
	}
	log.Warn("webhook certificate: trouble", "what", what, "err", err)
}
