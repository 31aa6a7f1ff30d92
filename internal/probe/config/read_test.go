package config_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

func TestRead(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(folder, name)
		testkit.Must(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	program, text := write("program", "", 0o700), write("text", "", 0o600)
	good := `{"plugin": "kmsg", "source": "s", "rules": []}`

	t.Run("says what is wrong with a file that cannot be read", func(t *testing.T) {
		for _, test := range []struct{ path, want string }{
			{filepath.Join(folder, "none"), "cannot be read: no such file or directory; check that the flag --config.system-log-monitor names a file"},
			{folder, "cannot be read: is a directory; check that the flag --config.system-log-monitor names a file"},
			{write("long", good+strings.Repeat(" ", 1<<20), 0o600), "it is longer than 1024 KiB, which no configuration is; is it the right file?"},
			{"/dev/zero", "it is longer than 1024 KiB, which no configuration is; is it the right file?"},
			{write("mark", "\ufeff"+good, 0o600), "it begins with a byte order mark, which JSON does not have; save it as UTF-8 without one"},
			{write("spaces", " \n", 0o600), "it is empty; write an object of JSON: {...}"},
		} {
			file, _, err := config.Read(test.path, config.SystemLog)
			want := test.path + ": " + test.want
			testkit.Check(t, file == nil && err != nil && err.Error() == want, "got  %v\nwant %s", err, want)
		}
	})
	t.Run("takes a file as long as it may be", func(t *testing.T) {
		_, _, err := config.Read(write("full", good+strings.Repeat(" ", 1<<20-len(good)), 0o600), config.SystemLog)
		testkit.Check(t, err == nil, "%v", err)
	})
	t.Run("warns of programs that are not there and takes the file", func(t *testing.T) {
		path := write("plugin.json", fmt.Sprintf(`{"plugin": "custom", "source": "s", "rules": [
			{"type": "temporary", "reason": "A", "path": %q},
			{"type": "temporary", "reason": "A", "path": "/no/such/program"},
			{"type": "temporary", "reason": "A", "path": %q}]}`, program, text), 0o600)
		file, warnings, err := config.Read(path, config.CustomPlugin)
		testkit.Require(t, err == nil && len(file.Plugin.Rules) == 3, "%+v, %v", file, err)
		testkit.NoDiff(t, cmp.Diff([]string{
			path + `: rules[1].path: "/no/such/program" on this machine: no such file or directory`,
			path + fmt.Sprintf(`: rules[2].path: %q on this machine is no file that can be executed`, text),
		}, warnings),
			"the warnings")
	})
}

// parse parses a valid file.
func parse(t *testing.T, kind config.Kind, text string) *config.File {
	t.Helper()
	file, _, err := config.Parse("f.json", kind, []byte(text))
	testkit.Must(t, err)
	return file
}

func TestDefaults(t *testing.T) {
	log := func(m config.LogMonitor) config.LogMonitor {
		m.Source, m.Metrics, m.BufferSize = "s", true, 10
		return m
	}
	for _, test := range []struct {
		text string
		want config.LogMonitor
	}{
		{`{"plugin": "kmsg", "source": "s"}`, log(config.LogMonitor{Plugin: config.Kmsg, LogPath: "/dev/kmsg"})},
		{`{"plugin": "kmsg", "source": "s", "lookback": "0", "delay": "", "bufferSize": 0, "metricsReporting": null, "rules": null, "conditions": null, "pluginConfig": null}`,
			log(config.LogMonitor{Plugin: config.Kmsg, LogPath: "/dev/kmsg"})},
		{`{"plugin": "journald", "source": "s", "pluginConfig": {"source": "kernel"}, "delay": "2m"}`,
			log(config.LogMonitor{Plugin: config.Journald, PluginConfig: map[string]string{"source": "kernel"}, Delay: 2 * time.Minute})},
	} {
		testkit.NoDiff(t, cmp.Diff(test.want, *parse(t, config.SystemLog, test.text).Log), "%s", test.text)
	}
	got := parse(t, config.CustomPlugin, `{"plugin": "custom", "source": "s", "rules": [
		{"type": "temporary", "reason": "A", "path": "/a"}, {"type": "temporary", "reason": "A", "path": "/a", "timeout": "0", "invoke_interval": ""}]}`).Plugin
	rule := config.PluginRule{Reason: "A", Path: "/a", Timeout: 5 * time.Second, InvokeInterval: 30 * time.Second}
	testkit.NoDiff(t, cmp.Diff(&config.PluginMonitor{
		Source: "s", Metrics: true, InvokeInterval: 30 * time.Second, Timeout: 5 * time.Second, MaxOutputLength: 80, Concurrency: 3,
		Rules: []config.PluginRule{rule, rule},
	}, got),
		"the plugin monitor")
	testkit.NoDiff(t, cmp.Diff(&config.StatsMonitor{
		InvokeInterval: time.Minute, ProcPath: "/proc", LsblkTimeout: 5 * time.Second, Metrics: map[string]map[string]string{},
	}, parse(t, config.SystemStats, `{}`).Stats),
		"the stats monitor")
}

// Values that node-problem-detector accepts without a meaning have the same effect here.
func TestValuesThatNodeProblemDetectorAccepts(t *testing.T) {
	for _, test := range []struct {
		text string
		want config.LogMonitor
	}{
		{`"plugin": "kmsg", "lookback": "-5m", "delay": "-1s"`, config.LogMonitor{Source: "kernel.monitor", LogPath: "/dev/kmsg", BufferSize: 10}},
		{`"plugin": "kmsg", "source": "s", "bufferSize": 10001`, config.LogMonitor{Source: "s", LogPath: "/dev/kmsg", BufferSize: 10_000}},
		{`"plugin": "kmsg", "source": "s", "bufferSize": 10000`, config.LogMonitor{Source: "s", LogPath: "/dev/kmsg", BufferSize: 10_000}},
		{`"plugin": "kmsg", "source": "s", "logPath": "/var/log/journal"`, config.LogMonitor{Source: "s", LogPath: "/dev/kmsg", BufferSize: 10}},
		{`"plugin": "kmsg", "source": "s", "logPath": "/host/dev/kmsg"`, config.LogMonitor{Source: "s", LogPath: "/host/dev/kmsg", BufferSize: 10}},
		{`"plugin": "kmsg", "source": "s", "logPath": "/proc/kmsg"`, config.LogMonitor{Source: "s", LogPath: "/dev/kmsg", BufferSize: 10}},
		{`"plugin": "journald", "source": "s", "logPath": "var/log/journal", "pluginConfig": {"source": "kernel"}`, config.LogMonitor{Source: "s", LogPath: "/var/log/journal", BufferSize: 10}},
		{`"plugin": "filelog", "source": "s", "logPath": "./kern.log", "pluginConfig": {"timestamp": "^.{15}", "message": "(.*)", "timestampFormat": "Jan _2 15:04:05"}`,
			config.LogMonitor{Source: "s", LogPath: "/kern.log", BufferSize: 10}},
	} {
		file, warnings, err := config.Parse("/etc/kernel.monitor.json", config.SystemLog, []byte("{"+test.text+`, "rules": []}`))
		if err != nil {
			t.Error(err)
			continue
		}
		got := file.Log
		got.Plugin, got.PluginConfig, got.Metrics = "", nil, false
		testkit.NoDiff(t, cmp.Diff(test.want, *got), "%s", test.text)
		asIs := strings.Contains(test.text, "/host/dev/kmsg") || test.want.BufferSize == 10_000 && !strings.Contains(test.text, "10001")
		testkit.Same(t, (len(warnings) == 0), asIs, "%s: warnings %q", test.text, warnings)
	}
	plugin, warnings, err := config.Parse("ntp.json", config.CustomPlugin, []byte(`{"plugin": "custom", "rules": []}`))
	testkit.Check(t, err == nil && plugin.Plugin.Source == "ntp" && len(warnings) == 1, "%+v, %q, %v", plugin, warnings, err)
}

func TestFieldsOfAutohealer(t *testing.T) {
	got := parse(t, config.SystemLog, `{"plugin": "kmsg", "source": "s",
		"conditions": [{"type": "GPUUnhealthy"}, {"type": "DiskBadBlock"}, {"type": "CperHardwareErrorFatal", "survivesReboot": false}, {"type": "KernelDeadlock", "SURVIVESREBOOT": true},
			{"type": "FabricReady", "healthyStatus": "True", "meaning": "The link is down.", "reason": "LinkUp"}],
		"rules": [{"type": "permanent", "condition": "GPUUnhealthy", "reason": "A", "pattern": "a", "clearPattern": "b", "CLEARAFTER": "1h", "count": 3, "window": "10m",
			"kernelOnly": true, "patternGeneratedMessageSuffix": "c"}]}`).Log
	known := func(kind string, survives bool) config.Condition {
		c, _ := catalog.Lookup(kind)
		return config.Condition{Type: kind, Healthy: catalog.False, Meaning: c.Meaning, SurvivesReboot: survives}
	}
	testkit.NoDiff(t, cmp.Diff([]config.Condition{
		known("GPUUnhealthy", false), known("DiskBadBlock", true), known("CperHardwareErrorFatal", false), known("KernelDeadlock", true),
		{Type: "FabricReady", Healthy: catalog.True, Meaning: "The link is down.", Reason: "LinkUp"},
	}, got.Conditions),
		"the conditions")
	testkit.NoDiff(t, cmp.Diff([]config.LogRule{{
		Permanent: true, Condition: "GPUUnhealthy", Reason: "A", Pattern: "a", Suffix: "c",
		ClearPattern: "b", ClearAfter: time.Hour, Count: 3, Window: 10 * time.Minute, KernelOnly: true,
	}}, got.Rules),
		"the rules")
}

func TestNodeSelector(t *testing.T) {
	gpu, spot, none := map[string]string{"gpu": "true"}, map[string]string{"gpu": "true", "spot": "", "zone": "a"}, map[string]string{}
	for _, test := range []struct {
		selector        string
		gpu, spot, none bool
	}{
		{`""`, true, true, true},
		{`null`, true, true, true},
		{`{}`, true, true, true},
		{`"gpu=true"`, true, true, false},
		{`"gpu"`, true, true, false},
		{`"gpu=true,!spot"`, true, false, false},
		{`"zone in (a,b)"`, false, true, false},
		{`{"matchLabels": {"gpu": "true"}}`, true, true, false},
		{`{"MatchLabels": {"gpu": "false"}}`, false, false, false},
		{`{"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}`, true, false, true},
		{`{"matchExpressions": [{"key": "spot", "operator": "Exists"}]}`, false, true, false},
		{`{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}`, false, true, false},
		{`{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a", "b"]}]}`, true, false, true},
		{`{"matchLabels": {"gpu": "true"}, "matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}`, true, false, false},
	} {
		file := parse(t, config.SystemLog, `{"plugin": "kmsg", "source": "s", "nodeSelector": `+test.selector+`}`)
		if g, s, n := file.ForNode(gpu), file.ForNode(spot), file.ForNode(none); g != test.gpu || s != test.spot || n != test.none {
			t.Errorf("%s: on a node with a GPU %v, on a spot node %v, on one without labels %v", test.selector, g, s, n)
		}
	}
}

// node-problem-detector decodes into a struct. This package finds fields in the same way: in any
// case, the last of several, and not if they are null.
func TestFieldsAreFoundAsEncodingJSONFindsThem(t *testing.T) {
	type old struct {
		Plugin     string   `json:"plugin"`
		Source     string   `json:"source"`
		LogPath    string   `json:"logPath"`
		BufferSize int      `json:"bufferSize"`
		SkipList   []string `json:"skipList"`
		Rules      []struct {
			Type    string `json:"type"`
			Reason  string `json:"reason"`
			Pattern string `json:"pattern"`
			Suffix  string `json:"patternGeneratedMessageSuffix"`
		} `json:"rules"`
	}
	word := rapid.SampledFrom([]string{"a", "b", "Ünï", "k", "\u212a", "s\u017f", "\ufffd"})
	quoted := rapid.Map(word, func(text string) string { return fmt.Sprintf("%q", text) })
	path := rapid.Map(word, func(text string) string { return fmt.Sprintf("%q", "/"+text) })
	orNull := func(g *rapid.Generator[string]) *rapid.Generator[string] { return rapid.OneOf(g, rapid.Just("null")) }
	// spell writes a name in random case, with letters that fold to ASCII.
	spell := func(rt *rapid.T, name string) string {
		var b strings.Builder
		for _, r := range name {
			switch rapid.IntRange(0, 9).Draw(rt, "case") {
			case 0:
				b.WriteString(strings.ToUpper(string(r)))
			case 1:
				b.WriteString(strings.ToLower(string(r)))
			case 2:
				b.WriteString(strings.NewReplacer("k", "\u212a", "s", "\u017f").Replace(string(r)))
			default:
				b.WriteRune(r)
			}
		}
		return b.String()
	}
	// fields writes random fields of an object, possibly repeated.
	fields := func(rt *rapid.T, required string, values map[string]*rapid.Generator[string], names ...string) string {
		list := []string{required}
		for range rapid.IntRange(0, 2*len(names)).Draw(rt, "fields") {
			name := rapid.SampledFrom(names).Draw(rt, "name")
			list = append(list, fmt.Sprintf("%q: %s", spell(rt, name), values[name].Draw(rt, "value")))
		}
		return "{" + strings.Join(list, ", ") + "}"
	}
	compared := 0
	rapid.Check(t, func(rt *rapid.T) {
		rule := rapid.Custom(func(rt *rapid.T) string {
			return fields(rt, `"type": "temporary", "pattern": "p"`, map[string]*rapid.Generator[string]{
				"reason": orNull(quoted), "patternGeneratedMessageSuffix": orNull(quoted), "type": rapid.Just("null"), "other": quoted,
			}, "reason", "patternGeneratedMessageSuffix", "type", "other")
		})
		text := fields(rt, `"plugin": "journald", "pluginConfig": {"source": "kernel"}, "source": "s", "rules": [`+strings.Join(rapid.SliceOfN(rule, 0, 3).Draw(rt, "rules"), ", ")+`]`,
			map[string]*rapid.Generator[string]{
				"source": orNull(quoted), "logPath": orNull(path), "other": quoted,
				"bufferSize": orNull(rapid.Map(rapid.IntRange(1, 99), strconv.Itoa)),
				"skipList":   rapid.Map(rapid.SliceOf(quoted), func(list []string) string { return "[" + strings.Join(list, ",") + "]" }),
			}, "source", "logPath", "bufferSize", "skipList", "other")
		var want old
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			rt.Fatalf("%s: %v", text, err)
		}
		file, _, err := config.Parse("f.json", config.SystemLog, []byte(text))
		testkit.Require(rt, err == nil, "%s: %v", text, err)
		got := old{Plugin: file.Log.Plugin, Source: file.Log.Source, LogPath: file.Log.LogPath, BufferSize: file.Log.BufferSize, SkipList: file.Log.SkipList}
		for _, r := range file.Log.Rules {
			got.Rules = append(got.Rules, struct {
				Type    string `json:"type"`
				Reason  string `json:"reason"`
				Pattern string `json:"pattern"`
				Suffix  string `json:"patternGeneratedMessageSuffix"`
			}{"temporary", r.Reason, r.Pattern, r.Suffix})
		}
		if want.BufferSize == 0 {
			want.BufferSize = 10
		}
		if len(want.SkipList) == 0 {
			want.SkipList = nil
		}
		if len(want.Rules) == 0 {
			want.Rules = nil
		}
		testkit.Require(rt, reflect.DeepEqual(want, got), "%s\n(-want +got):\n%s", text, cmp.Diff(want, got))
		compared++
	})
	t.Logf("compared %d files", compared)
}

func TestSourcesOfProblemsHaveDefaults(t *testing.T) {
	got := parse(t, config.Problems, `{"sources": [{"name": "a", "gid": 0},
		{"name": "b", "socket": "/s", "uid": 7, "tokenFile": "/t", "conditions": ["X"], "silence": "9s", "rate": 1, "burst": 2, "connections": 3}]}`).Problems
	zero, seven := 0, 7
	if diff := cmp.Diff(&config.ProblemSources{
		Socket: problem.DefaultSocket, // the default of clients
		Sources: []config.ProblemSource{
			{Name: "a", GID: &zero, Silence: 2 * time.Minute, Rate: 20, Burst: 200, Connections: 4},
			{Name: "b", Socket: "/s", UID: &seven, TokenFile: "/t", Conditions: []string{"X"}, Silence: 9 * time.Second, Rate: 1, Burst: 2, Connections: 3},
		},
	}, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnUnknownFieldOfSourcesCausesAWarning(t *testing.T) {
	_, warnings, err := config.Parse("f", config.Problems, []byte(`{"comment": 1, "sources": [
		{"name": "a", "gid": 7, "conditions": ["X"], "owner": "me", "silense": "9s", "tcp": "x"}], "nodeSelector": {"matchLabels": {"gpu": "true"}}}`))
	diff := cmp.Diff([]string{
		"f: comment: not known and ignored; remove it",
		"f: sources[0].owner: not known and ignored; remove it",
		"f: sources[0].silense: not known and ignored; did you mean silence?",
		"f: sources[0].tcp: ignored here; it is a field of the top",
	}, warnings)
	testkit.Check(t, diff == "" && err == nil, "%v (-want +got):\n%s", err, diff)
}

// TestWords runs the transcripts in testdata/words: the messages about a file, line by line. With
// -rewrite it writes them.
func TestWords(t *testing.T) {
	refused, warned := 0, 0
	datadriven.Walk(t, "testdata/words", func(t *testing.T, path string) {
		t.Helper()
		// A command is the kind of a file. Its body is the file.
		datadriven.RunTest(t, path, func(t *testing.T, command *datadriven.TestData) string {
			t.Helper()
			file, warnings, err := config.Parse("f.json", config.Kind(command.Cmd), []byte(command.Input))
			var b strings.Builder
			if err != nil {
				refused++
				b.WriteString(err.Error() + "\n")
			}
			for _, warning := range warnings {
				warned++
				b.WriteString("warning: " + warning + "\n")
			}
			switch {
			case (err == nil) != (file != nil):
				t.Errorf("%s: a file and an error, or neither", command.Pos)
			case err == nil:
				b.WriteString("ok\n")
			}
			return b.String()
		})
	})
	t.Logf("saw %d files refused, %d warnings", refused, warned)
	testkit.Check(t, refused != 0 && warned != 0, "no transcript shows a refusal, or none a warning")
}
