// Command autohealer-agent looks after one node: it reads its logs, by the
// configuration files of node-problem-detector and their extensions, and tells what it
// finds.
//
// It promises to take the flags and the files of node-problem-detector as they are, and
// that killing it at any moment makes it forget nothing and find nothing twice. It
// refuses to change anything on the node: it looks.
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
	err := command(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

const name = "autohealer-agent"

func command(ctx context.Context, args []string, getenv func(string) string, out, log io.Writer) error {
	o, err := parse(args, getenv, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case o.version:
		_, err := fmt.Fprintln(out, name, version)
		return err
	case o.validate:
		return validate(o.files(), out)
	}
	return run(ctx, o, getenv, log)
}
