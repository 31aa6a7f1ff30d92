package e2e

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install"
)

// testBackup puts an old certificate back, which the API server does not trust any
// more, while somebody asks about sets fifty times a second. Nobody is refused: it
// is trusted before it is served.
func testBackup(w *scope) {
	w.createNodes(healthyNodes(4))
	replicas := []*install.Controller{w.guarded(install.Options{}), w.start(install.Options{Webhook: true})}
	backup := w.certificate().Data
	w.replaceCertificate(replicas, nil)
	w.distrust(w.certificate().Data["ca.crt"])

	stop := make(chan struct{})
	asked := 0
	var connected atomic.Int64
	var failures []error
	done := w.meanwhile(func() error {
		const pace = 20 * time.Millisecond
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return nil
			case <-tick.C:
			}
			// A connection that stands asks for no certificate.
			if asked%10 == 0 {
				w.reconnect()
				connected.Add(1)
			}
			if err := w.api.Create(w.t.Context(), w.policy("set"), client.DryRunAll); err != nil {
				failures = append(failures, err)
			}
			asked++
		}
	})
	const enough = 3
	connects := func() {
		w.t.Helper()
		before := connected.Load()
		w.eventually("the API server connecting", func() error {
			if connected.Load() < before+enough {
				return errors.New("it does not")
			}
			return nil
		})
	}
	connects()
	w.replaceCertificate(replicas, backup)
	connects() // and sees what was restored
	close(stop)
	done()
	if len(failures) > 0 {
		w.t.Errorf("%d of %d writes did not get their answer, the first: %v", len(failures), asked, failures[0])
	}
	if got := w.certificate().Data["tls.crt"]; string(got) != string(backup["tls.crt"]) {
		w.t.Error("what was restored was replaced, although it is sound")
	}
	w.t.Logf("%d sets asked about over %d connections", asked, connected.Load())
}

func (w *scope) certificate() *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{}
	w.must(w.api.Get(w.t.Context(), types.NamespacedName{Namespace: install.Namespace, Name: install.WebhookSecret}, secret))
	return secret
}

// replaceCertificate writes the content of the Secret, nothing for another one, and
// returns when all replicas serve what stands there.
func (w *scope) replaceCertificate(replicas []*install.Controller, content map[string][]byte) {
	w.t.Helper()
	secret := w.certificate()
	old := string(secret.Data["tls.crt"])
	secret.Data = maps.Clone(content)
	w.must(w.api.Update(w.t.Context(), secret))
	w.eventually("another certificate being served", func() error {
		now := string(w.certificate().Data["tls.crt"])
		if now == "" || now == old {
			return errors.New("there is none")
		}
		for i, c := range replicas {
			shown, err := w.shows(c)
			if err != nil {
				return err
			}
			if !strings.Contains(now, shown) {
				return fmt.Errorf("replica %d serves another", i+1)
			}
		}
		return nil
	})
}

// distrust has the API server trust an authority and no other.
func (w *scope) distrust(authority []byte) {
	w.t.Helper()
	w.rewriteTrust(func([]byte) []byte { return authority })
}

// reconnect has the API server connect anew for its next question: it does when
// whom to trust is written differently, and if only by an empty line.
func (w *scope) reconnect() {
	w.t.Helper()
	w.rewriteTrust(func(bundle []byte) []byte { return append(bundle, '\n') })
}

func (w *scope) rewriteTrust(change func(bundle []byte) []byte) {
	w.t.Helper()
	w.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		config := &admissionv1.ValidatingWebhookConfiguration{}
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: install.WebhookConfig}, config); err != nil {
			return err
		}
		for i := range config.Webhooks {
			where := &config.Webhooks[i].ClientConfig
			where.CABundle = change(where.CABundle)
		}
		return w.api.Update(w.t.Context(), config)
	}))
}
