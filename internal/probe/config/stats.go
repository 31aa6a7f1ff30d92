package config

import "time"

// parts are the sections of a stats monitor file.
var parts = []string{"cpu", "disk", "host", "memory", "osFeature", "net"}

func statsMonitor(top *section) *StatsMonitor {
	m := &StatsMonitor{
		InvokeInterval: top.positive("invokeInterval", time.Minute),
		ProcPath:       top.text("procPath", "/proc"),
		Metrics:        map[string]map[string]string{},
	}
	for _, part := range parts {
		s := top.section(part, part)
		switch part {
		case "disk":
			m.IncludeRootBlk = s.flag("includeRootBlk", false)
			m.IncludeAllAttachedBlk = s.flag("includeAllAttachedBlk", false)
			m.LsblkTimeout = s.positive("lsblkTimeout", 5*time.Second)
		case "net":
			m.ExcludeInterface = s.text("excludeInterfaceRegexp", "")
			if err := checkPattern(m.ExcludeInterface); err != nil {
				s.refuse("excludeInterfaceRegexp", "%s %v", quote(m.ExcludeInterface), err)
			}
		case "osFeature":
			m.KnownModulesPath = s.text("knownModulesConfigPath", "")
		}
		if names := displayNames(s); len(names) > 0 {
			m.Metrics[part] = names
		}
	}
	if len(m.Metrics) == 0 {
		top.warn("", "no section of it (%s) has metricsConfigs, so that there is nothing to show", list(parts))
	} else if m.Metrics["disk"] != nil && m.LsblkTimeout > m.InvokeInterval {
		top.refuse("disk.lsblkTimeout", "%s is more than the invokeInterval of %s; write less", m.LsblkTimeout, m.InvokeInterval)
	}
	return m
}

// displayNames reads the display names of metrics by their case-sensitive IDs. A metric without a
// display name is not exported.
func displayNames(s *section) map[string]string {
	fields, _ := ask[object](s, "metricsConfigs", `an object, for example {"cpu/load_1m": {"displayName": "cpu/load_1m"}}`)
	names := map[string]string{}
	for _, f := range fields {
		at := "metricsConfigs[" + quote(f.name) + "]"
		metric, ok := f.value.(object)
		if !ok {
			s.refuse(at, `%s is not an object; write {"displayName": %q}`, brief(f.value), f.name)
			continue
		}
		if name := s.reader.section(s.at(at), "a metric", metric).text("displayName", ""); name != "" {
			names[f.name] = name
		}
	}
	return names
}
