package helpers

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/resourcestack/autohealer/internal/spelling"
)

// flags returns a flag set with the logging flags that every program accepts.
func flags(name string, out io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed in a single line
	f.Usage = func() {
		f.SetOutput(out)
		f.PrintDefaults()
		f.SetOutput(io.Discard)
	}
	f.Int("v", 0, "accepted without effect: there is no log")
	f.String("vmodule", "", "accepted without effect: there is no log")
	f.Bool("logtostderr", false, "accepted without effect: there is no log")
	return f
}

// parse parses the arguments, which must all be flags.
func parse(f *flag.FlagSet, args []string) error {
	usage := f.Usage
	f.Usage = func() {} // the flag package also calls it for errors
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage()
		return err
	case err != nil:
		return hint(f, err)
	case f.NArg() > 0:
		return fmt.Errorf("%q is no flag; they begin with two dashes", f.Arg(0))
	}
	return nil
}

// hint adds a suggestion to the error about an unknown flag.
func hint(f *flag.FlagSet, err error) error {
	_, unknown, ok := strings.Cut(err.Error(), "flag provided but not defined: -")
	if !ok {
		return err
	}
	var names []string
	f.VisitAll(func(known *flag.Flag) { names = append(names, known.Name) })
	if meant, ok := spelling.Nearest(strings.TrimLeft(unknown, "-"), names); ok {
		return fmt.Errorf("there is no flag --%s; did you mean --%s?", unknown, meant)
	}
	return fmt.Errorf("there is no flag --%s; there are --%s", unknown, strings.Join(names, ", --"))
}

// refuse prints what is wrong with the arguments.
func refuse(out io.Writer, name string, err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return healthy
	}
	return say(out, unknown, "%s: %v", name, err)
}
