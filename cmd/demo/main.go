// Command demo shows Autohealer at work on a whole cluster that runs on this
// machine alone: a real control plane, nodes in three zones played by kwok, and
// faults to inject.
//
// It promises to leave nothing behind: no process, no file. Today it shows the
// core: what would be done to every node and why. It writes nothing to the nodes
// itself; the rooms that do are still to come.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	once := flag.Bool("once", false, "play the story, check every step and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *once)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
	case interrupted && errors.Is(err, context.Canceled):
		fmt.Println("demo: interrupted, everything is cleaned up")
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
