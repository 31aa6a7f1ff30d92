package config

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/spelling"
)

// The defaults of a log monitor.
const (
	defaultBuffer = 10
	kernelLog     = "/dev/kmsg"
)

// Buffered lines and match times are kept in memory and in the state file, so their number is
// limited.
const (
	mostLines = 10_000
	mostTimes = 10_000
)

// The keys of pluginConfig.
const (
	identifier      = "source"    // of journald: SYSLOG_IDENTIFIER
	stampPattern    = "timestamp" // of filelog
	messagePattern  = "message"
	timestampLayout = "timestampFormat"
)

func logMonitor(top *section) *LogMonitor {
	m := &LogMonitor{
		Plugin:       top.required("plugin", `"kmsg", "journald" or "filelog"`),
		PluginConfig: top.textsByName("pluginConfig"),
		LogPath:      top.text("logPath", ""),
		SkipList:     top.texts("skipList"),
		Lookback:     top.durationOrNone("lookback"),
		Delay:        top.durationOrNone("delay"),
		BufferSize:   top.number("bufferSize", math.MinInt, math.MaxInt, 0),
		Source:       top.source(),
		Metrics:      top.flag("metricsReporting", true),
	}
	switch {
	case m.BufferSize <= 0:
		m.BufferSize = defaultBuffer
	case m.BufferSize > mostLines:
		top.warn("bufferSize", "%d is more than is kept, so that a pattern may span %d lines; write at most that", m.BufferSize, mostLines)
		m.BufferSize = mostLines
	}
	m.judgePlugin(top)
	m.Conditions = conditions(top)
	first := map[LogRule]int{} // the index of the first equal rule
	for s := range top.each("rules", "a rule") {
		rule := m.rule(s)
		if twin, ok := first[rule]; !ok {
			first[rule] = len(m.Rules)
		} else if len(s.reader.problems) == 0 { // invalid rules may look equal
			s.warn("", "says the same as rules[%d]", twin)
		}
		m.Rules = append(m.Rules, rule)
	}
	if len(m.Rules) == 0 && !top.has("rules") {
		top.warn("rules", "missing, so that nothing is looked for")
	}
	warnOfIdle(top, m.Conditions, func(condition string) bool {
		return slices.ContainsFunc(m.Rules, func(r LogRule) bool { return r.Condition == condition })
	})
	return m
}

// judgePlugin checks the fields that the plugin needs.
func (m *LogMonitor) judgePlugin(top *section) {
	var known []string
	switch m.Plugin {
	case "":
		return
	case Kmsg:
		m.judgeDevice(top)
	case Journald:
		m.rootPath(top)
		known = []string{identifier}
		if m.PluginConfig[identifier] == "" && !top.refused["pluginConfig.source"] {
			top.refuse("pluginConfig.source", `missing; write the SYSLOG_IDENTIFIER of the entries, for example "kernel" or "systemd"`)
		}
	case Filelog:
		known = []string{stampPattern, messagePattern, timestampLayout}
		if m.LogPath == "" && !top.refused["logPath"] {
			top.refuse("logPath", `missing; write the path of the file, for example "/var/log/kern.log"`)
		}
		m.rootPath(top)
		m.judgeTranslator(top)
	default:
		meant, ok := spelling.Nearest(m.Plugin, []string{Kmsg, Journald, Filelog})
		if !ok {
			meant = "kmsg, journald or filelog"
		}
		top.refuse("plugin", "%s reads no log; write %s", quote(m.Plugin), meant)
		return
	}
	if m.Plugin != Filelog && len(m.SkipList) > 0 {
		top.warn("skipList", "ignored; only filelog has one")
	}
	warnOfPluginSlips(top, known)
}

// judgeDevice sets the path of the kernel log. node-problem-detector always reads /dev/kmsg. Here
// the path may differ if the node's /dev is mounted elsewhere.
func (m *LogMonitor) judgeDevice(top *section) {
	switch {
	case m.LogPath == "":
	case filepath.IsAbs(m.LogPath) && strings.HasSuffix(filepath.Clean(m.LogPath), kernelLog):
		return
	default:
		top.warn("logPath", "%s is ignored, because the kernel's log is %s; remove it, or write a path that ends so", quote(m.LogPath), kernelLog)
	}
	m.LogPath = kernelLog
}

// rootPath makes a path absolute. In node-problem-detector, relative paths start at its working
// directory, which is the root in its image and under systemd.
func (m *LogMonitor) rootPath(top *section) {
	if m.LogPath == "" || filepath.IsAbs(m.LogPath) || top.refuseWindowsPath("logPath", m.LogPath) {
		return
	}
	whole := filepath.Join("/", m.LogPath)
	top.warn("logPath", "%s does not begin at the root, and is taken for %s; write that", quote(m.LogPath), quote(whole))
	m.LogPath = whole
}

// warnOfPluginSlips warns of misspelled keys in pluginConfig. The keys are case-sensitive, so a
// different case is a mistake too.
func warnOfPluginSlips(top *section, known []string) {
	value, _ := top.fields.get("pluginConfig")
	fields, _ := value.(object)
	for _, f := range fields {
		if meant, ok := spelling.Nearest(f.name, known); ok && meant != f.name {
			top.warn("pluginConfig."+quoteName(f.name), "not known and ignored; did you mean %s?", meant)
		}
	}
}

// judgeTranslator checks the patterns that find the timestamp and the message of a line.
func (m *LogMonitor) judgeTranslator(top *section) {
	for _, wanted := range []struct{ name, what string }{
		{stampPattern, `a regular expression that finds the time in a line, for example "^.{15}"`},
		{messagePattern, `a regular expression that finds the message in a line, for example "kernel: (.*)"`},
		{timestampLayout, `how the time is written, as a layout of Go like "Jan _2 15:04:05"`},
	} {
		at, text := "pluginConfig."+wanted.name, m.PluginConfig[wanted.name]
		switch {
		case top.refused[at]:
		case text == "":
			top.refuse(at, "missing; write %s", wanted.what)
		case wanted.name != timestampLayout:
			if err := checkPattern(text); err != nil {
				top.refuse(at, "%s %v", quote(text), err)
			}
		case !isLayout(text):
			top.refuse(at, "%s has nothing of a time in it; write %s", quote(text), wanted.what)
		}
	}
}

// isLayout returns whether a time layout contains any element of a time.
func isLayout(layout string) bool {
	unlike := time.Date(1987, time.November, 23, 21, 43, 56, 789_654_321, time.FixedZone("XYZ", 5*60*60))
	return unlike.Format(layout) != layout
}

func (m *LogMonitor) rule(s *section) LogRule {
	e := effectOf(s, m.Conditions)
	rule := LogRule{
		Permanent:    e.permanent,
		Condition:    e.condition,
		Reason:       e.reason,
		Pattern:      s.pattern("pattern", true),
		Suffix:       s.text("patternGeneratedMessageSuffix", ""),
		ClearPattern: s.pattern("clearPattern", false),
		ClearAfter:   s.duration("clearAfter", 0),
		Count:        s.number("count", 1, mostTimes, 1),
		Window:       s.duration("window", 0),
		KernelOnly:   s.flag("kernelOnly", false),
	}
	if !rule.Permanent {
		if rule.ClearPattern != "" {
			s.refuse("clearPattern", "a temporary rule has nothing to clear; remove it, or write \"type\": %q", permanent)
		}
		if rule.ClearAfter != 0 {
			s.refuse("clearAfter", "a temporary rule has nothing to clear; remove it, or write \"type\": %q", permanent)
		}
	}
	if rule.ClearPattern != "" && rule.ClearPattern == rule.Pattern {
		s.refuse("clearPattern", "the same as the pattern, so that one line both makes and ends the problem; write what is logged when it is over")
	}
	switch {
	case s.refused["count"] || s.refused["window"]:
	case rule.Count > 1 && rule.Window == 0:
		s.refuse("window", "missing beside a count of %d; write within how long, for example \"20m\"", rule.Count)
	case rule.Count == 1 && rule.Window > 0:
		s.refuse("count", "a window of %s means nothing without one; write how often the pattern must match within it, 2 or more", rule.Window)
	}
	if rule.KernelOnly && m.Plugin == Filelog {
		s.refuse("kernelOnly", "a file does not record the writer of a line; remove it, or use kmsg or journald")
	}
	return rule
}
