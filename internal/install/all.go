package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// agentManifest is the template of the agent.
const agentManifest = "agent/agent.yaml"

// enforcing lets all policies act: with the manifests alone, the controller only observes.
const enforcing = `{apiVersion: autohealer.resourcestack.com/v1alpha1, kind: Guardrails, metadata: {name: cluster}, spec: {mode: Enforce}}`

// Everything installs everything on a cluster of real nodes with the unchanged manifests,
// including pods, and lets the policies act. Only parts that users may change are changed: files replace the files
// with the same name in the agent's ConfigMap, and flags are added to its flags.
func Everything(ctx context.Context, c *testbed.Cluster, files map[string]string, flags ...string) error {
	crds, err := deploy.CRDs()
	if err != nil {
		return err
	}
	if err := install(ctx, c, nil, crds...); err != nil {
		return err
	}
	if err := awaitCRDs(ctx, c); err != nil {
		return err
	}
	pods := []string{"controller/webhook.yaml", "controller/controller.yaml"}
	if err := install(ctx, c, slices.Concat(templates, pods, agentTemplates), enforcing); err != nil {
		return err
	}
	return Agents(ctx, c, files, flags...)
}

// Agents runs the agents of Everything, again if they were deleted.
func Agents(ctx context.Context, c *testbed.Cluster, files map[string]string, flags ...string) error {
	config, agents, err := readAgents()
	if err != nil {
		return err
	}
	maps.Copy(config.Data, files)
	agent := &agents.Spec.Template.Spec.Containers[0]
	agent.Args = append(agent.Args, flags...)
	objects, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{config, agents}})
	if err != nil {
		return err
	}
	if _, err := c.KubectlApply(ctx, string(objects)); err != nil {
		return fmt.Errorf("installing the template %s of deploy/chart: %w", agentManifest, err)
	}
	return nil
}

// AgentFiles returns the agent files of the manifests, by name.
func AgentFiles() (map[string]string, error) {
	config, _, err := readAgents()
	if err != nil {
		return nil, err
	}
	return config.Data, nil
}

func readAgents() (*corev1.ConfigMap, *appsv1.DaemonSet, error) {
	manifest, err := deploy.Manifest(agentManifest)
	if err != nil {
		return nil, nil, err
	}
	parts := bytes.Split(manifest, []byte("\n---\n"))
	config, agents := &corev1.ConfigMap{}, &appsv1.DaemonSet{}
	if len(parts) == 2 {
		err = errors.Join(yaml.UnmarshalStrict(parts[0], config), yaml.UnmarshalStrict(parts[1], agents))
	}
	if err != nil || config.Kind != "ConfigMap" || agents.Kind != "DaemonSet" || len(agents.Spec.Template.Spec.Containers) != 1 {
		return nil, nil, fmt.Errorf("the template %s of deploy/chart is not a ConfigMap and a DaemonSet of one container (%w)", agentManifest, err)
	}
	return config, agents, nil
}
