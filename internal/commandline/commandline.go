// Package commandline has what the command lines of the programs have in common: the flags
// of the log, and the exit code.
package commandline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
)

// Log has the settings of the log.
type Log struct {
	Format string // json or text
	Level  slog.Level
}

// AddTo registers the flags, and sets their defaults.
func (l *Log) AddTo(flags *flag.FlagSet) {
	flags.StringVar(&l.Format, "log-format", "json", "log `format`: json or text")
	flags.TextVar(&l.Level, "log-level", slog.LevelInfo, "lowest logged `level`: debug, info, warn or error")
}

// Check returns which flag is wrong.
func (l Log) Check() error {
	if l.Format != "json" && l.Format != "text" {
		return fmt.Errorf("--log-format=%s: want json or text", l.Format)
	}
	return nil
}

// Logger returns a logger that writes to out.
func (l Log) Logger(out io.Writer) *slog.Logger {
	settings := &slog.HandlerOptions{Level: l.Level}
	if l.Format == "text" {
		return slog.New(slog.NewTextHandler(out, settings))
	}
	return slog.New(slog.NewJSONHandler(out, settings))
}

// usageError is an error of the user who wrote the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks an error as an error in the command line; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// ExitCode returns the exit code of a program: 2 for an error in the command line, as from
// most programs.
func ExitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return 2
	default:
		return 1
	}
}
