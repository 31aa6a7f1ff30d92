package v1alpha1

import (
	"encoding/json"
	"strings"
)

// ConditionStatus is the status that a condition must have: True, False or Unknown. YAML reads an
// unquoted true as a boolean, and users write unknown in lower case. The field therefore accepts
// any JSON value and any case. Any other value is kept as written, so that validation can report
// it. Null is kept as empty.
type ConditionStatus string

// UnmarshalJSON reads a boolean or a string. It never fails: a set with an invalid status must not
// hide all others.
func (s *ConditionStatus) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = strings.ToValidUTF8(string(data), "\ufffd")
	}
	if status, isKnown := ParseConditionStatus(text); isKnown {
		*s = status
	} else {
		*s = ConditionStatus(text)
	}
	return nil
}

// ParseConditionStatus reads a status in any case. The words yes, no, on and off are booleans for
// kubectl, but not for every YAML parser, so they mean the same everywhere.
func ParseConditionStatus(text string) (status ConditionStatus, isKnown bool) {
	switch strings.ToLower(text) {
	case "true", "yes", "on":
		return "True", true
	case "false", "no", "off":
		return "False", true
	case "unknown":
		return "Unknown", true
	}
	return "", false
}
