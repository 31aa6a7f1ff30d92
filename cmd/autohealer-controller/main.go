// Command autohealer-controller applies the policies of a cluster. It watches nodes,
// ConditionSets, NodeHealthChecks, repair policies and NodePools, and taints, remediates
// or replaces the nodes that a policy matches.
//
// Any number of replicas may run. All of them serve the webhooks, and only the leader
// changes nodes. A replica can be killed at any moment without harm. The controller
// stores nothing outside the API server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // the image has no time zones for windows

	"github.com/resourcestack/autohealer/internal/commandline"
)

// version is set by the linker in a release build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(commandline.ExitCode(err))
	}
}

func command(ctx context.Context, args []string, out, log io.Writer) error {
	if err := limitMemory(os.Getenv); err != nil {
		return err
	}
	if len(args) > 0 {
		switch args[0] {
		case "cleanup":
			return cleanUp(ctx, args[1:], log)
		case "crds":
			return applyCRDs(ctx, args[1:], log)
		}
	}
	o, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return commandline.Usage(err)
	}
	if o.version {
		_, err := fmt.Fprintln(out, name, version)
		return err
	}
	return run(ctx, o, log)
}
