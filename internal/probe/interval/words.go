package interval

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
	end := maxMessage - len(ellipsis)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

func stamp(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
