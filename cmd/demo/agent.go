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
	// agentNode is the node whose agent runs on this machine and reads a log here. The demo
	// does not write its conditions.
	agentNode = "worker-0007"

	// agentSource is the reporting controller of the agent's Events: its monitor.
	agentSource = "kernel-monitor"

	// hangLine is the kernel's message about a hanging task. No kernel writes resumeLine.
	hangLine   = "task docker:4711 blocked for more than 120 seconds."
	resumeLine = "task docker:4711 goes on."

	// hangReason is the reason of the agent's rule that finds hangLine. The demo adds
	// resumePattern to that rule; a real node is healthy again only after a reboot.
	hangReason    = "DockerHung"
	resumePattern = `task dockerd?:\w+ goes on\.`

	// kernelDevice is the log of this machine's kernel.
	kernelDevice = "/dev/kmsg"
)

// kernelLog is the log that the agent reads: a file in the format of rsyslog, or the
// kernel's own log.
type kernelLog struct{ path string }

func (l kernelLog) isDevice() bool { return l.path == kernelDevice }

// check returns an error if the log cannot be read and written.
func (l kernelLog) check() error {
	file, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("writing to the kernel log: %w; run the demo as root on a machine with a kernel log, or without KMSG=1", err)
	}
	return file.Close()
}

// monitor returns the agent's configuration: the shipped file, with the path of this log
// and resumePattern.
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
		monitor["lookback"] = "0s" // ignore lines of an earlier demo
	}
	rules, _ := monitor["rules"].([]any)
	for _, each := range rules {
		if rule, ok := each.(map[string]any); ok && rule["reason"] == hangReason {
			rule["clearPattern"] = resumePattern
			return json.MarshalIndent(monitor, "", "  ")
		}
	}
	return nil, fmt.Errorf("reading config/%s: no rule has the reason %s", name, hangReason)
}

// format returns a line of the log.
func (l kernelLog) format(now time.Time, message string) string {
	if l.isDevice() {
		return message + "\n"
	}
	return now.Format(time.Stamp) + " " + agentNode + " kernel: " + message + "\n"
}

// command returns the shell command that does the same as write.
func (l kernelLog) command(message string) string {
	if l.isDevice() {
		return fmt.Sprintf("echo %q >> %s", message, l.path)
	}
	return fmt.Sprintf("LC_ALL=C date '+%%b %%e %%T %s kernel: %s' \\\n    >> %s", agentNode, message, l.path)
}

func (l kernelLog) write(message string) error {
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(l.format(time.Now(), message))
	return errors.Join(err, file.Close())
}

// installAgent starts an agent with its own rights, and returns when the agent has
// reported. Its files are removed with the cluster.
func (s *demoCluster) installAgent(ctx context.Context, d demo) error {
	if err := install.ApplyAgentRights(ctx, s.Cluster); err != nil {
		return err
	}
	folder, err := s.Folder(agentNode)
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
	sources, err := s.writeProblemSources(folder)
	if err != nil {
		return err
	}
	s.agent, err = install.StartAgent(ctx, s.Cluster, install.AgentOptions{
		Node: agentNode, Program: d.agent, StateDir: filepath.Join(folder, "state"),
		Args: []string{"--config.system-log-monitor=" + file, "--config.problem-sources=" + sources},
	})
	if err != nil {
		return err
	}
	if err := s.startDiskWatch(ctx, d.diskWatch); err != nil {
		return err
	}
	return s.await(ctx, conditionIs(notDeadlocked().Type, corev1.ConditionFalse, agentNode), conditionIs(diskBadBlock, corev1.ConditionFalse, agentNode))
}

// writeKernelLine resets the clock and writes a line into the log that the agent reads.
func (s *demoCluster) writeKernelLine(message string) error {
	s.printer.resetClock()
	s.printer.line(filepath.Base(s.kernelLog.path), "%s", message)
	return s.kernelLog.write(message)
}
