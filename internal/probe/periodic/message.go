package periodic

import (
	"strconv"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/text"
)

// maxMessage is the maximum length of a message in bytes. It is the API server's limit for the
// message of an Event.
const maxMessage = 1024

// shorten makes a message valid UTF-8 and cuts it to maxMessage bytes.
func shorten(message string) string {
	return text.Shorten(strings.ToValidUTF8(message, "\uFFFD"), maxMessage, "…")
}

func stamp(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
