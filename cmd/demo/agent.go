package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/config"
	"github.com/resourcestack/autohealer/internal/install"
)

const (
	// probed is the node that this machine stands for: an agent reads its log here.
	// Nobody else writes conditions of it.
	probed = "worker-0007"

	// agentSource is who the agent's Events are from: its monitor.
	agentSource = "kernel-monitor"

	// hung is what a kernel says of a task that hangs, and goesOn what none says.
	hung   = "task docker:4711 blocked for more than 120 seconds."
	goesOn = "task docker:4711 goes on."

	// hungReason is the rule of the agent's files that finds hung, and goesOnPattern
	// what the demo adds to it: a real node is well again after a reboot.
	hungReason    = "DockerHung"
	goesOnPattern = `task dockerd?:\w+ goes on\.`

	// kernelDevice is the log of this machine's kernel.
	kernelDevice = "/dev/kmsg"
)

// kernelLog is the log that the agent reads: a file such as rsyslog writes, or the
// kernel's own.
type kernelLog struct{ path string }

func (l kernelLog) isDevice() bool { return l.path == kernelDevice }

// check says why the log cannot be written and read.
func (l kernelLog) check() error {
	file, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("writing to the kernel's log: %w; run the demo as root on a machine that has such a log, or without KMSG=1", err)
	}
	return file.Close()
}

// monitor is the agent's configuration: the file that comes with it, for this log, and
// with an end to what it finds.
func (l kernelLog) monitor() ([]byte, error) {
	name := "kernel-monitor-filelog.json"
	if l.isDevice() {
		name = "kernel-monitor.json"
	}
	text, err := config.Files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var monitor map[string]any
	if err := json.Unmarshal(text, &monitor); err != nil {
		return nil, fmt.Errorf("reading config/%s: %w", name, err)
	}
	monitor["logPath"] = l.path
	if l.isDevice() {
		monitor["lookback"] = "0s" // or what an earlier demo has written there would count
	}
	rules, _ := monitor["rules"].([]any)
	for _, each := range rules {
		if rule, ok := each.(map[string]any); ok && rule["reason"] == hungReason {
			rule["clearPattern"] = goesOnPattern
			return json.MarshalIndent(monitor, "", "  ")
		}
	}
	return nil, fmt.Errorf("reading config/%s: no rule has the reason %s", name, hungReason)
}

// line is how words stand in the log.
func (l kernelLog) line(now time.Time, words string) string {
	if l.isDevice() {
		return words + "\n"
	}
	return now.Format(time.Stamp) + " " + probed + " kernel: " + words + "\n"
}

// command does in a shell what write does.
func (l kernelLog) command(words string) string {
	if l.isDevice() {
		return fmt.Sprintf("echo %q >> %s", words, l.path)
	}
	return fmt.Sprintf("LC_ALL=C date '+%%b %%e %%T %s kernel: %s' \\\n    >> %s", probed, words, l.path)
}

func (l kernelLog) write(words string) error {
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(l.line(time.Now(), words))
	return errors.Join(err, file.Close())
}

// installAgent runs an agent under its own rights and returns when it has reported.
// All that it has goes with the cluster.
func (s *stage) installAgent(ctx context.Context, d demo) error {
	if err := install.InstallAgent(ctx, s.Cluster); err != nil {
		return err
	}
	folder, err := s.Folder(probed)
	if err != nil {
		return err
	}
	s.kernelLog = kernelLog{filepath.Join(folder, "kern.log")}
	if d.kmsg {
		s.kernelLog = kernelLog{kernelDevice}
	} else if err := os.WriteFile(s.kernelLog.path, nil, 0o600); err != nil {
		return err
	}
	monitor, err := s.kernelLog.monitor()
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "kernel-monitor.json")
	if err := os.WriteFile(file, monitor, 0o600); err != nil {
		return err
	}
	sources, err := s.allowDiskWatch(folder)
	if err != nil {
		return err
	}
	s.agent, err = install.StartAgent(ctx, s.Cluster, install.AgentOptions{
		Node: probed, Program: d.agent, StateDir: filepath.Join(folder, "state"),
		Args: []string{"--config.system-log-monitor=" + file, "--config.problem-sources=" + sources},
	})
	if err != nil {
		return err
	}
	if err := s.startDiskWatch(ctx, d.diskWatch); err != nil {
		return err
	}
	return s.await(ctx, reported(alive().Type, corev1.ConditionFalse, probed), reported(diskBadBlock, corev1.ConditionFalse, probed))
}

// kernelSays writes words into the log that the agent reads. The clock of the story
// starts before it.
func (s *stage) kernelSays(words string) error {
	s.tell.begin()
	s.tell.line(filepath.Base(s.kernelLog.path), "%s", words)
	return s.kernelLog.write(words)
}
