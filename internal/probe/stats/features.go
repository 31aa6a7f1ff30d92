package stats

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// module is a module of the kernel.
type module struct {
	name string
	// foreign says that it is no part of the kernel: built elsewhere, or proprietary.
	foreign bool
}

// parseModules reads /proc/modules. A line is a name, a size, a use count, users, a state,
// an address and, of some, why they taint the kernel, such as (OE).
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

// parseKnownModules reads a file that names the modules that are known, in the format of
// node-problem-detector.
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

// modules notes what is loaded into the kernel: a driver for GPUs, and what comes from
// elsewhere and is not known.
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

// features notes what the kernel was told to do at its boot. Whether the control groups
// are unified is looked at where it was not told: systemd makes them so by itself today.
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

// on says whether a parameter of the kernel's command line is a yes.
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
