package problem

import "unicode/utf8"

// ellipsis ends a message that was cut.
const ellipsis = "…"

// IsReason returns whether a text is a valid reason: CamelCase, at most [MaxReason] bytes.
func IsReason(text string) bool {
	if text == "" || len(text) > MaxReason || text[0] < 'A' || text[0] > 'Z' {
		return false
	}
	for i := range len(text) {
		c := text[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// Cut shortens a message to [MaxMessage] bytes without splitting a character.
func Cut(message string) string {
	if len(message) <= MaxMessage {
		return message
	}
	end := MaxMessage - len(ellipsis)
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + ellipsis
}
