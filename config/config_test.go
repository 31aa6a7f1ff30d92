package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	shipped "github.com/resourcestack/autohealer/config"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// originals are the files of node-problem-detector.
const originals = "../internal/probe/config/testdata/node-problem-detector"

// plugins returns the originals that run programs, as they are and as they are here.
func plugins(t *testing.T) map[string][2]*config.PluginMonitor {
	t.Helper()
	paths, err := filepath.Glob(originals + "/*.json")
	testkit.Require(t, err == nil && len(paths) == 19, "%d files of node-problem-detector are known, want 19 (%v)", len(paths), err)
	both := map[string][2]*config.PluginMonitor{}
	for _, path := range paths {
		name := filepath.Base(path)
		theirs, err := os.ReadFile(path)
		testkit.Must(t, err)
		ours, err := shipped.Files.ReadFile(name)
		if err != nil {
			t.Errorf("a DaemonSet may name it, and it is not here: %v", err)
			continue
		}
		if !strings.Contains(string(theirs), `"plugin": "custom"`) {
			continue
		}
		both[name] = [2]*config.PluginMonitor{parse(t, name, theirs), parse(t, name, ours)}
	}
	return both
}

func parse(t *testing.T, name string, text []byte) *config.PluginMonitor {
	t.Helper()
	file, _, err := config.Parse(name, config.CustomPlugin, text)
	testkit.Must(t, err)
	return file.Plugin
}

// Words for people may differ and be more, and patterns, which the next test holds.
func TestWhateverADaemonSetNamesIsHereAndRunsTheSameProgramsForTheSameConditions(t *testing.T) {
	for name, both := range plugins(t) {
		for _, m := range both {
			for i := range m.Conditions {
				m.Conditions[i].Message = ""
			}
			for _, rule := range m.Rules {
				for i := range rule.Args {
					rule.Args[i] = regexp.MustCompile("pattern=.*").ReplaceAllString(rule.Args[i], "pattern")
				}
			}
		}
		both[0].MaxOutputLength = max(both[0].MaxOutputLength, both[1].MaxOutputLength)
		testkit.Equal(t, name, both[0], both[1])
	}
}

// The texts are made of their patterns.
func TestWhatTheCountersOfNodeProblemDetectorCountIsCounted(t *testing.T) {
	tried := 0
	for name, both := range plugins(t) {
		for i, rule := range both[0].Rules {
			for j, arg := range rule.Args {
				flag, theirs, ok := strings.Cut(arg, "pattern=")
				_, ours, _ := strings.Cut(both[1].Rules[i].Args[j], flag+"pattern=")
				if !ok {
					continue
				}
				// Their pattern does not escape some dots, so it accepts any letter there.
				theirs = strings.NewReplacer("free. Usage", `free\. Usage`, ".service", `\.service`, ")...", `)\.\.\.`, ").", `)\.`).Replace(theirs)
				mine := regexp.MustCompile("(?:" + ours + `)\z`)
				rapid.Check(t, func(rt *rapid.T) {
					if text := rapid.StringMatching(theirs).Draw(rt, "text"); !mine.MatchString(text) {
						rt.Fatalf("%s: %q is counted by theirs, and not by %q", name, text, ours)
					}
					tried++
				})
			}
		}
	}
	t.Logf("tried %d texts", tried)
	testkit.Check(t, tried != 0, "nothing was tried")
}

func TestTheKubeletOfTheUsualPackagesIsCounted(t *testing.T) {
	rule := plugins(t)["systemd-monitor-counter.json"][1].Rules[0]
	for flag, line := range map[string]string{
		"--pattern=":        "Started kubelet: The Kubernetes Node Agent.",
		"--revert-pattern=": "Stopping kubelet: The Kubernetes Node Agent...",
	} {
		at := slices.IndexFunc(rule.Args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
		if at < 0 || !regexp.MustCompile("(?:"+strings.TrimPrefix(rule.Args[at], flag)+`)\z`).MatchString(line) {
			t.Errorf("%q is not found by %s of %q", line, flag, rule.Args)
		}
	}
}
