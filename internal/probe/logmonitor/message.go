package logmonitor

import (
	"bytes"
	"strings"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/text"
)

// message returns the message of matched lines: valid UTF-8, of limited length, with the
// complete suffix of the rule.
func message(lines []byte, suffix string) string {
	if suffix != "" {
		suffix = "; " + strings.ToValidUTF8(suffix, "\uFFFD")
	}
	room := max(0, finding.MaxMessage-len(suffix))
	// Replacing invalid UTF-8 makes the text longer, so this part is enough.
	valid := strings.ToValidUTF8(string(lines[:min(len(lines), finding.MaxMessage+1)]), "\uFFFD")
	return truncate(truncate(valid, room)+suffix, finding.MaxMessage)
}

// truncate shortens a text without splitting a character.
func truncate(message string, room int) string { return text.Shorten(message, room, "…") }

// wholeLines returns the text from the start of the line that contains an offset.
func wholeLines(text []byte, offset int) []byte {
	return text[bytes.LastIndexByte(text[:offset], '\n')+1:]
}
