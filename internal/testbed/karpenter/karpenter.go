package karpenter

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// User is the author of all of Karpenter's writes.
	User = "system:serviceaccount:" + namespace + ":" + account

	namespace = "kube-system"
	account   = "karpenter"

	// sources is the folder next to the program with the module from which it is built.
	sources = ".sources/karpenter-v1.15.0"
)

// PoolsResource, ClaimsResource and classesResource are Karpenter's resources.
var (
	PoolsResource   = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}
	ClaimsResource  = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
	classesResource = schema.GroupVersionResource{Group: "karpenter.kwok.sh", Version: "v1alpha1", Resource: "kwoknodeclasses"}
)

// rights are those of Karpenter's chart.
//
//go:embed rights.yaml
var rights string

// Config says how Karpenter runs.
type Config struct {
	// Gates are Karpenter's feature gates, for example NodeRepair. Others keep Karpenter's
	// defaults.
	Gates map[string]bool

	// Env is added to its environment, which is its only configuration. It comes last and
	// takes precedence.
	Env []string
}

// Validate returns all problems of the configuration.
func (c Config) Validate() error {
	var errs []error
	for gate := range c.Gates {
		if gate == "" || strings.ContainsAny(gate, "=,") {
			errs = append(errs, fmt.Errorf("%s: %q is not the name of a feature gate", "Gates", gate))
		}
	}
	for i, variable := range c.Env {
		if name, _, ok := strings.Cut(variable, "="); !ok || name == "" {
			errs = append(errs, fmt.Errorf("%s[%d]: %q is not of the form NAME=value", "Env", i, variable))
		}
	}
	return errors.Join(errs...)
}

func (c Config) gates() string {
	gates := make([]string, 0, len(c.Gates))
	for gate, on := range c.Gates {
		gates = append(gates, fmt.Sprintf("%s=%t", gate, on))
	}
	slices.Sort(gates)
	return strings.Join(gates, ",")
}

// Karpenter is a running Karpenter. A test can break it like the other parts of the
// cluster.
type Karpenter struct {
	*testbed.Part

	cluster *testbed.Cluster
	client  kubernetes.Interface
	dynamic dynamic.Interface
}

// Start installs Karpenter in a cluster, and returns when it is ready. It stops with the
// cluster.
func Start(ctx context.Context, c *testbed.Cluster, cfg Config) (*Karpenter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring Karpenter: %w", err)
	}
	for _, needed := range []struct {
		part *testbed.Part
		what string
	}{
		{c.ControllerManager, "ControllerManager"}, {c.Scheduler, "Scheduler"}, {c.Kwok, "Kwok"},
	} {
		if needed.part == nil {
			return nil, fmt.Errorf("starting Karpenter: the cluster has no %s, so no pod would run", needed.what)
		}
	}
	path, err := c.Program("karpenter")
	if err != nil {
		return nil, fmt.Errorf("starting Karpenter: %w, as `make testbed-karpenter`", err)
	}
	k := &Karpenter{cluster: c}
	if k.client, err = kubernetes.NewForConfig(c.AdminConfig()); err != nil {
		return nil, fmt.Errorf("starting Karpenter: %w", err)
	}
	if k.dynamic, err = dynamic.NewForConfig(c.AdminConfig()); err != nil {
		return nil, fmt.Errorf("starting Karpenter: %w", err)
	}
	if err := k.install(ctx, filepath.Join(filepath.Dir(path), sources)); err != nil {
		return nil, err
	}
	program, err := k.program(ctx, path, cfg)
	if err != nil {
		return nil, err
	}
	if k.Part, err = c.Run(ctx, program); err != nil {
		return nil, err
	}
	return k, nil
}

// InstallCRDs applies the CRDs as Karpenter publishes them, like an upgrade of its chart.
// Additions of other writers are lost.
func (k *Karpenter) InstallCRDs(ctx context.Context) error { return InstallCRDs(ctx, k.cluster) }

// InstallCRDs applies the CRDs of Karpenter to a cluster without starting Karpenter.
func InstallCRDs(ctx context.Context, c *testbed.Cluster) error {
	path, err := c.Program("karpenter")
	if err != nil {
		return fmt.Errorf("installing Karpenter's CRDs: %w, as `make testbed-karpenter`", err)
	}
	return installCRDs(ctx, c, filepath.Join(filepath.Dir(path), sources))
}

// install creates everything that Karpenter needs.
func (k *Karpenter) install(ctx context.Context, sources string) error {
	if err := installCRDs(ctx, k.cluster, sources); err != nil {
		return err
	}
	if _, err := k.cluster.KubectlApply(ctx, rights); err != nil {
		return fmt.Errorf("giving Karpenter its rights: %w", err)
	}
	return nil
}

func installCRDs(ctx context.Context, c *testbed.Cluster, sources string) error {
	var names []string
	for _, folder := range []string{"pkg/apis/crds", "kwok/apis/crds"} {
		files, err := filepath.Glob(filepath.Join(sources, folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("installing Karpenter's CRDs: none in %s; `make testbed-karpenter` puts them there", filepath.Join(sources, folder))
		}
		names = append(names, files...)
	}
	var manifests strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("installing Karpenter's CRDs: %w", err)
		}
		fmt.Fprintf(&manifests, "---\n%s\n", text)
	}
	// All CRDs have one field manager, as with a chart: applying them again reverts all
	// changes.
	path, err := c.WriteFile("karpenter-crds.yaml", []byte(manifests.String()))
	if err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-f", path); err != nil {
		return fmt.Errorf("installing Karpenter's CRDs: %w", err)
	}
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s", "-f", path); err != nil {
		return fmt.Errorf("waiting for Karpenter's CRDs: %w", err)
	}
	return nil
}

// program returns the program to run.
func (k *Karpenter) program(ctx context.Context, path string, cfg Config) (testbed.Program, error) {
	config, err := k.cluster.ServiceAccountConfig(ctx, namespace, account)
	if err != nil {
		return testbed.Program{}, err
	}
	kubeconfig, err := k.cluster.WriteKubeconfig("karpenter", config)
	if err != nil {
		return testbed.Program{}, err
	}
	var addresses, ports [2]string
	for i := range addresses {
		if addresses[i], err = k.cluster.Address(); err != nil {
			return testbed.Program{}, err
		}
		if _, ports[i], err = net.SplitHostPort(addresses[i]); err != nil {
			return testbed.Program{}, err
		}
	}
	env := []string{
		"KUBECONFIG=" + kubeconfig,
		"DISABLE_LEADER_ELECTION=true", // there is only one; a restart should not wait for its own old lease
		"KARPENTER_SERVICE=karpenter",
		"METRICS_PORT=" + ports[0],
		"HEALTH_PROBE_PORT=" + ports[1],
		// All pods of a Deployment are created at once, so waiting for more gains nothing.
		"BATCH_IDLE_DURATION=200ms",
	}
	if gates := cfg.gates(); gates != "" {
		env = append(env, "FEATURE_GATES="+gates)
	}
	return testbed.Program{
		Name: "karpenter", Path: path, Env: append(env, cfg.Env...),
		Ready: func(ctx context.Context) error { return testkit.Answers(ctx, "http://"+addresses[1]+"/readyz") },
	}, nil
}
