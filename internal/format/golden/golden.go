// Package golden holds stored formats to what they were: a file of testdata that a version
// has written is read by all later ones. It promises that a type reads every field of such
// a file, and writes it byte by byte as it is. It is for tests alone, and does not ask what
// the fields mean.
package golden

import (
	"bytes"
	"encoding/json"
	"os"
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
