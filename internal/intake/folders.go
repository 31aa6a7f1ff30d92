package intake

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Exposed returns warnings about sockets whose directory also holds the socket of another
// source, or a private directory of the agent. A container usually mounts the whole directory
// of its socket, so it could report for other sources or replace their files.
func (s Setup) Exposed(private ...string) []string {
	type place struct{ field, of, folder, path string }
	var places []place
	shared := false
	for i := range s.Sources {
		source := &s.Sources[i]
		if shared = shared || source.isShared(); !source.isShared() {
			places = append(places, place{fmt.Sprintf("sources[%d].socket", i), "the socket of " + source.Name, source.Name, source.Socket})
		}
	}
	if shared && s.Socket != "" {
		places = append(places, place{"socket", "the shared socket", "shared", s.Socket})
	}
	var warnings []string
	for _, at := range places {
		folder := filepath.Dir(at.path)
		var held []string
		for _, other := range places {
			if other.path != at.path && contains(folder, other.path) {
				held = append(held, other.of)
			}
		}
		for _, other := range private {
			if contains(folder, other) {
				held = append(held, other)
			}
		}
		if len(held) > 0 {
			warnings = append(warnings, fmt.Sprintf("%s: a container that mounts its folder %s also gets %s; write a path in a folder of its own, for example %s",
				at.field, folder, strings.Join(held, " and "), filepath.Join(folder, at.folder, filepath.Base(at.path))))
		}
	}
	return warnings
}

// contains reports whether a path is in a directory, or is the directory itself.
func contains(folder, path string) bool {
	within, err := filepath.Rel(folder, path)
	return err == nil && within != ".." && !strings.HasPrefix(within, "../")
}
