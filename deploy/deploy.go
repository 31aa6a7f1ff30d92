// Package deploy has the manifests that install Autohealer.
//
// chart/ is a Helm chart and the source of everything else: "make generate" renders
// install.yaml, for kubectl, cleanup.yaml, for the removal, and the parts in extras/, which
// values of the chart add. karpenter/ has the patch for NodePools, defaults/ has ConditionSets
// for users to choose from, and argocd/ has health checks for Argo CD.
package deploy

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

//go:embed install.yaml
var install string

//go:embed chart/crds/*.yaml
var crds embed.FS

//go:embed karpenter/nodepool-repair.json
var nodePoolPatch []byte

// CRDs returns the CRDs of the chart.
func CRDs() ([]string, error) {
	files, err := crds.ReadDir("chart/crds")
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, file := range files {
		text, err := crds.ReadFile("chart/crds/" + file.Name())
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(text))
	}
	return texts, nil
}

// CRDNames returns the names of the CRDs of the chart.
func CRDNames() ([]string, error) {
	files, err := crds.ReadDir("chart/crds")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range files {
		group, plural, _ := strings.Cut(strings.TrimSuffix(file.Name(), ".yaml"), "_")
		names = append(names, plural+"."+group)
	}
	return names, nil
}

// CRD returns one CRD by its plural name and group, for example
// conditionsets.autohealer.resourcestack.com.
func CRD(name string) ([]byte, error) {
	plural, group, _ := strings.Cut(name, ".")
	return crds.ReadFile("chart/crds/" + group + "_" + plural + ".yaml")
}

// Manifest returns what install.yaml has of one template of the chart, for example
// controller/rights.yaml: objects with lines of three dashes between them.
func Manifest(template string) ([]byte, error) {
	var objects []string
	for _, object := range strings.Split(install, "\n---\n") {
		if source, object, found := strings.Cut(object, "\n"); found && source == "# Source: autohealer/templates/"+template {
			objects = append(objects, object)
		}
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("deploy/install.yaml has nothing of the template %s", template)
	}
	return []byte(strings.Join(objects, "\n---\n")), nil
}

// NodePoolCRD is the name of the CRD that [NodePoolPatch] is for.
const NodePoolCRD = "nodepools.karpenter.sh"

// NodePoolPatch returns the JSON patch in karpenter/ that adds the repair block to the CRD
// of NodePools. The patch fails on a CRD whose first version is not v1, and changes nothing
// on a CRD that already has the block.
func NodePoolPatch() []byte { return slices.Clone(nodePoolPatch) }

// NodePoolSchema returns the schema of the repair block, as the patch adds it to the
// properties of spec: to tell whether an installed CRD has it.
func NodePoolSchema() (json.RawMessage, error) {
	var patch []struct {
		Op    string          `json:"op"`
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(nodePoolPatch, &patch); err != nil {
		return nil, fmt.Errorf("reading the patch of %s: %w", NodePoolCRD, err)
	}
	for _, operation := range patch {
		if operation.Op == "add" {
			return operation.Value, nil
		}
	}
	return nil, fmt.Errorf("reading the patch of %s: it adds nothing", NodePoolCRD)
}
