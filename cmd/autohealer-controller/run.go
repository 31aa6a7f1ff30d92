package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
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
	"github.com/resourcestack/autohealer/internal/storecheck"
	"github.com/resourcestack/autohealer/internal/treat"
)

const name = "autohealer-controller"

// run wires everything up and works until ctx ends.
func run(ctx context.Context, o options, out io.Writer) error {
	log := o.logger(out)
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
	// A lock of our own making: the usual one writes Events that need one more
	// right, and has another name for this process than the ledger.
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.namespace, name,
		resourcelock.ResourceLockConfig{Identity: self}, config, o.renewDeadline)
	if err != nil {
		return fmt.Errorf("preparing the leader's lease: %w", err)
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

// metrics says how metrics are served: in plain text to every client, or over TLS to
// those that the API server lets get /metrics.
func (o options) metrics() metricsserver.Options {
	served := metricsserver.Options{BindAddress: o.metricsAddress}
	if o.metricsSecure {
		served.SecureServing, served.CertDir = true, o.metricsCerts
		served.FilterProvider = filters.WithAuthenticationAndAuthorization
		// Without HTTP/2: a scrape is one request, and floods of streams are no concern then.
		served.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}
	}
	return served
}

// assemble adds to the manager what it is to run.
func assemble(mgr manager.Manager, config *rest.Config, scheme *runtime.Scheme, o options, self string, log *slog.Logger) error {
	direct, err := client.NewWithWatch(config, client.Options{Scheme: scheme, HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	nodes, err := nodewatch.New(config)
	if err != nil {
		return err
	}
	agents, err := agentlease.NewSource(config, o.agents)
	if err != nil {
		return err
	}
	counts := controller.NewMetrics()
	announcer := treat.NewEventWriter(direct, self, counts.Event)
	if err := metrics.Registry.Register(counts); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	var people *nodefacts.Store // for the webhooks, which are asked on every replica
	if o.webhooks {
		people = nodefacts.New()
	}
	repairs, err := o.repairs.config()
	if err != nil {
		return err
	}
	follower, err := controller.New(controller.Config{
		Client:         direct,
		Nodes:          nodes,
		Agents:         agents,
		AgentNamespace: o.agents,
		NodeFacts:      people,
		Namespace:      o.namespace,
		Identity:       self,
		Repairs:        repairs,
		Event:          announcer.Write,
		Metrics:        counts,
		Logger:         log,
	})
	if err != nil {
		return err
	}
	for _, part := range []manager.Runnable{announcer, follower} {
		if err := mgr.Add(part); err != nil {
			return err
		}
	}
	// What a restored store holds is listed by the next process: all that this one knows
	// is of versions that will be given again.
	if err := mgr.Add(onEveryReplica(func(ctx context.Context) error { return storecheck.Run(ctx, nodes.Version, nodes.Seen, log) })); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("alive", follower.Healthy); err != nil {
		return err
	}
	if o.webhooks {
		if err := mgr.Add(onEveryReplica(func(ctx context.Context) error {
			people.Watch(ctx, nodes, log)
			return nil
		})); err != nil {
			return err
		}
		if err := serveWebhooks(mgr, direct, people, o, log); err != nil {
			return err
		}
	}
	// Ready means that this replica could take over, which it can as soon as it
	// runs. To lead is no part of it: a rolling update waits for every new replica
	// while an old one still leads. Nor is it that the API server answers: whether
	// it does is the same for all replicas, and no request is sent to them.
	return mgr.AddReadyzCheck("ready", healthz.Ping)
}

// onEveryReplica runs whether this one leads or not.
type onEveryReplica func(context.Context) error

// NeedLeaderElection says so.
func (onEveryReplica) NeedLeaderElection() bool { return false }

// Start runs it.
func (f onEveryReplica) Start(ctx context.Context) error { return f(ctx) }

// connect finds the API server. Nothing limits the rate of requests on this
// side: the controller bounds how many are under way, and the server says when
// it is busy.
func connect(kubeconfig string) (config *rest.Config, err error) {
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("finding the API server: %w (outside of a cluster, give --kubeconfig)", err)
	}
	config.UserAgent = name + "/" + version
	config.QPS = -1
	return config, nil
}

// identity is a name that no other process has, now or later.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = name
	}
	return host + "_" + string(uuid.NewUUID())
}
