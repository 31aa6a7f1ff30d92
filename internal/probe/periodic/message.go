package periodic

import (
	"strconv"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/text"
)

// shorten makes a message valid UTF-8, and not too long.
func shorten(message string) string {
	return text.Shorten(strings.ToValidUTF8(message, "\uFFFD"), finding.MaxMessage, "…")
}

func stamp(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
