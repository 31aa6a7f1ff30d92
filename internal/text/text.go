// Package text shortens text to the limits of the API server and of readers, without
// splitting a character.
package text

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Duration formats a duration without trailing zero units: 5m, not 5m0s.
func Duration(d time.Duration) string {
	text := d.String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}

// Shorten cuts a text to at most this many bytes. A text that was cut ends with the
// ellipsis, which may be empty.
func Shorten(text string, most int, ellipsis string) string {
	if len(text) <= most {
		return text
	}
	end := max(0, most-len(ellipsis))
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

// Message shortens a message for the API server. It first replaces invalid UTF-8, as the API server
// would. Otherwise the stored text would always differ from the text that was written.
func Message(message string, most int) string {
	return Shorten(strings.ToValidUTF8(message, "\uFFFD"), most, "…")
}

// WithoutDigits drops digits, so that texts that differ only in numbers and times are equal.
func WithoutDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, s)
}
