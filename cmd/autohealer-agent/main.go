// Command autohealer-agent detects problems of one node: it reads logs, runs plugins and
// built-in checks, and accepts reports of other daemons. It is configured by files of
// node-problem-detector and their extensions. It reports conditions and Events to the API
// server.
//
// It accepts the flags and files of node-problem-detector unchanged. It can be killed at
// any moment: after a restart it neither forgets a problem nor reports one twice. Called
// under the name of one of node-problem-detector's helper programs, it is that program.
//
// It does not change the node, with one exception: it restarts an unhealthy service if a
// file asks for it.
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

	"github.com/resourcestack/autohealer/internal/commandline"
	"github.com/resourcestack/autohealer/internal/helpers"
	"github.com/resourcestack/autohealer/internal/probe/subprocess"
)

// version is set by the linker in a release build.
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
		os.Exit(commandline.ExitCode(err))
	}
}

const name = "autohealer-agent"

func command(ctx context.Context, args []string, getenv func(string) string, out, log io.Writer) error {
	if len(args) > 0 && args[0] == "clear" {
		if err := clearCommand(ctx, args[1:], out); !errors.Is(err, flag.ErrHelp) {
			return err
		}
		return nil
	}
	o, err := parse(args, getenv, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return commandline.Usage(err)
	case o.version:
		_, err := fmt.Fprintln(out, name, version)
		return err
	case o.validate:
		return validate(o.files(), out)
	}
	return run(ctx, o, getenv, log)
}
