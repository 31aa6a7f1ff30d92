package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// disk is a plugin that checks a disk. Files beside it make it find a problem, or run slowly.
type disk struct {
	t       testing.TB
	folder  string
	program string
}

func newDisk(tb testing.TB) disk {
	tb.Helper()
	folder := tb.TempDir()
	d := disk{tb, folder, filepath.Join(folder, "check_disk.sh")}
	put(tb, d.program, `#!/bin/sh
cd `+folder+`
[ -e slow ] && sleep 2
[ -e hangs ] && touch hanging && sleep 600
[ -e unhealthy ] && cat unhealthy && exit 1
echo well
`)
	testkit.Must(tb, os.Chmod(d.program, 0o700))
	return d
}

// is writes or removes one of the files.
func (d disk) is(what, text string) {
	d.t.Helper()
	put(d.t, filepath.Join(d.folder, what), text)
}

func (d disk) isNot(what string) {
	d.t.Helper()
	testkit.Must(d.t, os.Remove(filepath.Join(d.folder, what)))
}

// diskMonitor is a configuration file that runs the plugin ten times a second.
func diskMonitor(d disk, condition string) string {
	return fmt.Sprintf(`{
	"plugin": "custom", "source": "disk-monitor", "pluginConfig": {"invoke_interval": "100ms", "timeout": "15s"},
	"conditions": [{"type": %q, "reason": "DiskIsWell", "message": "the disk is well"}],
	"rules": [
		{"type": "permanent", "condition": %q, "reason": "BadBlocks", "path": %q, "args": ["--all"]},
		{"type": "temporary", "reason": "SlowDisk", "path": "/bin/true"}
	]}`, condition, condition, d.program)
}

func TestPluginReportsAProblemAndItsEnd(t *testing.T) {
	s, d := newScene(t), newDisk(t)
	file := filepath.Join(d.folder, "disk.json")
	put(t, file, diskMonitor(d, "DiskBadBlock"))
	p := start(t, append(s.args(), "--config.custom-plugin-monitor="+file)...)
	p.waitFor("that the disk is well", p.is("DiskBadBlock", "False", "DiskIsWell"))
	for _, metric := range []string{`problem_counter{reason="BadBlocks"}`, `problem_counter{reason="SlowDisk"}`, `problem_gauge{type="DiskBadBlock",reason="BadBlocks"}`, "autohealer_agent_abandoned_programs"} {
		testkit.Same(t, p.metric(metric), "0", "before there is a problem %s", metric)
	}
	d.is("unhealthy", "two bad blocks")
	p.waitFor("that it is not", p.is("DiskBadBlock", "True", "BadBlocks"))
	c, _ := p.condition("DiskBadBlock")
	testkit.Check(t, c.Message == "two bad blocks", "its message is %q", c.Message)
	for _, metric := range []string{`problem_counter{reason="BadBlocks"}`, `problem_gauge{type="DiskBadBlock",reason="BadBlocks"}`} {
		testkit.Same(t, p.metric(metric), "1", "%s", metric)
	}
	d.isNot("unhealthy")
	p.waitFor("that it is well again", p.is("DiskBadBlock", "False", "DiskIsWell"))
	testkit.Must(t, os.Rename(d.program, d.program+".away"))
	p.waitFor("Unknown", p.is("DiskBadBlock", "Unknown", "PluginMissing"))
	c, _ = p.condition("DiskBadBlock")
	testkit.Check(t, strings.Contains(c.Message, d.program), "the message does not name the program: %q", c.Message)
	answers(t, p.statusURL+"/healthz", http.StatusOK, "")
	testkit.Must(t, os.Mkdir(d.program, 0o700))
	p.waitFor("that a folder is none", p.is("DiskBadBlock", "Unknown", "PluginIsFolder"))
	testkit.Must(t, os.Remove(d.program))
	testkit.Must(t, os.Rename(d.program+".away", d.program))
	p.waitFor("that it is known again", p.is("DiskBadBlock", "False", "DiskIsWell"))
	lint(t, p)
	p.stop()
}

func TestRestartKeepsTheProblemOfAPlugin(t *testing.T) {
	s, d := newScene(t), newDisk(t)
	file := filepath.Join(d.folder, "disk.json")
	put(t, file, diskMonitor(d, "DiskBadBlock"))
	args := append(s.args(), "--config.custom-plugin-monitor="+file, "--v=4")
	p := start(t, args...)
	d.is("unhealthy", "two bad blocks")
	p.waitFor("the problem", p.is("DiskBadBlock", "True", "BadBlocks"))
	before, _ := p.condition("DiskBadBlock")
	p.stop()
	d.is("slow", "") // leaves time without a result
	p = start(t, args...)
	p.waitFor("a word of it", func() bool { _, ok := p.condition("DiskBadBlock"); return ok })
	c, _ := p.condition("DiskBadBlock")
	testkit.Check(t, c.Status == "True" && c.Transition == before.Transition, "the first condition is %+v, want %+v", c, before)
	d.isNot("slow")
	d.isNot("unhealthy")
	p.waitFor("that it is well again", p.is("DiskBadBlock", "False", "DiskIsWell"))
	reports := func() int { return p.logged("condition stands", "condition=DiskBadBlock") }
	p.waitFor("the report of its end", func() bool { return reports() >= 2 }) // the log may be later than the condition
	testkit.Same(t, reports(), 2, "reports: one of the problem and one of its end")
	d.is("hangs", "")
	p.waitFor("a program that hangs", func() bool { _, err := os.Stat(filepath.Join(d.folder, "hanging")); return err == nil })
	testkit.Between(t, p.stop(), 0, 3*time.Second, "the time to stop with a hanging program")
}

func TestChangedPluginFileReplacesOnlyItsMonitor(t *testing.T) {
	s, first, second := newScene(t), newDisk(t), newDisk(t)
	mount := t.TempDir()
	file, other := filepath.Join(mount, "disk.json"), filepath.Join(second.folder, "other.json")
	publish(t, mount, "..1", "disk.json", diskMonitor(first, "DiskBadBlock"))
	put(t, other, diskMonitor(second, "ReadonlyFilesystem"))
	p := start(t, append(s.args(), "--config.custom-plugin-monitor="+file+","+other)...)
	first.is("unhealthy", "a bad block")
	second.is("unhealthy", "it is read-only")
	p.waitFor("one problem", p.is("DiskBadBlock", "True", "BadBlocks"))
	p.waitFor("another", p.is("ReadonlyFilesystem", "True", "BadBlocks"))

	publish(t, mount, "..2", "disk.json", strings.ReplaceAll(diskMonitor(first, "DiskBadBlock"), `"path"`, `"pth"`))
	p.waitFor("the complaint", func() bool { return p.logged("level=ERROR", "ConfigInvalid", file, "path") == 1 })
	first.isNot("unhealthy")
	p.waitFor("that the last good version looks on", p.is("DiskBadBlock", "False", "DiskIsWell"))
	first.is("unhealthy", "a bad block")
	p.waitFor("the problem again", p.is("DiskBadBlock", "True", "BadBlocks"))

	publish(t, mount, "..3", "disk.json", strings.ReplaceAll(diskMonitor(first, "DiskBadBlock"), "BadBlocks", "Worn"))
	p.waitFor("the new words", p.is("DiskBadBlock", "True", "Worn"))
	n := p.logged("a monitor is replaced")
	testkit.Check(t, n == 1 && p.logged("a monitor is replaced", file) == 1, "%d monitors were replaced, want the one whose file has changed", n)
	testkit.Same(t, p.metric(`problem_counter{reason="BadBlocks"}`), "3", "the counter: it never decreases")
	testkit.Must(t, os.Remove(file))
	p.waitFor("the removal of the condition", func() bool { _, ok := p.condition("DiskBadBlock"); return !ok })
	testkit.Check(t, p.is("ReadonlyFilesystem", "True", "BadBlocks")(), "the other monitor is gone too")
}
