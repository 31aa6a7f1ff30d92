package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/resourcestack/autohealer/internal/commandline"
)

// subcommand is a subcommand with its flags.
type subcommand struct {
	name, about string
	flags       *flag.FlagSet
	kubeconfig  *string
}

func newSubcommand(verb, about string) *subcommand {
	s := &subcommand{name: name + " " + verb, about: about}
	s.flags = flag.NewFlagSet(s.name, flag.ContinueOnError)
	s.flags.SetOutput(io.Discard) // the caller prints the error
	s.kubeconfig = s.flags.String("kubeconfig", "", "kubeconfig `file` for running outside a cluster; inside, the controller uses its service account")
	return s
}

// parse reads the flags. isDone is true if it has printed the help.
func (s *subcommand) parse(args []string, out io.Writer) (isDone bool, err error) {
	switch err := s.flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(out, "%s %s. Flags:\n", s.name, s.about)
		s.flags.SetOutput(out)
		s.flags.PrintDefaults()
		return true, nil
	case err != nil:
		return false, commandline.Usage(fmt.Errorf("%w (--help lists all flags)", err))
	case s.flags.NArg() > 0:
		return false, commandline.Usage(fmt.Errorf("unexpected argument %q: write flags as --name=value", s.flags.Arg(0)))
	}
	return false, nil
}
