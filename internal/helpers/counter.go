package helpers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/probe/kmsg"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/match"
)

// counterOptions are the flags of log-counter.
type counterOptions struct {
	source, path    string
	lookback, delay time.Duration
	pattern, revert *match.Pattern
	count           int
}

func parseCounter(args []string, out io.Writer) (counterOptions, error) {
	var o counterOptions
	var lookback, delay, pattern, revert string
	f := flags("log-counter", out)
	f.StringVar(&o.source, "journald-source", "", "`name` of the program that wrote the lines (SYSLOG_IDENTIFIER)")
	f.StringVar(&o.path, "log-path", "", "`folder` of the journal, or /dev/kmsg (the journal of the system)")
	f.StringVar(&lookback, "lookback", "", "how far back lines count")
	f.StringVar(&delay, "delay", "", "how long after the boot lines begin to count")
	f.StringVar(&pattern, "pattern", "", "`regex` that matches up to the end of a line")
	f.StringVar(&revert, "revert-pattern", "", "`regex` of lines that take one off the count")
	f.IntVar(&o.count, "count", 1, "how many lines are too many")
	if err := parse(f, args); err != nil {
		return o, err
	}
	var wrong error
	duration := func(name, text string) time.Duration {
		if text == "" {
			return 0
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			wrong = errors.Join(wrong, fmt.Errorf("--%s %q is no duration; write one like 20m", name, text))
		}
		return d
	}
	compile := func(name, text string) *match.Pattern {
		if text == "" {
			return nil
		}
		p, err := match.Compile(text)
		if err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("--%s: %w", name, err))
		}
		return p
	}
	o.lookback, o.delay = duration("lookback", lookback), duration("delay", delay)
	o.pattern, o.revert = compile("pattern", pattern), compile("revert-pattern", revert)
	switch {
	case pattern == "":
		wrong = errors.Join(wrong, errors.New("--pattern is missing; write what is counted"))
	case o.count < 1:
		wrong = errors.Join(wrong, fmt.Errorf("--count %d is never reached from below; write at least 1", o.count))
	case o.path != "" && !filepath.IsAbs(o.path):
		wrong = errors.Join(wrong, fmt.Errorf("--log-path %q does not begin at the root; write one like /var/log/journal", o.path))
	}
	return o, wrong
}

// counterTime is the time limit. It is less than the minute that the configuration files allow.
const counterTime = 50 * time.Second

func logCounter(n node, args []string, out io.Writer) int {
	o, err := parseCounter(args, out)
	if err != nil {
		return refuse(out, "log-counter", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), counterTime)
	defer cancel()
	total, err := o.total(ctx, n)
	switch {
	case err != nil:
		return say(out, unknown, "log-counter: %v", err)
	case total >= o.count:
		return say(out, unhealthy, "%d lines match, and %d are too many", total, o.count)
	}
	return say(out, healthy, "%d lines match, of %d that are too many", total, o.count)
}

// total counts the lines that match and subtracts those that match the revert pattern.
func (o counterOptions) total(ctx context.Context, n node) (int, error) {
	started, err := n.boot()
	if err != nil {
		return 0, err
	}
	now := n.now()
	since := now.Add(-o.lookback)
	if ready := started.Time.Add(o.delay); ready.After(since) {
		since = ready
	}
	total := 0
	count := func(line []byte) {
		if _, ok := o.pattern.Match(line); ok {
			total++
		}
		if o.revert != nil {
			if _, ok := o.revert.Match(line); ok {
				total--
			}
		}
	}
	if filepath.Base(o.path) != "kmsg" {
		err := readJournal(ctx, journal.Config{Path: o.path, Identifier: o.source, Since: since}, now, count)
		return total, err
	}
	reader, err := kmsg.Open(kmsg.Config{Path: o.path, Since: since, Boot: started})
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	err = readAll(ctx, reader, now, count)
	return total, err
}

// persistent is the folder that all configuration files name. It is also used on nodes whose
// journal is only in memory, so the program reads both folders.
const persistent = "/var/log/journal"

// readJournal reads the journal up to a time.
func readJournal(ctx context.Context, from journal.Config, until time.Time, visit func(line []byte)) error {
	if from.Path == persistent {
		from.Path = ""
	}
	reader, err := journal.Open(from)
	if err != nil {
		return err
	}
	defer reader.Close()
	return readAll(ctx, reader, until, visit)
}

// readAll reads a log up to a time and does not wait for more.
func readAll(ctx context.Context, reader logs.Reader, until time.Time, visit func(line []byte)) error {
	for {
		chunk, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		begin := 0
		for _, record := range chunk.Records {
			line := chunk.Text[begin:record.End]
			begin = record.End
			if !record.Time.After(until) {
				visit(bytes.TrimSuffix(line, []byte("\n")))
			}
		}
		if !chunk.More {
			return nil
		}
	}
}
