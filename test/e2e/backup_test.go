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
	"github.com/resourcestack/autohealer/internal/testkit"
)

// testBackup restores an old certificate, which the API server no longer trusts, while a
// client writes sets fifty times a second. No write is refused: the CA is trusted before
// the certificate is served.
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
			// An open connection needs no certificate.
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
		w.eventually("the API server to connect", func() error {
			if connected.Load() < before+enough {
				return errors.New("it has not connected")
			}
			return nil
		})
	}
	connects()
	w.replaceCertificate(replicas, backup)
	connects() // and sees the restored certificate
	close(stop)
	done()
	if len(failures) > 0 {
		w.t.Errorf("%d of %d writes got a wrong response, the first: %v", len(failures), asked, failures[0])
	}
	if got := w.certificate().Data["tls.crt"]; string(got) != string(backup["tls.crt"]) {
		w.t.Error("the restored certificate was replaced, although it is valid")
	}
	w.t.Logf("%d sets written over %d connections", asked, connected.Load())
}

func (w *scope) certificate() *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), types.NamespacedName{Namespace: install.Namespace, Name: install.WebhookSecret}, secret))
	return secret
}

// replaceCertificate writes the content of the Secret, or empties it, and returns when all
// replicas serve the stored certificate.
func (w *scope) replaceCertificate(replicas []*install.Controller, content map[string][]byte) {
	w.t.Helper()
	secret := w.certificate()
	old := string(secret.Data["tls.crt"])
	secret.Data = maps.Clone(content)
	testkit.Must(w.t, w.api.Update(w.t.Context(), secret))
	w.eventually("all replicas to serve another certificate", func() error {
		now := string(w.certificate().Data["tls.crt"])
		if now == "" || now == old {
			return errors.New("there is no certificate")
		}
		for i, c := range replicas {
			shown, err := w.shows(c)
			if err != nil {
				return err
			}
			if !strings.Contains(now, shown) {
				return fmt.Errorf("replica %d serves another certificate", i+1)
			}
		}
		return nil
	})
}

// distrust makes the API server trust only this CA.
func (w *scope) distrust(authority []byte) {
	w.t.Helper()
	w.rewriteTrust(func([]byte) []byte { return authority })
}

// reconnect makes the API server open a new connection for its next call: any change of the
// CA bundle does, even an empty line.
func (w *scope) reconnect() {
	w.t.Helper()
	w.rewriteTrust(func(bundle []byte) []byte { return append(bundle, '\n') })
}

func (w *scope) rewriteTrust(change func(bundle []byte) []byte) {
	w.t.Helper()
	testkit.Must(w.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
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
