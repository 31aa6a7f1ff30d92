package config

import (
	"math"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
)

// custom is the plugin name of monitors that run programs.
const custom = "custom"

func pluginMonitor(top *section) *PluginMonitor {
	if plugin := top.required("plugin", `"custom"`); plugin != "" && plugin != custom {
		top.refuse("plugin", "%s is no plugin that runs programs; write %q", quote(plugin), custom)
	}
	global := top.section("pluginConfig", "pluginConfig")
	m := &PluginMonitor{
		InvokeInterval:    global.positive("invoke_interval", 30*time.Second),
		Timeout:           global.positive("timeout", 5*time.Second),
		MaxOutputLength:   global.number("max_output_length", 0, math.MaxInt, 80),
		Concurrency:       global.number("concurrency", 1, math.MaxInt, 3),
		UpdateOnMessage:   global.flag("enable_message_change_based_condition_update", false),
		SkipInitialStatus: global.flag("skip_initial_status", false),
		Source:            top.source(),
		Metrics:           top.flag("metricsReporting", true),
		Conditions:        conditions(top),
	}
	if m.MaxOutputLength > finding.MaxMessage {
		global.warn("max_output_length", "%d is more than the %d bytes that the API server accepts in a message; the agent cuts a longer message; write %d or less",
			m.MaxOutputLength, finding.MaxMessage, finding.MaxMessage)
	}
	for s := range top.each("rules", "a rule") {
		m.Rules = append(m.Rules, m.rule(s))
	}
	if len(m.Rules) == 0 && !top.has("rules") {
		top.warn("rules", "missing, so that nothing is run")
	}
	warnOfIdle(top, m.Conditions, func(condition string) bool {
		return slices.ContainsFunc(m.Rules, func(r PluginRule) bool { return r.Condition == condition })
	})
	return m
}

func (m *PluginMonitor) rule(s *section) PluginRule {
	e := effectOf(s, m.Conditions)
	rule := PluginRule{
		Permanent:      e.permanent,
		Condition:      e.condition,
		Reason:         e.reason,
		Path:           s.required("path", "the path of a program"),
		Args:           s.texts("args"),
		Timeout:        s.duration("timeout", m.Timeout),
		InvokeInterval: s.positive("invoke_interval", m.InvokeInterval),
	}
	s.refuseWindowsPath("path", rule.Path)
	if rule.Timeout == 0 {
		rule.Timeout = m.Timeout
	}
	if rule.Timeout > m.Timeout {
		s.refuse("timeout", "%s is more than the %s that pluginConfig.timeout allows to all rules; write less here or more there", rule.Timeout, m.Timeout)
	}
	return rule
}
