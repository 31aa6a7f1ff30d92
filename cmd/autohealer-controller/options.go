package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/admission"
	"github.com/resourcestack/autohealer/internal/commandline"
	"github.com/resourcestack/autohealer/internal/dialect"
)

// options are the values of the flags.
type options struct {
	kubeconfig     string
	namespace      string
	agentNamespace string // namespace of the Leases of agents

	metricsAddress string
	metricsSecure  bool
	metricsCerts   string
	probeAddress   string

	webhooks       bool
	webhookAddress string
	webhookNames   []string
	webhookClients admission.Clients

	leaderElect   bool
	leaseDuration time.Duration
	renewDeadline time.Duration
	retryPeriod   time.Duration

	repairs repairOptions

	defaultMode  string
	defaultRails dialect.Rails

	log     commandline.Log
	version bool
}

const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ownNamespace returns the namespace of this pod, or the default of the manifests.
func ownNamespace() string {
	if name := os.Getenv("POD_NAMESPACE"); name != "" {
		return name
	}
	if name, err := os.ReadFile(serviceAccountNamespace); err == nil {
		return strings.TrimSpace(string(name))
	}
	return "autohealer-system"
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("autohealer-controller", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints the error
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` for running outside a cluster; inside, the controller uses its service account")
	flags.StringVar(&o.namespace, "namespace", ownNamespace(), "`namespace` of the ledger, the leader's Lease, the webhook's certificate and ConfigMaps with ConditionSets; in a pod, the default is the namespace of the pod")
	flags.StringVar(&o.agentNamespace, "agent-lease-namespace", "", "`namespace` of the Leases that agents renew, if it differs from --namespace")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "`address` of the metrics endpoint, 0 to disable it")
	flags.BoolVar(&o.metricsSecure, "metrics-secure", false, "serve metrics over TLS, only to clients whose token may get /metrics; needs deploy/extras/metrics-rights.yaml")
	flags.StringVar(&o.metricsCerts, "metrics-cert-dir", "", "`directory` with tls.crt and tls.key for --metrics-secure; without it the controller creates a certificate that clients cannot verify")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz, 0 to disable them")
	flags.BoolVar(&o.webhooks, "webhooks", true, "serve the admission webhooks and manage their certificate")
	flags.StringVar(&o.webhookAddress, "webhook-bind-address", ":9443", "`address` of the webhooks")
	flags.Func("webhook-dns-name", "additional DNS `name` of the webhooks, besides that of their Service; may be repeated", func(name string) error {
		o.webhookNames = append(o.webhookNames, name)
		return nil
	})
	flags.StringVar(&o.webhookClients.CAFile, "webhook-client-ca-file", "", "answer only webhook clients with a certificate of the CA in this `file`; needs --webhook-client-name")
	flags.Func("webhook-client-name", "common name or DNS `name` in the client certificate of the API server; may be repeated", func(name string) error {
		o.webhookClients.Names = append(o.webhookClients.Names, name)
		return nil
	})
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "change nodes only while holding the leader's Lease; needed if several replicas run")
	flags.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long the Lease is valid without renewal")
	flags.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long the leader tries to renew the Lease before it exits")
	flags.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "how often replicas try to acquire or renew the Lease")
	flags.StringVar(&o.defaultMode, "default-mode", dialect.ModeEnforce, "`mode` while there is no Guardrails object: Enforce, Observe or Paused; the default limits apply in any case")
	if err := o.repairs.add(flags); err != nil {
		return options{}, err
	}
	o.log.AddTo(flags)
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(out, "autohealer-controller applies the policies of a cluster. Flags:")
		flags.SetOutput(out)
		flags.PrintDefaults()
		return options{}, err
	case err != nil:
		return options{}, fmt.Errorf("%w (--help lists all flags)", err)
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q: write flags as --name=value", flags.Arg(0))
	}
	if o.agentNamespace == "" {
		o.agentNamespace = o.namespace
	}
	var err error
	if o.defaultRails, err = dialect.DefaultRails(o.defaultMode); err != nil {
		return options{}, err
	}
	return o, o.validate()
}

func (o options) validate() error {
	if err := o.log.Check(); err != nil {
		return err
	}
	switch {
	case o.namespace == "":
		return errors.New("--namespace is empty: give the namespace of the ledger")
	case o.metricsCerts != "" && !o.metricsSecure:
		return fmt.Errorf("--metrics-cert-dir=%s is not used without --metrics-secure: add --metrics-secure, or remove this flag", o.metricsCerts)
	case o.webhooks && slices.Contains(o.webhookNames, ""):
		return errors.New("--webhook-dns-name is empty: give a name, or remove this flag")
	case o.leaderElect && (o.retryPeriod <= 0 || o.renewDeadline <= o.retryPeriod || o.leaseDuration <= o.renewDeadline):
		return fmt.Errorf("--leader-elect-retry-period=%s, --leader-elect-renew-deadline=%s and --leader-elect-lease-duration=%s: each must be longer than the one before",
			o.retryPeriod, o.renewDeadline, o.leaseDuration)
	}
	if err := o.repairs.validate(); err != nil {
		return err
	}
	if o.webhooks {
		if _, _, err := admission.SplitAddress(o.webhookAddress); err != nil {
			return fmt.Errorf("--webhook-bind-address: %w", err)
		}
		if err := o.webhookClients.Validate(); err != nil {
			return fmt.Errorf("--webhook-client-ca-file and --webhook-client-name: %w", err)
		}
	}
	return nil
}
