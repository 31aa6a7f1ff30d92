package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/intake"
	"github.com/resourcestack/autohealer/internal/testbed"
)

const (
	// diskWatchSource is a daemon from examples, not a part of Autohealer. It reports the
	// condition diskBadBlock of agentNode.
	diskWatchSource = "disk-watch"
	diskBadBlock    = corev1.NodeConditionType("DiskBadBlock")

	// badBlock is a line of a list of bad blocks: first sector and number of sectors.
	badBlock = "2048 128"

	// silenceLimit is how long the daemon may be silent, and heartbeat how often it reports
	// without news. Both are short, so that the demo does not wait for two minutes.
	silenceLimit, heartbeat = intake.ShortestSilence, intake.ShortestSilence / 4
)

// badBlocks is a list of bad blocks in the kernel's format, and the socket to which the
// daemon reports.
type badBlocks struct{ list, socket string }

// set replaces the content of the list atomically.
func (b badBlocks) set(text string) error {
	if err := os.WriteFile(b.list+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(b.list+".new", b.list)
}

// addCommand and clearCommand are the shell commands that do the same.
func (b badBlocks) addCommand() string   { return fmt.Sprintf("echo %s >> %s", badBlock, b.list) }
func (b badBlocks) clearCommand() string { return ": > " + b.list }

// sources returns the configuration file that lets only this daemon report to the agent.
func (b badBlocks) sources() ([]byte, error) {
	return json.MarshalIndent(map[string]any{"sources": []any{map[string]any{
		"name": diskWatchSource, "socket": b.socket, "conditions": []any{diskBadBlock}, "silence": silenceLimit.String(),
	}}}, "", "  ")
}

// writeProblemSources writes that file and an empty list of bad blocks, and returns the
// path of the file.
func (s *demoCluster) writeProblemSources(folder string) (string, error) {
	s.badBlocks = badBlocks{list: filepath.Join(folder, "sda.badblocks"), socket: filepath.Join(folder, "problems.sock")}
	file := filepath.Join(folder, "problem-sources.json")
	text, err := s.badBlocks.sources()
	if err != nil {
		return "", err
	}
	return file, errors.Join(s.badBlocks.set(""), os.WriteFile(file, text, 0o600))
}

// startDiskWatch starts the daemon.
func (s *demoCluster) startDiskWatch(ctx context.Context, program string) (err error) {
	if program == "" {
		if program, err = install.Build(ctx, "examples/"+diskWatchSource); err != nil {
			return err
		}
	}
	s.diskWatch, err = s.Run(ctx, testbed.Program{
		Name: diskWatchSource, Path: program,
		Args: []string{"--socket=" + s.badBlocks.socket, "--every=100ms", "--heartbeat=" + heartbeat.String(), s.badBlocks.list},
	})
	return err
}

// setBadBlocks resets the clock and replaces the list of bad blocks.
func (s *demoCluster) setBadBlocks(text, message string) error {
	s.printer.resetClock()
	s.printer.line(filepath.Base(s.badBlocks.list), "%s", message)
	return s.badBlocks.set(text)
}

func (s *demoCluster) reportingDaemon(ctx context.Context) error {
	is := func(status corev1.ConditionStatus) expectation { return conditionIs(diskBadBlock, status, agentNode) }
	if err := s.setBadBlocks(badBlock+"\n", badBlock); err != nil {
		return err
	}
	if err := s.await(ctx, is(corev1.ConditionTrue), eventSeen("BadBlocksFound", agentNode), eventSeen("BadBlockFound", agentNode)); err != nil {
		return err
	}
	s.printer.resetClock()
	s.printer.line(diskWatchSource, "kill -9; it may be silent for %s", silenceLimit)
	if err := s.diskWatch.Kill(); err != nil {
		return err
	}
	if err := s.await(ctx, is(corev1.ConditionUnknown), eventSeen(intake.Silent, agentNode)); err != nil {
		return err
	}
	s.printer.resetClock()
	s.printer.line(diskWatchSource, "started again")
	if err := s.diskWatch.Restart(ctx); err != nil {
		return err
	}
	if err := s.await(ctx, is(corev1.ConditionTrue)); err != nil {
		return err
	}
	if err := s.setBadBlocks("", "empty: the disk was repaired"); err != nil {
		return err
	}
	return s.await(ctx, is(corev1.ConditionFalse), eventSeen("NoBadBlocks", agentNode))
}
