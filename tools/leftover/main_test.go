package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// play makes the test binary run a command as main does.
const play = "LEFTOVER_TEST_PLAY"

func TestMain(m *testing.M) {
	if os.Getenv(play) == "" {
		os.Exit(m.Run())
	}
	code, err := run(os.Args[1:], time.Second, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// runScript runs a script of the shell in a folder and returns the exit code, and what
// was written.
func runScript(t *testing.T, folder, script string) (int, string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], "sh", "-c", script)
	command.Env = append(os.Environ(), play+"=1")
	command.Dir = folder
	var out bytes.Buffer
	command.Stderr = &out
	err := command.Run()
	if command.ProcessState == nil {
		t.Fatal(err)
	}
	return command.ProcessState.ExitCode(), out.String()
}

func TestLeftovers(t *testing.T) {
	for _, c := range []struct {
		name, script string
		code         int
		says         []string
	}{
		{"none", "sleep 0 & true", 0, nil},
		{"the command's own failure", "exit 7", 7, nil},
		{"a process in the background", "sleep 1234 </dev/null >/dev/null 2>&1 & echo $! >pid", 1, []string{"sleep 1234"}},
		{"a process in another session with no environment", "env -i setsid sh -c 'echo $$ >pid; exec sleep 1235' </dev/null >/dev/null 2>&1 & until [ -s pid ]; do :; done", 1, []string{"sleep 1235"}},
		{"a failure and a process", "sleep 1236 </dev/null >/dev/null 2>&1 & echo $! >pid; exit 7", 7, []string{"sleep 1236"}},
		{"a process that ends within the grace", "sleep 0.2 </dev/null >/dev/null 2>&1 & true", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := t.TempDir()
			code, out := runScript(t, folder, c.script)
			if code != c.code {
				t.Errorf("the exit code is %d, want %d: %s", code, c.code, out)
			}
			if len(c.says) == 0 && out != "" {
				t.Errorf("it says %q", out)
			}
			for _, want := range append(c.says, folder)[:len(c.says)*2] {
				if !strings.Contains(out, want) {
					t.Errorf("it says %q, which does not name %s", out, want)
				}
			}
			if pid, err := os.ReadFile(filepath.Join(folder, "pid")); err == nil {
				if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid)) + "/cwd"); err == nil {
					t.Errorf("process %s was not ended", pid)
				}
			}
		})
	}
}
