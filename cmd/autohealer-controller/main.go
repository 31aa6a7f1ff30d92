// Command autohealer-controller follows the policies of a cluster: it watches
// nodes and ConditionSets, and keeps work off the nodes that a set speaks of.
//
// It promises that any number of replicas may be started and one works at a
// time, and that killing it at any moment harms nothing. It refuses to keep
// anything outside the API server.
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
)

// version is set when a release is built.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "autohealer-controller:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string, out io.Writer) error {
	if err := limitMemory(os.Getenv); err != nil {
		return err
	}
	if len(args) > 0 && args[0] == "cleanup" {
		return cleanUp(ctx, args[1:], out)
	}
	o, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	return run(ctx, o, out)
}
