package install

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// Namespace is the namespace of the controller.
	Namespace = "autohealer-system"
	// Account is the service account of the controller.
	Account = "autohealer-controller"
	// User is that account in the audit log.
	User = "system:serviceaccount:" + Namespace + ":" + Account
)

// templates are the templates of the chart that are applied. Those of pods are not included:
// the programs run next to the testbed and not in it.
var templates = []string{"shared/medik8s-leases.yaml", "controller/namespace.yaml", "controller/rights.yaml", "controller/guard.yaml"}

// agentTemplates are those of agents.
var agentTemplates = []string{"agent/namespace.yaml", "agent/rights.yaml", "agent/guard.yaml", "agent/flow.yaml"}

// awaitCRDs waits until the custom resources are served.
func awaitCRDs(ctx context.Context, c *testbed.Cluster) error {
	names, err := deploy.CRDNames()
	if err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, append([]string{"wait", "--for=condition=Established", "--timeout=30s", "crd"}, names...)...)
	return err
}

// Install applies the manifests of the controller.
func Install(ctx context.Context, c *testbed.Cluster) error {
	// Of the webhook, only the Secret for its certificate is installed. UseWebhook
	// registers it.
	secret, err := webhookText("Secret")
	if err != nil {
		return err
	}
	crds, err := deploy.CRDs()
	if err != nil {
		return err
	}
	if err := install(ctx, c, templates, append(crds, string(secret))...); err != nil {
		return err
	}
	return awaitCRDs(ctx, c)
}

// unlimited is a Guardrails object that limits as little as possible. It does not begin with a
// brace, because kubectl 1.30 would read it as JSON.
const unlimited = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: Guardrails
metadata: {name: cluster}
spec:
  maxInTreatment: 100%
  maxUnschedulable: 100%
  pace: {max: 100%}
  topology: []
  correlatedFailure: {keys: []}
  maxAttempts: {limit: 1000, window: 1m}
`

// Unlimit lifts the default limits on all policies together, for clusters that show what one
// policy does.
func Unlimit(ctx context.Context, c *testbed.Cluster) error {
	_, err := c.KubectlApply(ctx, unlimited)
	return err
}

// install applies what install.yaml has of templates, and further objects, at once: each run of
// kubectl costs about as much CPU time as the API server needs for the objects.
func install(ctx context.Context, c *testbed.Cluster, templates []string, more ...string) error {
	var texts []string
	for _, template := range templates {
		text, err := deploy.Manifest(template)
		if err != nil {
			return err
		}
		texts = append(texts, string(text))
	}
	if _, err := c.KubectlApply(ctx, strings.Join(append(texts, more...), "\n---\n")); err != nil {
		return fmt.Errorf("installing the templates %s of deploy/chart: %w", strings.Join(templates, ", "), err)
	}
	return nil
}

// Options say how to run a controller.
type Options struct {
	// Name distinguishes several controllers of a cluster. Empty means controller.
	Name string
	// Program is the executable; if empty, it is built.
	Program string
	// Through is the proxy to the API server; nil means none.
	Through *testbed.Proxy
	// Webhook says that it serves the admission webhooks. The API server calls only the
	// controller of UseWebhook.
	Webhook bool
	// Unready says not to wait until it is ready, only until it is alive.
	Unready bool
	// Args are added to its command line, and take precedence.
	Args []string
	// Env is added to its environment.
	Env []string
}

// Controller is a running controller.
type Controller struct {
	*testbed.Part
	// Metrics and Probes are the addresses of its metrics and probes.
	Metrics, Probes string
	// Webhook is the address of its webhooks, empty without them.
	Webhook string
}

// Start runs a controller, and returns when it is ready. It need not be the leader.
func Start(ctx context.Context, c *testbed.Cluster, o Options) (*Controller, error) {
	if o.Name == "" {
		o.Name = "controller"
	}
	if o.Program == "" {
		var err error
		if o.Program, err = Build(ctx, "cmd/autohealer-controller"); err != nil {
			return nil, err
		}
	}
	config, err := c.ServiceAccountConfig(ctx, Namespace, Account)
	if err != nil {
		return nil, err
	}
	if o.Through != nil {
		config = o.Through.Config(config)
	}
	kubeconfig, err := c.WriteKubeconfig(o.Name, config)
	if err != nil {
		return nil, err
	}
	metrics, err := c.Address()
	if err != nil {
		return nil, err
	}
	probes, err := c.Address()
	if err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--namespace=" + Namespace,
		"--metrics-bind-address=" + metrics,
		"--health-probe-bind-address=" + probes,
		"--log-format=text",
	}
	webhook := ""
	if o.Webhook {
		if webhook, err = c.Address(); err != nil {
			return nil, err
		}
		args = append(args, "--webhook-bind-address="+webhook, "--webhook-dns-name="+loopback)
	} else {
		args = append(args, "--webhooks=false")
	}
	probe := "/readyz"
	if o.Unready {
		probe = "/healthz"
	}
	part, err := c.Run(ctx, testbed.Program{
		Name:  o.Name,
		Path:  o.Program,
		Args:  append(args, o.Args...),
		Env:   append([]string{"GORACE=halt_on_error=1"}, o.Env...),
		Ready: func(ctx context.Context) error { return testkit.Answers(ctx, "http://"+probes+probe) },
	})
	if err != nil {
		return nil, err
	}
	return &Controller{Part: part, Metrics: metrics, Probes: probes, Webhook: webhook}, nil
}

// Config returns the configuration of a client with the controller's rights.
func Config(ctx context.Context, c *testbed.Cluster) (*rest.Config, error) {
	return c.ServiceAccountConfig(ctx, Namespace, Account)
}
