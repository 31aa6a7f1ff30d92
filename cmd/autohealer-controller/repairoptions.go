package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"k8s.io/component-base/featuregate"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/policy/repair"
)

const (
	// nodeReadyTimeoutRecovery enables the replacement of NodePool nodes that do not
	// become Ready in time after their creation.
	nodeReadyTimeoutRecovery featuregate.Feature = "NodeReadyTimeoutRecovery"

	// readyTimeoutVariable is the environment variable for the default ready timeout.
	readyTimeoutVariable = "NODE_READY_TIMEOUT"
	readyTimeoutFlag     = "node-ready-timeout"
	defaultReadyTimeout  = 10 * time.Minute
)

// repairOptions are the values of the flags about repairs.
type repairOptions struct {
	flags         *flag.FlagSet
	gates         featuregate.MutableFeatureGate
	readyTimeout  time.Duration
	withoutPolicy bool
	restoreSchema bool
	statements    string // path of a file
}

// add registers the flags. The environment variable sets the default of its flag.
func (o *repairOptions) add(flags *flag.FlagSet) error {
	o.flags, o.gates = flags, featuregate.NewFeatureGate()
	if err := o.gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		nodeReadyTimeoutRecovery: {Default: false, PreRelease: featuregate.Alpha},
	}); err != nil {
		return err
	}
	o.readyTimeout = defaultReadyTimeout
	if text := os.Getenv(readyTimeoutVariable); text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil || timeout <= 0 {
			return fmt.Errorf("%s=%s: want a duration like 10m", readyTimeoutVariable, text)
		}
		o.readyTimeout = timeout
	}
	flags.Func("feature-gates", "`gates` like NodeReadyTimeoutRecovery=true (alpha, off by default): replace nodes of a NodePool that do not become Ready in time", o.gates.Set)
	flags.DurationVar(&o.readyTimeout, readyTimeoutFlag, o.readyTimeout, "how long a node of a NodePool may take to become Ready, unless its pool sets a timeout; needs the gate NodeReadyTimeoutRecovery. The environment variable "+readyTimeoutVariable+" sets the default")
	flags.BoolVar(&o.withoutPolicy, "repair-without-policy", false, "also repair nodes of NodePools without a policy, as their provider recommends")
	flags.BoolVar(&o.restoreSchema, "restore-nodepool-schema", false, "restore the schema of repair blocks in the NodePool CRD after it was removed, and the blocks of the NodePools; needs the rights in deploy/extras/restore-rights.yaml")
	flags.StringVar(&o.statements, "repair-statements", "", "`file` with additional conditions that make a node unhealthy; it is read again when it changes")
	return nil
}

func (o *repairOptions) validate() error {
	if o.readyTimeout <= 0 {
		return fmt.Errorf("--node-ready-timeout=%s: want a positive duration like 10m", o.readyTimeout)
	}
	return nil
}

// config returns the configuration of the controller.
func (o *repairOptions) config(statements repair.StatementSource, log *slog.Logger) (repair.Config, error) {
	schema, err := deploy.NodePoolSchema()
	if err != nil {
		return repair.Config{}, err
	}
	cfg := repair.Config{
		Statements:    statements,
		WithoutPolicy: o.withoutPolicy,
		RestoreSchema: o.restoreSchema,
		Schema:        schema,
	}
	switch {
	case o.appliesReadyTimeouts():
		cfg.ReadyTimeout = o.readyTimeout
	case o.hasReadyTimeout():
		log.Warn("the ready timeout has no effect: set --feature-gates=NodeReadyTimeoutRecovery=true as well", "timeout", o.readyTimeout.String())
	}
	return cfg, nil
}

// hasReadyTimeout reports whether the user has set a ready timeout.
func (o *repairOptions) hasReadyTimeout() bool {
	is := os.Getenv(readyTimeoutVariable) != ""
	o.flags.Visit(func(f *flag.Flag) { is = is || f.Name == readyTimeoutFlag })
	return is
}

// appliesReadyTimeouts reports whether nodes that do not become Ready in time are replaced.
func (o *repairOptions) appliesReadyTimeouts() bool { return o.gates.Enabled(nodeReadyTimeoutRecovery) }
