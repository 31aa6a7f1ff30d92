// Package golden tests that stored formats do not change. Every later version must read a
// file that an earlier version wrote. [Check] fails unless a type reads every field of the
// file and writes it byte by byte. The package is for tests only, and does not check what
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

// Check decodes a file into the value that into points to, and encodes it again.
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
		t.Fatalf("the file of an earlier version cannot be read: %s: %v", path, err)
	}
	if got, err := json.Marshal(into); err != nil || !bytes.Equal(got, text) {
		t.Errorf("the stored format has changed; add a new version: %s: %v\n%s\nis written as\n%s", path, err, text, got)
	}
}

// CheckNewer passes a file of a newer version through rewrite. Each field whose name begins
// with "new" must still be there, and must be counted.
func CheckNewer(t *testing.T, path string, rewrite func(text []byte) (again []byte, unknown int)) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, unknown := rewrite(bytes.TrimSpace(text))
	want, got := newFields(t, text), newFields(t, again)
	if len(want) == 0 {
		t.Fatalf("no new field in %s", path)
	}
	if !maps.Equal(want, got) || unknown != len(want) {
		t.Errorf("fields of a newer version are lost or not counted: want %v, got %v, counted %d\n%s", want, got, unknown, again)
	}
}

// newFields returns the fields of a newer version by path.
func newFields(t *testing.T, text []byte) map[string]string {
	t.Helper()
	found := map[string]string{}
	var walk func(path string, text []byte)
	walk = func(path string, text []byte) {
		var fields map[string]json.RawMessage
		if json.Unmarshal(text, &fields) != nil {
			return // not an object
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
		t.Fatalf("%s is not JSON", text)
	}
	walk("", text)
	return found
}
