package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/agentlease"
	"github.com/resourcestack/autohealer/internal/controller"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/nodefacts"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/provider"
	"github.com/resourcestack/autohealer/internal/storecheck"
	"github.com/resourcestack/autohealer/internal/treat"
)

const name = "autohealer-controller"

// run wires the controller and runs it until ctx ends.
func run(ctx context.Context, o options, out io.Writer) error {
	log := o.log.Logger(out)
	logger := logr.FromSlogHandler(log.Handler())
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	config, err := connect(o.kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, remediationv1alpha1.AddToScheme, karpenter.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	self := identity()
	// The manager's default lock writes Events, which needs another right, and uses another
	// identity than the ledger.
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.namespace, name,
		resourcelock.ResourceLockConfig{Identity: self}, config, o.renewDeadline)
	if err != nil {
		return fmt.Errorf("preparing the leader's Lease: %w", err)
	}
	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme:                              scheme,
		Logger:                              logger,
		LeaderElection:                      o.leaderElect,
		LeaderElectionID:                    name,
		LeaderElectionNamespace:             o.namespace,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       &o.leaseDuration,
		RenewDeadline:                       &o.renewDeadline,
		RetryPeriod:                         &o.retryPeriod,
		Metrics:                             o.metrics(),
		HealthProbeBindAddress:              o.probeAddress,
	})
	if err != nil {
		return fmt.Errorf("preparing the manager: %w", err)
	}
	if err := assemble(mgr, config, scheme, o, self, log); err != nil {
		return err
	}
	log.Info("starting", "version", version, "namespace", o.namespace, "identity", self)
	return mgr.Start(ctx)
}

// metrics returns the options of the metrics server: plain text for every client, or TLS
// for clients that may get /metrics.
func (o options) metrics() metricsserver.Options {
	served := metricsserver.Options{BindAddress: o.metricsAddress}
	if o.metricsSecure {
		served.SecureServing, served.CertDir = true, o.metricsCerts
		served.FilterProvider = filters.WithAuthenticationAndAuthorization
		// HTTP/2 is off: a scrape is one request, and HTTP/1.1 has no stream floods.
		served.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}
	}
	return served
}

// assemble adds the parts of the controller to the manager.
func assemble(mgr manager.Manager, config *rest.Config, scheme *runtime.Scheme, o options, self string, log *slog.Logger) error {
	direct, err := client.NewWithWatch(config, client.Options{Scheme: scheme, HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	nodes, err := nodewatch.New(config)
	if err != nil {
		return err
	}
	agentLeases, err := agentlease.NewSource(config, o.agentNamespace)
	if err != nil {
		return err
	}
	controllerMetrics := controller.NewMetrics()
	eventWriter := treat.NewEventWriter(direct, self, controllerMetrics.Engine.Event)
	if err := errors.Join(controllerMetrics.Register(metrics.Registry), metrics.Registry.Register(buildInfo())); err != nil {
		return err
	}
	var facts *nodefacts.Store // for the webhooks, on every replica
	if o.webhooks {
		facts = nodefacts.New()
	}
	statements, err := provider.NewSource(o.repairs.statements, log)
	if err != nil {
		return fmt.Errorf("--repair-statements: %w", err)
	}
	if err := errors.Join(metrics.Registry.Register(statements.Metrics()), mgr.Add(onEveryReplica(statements.Run))); err != nil {
		return err
	}
	repairs, err := o.repairs.config(statements, log)
	if err != nil {
		return err
	}
	reconciler, err := controller.New(controller.Config{
		Client:         direct,
		Nodes:          nodes,
		Agents:         agentLeases,
		AgentNamespace: o.agentNamespace,
		NodeFacts:      facts,
		Namespace:      o.namespace,
		Identity:       self,
		DefaultRails:   o.defaultRails,
		Repairs:        repairs,
		Event:          eventWriter.Write,
		Metrics:        controllerMetrics,
		Logger:         log,
	})
	if err != nil {
		return err
	}
	for _, part := range []manager.Runnable{eventWriter, reconciler} {
		if err := mgr.Add(part); err != nil {
			return err
		}
	}
	// After a restore of etcd, resource versions repeat, and the state of this process is
	// useless. The process exits, and the next one starts from lists.
	if err := mgr.Add(onEveryReplica(func(ctx context.Context) error { return storecheck.Run(ctx, nodes.Version, nodes.Seen, log) })); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("alive", reconciler.Healthy); err != nil {
		return err
	}
	if o.webhooks {
		if err := mgr.Add(onEveryReplica(func(ctx context.Context) error {
			facts.Watch(ctx, nodes, log)
			return nil
		})); err != nil {
			return err
		}
		if err := serveWebhooks(mgr, direct, facts, repairs.Statements, o, log); err != nil {
			return err
		}
	}
	// A replica is ready when it can take over, that is, as soon as it runs. Readiness does
	// not require leadership: a rolling update waits for every new replica while an old one
	// still leads. Nor does it depend on the API server, which is the same for all replicas.
	return mgr.AddReadyzCheck("ready", healthz.Ping)
}

// onEveryReplica is a runnable that does not wait for leadership.
type onEveryReplica func(context.Context) error

// NeedLeaderElection returns false: the function runs on every replica.
func (onEveryReplica) NeedLeaderElection() bool { return false }

// Start runs the function.
func (f onEveryReplica) Start(ctx context.Context) error { return f(ctx) }

// connect finds the API server. The client has no rate limit: the controller bounds its
// concurrent requests, and the API server rejects requests when it is overloaded.
func connect(kubeconfig string) (config *rest.Config, err error) {
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("finding the API server: %w (outside a cluster, set --kubeconfig)", err)
	}
	config.UserAgent = name + "/" + version
	config.QPS = -1
	return config, nil
}

// identity returns a name that no other process ever has.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = name
	}
	return host + "_" + string(uuid.NewUUID())
}

// buildInfo is the metric of the version. The agent has the same.
func buildInfo() prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "autohealer_build_info", Help: "Version of the program."}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	return info
}
