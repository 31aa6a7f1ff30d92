// Package text shortens text to the limits of the API server and of readers, without
// splitting a character.
package text

import "unicode/utf8"

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
