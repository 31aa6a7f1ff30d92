package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The gate lets nodes be replaced that do not become ready, and the flag goes before the
// environment.
func TestTheReadyTimeout(t *testing.T) {
	gate := "--feature-gates=NodeReadyTimeoutRecovery=true"
	for name, test := range map[string]struct {
		environment string
		args        []string
		want        time.Duration
	}{
		"the gate is off, as it is by default":        {"", nil, 0},
		"the gate is off, whatever the flag says":     {"", []string{"--node-ready-timeout=7m"}, 0},
		"the gate is off, whatever the variable says": {"3m", nil, 0},
		"the gate is switched off":                    {"3m", []string{"--feature-gates=NodeReadyTimeoutRecovery=false"}, 0},
		"nothing says how long":                       {"", []string{gate}, 10 * time.Minute},
		"the variable says how long":                  {"3m", []string{gate}, 3 * time.Minute},
		"the flag says how long":                      {"", []string{gate, "--node-ready-timeout=7m"}, 7 * time.Minute},
		"both say how long":                           {"3m", []string{gate, "--node-ready-timeout=7m"}, 7 * time.Minute},
		"alpha gates are on":                          {"", []string{"--feature-gates=AllAlpha=true"}, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NODE_READY_TIMEOUT", test.environment)
			o, err := parse(test.args, &bytes.Buffer{})
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := o.repairs.config()
			if err != nil {
				t.Fatal(err)
			}
			if cfg.ReadyTimeout != test.want {
				t.Errorf("a node has %s, want %s", cfg.ReadyTimeout, test.want)
			}
			if cfg.WithoutPolicy || cfg.RestoreSchema || len(cfg.Karpenter) == 0 || len(cfg.Static) == 0 || len(cfg.Schema) == 0 {
				t.Errorf("the rest is %+v", cfg)
			}
		})
	}
}

func TestRepairOptionsAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		environment string
		args        []string
		says        string
	}{
		"a variable without a unit":    {"10", nil, "NODE_READY_TIMEOUT=10: want a duration such as 10m"},
		"a variable of nothing":        {"0s", nil, "NODE_READY_TIMEOUT=0s: want a duration such as 10m"},
		"a variable of less":           {"-1m", nil, "NODE_READY_TIMEOUT=-1m: want a duration such as 10m"},
		"a flag without a unit":        {"", []string{"--node-ready-timeout=10"}, "node-ready-timeout"},
		"a flag of nothing":            {"", []string{"--node-ready-timeout=0s"}, "--node-ready-timeout=0s: a node needs some time to become ready, such as 10m"},
		"a gate that is none":          {"", []string{"--feature-gates=NodeReadyTimeout=true"}, "unrecognized feature gate: NodeReadyTimeout"},
		"a gate that is half open":     {"", []string{"--feature-gates=NodeReadyTimeoutRecovery=perhaps"}, "NodeReadyTimeoutRecovery=perhaps"},
		"a gate that nothing is asked": {"", []string{"--feature-gates=NodeReadyTimeoutRecovery"}, "NodeReadyTimeoutRecovery"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NODE_READY_TIMEOUT", test.environment)
			_, err := parse(test.args, &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error is %v, want one with %q", err, test.says)
			}
		})
	}
}

func TestTheOtherRepairFlags(t *testing.T) {
	o, err := parse([]string{"--repair-without-policy", "--restore-nodepool-schema"}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if cfg, err := o.repairs.config(); err != nil || !cfg.WithoutPolicy || !cfg.RestoreSchema {
		t.Errorf("they mean %+v, %v", cfg, err)
	}
	o, err = parse([]string{"--repair-statements=nowhere.yaml"}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.repairs.config(); err == nil || !strings.HasPrefix(err.Error(), "--repair-statements: ") || !strings.Contains(err.Error(), "nowhere.yaml") {
		t.Errorf("a file that is not there: %v", err)
	}
}
