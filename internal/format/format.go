// Package format reads and writes the JSON objects that Autohealer stores for its own use.
// It writes fields that this version does not know back unchanged. So an older version that
// runs between two newer ones loses nothing. The package does not interpret unknown fields.
package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Unknown holds the fields of a JSON object that this version does not know, as a canonical
// JSON object. It is empty if there are none.
type Unknown string

// Read decodes a JSON object into the struct that known points to, and returns the other
// fields.
func Read(text []byte, known any) (Unknown, error) {
	if exact, err := read(text, known); exact || err != nil {
		return "", err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return "", err
	}
	for name := range all {
		if _, isKnown := fieldOf(reflect.TypeOf(known).Elem(), name); isKnown {
			delete(all, name)
		}
	}
	if len(all) == 0 {
		return "", nil
	}
	rest, err := json.Marshal(all) // sorted by name, without white space
	return Unknown(rest), err
}

// read decodes an object, and says whether it has no unknown field.
func read(text []byte, known any) (exact bool, err error) {
	into := reflect.ValueOf(known).Elem()
	into.SetZero()
	if readExactly(text, known) == nil {
		return true, nil
	}
	into.SetZero() // remove the values of the first attempt
	return false, json.Unmarshal(text, known)
}

// readExactly handles the usual case in one pass. It fails if there is an unknown field.
func readExactly(text []byte, known any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(known); err != nil {
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return fmt.Errorf("there is more after the object: %w", err)
	}
	return nil
}

// fieldOf returns the field with a JSON name. It compares names like encoding/json.
func fieldOf(of reflect.Type, name string) (reflect.StructField, bool) {
	for _, field := range reflect.VisibleFields(of) {
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if tag == "" && !field.Anonymous {
			tag = field.Name
		}
		if tag != "-" && field.IsExported() && strings.EqualFold(tag, name) {
			return field, true
		}
	}
	return reflect.StructField{}, false
}

// Write encodes a struct together with its unknown fields.
func Write(known any, unknown Unknown) ([]byte, error) {
	text, err := json.Marshal(known)
	if err != nil || unknown == "" {
		return text, err
	}
	text = text[:len(text)-1]
	if len(text) > 1 {
		text = append(text, ',')
	}
	return append(text, unknown[1:]...), nil
}

// Len is the number of unknown fields.
func (u Unknown) Len() int {
	if u == "" {
		return 0
	}
	var all map[string]json.RawMessage
	_ = json.Unmarshal([]byte(u), &all) // Read wrote it
	return len(all)
}
