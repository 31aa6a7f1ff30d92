package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// originals are the files of node-problem-detector.
const originals = "../../internal/probe/config/testdata/node-problem-detector"

func TestValidateAcceptsEveryFileOfNodeProblemDetector(t *testing.T) {
	files, err := filepath.Glob(originals + "/*.json")
	testkit.Require(t, err == nil && len(files) >= 15, "there are %d files (%v)", len(files), err)
	args := []string{"--validate"}
	for _, file := range files {
		text := testkit.Value(os.ReadFile(file)).Must(t)
		args = append(args, "--config."+kindOf(string(text))+"="+file)
	}
	var out strings.Builder
	testkit.Must(t, command(t.Context(), args, none, &out, io.Discard))
	testkit.Same(t, strings.Count(out.String(), ".json: ok, "), len(files), "files that are ok:\n%s", out.String())
	for _, words := range []string{"system-log-monitor of kmsg: 3 conditions, 14 rules\n", "custom-plugin-monitor: 1 condition, 2 rules\n", "system-stats-monitor: 16 metrics\n"} {
		testkit.Contains(t, out.String(), words, "the output")
	}
}

// kindOf returns the flag for a file.
func kindOf(text string) string {
	switch {
	case strings.Contains(text, `"custom"`):
		return "custom-plugin-monitor"
	case strings.Contains(text, `"metricsConfigs"`):
		return "system-stats-monitor"
	case strings.Contains(text, `"builtin"`):
		return "check-monitor"
	}
	return "system-log-monitor"
}

// The example files for users are valid. Only the program of the plugin is not on this machine.
func TestValidateAcceptsTheExamples(t *testing.T) {
	const examples = "../../examples/agent/"
	args := []string{
		"--validate", "--config.system-log-monitor=" + examples + "storage-monitor.json",
		"--config.custom-plugin-monitor=" + examples + "scratch-space.json", "--config.problem-sources=" + examples + "problem-sources.json",
	}
	var out strings.Builder
	err := command(t.Context(), args, none, &out, io.Discard)
	testkit.Check(t, err == nil && strings.Count(out.String(), ".json: ok, ") == 3 && strings.Count(out.String(), "warning: ") == 1, "%v:\n%s", err, out.String())
	files := testkit.Value(filepath.Glob(examples + "*.json")).Must(t)
	testkit.Check(t, len(files) == 3, "the examples are %v", files)
}

func TestTheExamplePluginReportsAFullFilesystem(t *testing.T) {
	for _, test := range []struct {
		folder, limit string
		code          int
		says          string
	}{
		{"/", "101", 0, "/ is "},
		{"/", "0", 1, "full, the limit is 0%"},
		{"/no/such/folder", "90", 2, "cannot read the usage of /no/such/folder"},
	} {
		plugin := exec.CommandContext(t.Context(), "sh", "../../examples/agent/scratch-space.sh", test.folder, test.limit)
		out, err := plugin.Output()
		testkit.Check(t, plugin.ProcessState != nil && plugin.ProcessState.ExitCode() == test.code, "%s with the limit %s: %v, want exit code %d", test.folder, test.limit, err, test.code)
		testkit.Contains(t, string(out), test.says, "what it says of %s", test.folder)
	}
}

func TestValidateAcceptsEveryShippedFile(t *testing.T) {
	files, err := filepath.Glob("../../config/*.json")
	testkit.Require(t, err == nil && len(files) >= 19, "there are %d files (%v)", len(files), err)
	args, kinds := []string{"--validate"}, map[string]int{}
	for _, file := range files {
		text := testkit.Value(os.ReadFile(file)).Must(t)
		kind := kindOf(string(text))
		kinds[kind]++
		args = append(args, "--config."+kind+"="+file)
	}
	var out strings.Builder
	err = command(t.Context(), args, none, &out, io.Discard)
	testkit.Check(t, err == nil, "%v:\n%s", err, out.String())
	n := strings.Count(out.String(), ".json: ok, ")
	testkit.Check(t, n == len(files) && len(kinds) == 4, "%d of %d files are ok, of the kinds %v:\n%s", n, len(files), kinds, out.String())
	for _, words := range []string{
		"/health-checks.json: ok, check-monitor: 4 conditions, 5 rules\n",
		"/system-stats-monitor.json: ok, system-stats-monitor: 27 metrics\n", "/net-cgroup-system-stats-monitor.json: ok, system-stats-monitor: 16 metrics\n",
	} {
		testkit.Contains(t, out.String(), words, "the output")
	}
	testkit.Check(t, !strings.Contains(out.String(), "expensive"), "a shipped file is expensive:\n%s", out.String())
}

func TestValidateNamesErrorsAndExpensivePatterns(t *testing.T) {
	folder := t.TempDir()
	good, bad := filepath.Join(folder, "good.json"), filepath.Join(folder, "bad.json")
	put(t, good, strings.Replace(kernelMonitor("/var/log/kern.log", `"nodeSelector": "gpu=true",`), `task docker:\\w+ blocked for more than \\w+ seconds\\.`, `\\d+ \\w+`, 1))
	put(t, bad, strings.Replace(kernelMonitor("/var/log/kern.log", ""), `task docker:\\w+ blocked for more than \\w+ seconds\\.`, `a(b`, 1))
	var out strings.Builder
	err := command(t.Context(), []string{"--validate", "--config.system-log-monitor=" + good + "," + bad + "," + filepath.Join(folder, "away.json")}, none, &out, io.Discard)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "2 of 3 files cannot be used"), "the error is %v", err)
	for _, words := range []string{
		good + ": ok, system-log-monitor of filelog: 1 condition, 3 rules, on nodes with gpu=true\n",
		`the pattern "\\d+ \\w+" is expensive`,
		bad + ": not ok\n", "rules[2].pattern", "there is no such file",
	} {
		testkit.Contains(t, out.String(), words, "the output")
	}
}

func TestOnlyValidateWarnsOfMissingPrograms(t *testing.T) {
	s := newScene(t)
	program := filepath.Join(t.TempDir(), "check_ntp.sh")
	plugin := filepath.Join(t.TempDir(), "ntp.json")
	put(t, plugin, fmt.Sprintf(`{"plugin": "custom", "source": "ntp-monitor", "pluginConfig": {"invoke_interval": "30s", "timeout": "5s"},
		"rules": [{"type": "temporary", "reason": "NTPIsDown", "path": %q, "timeout": "3s"}]}`, program))
	flag := "--config.custom-plugin-monitor=" + plugin
	said := func() string {
		var out strings.Builder
		testkit.Must(t, command(t.Context(), []string{"--validate", flag}, none, &out, io.Discard))
		return out.String()
	}
	text := said()
	testkit.Check(t, strings.Contains(text, "  warning: rules[0].path: ") && strings.Contains(text, "on this machine"), "there is no warning:\n%s", text)
	p := start(t, append(s.args(), flag)...)
	p.waitFor("that its monitor runs", func() bool { return p.logged("a monitor is started", plugin) == 1 })
	testkit.Same(t, p.logged("on this machine"), 0, "warnings of the running agent")
	put(t, program, "#!/bin/sh")
	testkit.Must(t, os.Chmod(program, 0o700))
	text = said()
	testkit.Check(t, !strings.Contains(text, "warning"), "there is a warning about an existing program:\n%s", text)
}

func TestPluginConfigErrorNamesItsFieldOnce(t *testing.T) {
	s := newScene(t)
	put(t, s.config, strings.Replace(kernelMonitor(s.log.path, ""), "Jan _2 15:04:05", "15:04:05", 1))
	var out strings.Builder
	err := command(t.Context(), append(s.args(), "--validate"), none, &out, io.Discard)
	testkit.Check(t, err != nil, "it is accepted")
	testkit.Same(t, strings.Count(out.String(), "pluginConfig"), 1, "lines that name the field:\n%s", out.String())
}
