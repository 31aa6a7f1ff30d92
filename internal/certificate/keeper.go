package certificate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// settle is how long a new authority must have been trusted before anything
	// is served that it has signed: the API servers have heard of it by then.
	settle = 2 * time.Second
	// glance is the least time between two looks that nothing asked for; often and
	// seldom are how long the keeper waits after something went wrong,
	// and at most.
	glance = 50 * time.Millisecond
	often  = time.Second
	seldom = time.Hour
)

// Config is what a keeper works with.
type Config struct {
	// REST is where the API server is.
	REST *rest.Config
	// Options are what the cache shares with others: scheme, mapper, connection.
	Options cache.Options
	// Writer is what is written with.
	Writer client.Writer
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
		{"REST", c.REST == nil}, {"Writer", c.Writer == nil}, {"Secret", c.Secret.Name == "" || c.Secret.Namespace == ""},
		{"Webhook", c.Webhook == ""}, {"Names", len(c.Names) == 0}, {"Logger", c.Logger == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// Keeper keeps one certificate. Every replica has one, and any of them may renew
// it: they agree through the version of the Secret.
type Keeper struct {
	cfg    Config
	reader client.Reader

	served atomic.Pointer[served]

	// Only the loop touches these.
	heard    []byte    // the authority that was last found to be trusted
	heardAt  time.Time // since when
	lastWord string    // the trouble that was last told
}

// served is what is shown to those who connect.
type served struct {
	pair      tls.Certificate
	text      string // tls.crt, to know it again
	authority []byte
}

// New returns a keeper that does nothing until it is started.
func New(cfg Config) (*Keeper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the keeper of certificates: %w", err)
	}
	return &Keeper{cfg: cfg}, nil
}

// NeedLeaderElection says that every replica serves.
func (k *Keeper) NeedLeaderElection() bool { return false }

var errNone = errors.New("there is no certificate yet")

// GetCertificate is what a TLS server asks.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := k.served.Load(); s != nil {
		return &s.pair, nil
	}
	return nil, errNone
}

// Start keeps the certificate until ctx ends. It never gives up: what is missing
// is waited for, and nobody else has to wait for that.
func (k *Keeper) Start(ctx context.Context) error {
	options := k.cfg.Options
	// Nothing but the two objects is read: rights are bound to their names.
	named := func(name string) cache.ByObject {
		return cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", name)}
	}
	secret := named(k.cfg.Secret.Name)
	secret.Namespaces = map[string]cache.Config{k.cfg.Secret.Namespace: {}}
	options.ByObject = map[client.Object]cache.ByObject{
		&corev1.Secret{}: secret,
		&admissionv1.ValidatingWebhookConfiguration{}: named(k.cfg.Webhook),
	}
	watched, err := cache.New(k.cfg.REST, options)
	if err != nil {
		return fmt.Errorf("watching certificates: %w", err)
	}
	k.reader = watched
	signal := make(chan struct{}, 1)
	nudge := func() {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
	go func() {
		// It has nothing to say before ctx ends.
		_ = watched.Start(ctx)
	}()
	for object := range options.ByObject {
		if !k.listen(ctx, watched, object, nudge) {
			return nil
		}
	}
	// What is not there is found out; what may not be read is waited for.
	if !watched.WaitForCacheSync(ctx) {
		return nil
	}
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

// listen asks to be nudged when an object changes. An API server that is away is
// waited for, until ctx ends and it returns false.
func (k *Keeper) listen(ctx context.Context, watched cache.Cache, object client.Object, nudge func()) bool {
	for {
		informer, err := watched.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { nudge() },
				UpdateFunc: func(any, any) { nudge() },
				DeleteFunc: func(any) { nudge() },
			})
		}
		if err == nil {
			return true
		}
		k.tell(err)
		select {
		case <-time.After(often):
		case <-ctx.Done():
			return false
		}
	}
}

// look does what is to be done, and returns how long there is nothing more to do
// if nothing changes.
func (k *Keeper) look(ctx context.Context) time.Duration {
	next, err := k.keep(ctx)
	switch {
	case ctx.Err() != nil:
		return seldom
	case apierrors.IsConflict(err):
		return often // somebody was faster; what they wrote comes by itself
	case err != nil:
		k.tell(err)
		return often
	}
	k.tell(nil)
	return min(max(time.Until(next), glance), seldom)
}

// keep reads the Secret and the webhook, decides, and writes what has to change:
// first the Secret, then whom to trust, and only then what is served.
func (k *Keeper) keep(ctx context.Context) (next time.Time, err error) {
	data, err := k.keepSecret(ctx, time.Now())
	if err != nil {
		return next, err
	}
	next = due(data)
	isTrusted, fading, err := k.keepTrust(ctx, data[authorityCert], time.Now())
	if err != nil {
		return next, err
	}
	now := time.Now() // to make a key and to write it takes a while
	if fading {
		next = earlier(next, fades(data[authorityCert]))
	}
	if at := k.swapAt(data, isTrusted, now); now.Before(at) {
		return earlier(next, at), nil
	}
	return next, k.serve(data)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// keepSecret returns the content of the Secret, which is sound.
func (k *Keeper) keepSecret(ctx context.Context, now time.Time) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	if err := k.reader.Get(ctx, k.cfg.Secret, secret); err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", k.cfg.Secret, err)
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
	if err := k.cfg.Writer.Update(ctx, changed); err != nil {
		return nil, fmt.Errorf("writing Secret %s: %w", k.cfg.Secret, err)
	}
	k.cfg.Logger.Info("certificate made", "names", k.cfg.Names, "newAuthority", what == oldIssuer, "replacedAt", due(made))
	return made, nil
}

// keepTrust has the API servers trust the authority. It says whether they are
// known to, and whether they trust others beside it.
func (k *Keeper) keepTrust(ctx context.Context, authority []byte, now time.Time) (isTrusted, fading bool, err error) {
	config := &admissionv1.ValidatingWebhookConfiguration{}
	if err := k.reader.Get(ctx, client.ObjectKey{Name: k.cfg.Webhook}, config); err != nil {
		if apierrors.IsNotFound(err) {
			return false, false, nil // nobody asks
		}
		return false, false, fmt.Errorf("reading ValidatingWebhookConfiguration %s: %w", k.cfg.Webhook, err)
	}
	changed, differs := config.DeepCopy(), false
	var before []byte
	isTrusted = true
	for _, hook := range config.Webhooks {
		before = append(append(before, hook.ClientConfig.CABundle...), '\n')
		isTrusted = isTrusted && trusts(hook.ClientConfig.CABundle, authority)
	}
	authorities := trusted(before, authority, now)
	for i := range changed.Webhooks {
		list := &changed.Webhooks[i].ClientConfig.CABundle
		wanted := bundle(*list, authorities)
		differs = differs || string(wanted) != string(*list)
		*list = wanted
	}
	fading = len(authorities) > 1
	if !differs {
		return isTrusted, fading, nil
	}
	patch := client.StrategicMergeFrom(config, client.MergeFromWithOptimisticLock{})
	if err := k.cfg.Writer.Patch(ctx, changed, patch); err != nil {
		return false, fading, fmt.Errorf("writing the authority into ValidatingWebhookConfiguration %s: %w", k.cfg.Webhook, err)
	}
	k.cfg.Logger.Info("authority trusted", "webhook", k.cfg.Webhook)
	return true, fading, nil
}

// swapAt returns when the content of the Secret is to be served: once the API
// servers have had time to hear of its authority. Where nothing is served yet, or
// nothing that they trust, there is nothing to wait for.
func (k *Keeper) swapAt(data map[string][]byte, isTrusted bool, now time.Time) time.Time {
	authority := data[authorityCert]
	if isTrusted && string(k.heard) != string(authority) {
		k.heard, k.heardAt = authority, now
	}
	shown := k.served.Load()
	if shown == nil || string(shown.authority) == string(authority) || !isTrusted {
		return now
	}
	return k.heardAt.Add(settle)
}

// serve shows the content of the Secret to those who connect from now on.
func (k *Keeper) serve(data map[string][]byte) error {
	text := string(data[servedCert])
	if shown := k.served.Load(); shown != nil && shown.text == text {
		return nil
	}
	pair, err := tls.X509KeyPair(data[servedCert], data[servedKey])
	if err != nil {
		return fmt.Errorf("reading the certificate in Secret %s: %w", k.cfg.Secret, err)
	}
	k.served.Store(&served{pair: pair, text: text, authority: data[authorityCert]})
	k.cfg.Logger.Info("certificate served", "until", pair.Leaf.NotAfter)
	return nil
}

// tell logs trouble when it begins, changes and ends.
func (k *Keeper) tell(err error) {
	word := ""
	if err != nil {
		word = err.Error()
	}
	if word == k.lastWord {
		return
	}
	k.lastWord = word
	if err != nil {
		k.cfg.Logger.Warn("certificate not kept", "err", err)
		return
	}
	k.cfg.Logger.Info("certificate kept again")
}
