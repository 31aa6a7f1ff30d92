package config_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// Any file is either accepted, with the properties that monitors rely on, or refused with messages
// that begin with its path. The same text always gets the same messages.
func FuzzParse(f *testing.F) {
	kinds := []config.Kind{config.SystemLog, config.CustomPlugin, config.SystemStats, config.Check, config.Problems}
	for _, text := range []string{
		``, `{}`, `[]`, `{"plugin": 5}`, `{"plugin": "kmsg", "source": "s", "rules": [{"pattern": "\\"}]}`, "{\"\\u0000\": [{}]}", strings.Repeat("[", 20_000),
		`{"plugin": "kmsg", "source": "s", "rules": [{"type": "temporary", "reason": "A", "pattern": "` + strings.Repeat("(", 1000) + strings.Repeat(")", 1000) + `"}]}`,
		`{"plugin": "kmsg", "source": "s", "rules": [{"type": "temporary", "reason": "A", "pattern": "` + strings.Repeat("(", 999) + strings.Repeat(")", 999) + `"}]}`,
		`{"plugin": "kmsg", "source": "s", "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": [null]}]}}`,
		`{"plugin": "filelog", "source": "s", "logPath": "/a", "pluginConfig": {"timestamp": "a", "message": "b", "timestampFormat": "2006"}}`,
		`{"plugin": "custom", "source": "s", "pluginConfig": {"timeout": "9223372036854775807ns"}, "rules": [{"path": "/a"}]}`,
		`{"plugin": "journald", "logPath": "..", "bufferSize": 99999, "lookback": "-1h", "pluginConfig": {"source": "kernel"}}`,
		`{"cpu": {"metricsConfigs": {"a": {"displayName": "b"}}}}`,
		`{"plugin": "builtin", "source": "s", "rules": [{"type": "temporary", "reason": "A", "check": "kubelet", "settings": {"url": "http://[::1]:1/", "grace": "0", "repair": true, "cooldown": "1ns"}}]}`,
		`{"plugin": "builtin", "source": "s", "rules": [{"type": "temporary", "reason": "A", "check": "clock", "settings": {"unit": "", "repair": true, "maxError": "0"}}, {"check": "clok"}]}`,
		`{"plugin": "builtin", "source": "s", "rules": [{"type": "temporary", "reason": "A", "check": "container-runtime", "settings": {"socket": "a", "mountTable": "b", "fullPercent": 101}}]}`,
		`{"tcp": "127.0.0.1:1", "sources": [{"name": "a", "uid": 0, "gid": 4294967294, "conditions": [null], "silence": "1ns", "rate": 1}]}`,
	} {
		for i := range kinds {
			f.Add(i, []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, which int, text []byte) {
		kind := kinds[uint(which)%uint(len(kinds))]
		file, warnings, err := config.Parse("f.json", kind, text)
		_, warningsAgain, again := config.Parse("f.json", kind, text)
		if (err == nil) != (again == nil) || err != nil && err.Error() != again.Error() || strings.Join(warnings, "\n") != strings.Join(warningsAgain, "\n") {
			t.Fatalf("the same text was answered with\n%v\n%q\nand\n%v\n%q", err, warnings, again, warningsAgain)
		}
		testkit.MustBeSame(t, (file == nil), (err != nil), "%+v and %v", file, err)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				testkit.Require(t, strings.HasPrefix(line, "f.json: "), "%q begins without the path", line)
			}
			return
		}
		file.ForNode(map[string]string{"a": "b"})
		switch {
		case file.Log != nil:
			checkLog(t, file.Log)
		case file.Plugin != nil:
			for _, rule := range file.Plugin.Rules {
				if rule.Path == "" || rule.Timeout <= 0 || rule.Timeout > file.Plugin.Timeout || rule.InvokeInterval <= 0 || rule.Permanent != (rule.Condition != "") {
					t.Fatalf("%+v was taken", rule)
				}
			}
		case file.Check != nil:
			checkChecks(t, file.Check)
		case file.Problems != nil:
			for _, source := range file.Problems.Sources {
				if source.Name == "" || source.Silence <= 0 || source.Rate < 1 || source.Burst < 1 || source.Connections < 1 ||
					source.UID != nil && *source.UID < 0 || source.GID != nil && *source.GID < 0 {
					t.Fatalf("%+v was taken", source)
				}
			}
		case file.Stats == nil || file.Stats.InvokeInterval <= 0:
			t.Fatalf("%+v was taken", file)
		}
	})
}

func checkChecks(t *testing.T, m *config.CheckMonitor) {
	t.Helper()
	for _, rule := range m.Rules {
		s := rule.Settings
		if !slices.Contains(config.Checks(), rule.Check) || rule.Timeout <= 0 || rule.Timeout > m.Timeout || rule.InvokeInterval <= 0 || rule.Permanent != (rule.Condition != "") ||
			s.FullPercent < 1 || s.FullPercent > 100 || s.Grace < 0 || s.MaxError < 0 || s.Cooldown <= 0 || s.Repair && s.Unit == "" ||
			s.Socket != "" && !filepath.IsAbs(strings.TrimPrefix(s.Socket, "unix://")) || s.MountTable != "" && !filepath.IsAbs(s.MountTable) {
			t.Fatalf("%+v was taken", rule)
		}
	}
}

func checkLog(t *testing.T, m *config.LogMonitor) {
	t.Helper()
	hasPath := filepath.IsAbs(m.LogPath) || m.LogPath == "" && m.Plugin == config.Journald
	testkit.Require(t, hasPath && m.Source != "" && m.BufferSize >= 1 && m.BufferSize <= 10_000 && m.Lookback >= 0 && m.Delay >= 0, "%+v was taken", m)
	for _, rule := range m.Rules {
		if rule.Count < 1 || (rule.Count > 1) != (rule.Window > 0) || rule.ClearAfter < 0 || rule.Permanent != (rule.Condition != "") ||
			!rule.Permanent && (rule.ClearPattern != "" || rule.ClearAfter != 0) {
			t.Fatalf("%+v was taken", rule)
		}
		for _, pattern := range []string{rule.Pattern, rule.ClearPattern} {
			regexp.MustCompile("(?:" + pattern + `)\z`)
		}
	}
}
