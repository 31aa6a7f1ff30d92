package helpers

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/resourcestack/autohealer/internal/spelling"
)

// flags makes a set of flags, with those that every program has for its log.
func flags(name string, out io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard) // what is wrong is said in one line
	f.Usage = func() {
		f.SetOutput(out)
		f.PrintDefaults()
		f.SetOutput(io.Discard)
	}
	f.Int("v", 0, "taken and without effect: there is no log")
	f.String("vmodule", "", "taken and without effect: there is no log")
	f.Bool("logtostderr", false, "taken and without effect: there is no log")
	return f
}

// parse reads the arguments, which are flags and nothing else.
func parse(f *flag.FlagSet, args []string) error {
	usage := f.Usage
	f.Usage = func() {} // called for whatever is wrong as well
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

// hint adds what may have been meant by a flag that is not known.
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

// refuse says what is wrong with the arguments.
func refuse(out io.Writer, name string, err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return well
	}
	return say(out, unknown, "%s: %v", name, err)
}
