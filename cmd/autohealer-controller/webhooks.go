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
	"github.com/resourcestack/autohealer/internal/provider"
)

// What the manifests call the parts of the webhook.
const (
	webhookService = "autohealer-webhook"
	webhookSecret  = "autohealer-webhook-cert"
	webhookConfig  = "autohealer"
)

// serveWebhooks adds the admission webhooks to the manager. Every replica serves
// them, and nothing else waits for them.
func serveWebhooks(mgr manager.Manager, direct client.WithWatch, census nodeCensus, o options, log *slog.Logger) error {
	keeper, err := certificate.New(certificate.Config{
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
	for _, collector := range []prometheus.Collector{counts, keeper} {
		if err := metrics.Registry.Register(collector); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	stored := &storedSets{cache: mgr.GetCache(), log: log}
	pinned := configmaps.NewRevisionWatcher(direct, o.namespace, log)
	sets, err := admission.NewConditionSets(admission.ConditionSetConfig{
		Census: census,
		// Nobody writes to what vet gets, so nothing is copied for it.
		Sets: func(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
			return allSets(ctx, mgr.GetCache(), pinned.InForce, client.UnsafeDisableDeepCopy)
		},
		Fresh: func(ctx context.Context) ([]*v1alpha1.ConditionSet, error) {
			return allSets(ctx, direct, pinned.Fresh)
		},
		// The lookout is ready at any time: until it has a watch it asks.
		Synced:  stored.synced.Load,
		Metrics: counts,
		Logger:  log,
	})
	if err != nil {
		return err
	}
	checks, err := healthChecks(mgr, direct, census, counts, log)
	if err != nil {
		return err
	}
	karpenter, static, err := o.repairs.providers()
	if err != nil {
		return err
	}
	repaired, err := repairs(direct, census, provider.Statements(karpenter, static), counts, log)
	if err != nil {
		return err
	}
	server, err := admission.NewServer(admission.Config{
		Address: o.webhookAddress, Certificate: keeper.GetCertificate, Clients: o.webhookClients,
		Kinds: append([]admission.Kind{sets, checks}, repaired...), Metrics: counts, Logger: log,
	})
	if err != nil {
		return err
	}
	for _, part := range []manager.Runnable{keeper, stored, pinned, server} {
		if err := mgr.Add(part); err != nil {
			return err
		}
	}
	// A replica that cannot answer gets no requests through the Service. Each can
	// make the certificate by itself, so a new one waits for no old one; where
	// none can, the installation is broken, and a rolling update had better stop
	// before it has replaced those that still answer.
	if err := mgr.AddReadyzCheck("webhook-certificate", func(*http.Request) error { return keeper.Ready() }); err != nil {
		return err
	}
	return mgr.AddReadyzCheck("webhooks", server.Ready)
}

// storedSets reads the stored sets ahead of the first question. It is not done
// before the start, which would then wait for the CRD.
type storedSets struct {
	cache  cache.Cache
	log    *slog.Logger
	synced atomic.Bool
}

// NeedLeaderElection says that every replica needs them.
func (s *storedSets) NeedLeaderElection() bool { return false }

// Start returns when the sets have been read.
func (s *storedSets) Start(ctx context.Context) error {
	const pause = time.Second
	for told := false; ; told = true {
		_, err := s.cache.GetInformer(ctx, &v1alpha1.ConditionSet{})
		if err == nil {
			s.synced.Store(true)
			return nil
		}
		if !told && ctx.Err() == nil {
			s.log.Warn("condition sets not read", "err", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// allSets returns the sets that are stored, and those in ConfigMaps.
func allSets(ctx context.Context, stored client.Reader, pinned func(context.Context) ([]*v1alpha1.ConditionSet, error), how ...client.ListOption) ([]*v1alpha1.ConditionSet, error) {
	var list v1alpha1.ConditionSetList
	if err := stored.List(ctx, &list, how...); err != nil {
		return nil, err
	}
	more, err := pinned(ctx)
	if err != nil {
		return nil, err
	}
	sets := make([]*v1alpha1.ConditionSet, 0, len(list.Items)+len(more))
	for i := range list.Items {
		sets = append(sets, &list.Items[i])
	}
	return append(sets, more...), nil
}
