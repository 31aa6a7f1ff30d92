package format

import "encoding/json"

// EncodeSpec returns the spec of a policy as a text. A status stores the last accepted version
// so, because a patch replaces a text as a whole.
func EncodeSpec(spec any) string {
	text, err := json.Marshal(spec)
	if err != nil { // a spec that was decoded from JSON can be encoded
		return ""
	}
	return string(text)
}

// DecodeSpec reads a spec from such a text.
func DecodeSpec[S any](text string) (spec S, err error) {
	err = json.Unmarshal([]byte(text), &spec)
	return spec, err
}
