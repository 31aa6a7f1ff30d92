package repairblock

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/treat"
)

// definitionName is the name of the CRD of NodePools.
const definitionName = "nodepools.karpenter.sh"

var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// definition is the used part of the CRD of NodePools. The zero value means that there is
// no CRD.
type definition struct {
	exists     bool // the CRD exists and serves the used version
	isDeleting bool // the CRD is in deletion, and all pools with it
	// version changes whenever the spec changes.
	version string
	// hasBlock says that the schema has the block, so that the API server stores it.
	hasBlock bool

	index           int // of the used version in spec.versions
	resourceVersion string
}

// readDefinition never fails: a malformed CRD has no block.
func readDefinition(crd *unstructured.Unstructured) definition {
	d := definition{
		isDeleting: crd.GetDeletionTimestamp() != nil,
		version:    fmt.Sprintf("%s/%d", crd.GetUID(), crd.GetGeneration()), resourceVersion: crd.GetResourceVersion(),
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for i, each := range versions {
		version, _ := each.(map[string]any)
		if version["name"] != karpenter.GroupVersion.Version {
			continue
		}
		d.exists, _ = version["served"].(bool)
		root, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
		d.index, d.hasBlock = i, keeps(root, "spec", "repair")
	}
	return d
}

// keeps reports whether an API server stores a field under this schema.
func keeps(object map[string]any, field string, path ...string) bool {
	if all, _ := object["x-kubernetes-preserve-unknown-fields"].(bool); all {
		return true
	}
	is, there, _ := unstructured.NestedMap(object, "properties", field)
	if !there || len(path) == 0 {
		return there
	}
	return keeps(is, path[0], path[1:]...)
}

func newDefinition() *unstructured.Unstructured {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(definitionKind)
	return crd
}

// readDefinitionNow reads the CRD from the API server.
func (k *Store) readDefinitionNow(ctx context.Context) (definition, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	crd := newDefinition()
	err := k.cfg.Client.Get(ctx, client.ObjectKey{Name: definitionName}, crd)
	switch {
	case apierrors.IsNotFound(err):
		return definition{}, nil
	case err != nil:
		return definition{}, fmt.Errorf("reading CustomResourceDefinition %s: %w", definitionName, err)
	}
	return readDefinition(crd), nil
}

// addBlock writes the block's schema into the CRD, if the CRD is unchanged since the read.
func (k *Store) addBlock(ctx context.Context, d definition) error {
	at := fmt.Sprintf("/spec/versions/%d", d.index)
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": at + "/name", "value": karpenter.GroupVersion.Version},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": d.resourceVersion},
		{"op": "add", "path": at + "/schema/openAPIV3Schema/properties/spec/properties/repair", "value": json.RawMessage(k.cfg.Schema)},
	})
	if err != nil {
		return fmt.Errorf("writing the schema of the block: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	crd := newDefinition()
	crd.SetName(definitionName)
	err = k.cfg.Client.Patch(ctx, crd, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(treat.FieldManager))
	k.cfg.Wrote("customresourcedefinitions", treat.Classify(err))
	if err != nil {
		return fmt.Errorf("patching CustomResourceDefinition %s: %w", definitionName, err)
	}
	return nil
}
