package stats

import (
	"fmt"
	"strconv"
	"strings"
)

// parseUptime parses /proc/uptime and returns the whole seconds since boot.
func parseUptime(text string) (float64, error) {
	first, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number of seconds", first)
	}
	return float64(int64(seconds)), nil
}

// parseOSVersion parses an os-release file and returns the OS and its version in
// node-problem-detector's format.
func parseOSVersion(text string) string {
	said := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		if plain, err := strconv.Unquote(value); err == nil {
			value = plain
		}
		said[key] = strings.Trim(value, `'"`)
	}
	version := said["VERSION"]
	if version == "" {
		version = said["VERSION_ID"] // a rolling release has no VERSION
	}
	if said["ID"] == "cos" && said["BUILD_ID"] != "" {
		version += "-" + said["BUILD_ID"]
	}
	return strings.TrimSpace(said["ID"] + " " + version)
}
