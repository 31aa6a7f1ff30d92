// Package golden holds stored formats to what they were: a file of testdata that a version
// has written is read by all later ones. It promises that a type reads every field of such
// a file, and writes it byte by byte as it is. It is for tests alone, and does not ask what
// the fields mean.
package golden

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"
)

// Check reads a file into the value that into points to, and writes it again.
func Check(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.TrimSpace(text)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("what an earlier version has stored cannot be read: %s: %v", path, err)
	}
	if got, err := json.Marshal(into); err != nil || !bytes.Equal(got, text) {
		t.Errorf("a stored format has changed, which takes a new version: %s: %v\n%s\nis written as\n%s", path, err, text, got)
	}
}

// CheckNewer reads a file that a newer version may have written, has it written again, and
// compares the fields whose names begin with "new": each must be where it was, and counted.
func CheckNewer(t *testing.T, path string, rewrite func(text []byte) (again []byte, unknown int)) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, unknown := rewrite(bytes.TrimSpace(text))
	want, got := newFields(t, text), newFields(t, again)
	if len(want) == 0 {
		t.Fatalf("there is no new field in %s", path)
	}
	if !maps.Equal(want, got) || unknown != len(want) {
		t.Errorf("fields of a newer version are lost, or not counted: of %v there are %v, and %d are counted\n%s", want, got, unknown, again)
	}
}

// newFields returns the fields of a newer version, by their paths.
func newFields(t *testing.T, text []byte) map[string]string {
	t.Helper()
	found := map[string]string{}
	var walk func(path string, text []byte)
	walk = func(path string, text []byte) {
		var fields map[string]json.RawMessage
		if json.Unmarshal(text, &fields) != nil {
			return // no object
		}
		for name, value := range fields {
			if strings.HasPrefix(name, "new") {
				found[path+"."+name] = string(value)
				continue
			}
			walk(path+"."+name, value)
		}
	}
	if !json.Valid(text) {
		t.Fatalf("%s is no JSON", text)
	}
	walk("", text)
	return found
}
