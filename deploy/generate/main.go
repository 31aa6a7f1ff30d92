// Command generate makes the files of deploy that are generated: the patch that adds the repair
// block to the CRD of Karpenter's NodePools, the part of the schema of the chart's values that is
// for the Guardrails, the dashboard for Grafana, and the manifests for users without Helm.
//
// The block on a NodePool has the schema of the block in a RepairPolicy, except the description
// of the whole block and the defaults: a NodePool belongs to its user and to Karpenter, so the
// API server stores it as it is written.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// about is what `kubectl explain nodepool.spec.repair` says of the block.
const about = `Repair says how long nodes of this pool may be unhealthy before Autohealer replaces
them. Without it, and without a RepairPolicy for them, none is repaired.`

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) != 2 {
		return errors.New("want two arguments, the folder that has deploy, and the program helm")
	}
	folder := filepath.Join(args[0], "deploy")
	if err := writePatch(folder); err != nil {
		return err
	}
	if err := writeSchema(folder); err != nil {
		return err
	}
	if err := writeDashboard(folder); err != nil {
		return err
	}
	return render(folder, args[1])
}

// writePatch makes the patch from the CRDs of the chart.
func writePatch(folder string) error {
	spec, err := readSpec(folder, "repairpolicies")
	if err != nil {
		return err
	}
	patch, err := nodePoolPatch(spec)
	if err != nil {
		return err
	}
	made := filepath.Join(folder, "karpenter", "nodepool-repair.json")
	if err := os.MkdirAll(filepath.Dir(made), 0o755); err != nil {
		return err
	}
	return os.WriteFile(made, patch, 0o644)
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// schema is an OpenAPI schema of a CRD.
type schema = map[string]any

// readSpec reads a CRD of the chart.
func readSpec(folder, plural string) (map[string]schema, error) {
	path := filepath.Join(folder, "chart", "crds", "autohealer.resourcestack.com_"+plural+".yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields, err := specFields(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return fields, nil
}

// specFields returns the schemas of the fields of spec, by name.
func specFields(crd []byte) (map[string]schema, error) {
	var kind struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct {
						Properties struct {
							Spec struct {
								Properties map[string]schema `json:"properties"`
							} `json:"spec"`
						} `json:"properties"`
					} `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(crd, &kind); err != nil {
		return nil, err
	}
	if len(kind.Spec.Versions) != 1 || len(kind.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties.Spec.Properties) == 0 {
		return nil, errors.New("want one version with a schema of spec")
	}
	return kind.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties.Spec.Properties, nil
}

// nodePoolPatch returns the patch for the block in the spec of RepairPolicies. Its test comes
// first: in a CRD whose first version is another one, nothing is changed.
func nodePoolPatch(spec map[string]schema) ([]byte, error) {
	block := spec["repair"]
	if block == nil {
		return nil, errors.New("RepairPolicies have no spec.repair")
	}
	block["description"] = about
	removeDefaults(block)
	var patch bytes.Buffer
	encoder := json.NewEncoder(&patch)
	encoder.SetEscapeHTML(false) // people read the rules
	encoder.SetIndent("", "  ")
	err := encoder.Encode([]operation{
		{"test", "/spec/versions/0/name", "v1"},
		{"add", "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/repair", block},
	})
	return patch.Bytes(), err
}

// removeDefaults removes the defaults of all properties of a schema.
func removeDefaults(schema map[string]any) {
	delete(schema, "default")
	for _, value := range schema {
		switch value := value.(type) {
		case map[string]any:
			removeDefaults(value)
		case []any:
			for _, one := range value {
				if child, isSchema := one.(map[string]any); isSchema {
					removeDefaults(child)
				}
			}
		}
	}
}
