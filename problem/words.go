package problem

import "unicode/utf8"

// ellipsis ends what was cut.
const ellipsis = "…"

// IsReason says whether a text can be a reason: CamelCase, and no longer than [MaxReason].
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

// Cut makes a message no longer than [MaxMessage], between two of its characters.
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
