package main

import (
	"os"
	"testing"
)

// The agent runs on every node. As it is released, with the kernel monitor and all checks
// that come with it, and gRPC among what it links, it must stay small.
func TestTheReleaseIsSmallOnDiskAndInMemory(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	release := buildRelease(t, folder)
	info, err := os.Stat(release)
	if err != nil {
		t.Fatal(err)
	}
	p := launch(t, release, "--config.system-log-monitor=../../config/kernel-monitor.json",
		"--config.check-monitor=../../config/health-checks.json", "--state-dir="+folder)
	for _, kind := range []string{"KernelDeadlock", "KubeletUnhealthy", "ContainerRuntimeUnhealthy", "ReadonlyFilesystem", "NTPProblem"} {
		p.waitFor(kind, func() bool { _, ok := p.condition(kind); return ok })
	}
	disk, memory := float64(info.Size())/1e6, p.resident()
	t.Logf("%.1f MB on disk, %.1f MB resident", disk, memory)
	if disk > mostMegabytes || memory > mostMegabytes {
		t.Errorf("%.1f MB on disk and %.1f MB in memory, want at most %d each", disk, memory, mostMegabytes)
	}
}
