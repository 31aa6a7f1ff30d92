package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/cleanup"
	"github.com/resourcestack/autohealer/internal/commandline"
	"github.com/resourcestack/autohealer/internal/karpenter"
)

// cleanUp runs the subcommand cleanup, which removes what the controller and the agents
// left in the cluster.
func cleanUp(ctx context.Context, args []string, out io.Writer) error {
	s := newSubcommand("cleanup", "removes what Autohealer left in a cluster")
	namespace := s.flags.String("namespace", ownNamespace(), "`namespace` of the controller; in a pod, the default is the namespace of the pod")
	agents := s.flags.String("agent-lease-namespace", "", "`namespace` of the Leases of agents, if it differs from --namespace")
	wait := s.flags.Duration("wait", time.Minute, "`duration` in which a controller may still renew its Lease, because it is being stopped")
	dryRun := s.flags.Bool("dry-run", false, "print what would be removed, and remove nothing")
	if isDone, err := s.parse(args, out); isDone || err != nil {
		return err
	}
	if *namespace == "" {
		return commandline.Usage(errors.New("--namespace is empty: give the namespace of the controller"))
	}
	if *agents == "" {
		*agents = *namespace
	}
	config, err := connect(*s.kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, remediationv1alpha1.AddToScheme, karpenter.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	result, err := cleanup.Run(ctx, cleanup.Config{Client: api, Namespace: *namespace, AgentNamespace: *agents, LeaseName: name, Wait: *wait, DryRun: *dryRun, Out: out})
	if err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	fmt.Fprintf(out, "%d removed, %d left\n", result.Removed, result.Left)
	if result.Left > 0 {
		return fmt.Errorf("%d objects may belong to Autohealer and were left; the lines above name the commands that remove them", result.Left)
	}
	return nil
}
