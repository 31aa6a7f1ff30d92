// Package nodepause reads the annotation that pauses one node. Until its time the controller
// starts no new step on the node. A value that cannot be read pauses the node without an end,
// because the user wanted a pause. The package has no client: the writer of nodes removes
// annotations whose time has passed.
package nodepause

import (
	"fmt"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/text"
)

// Annotation pauses a node. Its value has the end of the pause, and optionally the name of the
// user and the reason: until=2026-03-01T12:00:00Z by=anna reason=new disk.
const Annotation = "autohealer.resourcestack.com/pause"

// maxText limits the name and the reason in messages, because any client may write a long text.
const maxText = 128

// Pause is the pause of a node.
type Pause struct {
	// Until is when the pause ends, zero if the value of the annotation cannot be read.
	Until time.Time
	// Message says which user has paused the node, and why.
	Message string
	// Problem is what is wrong with the value and how to correct it, empty for nothing.
	Problem string
}

// Read returns the pause in the annotations of a node, and whether there is one.
func Read(annotations map[string]string) (p Pause, isPaused bool) {
	value, isPaused := annotations[Annotation]
	if !isPaused {
		return Pause{}, false
	}
	fields, ok := split(value)
	until, err := time.Parse(time.RFC3339, fields["until"])
	if !ok || err != nil || until.Unix() <= 0 {
		p.Problem = fmt.Sprintf("annotation %s: %q: want until=2026-03-01T12:00:00Z by=NAME reason=TEXT, with the time in RFC 3339; the node is paused until you correct or remove the annotation",
			Annotation, text.Shorten(value, maxText, "..."))
		p.Message = p.Problem
		return p, true
	}
	p.Until, p.Message = until, "paused"
	if by := fields["by"]; by != "" {
		p.Message += " by " + text.Shorten(by, maxText, "...")
	}
	p.Message += " with the annotation " + Annotation
	if reason := fields["reason"]; reason != "" {
		p.Message += ": " + text.Shorten(reason, maxText, "...")
	}
	return p, true
}

// HasExpired reports whether the annotations have a pause whose time has passed.
func HasExpired(annotations map[string]string, now time.Time) bool {
	p, isPaused := Read(annotations)
	return isPaused && p.Problem == "" && !p.Until.After(now)
}

// split returns the fields of a value. Each field may have several words. It returns false if the
// value does not begin with a field, or has a field twice.
func split(value string) (fields map[string]string, ok bool) {
	fields = map[string]string{}
	current := ""
	for _, word := range strings.Fields(value) {
		key, rest, hasKey := strings.Cut(word, "=")
		switch {
		case hasKey && (key == "until" || key == "by" || key == "reason"):
			if _, isTwice := fields[key]; isTwice {
				return fields, false
			}
			current = key
			fields[key] = rest
		case current == "":
			return fields, false
		default:
			fields[current] = strings.TrimSpace(fields[current] + " " + word)
		}
	}
	return fields, true
}
