package interval

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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

// identity returns a hash of the parts. The same parts always give the same hash.
func identity(parts ...string) string {
	sum := sha256.New()
	var length [8]byte
	for _, part := range parts {
		// The lengths keep "ab", "c" apart from "a", "bc".
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		sum.Write(length[:])
		sum.Write([]byte(part))
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}
