package v1alpha1

import (
	"encoding/json"
	"strings"
)

// ConditionStatus is the status that a condition must have: True, False or
// Unknown. YAML reads an unquoted true as a boolean, and people write unknown in
// small letters, so the field takes any JSON value and any letter case. What is
// none of the three is kept as it was written, for whoever judges it; null is
// kept as nothing.
type ConditionStatus string

// UnmarshalJSON reads a boolean or a text. It never fails: one set with a bad
// status must not hide all the others.
func (s *ConditionStatus) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = strings.ToValidUTF8(string(data), "\ufffd")
	}
	for _, known := range []ConditionStatus{"True", "False", "Unknown"} {
		if strings.EqualFold(text, string(known)) {
			*s = known
			return nil
		}
	}
	*s = ConditionStatus(text)
	return nil
}
