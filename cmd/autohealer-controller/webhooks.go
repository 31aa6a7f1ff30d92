package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/admission"
	"github.com/resourcestack/autohealer/internal/certificate"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/mirror"
	"github.com/resourcestack/autohealer/internal/policy/repair"
)

// Names in the manifests.
const (
	webhookService = "autohealer-webhook"
	webhookSecret  = "autohealer-webhook-cert"
	webhookConfig  = "autohealer"
)

// serveWebhooks adds the admission webhooks to the manager. Every replica serves them, and
// no other part waits for them.
func serveWebhooks(mgr manager.Manager, direct client.WithWatch, nodes nodeFacts, statements repair.StatementSource, o options, log *slog.Logger) error {
	certificates, err := certificate.New(certificate.Config{
		Client:  direct,
		Secret:  types.NamespacedName{Namespace: o.namespace, Name: webhookSecret},
		Webhook: webhookConfig,
		Names:   append([]string{fmt.Sprintf("%s.%s.svc", webhookService, o.namespace)}, o.webhookNames...),
		Logger:  log,
	})
	if err != nil {
		return err
	}
	counts := admission.NewMetrics()
	for _, collector := range []prometheus.Collector{counts, certificates} {
		if err := metrics.Registry.Register(collector); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	stored := &storedSets{cache: mgr.GetCache(), log: log}
	revisions := configmaps.NewRevisionWatcher(direct, o.namespace, log)
	sets, err := admission.NewConditionSets(admission.ConditionSetConfig{
		Nodes: nodes,
		// Validation does not modify the objects, so the cache need not copy them.
		Sets: func(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
			return allSets(ctx, mgr.GetCache(), revisions.InForce, client.UnsafeDisableDeepCopy)
		},
		Fresh: func(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
			return allSets(ctx, direct, revisions.Fresh)
		},
		// The revisions need no sync: until their watch runs, they are listed for each request.
		Synced:  stored.synced.Load,
		Metrics: counts,
		Logger:  log,
	})
	if err != nil {
		return err
	}
	checks, err := healthChecks(mgr, direct, nodes, counts, log)
	if err != nil {
		return err
	}
	repairs, err := repairWebhooks(direct, nodes, statements, !o.repairs.appliesReadyTimeouts(), counts, log)
	if err != nil {
		return err
	}
	server, err := admission.NewServer(admission.Config{
		Address: o.webhookAddress, Certificate: certificates.GetCertificate, Clients: o.webhookClients,
		Kinds: append([]admission.Kind{sets, checks}, repairs...), Metrics: counts, Logger: log,
	})
	if err != nil {
		return err
	}
	for _, part := range []manager.Runnable{certificates, stored, revisions, server} {
		if err := mgr.Add(part); err != nil {
			return err
		}
	}
	// A replica that cannot answer gets no requests through the Service. Each replica can
	// create the certificate, so a new replica does not wait for an old one. If none can, the
	// installation is broken, and the rolling update stops while old replicas still answer.
	if err := mgr.AddReadyzCheck("webhook-certificate", func(*http.Request) error { return certificates.Ready() }); err != nil {
		return err
	}
	return mgr.AddReadyzCheck("webhooks", server.Ready)
}

// storedSets starts the informer of ConditionSets before the first request. The start of
// the manager does not wait for it, because the CRD may be missing.
type storedSets struct {
	cache  cache.Cache
	log    *slog.Logger
	synced atomic.Bool
}

// NeedLeaderElection returns false: every replica needs the sets.
func (s *storedSets) NeedLeaderElection() bool { return false }

// Start returns when the sets were listed.
func (s *storedSets) Start(ctx context.Context) error {
	const pause = time.Second
	for logged := false; ; logged = true {
		_, err := s.cache.GetInformer(ctx, &v1alpha1.ConditionSet{})
		if err == nil {
			s.synced.Store(true)
			return nil
		}
		if !logged && ctx.Err() == nil {
			s.log.Warn("listing ConditionSets failed, retrying every second", "err", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// allSets returns the stored ConditionSets and those in ConfigMaps.
func allSets(ctx context.Context, stored client.Reader, revisions func(context.Context) ([]*v1alpha1.ConditionSet, error), options ...client.ListOption) ([]*v1alpha1.ConditionSet, error) {
	var list v1alpha1.ConditionSetList
	if err := stored.List(ctx, &list, options...); err != nil {
		return nil, err
	}
	fromConfigMaps, err := revisions(ctx)
	if err != nil {
		return nil, err
	}
	sets := make([]*v1alpha1.ConditionSet, 0, len(list.Items)+len(fromConfigMaps))
	for i := range list.Items {
		if !mirror.Is(&list.Items[i]) {
			sets = append(sets, &list.Items[i])
		}
	}
	return append(sets, fromConfigMaps...), nil
}
