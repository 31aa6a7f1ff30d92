package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/deploy"
)

// applyCRDs runs the subcommand crds, which installs the CRDs of this version. Helm installs the
// CRDs of a chart once and never upgrades them.
func applyCRDs(ctx context.Context, args []string, out io.Writer) error {
	s := newSubcommand("crds", "installs the CRDs of this version, or upgrades them")
	if isDone, err := s.parse(args, out); isDone || err != nil {
		return err
	}
	config, err := connect(*s.kubeconfig)
	if err != nil {
		return err
	}
	api, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	texts, err := deploy.CRDs()
	if err != nil {
		return err
	}
	for _, text := range texts {
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &crd.Object); err != nil {
			return err
		}
		result := "applied"
		isOther, err := isOfOther(ctx, api, crd)
		switch {
		case isOther:
			result = "left as it is: another tool installed it"
		case err == nil:
			err = applyCRD(ctx, api, crd)
		}
		if err != nil {
			return fmt.Errorf("applying CRD %s: %w", crd.GetName(), err)
		}
		fmt.Fprintf(out, "CRD %s %s\n", crd.GetName(), result)
	}
	return nil
}

// isOfOther reports whether another tool installed the CRD: that of NodeHealthChecks may be medik8s'.
// All CRDs of Autohealer have the category autohealer.
func isOfOther(ctx context.Context, api client.Client, crd *unstructured.Unstructured) (bool, error) {
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(crd.GroupVersionKind())
	if err := api.Get(ctx, client.ObjectKeyFromObject(crd), stored); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	categories, _, err := unstructured.NestedStringSlice(stored.Object, "spec", "names", "categories")
	return err == nil && !slices.Contains(categories, "autohealer"), err
}

// applyCRD applies a CRD, and returns when the API server serves it.
func applyCRD(ctx context.Context, api client.Client, crd *unstructured.Unstructured) error {
	const poll, limit = 100 * time.Millisecond, time.Minute
	if err := api.Apply(ctx, client.ApplyConfigurationFromUnstructured(crd), client.FieldOwner(name+"-crds"), client.ForceOwnership); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, poll, limit, true, func(ctx context.Context) (bool, error) {
		if err := api.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
			return false, err
		}
		conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, condition := range conditions {
			condition, _ := condition.(map[string]any)
			if condition["type"] == "Established" && condition["status"] == "True" {
				return true, err
			}
		}
		return false, err
	})
}
