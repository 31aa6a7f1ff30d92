package periodic

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxMessage is the maximum length of a message in bytes. It is the API server's limit for the
// message of an Event.
const maxMessage = 1024

// shorten makes a message valid UTF-8 and cuts it to maxMessage bytes.
func shorten(message string) string {
	const ellipsis = "…"
	text := strings.ToValidUTF8(message, "\uFFFD")
	if len(text) <= maxMessage {
		return text
	}
	return cut(text, maxMessage-len(ellipsis)) + ellipsis
}

// cut shortens a text to most bytes without splitting a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

func stamp(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
