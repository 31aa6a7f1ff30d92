package logmonitor

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// longest is how many bytes of a log a message may hold: what the API server takes of
// an Event, and more than anybody reads.
const longest = 1024

// ellipsis ends what has been cut.
const ellipsis = "…"

// message returns what is told of lines of a log: as text that anybody can print, no
// longer than is useful, and with the suffix of the rule whole.
func message(lines []byte, suffix string) string {
	if suffix != "" {
		suffix = "; " + strings.ToValidUTF8(suffix, "\uFFFD")
	}
	room := max(0, longest-len(suffix))
	// What is not UTF-8 grows when it is made so: a part of what is read is enough.
	text := strings.ToValidUTF8(string(lines[:min(len(lines), longest+1)]), "\uFFFD")
	return cut(cut(text, room)+suffix, longest)
}

// cut shortens a text between two of its characters.
func cut(text string, room int) string {
	if len(text) <= room {
		return text
	}
	end := max(0, room-len(ellipsis))
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

// wholeLines returns the end of a text from the start of the line on in which a place
// lies.
func wholeLines(text []byte, place int) []byte {
	return text[bytes.LastIndexByte(text[:place], '\n')+1:]
}

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
