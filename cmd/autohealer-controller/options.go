package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/admission"
)

// options are what the command line says.
type options struct {
	kubeconfig string
	namespace  string
	agents     string // namespace of their Leases

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

	logFormat string
	logLevel  slog.Level
}

const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ownNamespace is where this process runs, or where the manifests put it.
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
	flags.SetOutput(io.Discard) // an error is told once, by whoever gets it
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` for running outside of a cluster; in a cluster the service account is used")
	flags.StringVar(&o.namespace, "namespace", ownNamespace(), "`namespace` of the ledger, the leader's lease, the webhook's certificate, and ConfigMaps with sets")
	flags.StringVar(&o.agents, "agent-lease-namespace", "", "`namespace` of the Leases by which agents tell that they live, if another than --namespace")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "`address` on which metrics are served, 0 for none")
	flags.BoolVar(&o.metricsSecure, "metrics-secure", false, "serve metrics over TLS, to clients whose token the API server knows and that may get /metrics; needs deploy/metrics/rights.yaml")
	flags.StringVar(&o.metricsCerts, "metrics-cert-dir", "", "`folder` with tls.crt and tls.key for --metrics-secure; without it the controller makes a certificate that no client can verify")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "`address` on which /healthz and /readyz are served, 0 for none")
	flags.BoolVar(&o.webhooks, "webhooks", true, "serve the admission webhooks, and keep their certificate")
	flags.StringVar(&o.webhookAddress, "webhook-bind-address", ":9443", "`address` on which webhooks are served")
	flags.Func("webhook-dns-name", "further `name` by which the API server calls the webhooks, beside that of their Service; may be given several times", func(name string) error {
		o.webhookNames = append(o.webhookNames, name)
		return nil
	})
	flags.StringVar(&o.webhookClients.CAFile, "webhook-client-ca-file", "", "answer only clients of the webhooks that show a certificate of the authority in this `file`; needs --webhook-client-name")
	flags.Func("webhook-client-name", "common name or DNS `name` in the client certificate of the API server; may be given several times", func(name string) error {
		o.webhookClients.Names = append(o.webhookClients.Names, name)
		return nil
	})
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding the leader's lease, so that several replicas may run")
	flags.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a lease holds that is not renewed")
	flags.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long the leader tries to renew before it gives up")
	flags.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "how often replicas try to get or renew the lease")
	if err := o.repairs.add(flags); err != nil {
		return options{}, err
	}
	flags.StringVar(&o.logFormat, "log-format", "json", "`format` of the log: json or text")
	flags.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "least `level` that is logged: debug, info, warn or error")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(out, "autohealer-controller follows the policies of a cluster. Its options:")
		flags.SetOutput(out)
		flags.PrintDefaults()
		return options{}, err
	case err != nil:
		return options{}, fmt.Errorf("%w (--help lists what there is)", err)
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q: every option has the form --name=value", flags.Arg(0))
	}
	if o.agents == "" {
		o.agents = o.namespace
	}
	return o, o.validate()
}

func (o options) validate() error {
	switch {
	case o.logFormat != "json" && o.logFormat != "text":
		return fmt.Errorf("--log-format=%s: want json or text", o.logFormat)
	case o.namespace == "":
		return errors.New("--namespace is empty: say where the ledger is to be kept")
	case o.metricsCerts != "" && !o.metricsSecure:
		return fmt.Errorf("--metrics-cert-dir=%s is not used without --metrics-secure: add that, or leave it away", o.metricsCerts)
	case o.webhooks && slices.Contains(o.webhookNames, ""):
		return errors.New("--webhook-dns-name is empty: give a name, or leave it away")
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

func (o options) logger(out io.Writer) *slog.Logger {
	settings := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat == "text" {
		return slog.New(slog.NewTextHandler(out, settings))
	}
	return slog.New(slog.NewJSONHandler(out, settings))
}
