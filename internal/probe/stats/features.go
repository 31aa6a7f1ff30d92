package stats

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// module is a kernel module.
type module struct {
	name string
	// foreign means that it is not part of the kernel: built elsewhere, or proprietary.
	foreign bool
}

// parseModules parses /proc/modules. A line has a name, size, use count, users, state, address and
// optionally the taints, for example (OE).
func parseModules(text string) []module {
	var modules []module
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		m := module{name: fields[0]}
		if len(fields) > 6 {
			m.foreign = strings.ContainsAny(fields[6], "PO")
		}
		modules = append(modules, m)
	}
	return modules
}

// parseKnownModules parses a list of known modules in node-problem-detector's format.
func parseKnownModules(text []byte) ([]string, error) {
	var listed []struct {
		ModuleName string `json:"moduleName"`
	}
	if err := json.Unmarshal(text, &listed); err != nil {
		return nil, fmt.Errorf(`it is no list of modules: %w; write [{"moduleName": "..."}]`, err)
	}
	names := make([]string, 0, len(listed))
	for _, m := range listed {
		names = append(names, m.ModuleName)
	}
	return names, nil
}

// modules records GPU drivers and unknown third-party modules.
func modules(r *reading, loaded []module, known []string) {
	gpu := 0.0
	var unknown []string
	for _, m := range loaded {
		switch {
		case strings.Contains(m.name, "nvidia"):
			gpu = 1
		case m.foreign && !slices.Contains(known, m.name):
			unknown = append(unknown, m.name)
		}
	}
	r.add("system/os_feature", gpu, "GPUSupport", "")
	r.add("system/os_feature", truth(len(unknown) > 0), "UnknownModules", strings.Join(unknown, ","))
}

// features records settings of the kernel command line. If it does not mention unified cgroups, the
// mounted cgroups decide, because systemd unifies them by default.
func features(r *reading, words []string, unified bool) {
	said := map[string]string{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		said[key] = strings.Trim(value, `"'`)
	}
	if told, ok := said["systemd.unified_cgroup_hierarchy"]; ok {
		unified = on(told)
	}
	r.add("system/os_feature", truth(on(said["csm.enabled"])), "KTD", "")
	r.add("system/os_feature", truth(unified), "UnifiedCgroupHierarchy", "")
	r.add("system/os_feature", truth(on(said["module.sig_enforce"]) && on(said["loadpin.enabled"])), "KernelModuleIntegrity", "")
}

// on returns whether a value of the kernel command line means yes.
func on(value string) bool {
	yes, err := strconv.ParseBool(value)
	return err == nil && yes || value == "yes" || value == "on"
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
