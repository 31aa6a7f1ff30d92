package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// As in a container: orphaned processes become children of the agent, and only the agent can
// reap them.
func TestAsProcess1TheAgentReapsOrphansAndNoOtherExitCodes(t *testing.T) {
	t.Parallel()
	unshare, err := exec.LookPath("unshare")
	testkit.Require(t, err == nil, "%v: install util-linux", err)
	d := newDisk(t)
	// Each run leaves three orphans in other process groups, and exits while they end.
	put(t, d.program, fmt.Sprintf(`#!/bin/sh
cd %s
for late in 0 0.01 0.05; do
	setsid sh -c "echo >> left; exec sleep $late" &
done
sleep 0.01
[ -e unhealthy ] && echo unhealthy && exit 1
exit 0
`, d.folder))
	file, wrapper := filepath.Join(d.folder, "disk.json"), filepath.Join(d.folder, "as-process-1")
	monitor := strings.ReplaceAll(diskMonitor(d, "DiskBadBlock"), `"100ms"`, `"20ms"`)
	put(t, file, monitor)
	put(t, wrapper, fmt.Sprintf("#!/bin/sh\nexec %s --pid --fork --mount-proc --kill-child %s \"$@\"\n", unshare, binary))
	testkit.Must(t, os.Chmod(wrapper, 0o700))
	p := launch(t, wrapper, "--config.custom-plugin-monitor="+file, "--state-dir="+filepath.Join(d.folder, "state"))
	agent := children(t, p.command.Process.Pid)
	testkit.MustBeSame(t, len(agent), 1, "the children of unshare are %v, want the agent (is this root?)", agent)
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", agent[0])); err != nil || !strings.Contains(string(status), "\t1\n") {
		t.Fatalf("the agent is not process 1 of its namespace: %v\n%s", err, status)
	}
	for range 3 {
		p.waitFor("that the disk is well", p.is("DiskBadBlock", "False", "DiskIsWell"))
		d.is("unhealthy", "")
		p.waitFor("that it is not", p.is("DiskBadBlock", "True", "BadBlocks"))
		d.isNot("unhealthy")
	}
	p.waitFor("many orphans", func() bool { return left(d) > 200 })
	n := p.logged("status=Unknown")
	testkit.Check(t, n == 0, "the result was Unknown %d times: the reaper took an exit code", n)
	// From now on the program leaves no orphans. The earlier ones must disappear.
	put(t, file, strings.Replace(monitor, d.program, "/bin/true", 1))
	p.waitFor("the new version", func() bool { return p.logged("a monitor is replaced") == 1 })
	p.waitFor("that all are buried", func() bool {
		for _, child := range children(t, agent[0]) {
			if isOrphan(child) {
				return false
			}
		}
		return true
	})
	t.Logf("%d orphans were left behind", left(d))
}

// left counts the orphans.
func left(d disk) int {
	text, err := os.ReadFile(filepath.Join(d.folder, "left"))
	if err != nil {
		return 0
	}
	return strings.Count(string(text), "\n")
}

// isOrphan reports whether a process is an orphan, dead or alive.
func isOrphan(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && (strings.Contains(string(stat), "(sleep)") || strings.Contains(string(stat), "(sh)"))
}

// children returns the children of all threads of a process.
func children(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	testkit.Require(t, err == nil && len(lists) != 0, "there is no process %d (%v)", pid, err)
	var all []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(text)) {
			child := testkit.Value(strconv.Atoi(field)).Must(t)
			all = append(all, child)
		}
	}
	return all
}
