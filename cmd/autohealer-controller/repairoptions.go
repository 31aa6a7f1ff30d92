package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"k8s.io/component-base/featuregate"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/controller"
	"github.com/resourcestack/autohealer/internal/provider"
)

const (
	// nodeReadyTimeoutRecovery replaces the nodes of a NodePool that do not become
	// ready in time after their creation.
	nodeReadyTimeoutRecovery featuregate.Feature = "NodeReadyTimeoutRecovery"

	// readyTimeoutVariable is where the ready timeout may be given, too.
	readyTimeoutVariable = "NODE_READY_TIMEOUT"
	defaultReadyTimeout  = 10 * time.Minute
)

// repairOptions are what the command line says of repairs.
type repairOptions struct {
	gates         featuregate.MutableFeatureGate
	readyTimeout  time.Duration
	withoutPolicy bool
	restoreSchema bool
	statements    string // name of a file
}

// add makes the flags known. What the environment says is the default of its flag.
func (o *repairOptions) add(flags *flag.FlagSet) error {
	o.gates = featuregate.NewFeatureGate()
	if err := o.gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		nodeReadyTimeoutRecovery: {Default: false, PreRelease: featuregate.Alpha},
	}); err != nil {
		return err
	}
	o.readyTimeout = defaultReadyTimeout
	if text := os.Getenv(readyTimeoutVariable); text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil || timeout <= 0 {
			return fmt.Errorf("%s=%s: want a duration such as 10m", readyTimeoutVariable, text)
		}
		o.readyTimeout = timeout
	}
	flags.Func("feature-gates", "`gates` such as NodeReadyTimeoutRecovery=true (alpha, off by default): replace nodes of a NodePool that do not become ready in time", o.gates.Set)
	flags.DurationVar(&o.readyTimeout, "node-ready-timeout", o.readyTimeout, "how long a node of a NodePool may take to become ready, where its pool does not say; needs the gate NodeReadyTimeoutRecovery. Environment "+readyTimeoutVariable+" does the same")
	flags.BoolVar(&o.withoutPolicy, "repair-without-policy", false, "repair nodes of NodePools that no policy speaks of, too, by what their provider recommends")
	flags.BoolVar(&o.restoreSchema, "restore-nodepool-schema", false, "put the schema of repair blocks back onto the CRD of NodePools when somebody has taken it away, and the blocks onto their pools; needs the rights of deploy/karpenter/restore-rights.yaml")
	flags.StringVar(&o.statements, "repair-statements", "", "`file` with further conditions that make a node sick")
	return nil
}

func (o *repairOptions) validate() error {
	if o.readyTimeout <= 0 {
		return fmt.Errorf("--node-ready-timeout=%s: a node needs some time to become ready, such as 10m", o.readyTimeout)
	}
	return nil
}

// providers returns who states what is sick: of nodes that Karpenter manages, and of all
// others.
func (o *repairOptions) providers() (karpenter, static provider.Provider, err error) {
	karpenter, static = provider.Karpenter(), provider.Static()
	if o.statements == "" {
		return karpenter, static, nil
	}
	file, err := provider.ReadFile(o.statements)
	if err != nil {
		return nil, nil, fmt.Errorf("--repair-statements: %w", err)
	}
	return file.Add(karpenter), file.Add(static), nil
}

// config is what they mean.
func (o *repairOptions) config() (controller.RepairConfig, error) {
	karpenter, static, err := o.providers()
	if err != nil {
		return controller.RepairConfig{}, err
	}
	schema, err := deploy.NodePoolSchema()
	if err != nil {
		return controller.RepairConfig{}, err
	}
	cfg := controller.RepairConfig{
		Karpenter:     provider.Statements(karpenter),
		Static:        provider.Statements(static),
		WithoutPolicy: o.withoutPolicy,
		RestoreSchema: o.restoreSchema,
		Schema:        schema,
	}
	if o.gates.Enabled(nodeReadyTimeoutRecovery) {
		cfg.ReadyTimeout = o.readyTimeout
	}
	return cfg, nil
}
