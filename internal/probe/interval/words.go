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

// longest is how many bytes a message may have: what the API server takes of an Event.
const longest = 1024

// words makes a message that anybody can print, and no longer than is useful.
func words(message string) string {
	const ellipsis = "…"
	text := strings.ToValidUTF8(message, "\uFFFD")
	if len(text) <= longest {
		return text
	}
	end := longest - len(ellipsis)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

func stamp(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// identity is a name for parts, the same for the same ones.
func identity(parts ...string) string {
	sum := sha256.New()
	var length [8]byte
	for _, part := range parts {
		// With their lengths, "ab" and "c" are not "a" and "bc".
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		sum.Write(length[:])
		sum.Write([]byte(part))
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}
