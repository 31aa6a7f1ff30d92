package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// AgentManifest is the way to run agents that Whole takes.
const AgentManifest = "agent/kmsg/agent.yaml"

// Whole installs everything on a cluster of real nodes, pods among it, as the manifests
// are. Only what people are meant to change is changed: the agent's files, if some are
// given, stand in its ConfigMap in place of those of the same name.
func Whole(ctx context.Context, c *testbed.Cluster, files map[string]string) error {
	if err := install(ctx, c, []string{"crds/*.yaml"}); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, established...); err != nil {
		return err
	}
	if err := install(ctx, c, []string{"controller/*.yaml", "agent/*.yaml"}); err != nil {
		return err
	}
	return Agents(ctx, c, files)
}

// Agents has the agents of Whole run, again if they were deleted.
func Agents(ctx context.Context, c *testbed.Cluster, files map[string]string) error {
	manifest, err := deploy.Manifests.ReadFile(AgentManifest)
	if err != nil {
		return err
	}
	parts := bytes.Split(manifest, []byte("\n---\n"))
	config := &corev1.ConfigMap{}
	if err := yaml.Unmarshal(parts[0], config); err != nil || config.Kind != "ConfigMap" {
		return fmt.Errorf("deploy/%s does not begin with a ConfigMap (%w)", AgentManifest, err)
	}
	maps.Copy(config.Data, files)
	if parts[0], err = json.Marshal(config); err != nil {
		return err
	}
	if _, err := c.KubectlApply(ctx, string(bytes.Join(parts, []byte("\n---\n")))); err != nil {
		return fmt.Errorf("installing deploy/%s: %w", AgentManifest, err)
	}
	return nil
}
