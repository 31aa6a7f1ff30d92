package commandline_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/commandline"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestLog(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     `"level":"INFO","msg":"found"`,
		"--log-format=text":                    "level=INFO msg=found",
		"--log-format=text --log-level=debug":  "level=DEBUG msg=searched",
		"--log-format=xml":                     "--log-format=xml: want json or text",
		"--log-format=text --log-level=silent": "silent",
	} {
		t.Run(args, func(t *testing.T) {
			var log commandline.Log
			flags := flag.NewFlagSet("test", flag.ContinueOnError)
			flags.SetOutput(io.Discard)
			log.AddTo(flags)
			var out bytes.Buffer
			if err := errors.Join(flags.Parse(strings.Fields(args)), log.Check()); err != nil {
				fmt.Fprint(&out, err)
			} else {
				log.Logger(&out).Debug("searched")
				log.Logger(&out).Info("found")
			}
			testkit.Check(t, strings.Contains(out.String(), want), "it writes %s, want %s", out.String(), want)
			testkit.Check(t, strings.Contains(out.String(), "searched") == strings.Contains(args, "debug"), "it writes %s", out.String())
		})
	}
}

func TestExitCode(t *testing.T) {
	wrong := errors.New("no such flag")
	for want, err := range map[int]error{0: commandline.Usage(nil), 1: wrong, 2: fmt.Errorf("starting: %w", commandline.Usage(wrong))} {
		testkit.Same(t, commandline.ExitCode(err), want, "the exit code")
	}
	testkit.Check(t, errors.Is(commandline.Usage(wrong), wrong), "the error is hidden")
}
