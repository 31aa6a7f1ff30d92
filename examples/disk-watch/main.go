// Disk-watch is an example of a daemon that reports problems of its node to Autohealer's agent. It
// watches the kernel's lists of bad blocks of disks and arrays and reports the condition
// DiskBadBlock.
//
//	disk-watch --socket=/run/autohealer/disk-watch/problems.sock '/sys/block/*/badblocks'
//
// A list that grows causes an event. With a hundred bad sectors in a list, the condition is true.
// If disk-watch cannot read the lists it exits, and the agent sets the condition to Unknown. It
// repairs nothing.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/resourcestack/autohealer/problem"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error("disk-watch ends", "err", err)
		os.Exit(1)
	}
}

// run watches until ctx ends or the lists cannot be read.
func run(ctx context.Context, args []string) error {
	cfg := problem.Config{Logger: slog.Default()}
	flags := flag.NewFlagSet("disk-watch", flag.ContinueOnError)
	flags.StringVar(&cfg.Source, "source", "disk-watch", "`name` under which the agent knows this daemon")
	flags.StringVar(&cfg.Socket, "socket", "", "`path` of the agent's socket (default "+problem.DefaultSocket+")")
	flags.StringVar(&cfg.Address, "address", "", "loopback `address` of the agent, instead of a socket")
	flags.StringVar(&cfg.TokenFile, "token-file", "", "`file` with the token, if the agent knows this daemon by one")
	flags.DurationVar(&cfg.Heartbeat, "heartbeat", 0, "how often to report while nothing changes (default 30s)")
	every := flags.Duration("every", 10*time.Second, "how often to look")
	tooMany := flags.Int("sectors", 100, "how many bad sectors of a disk are a problem")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 || *every <= 0 || *tooMany <= 0 {
		return errors.New("there is nothing to watch: write the lists of bad blocks, for example '/sys/block/*/badblocks', and look --every so often")
	}
	client, err := problem.New(cfg)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var reporting sync.WaitGroup
	reporting.Go(func() { client.Run(ctx) })
	defer reporting.Wait() // report remaining findings before the program ends
	defer stop()
	return watch(ctx, client, *every, *tooMany, flags.Args())
}

// watch reads the lists periodically and reports to the client.
func watch(ctx context.Context, client *problem.Client, every time.Duration, tooMany int, patterns []string) error {
	again := time.NewTicker(every)
	defer again.Stop()
	for before := []disk(nil); ; {
		disks, err := look(patterns)
		if err != nil {
			return err
		}
		for _, words := range grown(before, disks) {
			if err := client.Report(problem.Event{Reason: "BadBlockFound", Message: words}); err != nil {
				return err
			}
		}
		before = disks
		if err := client.SetCondition(verdict(disks, tooMany)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

// disk is a list and its number of bad sectors.
type disk struct {
	list    string
	sectors int
}

// grown returns the lists that are longer than before. There are none in the first run.
func grown(before, now []disk) []string {
	if before == nil {
		return nil
	}
	known := map[string]int{}
	for _, d := range before {
		known[d.list] = d.sectors
	}
	var words []string
	for _, d := range now {
		if more := d.sectors - known[d.list]; more > 0 {
			words = append(words, fmt.Sprintf("%d more bad sectors in %s, %d in all", more, d.list, d.sectors))
		}
	}
	return words
}

// verdict derives the condition from the worst disk. The client sets the transition.
func verdict(disks []disk, tooMany int) problem.Condition {
	worst := slices.MaxFunc(disks, func(a, b disk) int { return cmp.Compare(a.sectors, b.sectors) })
	c := problem.Condition{Type: "DiskBadBlock", Message: fmt.Sprintf("%d bad sectors in %s", worst.sectors, worst.list)}
	switch {
	case worst.sectors >= tooMany:
		c.Status, c.Reason = problem.True, "BadBlocksFound"
	case worst.sectors > 0:
		c.Reason = "FewBadBlocks"
	default:
		c.Reason, c.Message = "NoBadBlocks", "no list has a bad block in it"
	}
	return c
}

// look reads all lists. It fails if there is none.
func look(patterns []string) ([]disk, error) {
	var disks []disk
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			return nil, fmt.Errorf("looking for %s: there is no such list: %w", pattern, errors.Join(err, os.ErrNotExist))
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("reading a list of bad blocks: %w", err)
			}
			sectors, err := count(string(text))
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", path, err)
			}
			disks = append(disks, disk{path, sectors})
		}
	}
	return disks, nil
}

// count returns the number of bad sectors in a list. Each line has the first sector and the number
// of bad sectors.
func count(text string) (sectors int, err error) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		var first, n int
		if _, err := fmt.Sscan(line, &first, &n); err != nil {
			return 0, fmt.Errorf("%q is no sector and a number: %w", line, err)
		}
		sectors += n
	}
	return sectors, nil
}
