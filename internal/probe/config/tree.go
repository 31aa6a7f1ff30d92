package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// object is an object of JSON with its fields as they are written: unlike a map, it
// knows their order and those that are there twice. The values are those of a
// json.Decoder, with objects and []any in the places of its maps and slices.
type object []field

type field struct {
	name  string
	value any
}

// get finds a field as encoding/json does: in any letter case, the last of several,
// and null is nothing.
func (o object) get(name string) (any, bool) {
	for i := len(o) - 1; i >= 0; i-- {
		if o[i].value != nil && strings.EqualFold(o[i].name, name) {
			return o[i].value, true
		}
	}
	return nil, false
}

// parseObject reads a text that is one object.
func parseObject(text []byte) (object, error) {
	switch {
	case len(text) > maxBytes:
		return nil, fmt.Errorf("it is longer than %d KiB, which no configuration is; is it the right file?", maxBytes>>10)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, errors.New("it is empty; write an object of JSON: {...}")
	case bytes.HasPrefix(text, []byte("\ufeff")):
		return nil, errors.New("it begins with a byte order mark, which JSON does not have; save it as UTF-8 without one")
	}
	// The decoder below takes text piece by piece and is satisfied with less.
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
			o = append(o, field{name.(string), value}) // what is before a colon is a string, as was checked
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

// explain says where a text is no JSON, and what is mostly the cause.
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

// kindOfValue says what a value is.
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

// brief writes a value for somebody who is to find it in the file.
func brief(value any) string {
	switch value := value.(type) {
	case nil, object, []any:
		return kindOfValue(value)
	case string:
		return quote(value)
	}
	return fmt.Sprint(value)
}

// quote writes a text in quotes, and of a long one the beginning.
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
