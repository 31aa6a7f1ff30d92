// Package deploy holds the manifests that install Autohealer. Users apply crds/ and shared/
// first, then controller/ and agent/, each in the order of its file names, and one of the
// two folders in agent/, which are two ways to run the agent. The manifests in cleanup/ are
// for the removal.
//
// The embedded files are the same files that `kubectl apply -f deploy/crds -f deploy/shared
// -f deploy/controller -f deploy/agent -f deploy/agent/kmsg` reads. Only shared/ contains
// objects that other components use too. The package does not apply the manifests: callers
// use their own client.
//
// Some files belong to no installation, because users choose them: the sets in defaults/,
// the patch for NodePools in karpenter/ and the rights to restore it, the rights for metrics
// over TLS in metrics/, and the NetworkPolicy in network/, which needs addresses.
package deploy

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
)

// Manifests are the files, by their paths from this folder.
//
//go:embed crds/*.yaml shared/*.yaml cleanup/*.yaml controller/*.yaml agent/*.yaml agent/*/*.yaml
var Manifests embed.FS

//go:embed karpenter/nodepool-repair.json
var nodePoolPatch []byte

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
