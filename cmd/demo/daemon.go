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
	// diskWatchSource is the daemon of examples, which is not a part of Autohealer. It
	// keeps the condition diskBadBlock of the node that has an agent.
	diskWatchSource = "disk-watch"
	diskBadBlock    = corev1.NodeConditionType("DiskBadBlock")

	// badBlock is a line of a list of bad blocks: a sector, and how many from there on.
	badBlock = "2048 128"

	// silence is how long the daemon may say nothing, and heartbeat how often it does if
	// there is nothing to say. Both are short: nobody needs to watch two minutes pass.
	silence, heartbeat = intake.ShortestSilence, intake.ShortestSilence / 4
)

// badBlocks is the list of a disk as the kernel keeps one, and where the daemon that
// watches it reports.
type badBlocks struct{ list, socket string }

// has puts text into the list, in the place of what was there.
func (b badBlocks) has(text string) error {
	if err := os.WriteFile(b.list+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(b.list+".new", b.list)
}

// found and mended are what somebody types to do the same.
func (b badBlocks) found() string  { return fmt.Sprintf("echo %s >> %s", badBlock, b.list) }
func (b badBlocks) mended() string { return ": > " + b.list }

// sources is the file by which the agent hears the daemon, and nobody else.
func (b badBlocks) sources() ([]byte, error) {
	return json.MarshalIndent(map[string]any{"sources": []any{map[string]any{
		"name": diskWatchSource, "socket": b.socket, "conditions": []any{diskBadBlock}, "silence": silence.String(),
	}}}, "", "  ")
}

// allowDiskWatch writes that file into a folder, with a disk that has no bad blocks yet,
// and returns its path.
func (s *stage) allowDiskWatch(folder string) (string, error) {
	s.badBlocks = badBlocks{list: filepath.Join(folder, "sda.badblocks"), socket: filepath.Join(folder, "problems.sock")}
	file := filepath.Join(folder, "problem-sources.json")
	text, err := s.badBlocks.sources()
	if err != nil {
		return "", err
	}
	return file, errors.Join(s.badBlocks.has(""), os.WriteFile(file, text, 0o600))
}

// startDiskWatch runs the daemon.
func (s *stage) startDiskWatch(ctx context.Context, program string) (err error) {
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

// diskHas lets a disk have bad blocks, or none. The clock of the story starts before it.
func (s *stage) diskHas(text, words string) error {
	s.tell.begin()
	s.tell.line(filepath.Base(s.badBlocks.list), "%s", words)
	return s.badBlocks.has(text)
}

func (s *stage) daemon(ctx context.Context) error {
	is := func(status corev1.ConditionStatus) look { return reported(diskBadBlock, status, probed) }
	if err := s.diskHas(badBlock+"\n", badBlock); err != nil {
		return err
	}
	if err := s.await(ctx, is(corev1.ConditionTrue), told("BadBlocksFound", probed), told("BadBlockFound", probed)); err != nil {
		return err
	}
	s.tell.begin()
	s.tell.line(diskWatchSource, "kill -9; it may say nothing for %s", silence)
	if err := s.diskWatch.Kill(); err != nil {
		return err
	}
	if err := s.await(ctx, is(corev1.ConditionUnknown), told(intake.Silent, probed)); err != nil {
		return err
	}
	s.tell.begin()
	s.tell.line(diskWatchSource, "started again")
	if err := s.diskWatch.Restart(ctx); err != nil {
		return err
	}
	if err := s.await(ctx, is(corev1.ConditionTrue)); err != nil {
		return err
	}
	if err := s.diskHas("", "empty: the disk was repaired"); err != nil {
		return err
	}
	return s.await(ctx, is(corev1.ConditionFalse), told("NoBadBlocks", probed))
}
