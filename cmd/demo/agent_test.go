package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// The demo uses the agent's shipped configuration.
func TestMonitorIsTheShippedFileWithAnotherLogAndAClearPattern(t *testing.T) {
	for _, c := range []struct {
		name, file string
		log        kernelLog
		changed    map[string]any
	}{
		{"file", "kernel-monitor-filelog.json", kernelLog{"/somewhere/kern.log"}, map[string]any{"logPath": "/somewhere/kern.log"}},
		{"kernel_log", "kernel-monitor.json", kernelLog{kernelDevice}, map[string]any{"logPath": kernelDevice, "lookback": "0s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, err := config.Files.ReadFile(c.file)
			testkit.Must(t, err)
			var want map[string]any
			testkit.Must(t, json.Unmarshal(text, &want))
			for field, value := range c.changed {
				want[field] = value
			}
			changed := 0
			for _, rule := range want["rules"].([]any) {
				if rule := rule.(map[string]any); rule["reason"] == hangReason {
					rule["clearPattern"] = resumePattern
					changed++
					if pattern := regexp.MustCompile(rule["pattern"].(string)); !pattern.MatchString(hangLine) || pattern.MatchString(resumeLine) {
						t.Errorf("%s does not distinguish %q from %q", pattern, hangLine, resumeLine)
					}
				}
			}
			testkit.Require(t, changed == 1, "%d rules of config/%s have the reason %s, want one", changed, c.file, hangReason)
			made, err := c.log.monitor()
			testkit.Must(t, err)
			var got map[string]any
			testkit.Must(t, json.Unmarshal(made, &got))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCommandWritesTheSameLineAsWrite(t *testing.T) {
	log := kernelLog{filepath.Join(t.TempDir(), "kern.log")}
	testkit.Must(t, os.WriteFile(log.path, nil, 0o600))
	began := time.Now()
	testkit.Must(t, log.write(hangLine))
	command := exec.CommandContext(t.Context(), "sh", "-c", log.command(hangLine))
	command.Env = append(os.Environ(), "LC_TIME=de_DE.UTF-8")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(log.path)
	testkit.Must(t, err)
	lines := strings.SplitAfter(string(text), "\n")
	testkit.Require(t, len(lines) == 3 && lines[2] == "", "the log is %q, want two lines", text)
	ended := time.Now()
	for i, line := range lines[:2] {
		then := began // stamps have seconds and no year
		for line != log.format(then, hangLine) && then.Before(ended) {
			then = then.Add(time.Second)
		}
		if want := log.format(then, hangLine); line != want {
			t.Errorf("line %d is %q, want %q", i+1, line, want)
		}
	}
}

func TestCheckExplainsALogThatCannotBeWritten(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "kmsg")
	err := kernelLog{missing}.check()
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "root") || !strings.Contains(err.Error(), "without KMSG=1") {
		t.Errorf("error is %v", err)
	}
	testkit.Must(t, os.WriteFile(missing, nil, 0o600))
	if err := (kernelLog{missing}).check(); err != nil {
		t.Errorf("the log can be written, and the error is %v", err)
	}
}
