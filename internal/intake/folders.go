package intake

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Exposed warns of sockets whose folder, which is what a container is given, also holds
// the socket of somebody else, or one of the agent's private folders: whoever is given it
// can speak for others, or put something in the place of what is theirs.
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
		places = append(places, place{"socket", "the socket of all", "shared", s.Socket})
	}
	var warnings []string
	for _, at := range places {
		folder := filepath.Dir(at.path)
		var held []string
		for _, other := range places {
			if other.path != at.path && holds(folder, other.path) {
				held = append(held, other.of)
			}
		}
		for _, other := range private {
			if holds(folder, other) {
				held = append(held, other)
			}
		}
		if len(held) > 0 {
			warnings = append(warnings, fmt.Sprintf("%s: whoever is given its folder %s is given %s as well; write a path in a folder of its own, such as %s",
				at.field, folder, strings.Join(held, " and "), filepath.Join(folder, at.folder, filepath.Base(at.path))))
		}
	}
	return warnings
}

// holds says whether a path is in a folder, or the folder itself.
func holds(folder, path string) bool {
	within, err := filepath.Rel(folder, path)
	return err == nil && within != ".." && !strings.HasPrefix(within, "../")
}
