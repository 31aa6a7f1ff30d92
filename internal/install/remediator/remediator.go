// Package remediator brings the API of a remediator onto a testbed, as a vendor
// would: kinds for requests and their templates, and the rights that the controller
// gets by aggregation. It promises that nothing of ours knows these kinds beforehand.
// It refuses to remediate: a test or the demo plays that part.
package remediator

import (
	"context"
	_ "embed"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/testbed"
)

//go:embed remediator.yaml
var manifest string

// The kinds that it knows.
var (
	GroupVersion = schema.GroupVersion{Group: "remediator.example.com", Version: "v1"}
	Kind         = GroupVersion.WithKind("ExampleRemediation")
	TemplateKind = GroupVersion.WithKind("ExampleRemediationTemplate")
)

// Install returns when the API server serves the kinds.
func Install(ctx context.Context, c *testbed.Cluster) error {
	if _, err := c.KubectlApply(ctx, manifest); err != nil {
		return fmt.Errorf("installing the remediator: %w", err)
	}
	_, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s",
		"crd/exampleremediations."+GroupVersion.Group, "crd/exampleremediationtemplates."+GroupVersion.Group)
	return err
}
