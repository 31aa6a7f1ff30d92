package config

import (
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/spelling"
)

// builtin is the plugin name of monitors with built-in checks.
const builtin = "builtin"

// The built-in checks.
const (
	CheckKubelet   = "kubelet"
	CheckKubeProxy = "kube-proxy"
	CheckRuntime   = "container-runtime"
	CheckReadonly  = "readonly-filesystems"
	CheckClock     = "clock"
	CheckConntrack = "conntrack"
	CheckDNS       = "dns"
	CheckIPTables  = "iptables"
)

// Checks returns the names of all built-in checks.
func Checks() []string {
	return []string{CheckKubelet, CheckKubeProxy, CheckRuntime, CheckReadonly, CheckClock, CheckConntrack, CheckDNS, CheckIPTables}
}

func checkMonitor(top *section) *CheckMonitor {
	if plugin := top.required("plugin", `"builtin"`); plugin != "" && plugin != builtin {
		top.refuse("plugin", "%s is no plugin of checks that are built in; write %q", quote(plugin), builtin)
	}
	global := top.section("pluginConfig", "pluginConfig")
	m := &CheckMonitor{
		InvokeInterval:    global.positive("invoke_interval", 30*time.Second),
		Timeout:           global.positive("timeout", 5*time.Second),
		Concurrency:       global.number("concurrency", 1, math.MaxInt, 3),
		UpdateOnMessage:   global.flag("enable_message_change_based_condition_update", false),
		SkipInitialStatus: global.flag("skip_initial_status", false),
		Source:            top.source(),
		Metrics:           top.flag("metricsReporting", true),
		Conditions:        conditions(top),
	}
	for s := range top.each("rules", "a rule") {
		m.Rules = append(m.Rules, m.rule(s))
	}
	if len(m.Rules) == 0 && !top.has("rules") {
		top.warn("rules", "missing, so that nothing is checked")
	}
	warnOfIdle(top, m.Conditions, func(condition string) bool {
		return slices.ContainsFunc(m.Rules, func(r CheckRule) bool { return r.Condition == condition })
	})
	return m
}

func (m *CheckMonitor) rule(s *section) CheckRule {
	e := effectOf(s, m.Conditions)
	rule := CheckRule{
		Permanent:      e.permanent,
		Condition:      e.condition,
		Reason:         e.reason,
		Check:          checkName(s),
		Timeout:        s.duration("timeout", m.Timeout),
		InvokeInterval: s.positive("invoke_interval", m.InvokeInterval),
	}
	rule.Settings = checkSettings(s.section("settings", "the settings of a check"), rule.Check)
	if rule.Timeout == 0 {
		rule.Timeout = m.Timeout
	}
	if rule.Timeout > m.Timeout {
		s.refuse("timeout", "%s is more than the %s that pluginConfig.timeout allows to all rules; write less here or more there", rule.Timeout, m.Timeout)
	}
	return rule
}

// checkName reads the name of a check.
func checkName(s *section) string {
	name := s.required("check", "the name of one: "+list(Checks()))
	if name == "" || slices.Contains(Checks(), name) {
		return name
	}
	hint := "write one of " + list(Checks())
	if meant, ok := spelling.Nearest(name, Checks()); ok {
		hint = fmt.Sprintf("did you mean %s?", meant)
	}
	s.refuse("check", "%s is not built in; %s", quote(name), hint)
	return ""
}

// settingsOf maps each check to its own setting. The settings for time and repair belong to all
// checks.
var settingsOf = map[string]string{
	CheckKubelet: "url", CheckKubeProxy: "url", CheckRuntime: "socket", CheckReadonly: "mountTable",
	CheckClock: "maxError", CheckConntrack: "fullPercent", CheckDNS: "name",
}

// unitOf maps a check to the systemd unit that runs the checked component on most nodes.
var unitOf = map[string]string{CheckKubelet: "kubelet", CheckRuntime: "containerd"}

// service matches the names of systemd services. A name with a dot must end in ".service".
var service = regexp.MustCompile(`^[a-zA-Z0-9:_\\@-]{1,247}$|^[a-zA-Z0-9:_\\@-][a-zA-Z0-9:_.\\@-]{0,246}\.service$`)

// hostname matches host names. IP addresses do not match, because they need no resolution.
var hostname = regexp.MustCompile(`^([a-zA-Z0-9_]([a-zA-Z0-9_-]*[a-zA-Z0-9_])?\.)*[a-zA-Z_]([a-zA-Z0-9_-]*[a-zA-Z0-9_])?\.?$`)

// longestName is the maximum length of a host name, including a final dot.
const longestName = 254

// leastCooldown is the minimum time between two restarts of a unit, whatever the file says.
const leastCooldown = 10 * time.Second

// checkSettings reads all settings and refuses those of other checks.
func checkSettings(s *section, check string) CheckSettings {
	settings := CheckSettings{
		URL:         s.text("url", ""),
		Socket:      s.text("socket", ""),
		MountTable:  s.text("mountTable", ""),
		MaxError:    s.duration("maxError", 2*time.Second),
		FullPercent: s.number("fullPercent", 1, 100, 95),
		Name:        s.text("name", ""),
		Unit:        s.text("unit", unitOf[check]),
		Grace:       s.duration("grace", time.Minute),
		Repair:      s.flag("repair", false),
		Cooldown:    s.positive("cooldown", 2*time.Minute),
	}
	for _, name := range []string{"url", "socket", "mountTable", "maxError", "fullPercent", "name"} {
		if check != "" && s.has(name) && settingsOf[check] != name {
			s.refuse(name, "no setting of the check %s; remove it", check)
		}
	}
	if settings.URL != "" && !s.refused["url"] {
		u, err := url.Parse(settings.URL)
		switch {
		case strings.Contains(settings.URL, "@"): // which is not repeated here
			s.refuse("url", "it contains a user name, which messages would reveal; use one like \"http://127.0.0.1:10248/healthz\"")
		case err != nil || u.Scheme != "http" || u.Host == "":
			s.refuse("url", "%s is no address that is asked over HTTP; write one like \"http://127.0.0.1:10248/healthz\"", quote(settings.URL))
		}
	}
	if path := strings.TrimPrefix(settings.Socket, "unix://"); settings.Socket != "" && !filepath.IsAbs(path) {
		s.refuse("socket", "%s is no path of a socket from the root on; write one like \"unix:///run/containerd/containerd.sock\"", quote(settings.Socket))
	}
	if settings.MountTable != "" && !filepath.IsAbs(settings.MountTable) {
		s.refuse("mountTable", "%s does not begin at the root; write a path like \"/proc/1/mountinfo\"", quote(settings.MountTable))
	}
	if settings.Name != "" && !s.refused["name"] && (len(settings.Name) > longestName || !hostname.MatchString(settings.Name)) {
		s.refuse("name", "%s is no name that can be resolved; write one like \"kubernetes.default\"", quote(settings.Name))
	}
	if settings.Unit != "" && !service.MatchString(settings.Unit) {
		s.refuse("unit", "%s is no service of systemd; write one like \"kubelet\" or \"kubelet.service\"", quote(settings.Unit))
	}
	if settings.Cooldown < leastCooldown && !s.refused["cooldown"] {
		s.refuse("cooldown", "%s is not enough to see whether a restart has helped; write at least %s", settings.Cooldown, leastCooldown)
	}
	switch {
	case settings.Repair && settings.Unit == "" && (check != "" || s.has("unit")): // of an unknown check it is not known whether it has one
		s.refuse("repair", "there is no unit to restart; write \"unit\" as well, for example \"kubelet\", or remove it")
	case s.has("cooldown") && !settings.Repair:
		s.warn("cooldown", "without effect, because nothing is repaired; write \"repair\": true, or remove it")
	}
	return settings
}
