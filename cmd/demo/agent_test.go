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
)

// What the demo shows is what the files that come with the agent find.
func TestTheMonitorIsTheOneThatComesWithTheAgentButForItsLogAndAnEnd(t *testing.T) {
	for _, c := range []struct {
		name, file string
		log        kernelLog
		changed    map[string]any
	}{
		{"of_a_file", "kernel-monitor-filelog.json", kernelLog{"/somewhere/kern.log"}, map[string]any{"logPath": "/somewhere/kern.log"}},
		{"of_the_kernel", "kernel-monitor.json", kernelLog{kernelDevice}, map[string]any{"logPath": kernelDevice, "lookback": "0s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, err := config.Files.ReadFile(c.file)
			if err != nil {
				t.Fatal(err)
			}
			var want map[string]any
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			for field, value := range c.changed {
				want[field] = value
			}
			ends := 0
			for _, rule := range want["rules"].([]any) {
				if rule := rule.(map[string]any); rule["condition"] == "KernelDeadlock" {
					rule["clearPattern"] = goesOnPattern
					ends++
					if pattern := regexp.MustCompile(rule["pattern"].(string)); !pattern.MatchString(hung) || pattern.MatchString(goesOn) {
						t.Errorf("%s does not tell %q from %q", pattern, hung, goesOn)
					}
				}
			}
			if ends != 1 {
				t.Fatalf("%d rules of config/%s make KernelDeadlock, want one", ends, c.file)
			}
			made, err := c.log.monitor()
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(made, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatIsPastedStandsInTheLogAsTheStoryWouldWriteIt(t *testing.T) {
	log := kernelLog{filepath.Join(t.TempDir(), "kern.log")}
	if err := os.WriteFile(log.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := log.write(hung); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "sh", "-c", log.command(hung))
	command.Env = append(os.Environ(), "LC_TIME=de_DE.UTF-8")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(log.path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	if len(lines) != 3 || lines[2] != "" {
		t.Fatalf("the log is %q, want two lines", text)
	}
	ended := time.Now()
	for i, line := range lines[:2] {
		then := began // stamps have seconds and no year
		for line != log.line(then, hung) && then.Before(ended) {
			then = then.Add(time.Second)
		}
		if want := log.line(then, hung); line != want {
			t.Errorf("line %d is %q, want %q", i+1, line, want)
		}
	}
}

func TestALogThatCannotBeWrittenIsToldInOneLineWithTheWayOut(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "kmsg")
	err := kernelLog{missing}.check()
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "root") || !strings.Contains(err.Error(), "without KMSG=1") {
		t.Errorf("it says %v", err)
	}
	if err := os.WriteFile(missing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (kernelLog{missing}).check(); err != nil {
		t.Errorf("it can be written, and it says %v", err)
	}
}
