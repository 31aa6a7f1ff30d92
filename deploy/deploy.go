// Package deploy holds the manifests that install Autohealer: crds/ and shared/ first, then
// controller/ and agent/, each in the order of its names, and one of the folders in
// agent/, which are two ways to run it. It promises that they are the very files that
// `kubectl apply -f deploy/crds -f deploy/shared -f deploy/controller -f deploy/agent -f
// deploy/agent/kmsg` reads, and that what others use too is in shared/ alone. Those in
// cleanup/ are for the removal. It refuses to apply them: whoever does so has a client of
// their own. The sets in defaults/ are for users to choose and belong to no
// installation, and so do the patch in karpenter/, for those who have NodePools, the rights
// to put it back, those in metrics/ for metrics over TLS, and the NetworkPolicy in network/,
// which needs addresses.
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

// NodePoolPatch returns the JSON patch that teaches the CRD of NodePools the repair
// block, as it stands in karpenter/. It fails on a CRD whose first version is not v1,
// and on one that has the block already it changes nothing.
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
