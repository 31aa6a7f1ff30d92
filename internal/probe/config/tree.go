package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// object is a JSON object with its fields in order. Unlike a map, it keeps their order and
// duplicates. Values are those of a json.Decoder, with object and []any instead of maps and slices.
type object []field

type field struct {
	name  string
	value any
}

// get finds a field like encoding/json does: it ignores case, takes the last of several, and treats
// null as missing.
func (o object) get(name string) (any, bool) {
	for i := len(o) - 1; i >= 0; i-- {
		if o[i].value != nil && strings.EqualFold(o[i].name, name) {
			return o[i].value, true
		}
	}
	return nil, false
}

// parseObject parses a text that is a single JSON object.
func parseObject(text []byte) (object, error) {
	switch {
	case len(text) > maxBytes:
		return nil, fmt.Errorf("it is longer than %d KiB, which no configuration is; is it the right file?", maxBytes>>10)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, errors.New("it is empty; write an object of JSON: {...}")
	case bytes.HasPrefix(text, []byte("\ufeff")):
		return nil, errors.New("it begins with a byte order mark, which JSON does not have; save it as UTF-8 without one")
	}
	// The decoder below reads piece by piece and accepts incomplete text.
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, explain(text, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	value, err := parseValue(decoder)
	if err != nil {
		return nil, explain(text, err)
	}
	root, ok := value.(object)
	if !ok {
		return nil, fmt.Errorf("it holds %s; write one object: {...}", kindOfValue(value))
	}
	return root, nil
}

func parseValue(decoder *json.Decoder) (any, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		o := object{}
		for decoder.More() {
			name, err := decoder.Token()
			if err != nil {
				return nil, err
			}
			value, err := parseValue(decoder)
			if err != nil {
				return nil, err
			}
			o = append(o, field{name.(string), value}) // json.Unmarshal has checked that keys are strings
		}
		_, err = decoder.Token()
		return o, err
	case json.Delim('['):
		l := []any{}
		for decoder.More() {
			value, err := parseValue(decoder)
			if err != nil {
				return nil, err
			}
			l = append(l, value)
		}
		_, err = decoder.Token()
		return l, err
	}
	return token, nil
}

// explain adds the position and the likely cause to a JSON error.
func explain(text []byte, err error) error {
	broken, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return fmt.Errorf("this is no JSON: %w", err)
	}
	before := text[:max(0, min(int(broken.Offset)-1, len(text)))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	trimmed := bytes.TrimSpace(before)
	what, hint := broken.Error(), ""
	switch {
	case strings.Contains(what, "in string escape code"):
		hint = `; in JSON, write a backslash of a pattern twice: \\d`
	case strings.Contains(what, "in string literal"):
		hint = `; write a line break as \n and a tab as \t`
	case strings.HasPrefix(what, "invalid character '/'"), strings.HasPrefix(what, "invalid character '#'"):
		hint = "; JSON has no comments"
	case strings.Contains(what, "looking for beginning of") && bytes.HasSuffix(trimmed, []byte(",")):
		hint = "; take away the comma before it"
	case strings.Contains(what, "after object key:value pair"), strings.Contains(what, "after array element"):
		hint = "; a comma is missing before it"
	case strings.Contains(what, "after top-level value"):
		hint = "; a file is one object, and nothing comes after it"
	case strings.Contains(what, "unexpected end"):
		hint = "; a quote or a bracket is not closed"
	}
	return fmt.Errorf("line %d, column %d: this is no JSON: %s%s", line, column, what, hint)
}

// kindOfValue names the type of a value.
func kindOfValue(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "a truth value"
	case json.Number:
		return "a number"
	case string:
		return "a text"
	case []any:
		return "a list"
	}
	return "an object"
}

// brief formats a value so that the user can find it in the file.
func brief(value any) string {
	switch value := value.(type) {
	case nil, object, []any:
		return kindOfValue(value)
	case string:
		return quote(value)
	}
	return fmt.Sprint(value)
}

// quote quotes a text, and shortens a long one.
func quote(text string) string {
	const most = 120
	if len(text) <= most {
		return fmt.Sprintf("%q", text)
	}
	end := most
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return fmt.Sprintf("%q...", text[:end])
}
