package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// The feature gate enables the ready timeout. The flag overrides the environment variable.
func TestReadyTimeout(t *testing.T) {
	gate := "--feature-gates=NodeReadyTimeoutRecovery=true"
	for name, test := range map[string]struct {
		environment string
		args        []string
		want        time.Duration
	}{
		"the gate is off by default":      {"", nil, 0},
		"the flag needs the gate":         {"", []string{"--node-ready-timeout=7m"}, 0},
		"the variable needs the gate":     {"3m", nil, 0},
		"the default as a variable":       {"10m", nil, 0},
		"the gate is disabled":            {"3m", []string{"--feature-gates=NodeReadyTimeoutRecovery=false"}, 0},
		"the default":                     {"", []string{gate}, 10 * time.Minute},
		"the variable":                    {"3m", []string{gate}, 3 * time.Minute},
		"the flag":                        {"", []string{gate, "--node-ready-timeout=7m"}, 7 * time.Minute},
		"the flag overrides the variable": {"3m", []string{gate, "--node-ready-timeout=7m"}, 7 * time.Minute},
		"all alpha gates are on":          {"", []string{"--feature-gates=AllAlpha=true"}, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NODE_READY_TIMEOUT", test.environment)
			o, err := parse(test.args, &bytes.Buffer{})
			testkit.Must(t, err)
			var log bytes.Buffer
			cfg, err := o.repairs.config(nil, slog.New(slog.NewTextHandler(&log, nil)))
			testkit.Must(t, err)
			hasEffect := test.want > 0 || test.environment == "" && len(test.args) == 0
			testkit.Same(t, strings.Contains(log.String(), "the ready timeout has no effect: set --feature-gates=NodeReadyTimeoutRecovery=true as well"), !hasEffect, "the log warns")
			testkit.Check(t, cfg.ReadyTimeout == test.want, "the ready timeout is %s, want %s", cfg.ReadyTimeout, test.want)
			if cfg.WithoutPolicy || cfg.RestoreSchema || len(cfg.Schema) == 0 {
				t.Errorf("the configuration is %+v", cfg)
			}
		})
	}
}

func TestParseRefusesRepairFlags(t *testing.T) {
	for name, test := range map[string]struct {
		environment string
		args        []string
		says        string
	}{
		"a variable without a unit":    {"10", nil, "NODE_READY_TIMEOUT=10: want a duration like 10m"},
		"a variable of zero":           {"0s", nil, "NODE_READY_TIMEOUT=0s: want a duration like 10m"},
		"a negative variable":          {"-1m", nil, "NODE_READY_TIMEOUT=-1m: want a duration like 10m"},
		"a flag without a unit":        {"", []string{"--node-ready-timeout=10"}, "node-ready-timeout"},
		"a flag of zero":               {"", []string{"--node-ready-timeout=0s"}, "--node-ready-timeout=0s: want a positive duration like 10m"},
		"an unknown gate":              {"", []string{"--feature-gates=NodeReadyTimeout=true"}, "unrecognized feature gate: NodeReadyTimeout"},
		"a gate that is not a boolean": {"", []string{"--feature-gates=NodeReadyTimeoutRecovery=perhaps"}, "NodeReadyTimeoutRecovery=perhaps"},
		"a gate without a value":       {"", []string{"--feature-gates=NodeReadyTimeoutRecovery"}, "NodeReadyTimeoutRecovery"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NODE_READY_TIMEOUT", test.environment)
			_, err := parse(test.args, &bytes.Buffer{})
			testkit.Check(t, err != nil && strings.Contains(err.Error(), test.says), "error is %v, want one with %q", err, test.says)
		})
	}
}

func TestRepairFlags(t *testing.T) {
	o, err := parse([]string{"--repair-without-policy", "--restore-nodepool-schema"}, &bytes.Buffer{})
	testkit.Must(t, err)
	if cfg, err := o.repairs.config(nil, slog.New(slog.DiscardHandler)); err != nil || !cfg.WithoutPolicy || !cfg.RestoreSchema {
		t.Errorf("the configuration is %+v, %v", cfg, err)
	}
}
