// Command autohealer-agent looks after one node: it reads its logs, runs programs that
// know more, examines the parts of the node itself and hears those who report, by the
// configuration files of node-problem-detector and their extensions, and tells what it
// finds.
//
// It promises to take the flags and the files of node-problem-detector as they are, and
// that killing it at any moment makes it forget nothing and find nothing twice. Under
// the name of one of that agent's programs it is that program.
//
// It refuses to change anything on the node: it looks. Only where a file asks for it is
// a service restarted that does not answer.
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

	"github.com/resourcestack/autohealer/internal/helpers"
	"github.com/resourcestack/autohealer/internal/probe/subprocess"
)

// version is set when a release is built.
var version = "dev"

func main() {
	if subprocess.Become() {
		return
	}
	if program, ok := helpers.Program(os.Args[0]); ok {
		os.Exit(program(os.Args[1:], os.Stdout))
	}
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
