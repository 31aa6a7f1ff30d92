package format_test

import (
	"encoding/json"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/testkit"
)

type known struct {
	Version int `json:"version"`
	Embedded
}

type Embedded struct {
	Name   string   `json:"name,omitempty"`
	List   []string `json:"list,omitempty"`
	Hidden string   `json:"-"`
}

// A document is unchanged after reading and writing, with any fields of a newer version in
// any order.
func TestKeepsUnknownFields(t *testing.T) {
	kept := 0
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(
			rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(b bool) any { return b }), rapid.Map(rapid.String(), func(s string) any { return s }),
			rapid.Map(rapid.SliceOf(rapid.Float64Range(-1e6, 1e6)), func(s []float64) any { return s }),
			rapid.Map(rapid.MapOf(rapid.String(), rapid.Int32()), func(m map[string]int32) any { return m }),
		)
		document := rapid.MapOf(rapid.StringMatching(`new[A-Za-z<>"]{0,8}|hidden`), value).Draw(t, "unknown")
		unknown := len(document)
		maps.Copy(document, map[string]any{"version": rapid.IntRange(0, 9).Draw(t, "version")})
		if rapid.Bool().Draw(t, "named") {
			document["name"], document["list"] = "n", []string{"x"}
		}
		text := testkit.Value(json.Marshal(document)).Must(t)
		var read known
		rest := testkit.Value(format.Read(text, &read)).Must(t)
		if rest.Len() != unknown {
			t.Fatalf("%d fields are unknown, want %d: %s", rest.Len(), unknown, rest)
		}
		kept += unknown
		written := testkit.Value(format.Write(read, rest)).Must(t)
		if diff := cmp.Diff(normal(t, text), normal(t, written)); diff != "" {
			t.Fatalf("written back (-was +is):\n%s", diff)
		}
	})
	testkit.Check(t, kept != 0, "no document had an unknown field")
}

// Entries of maps keep their unknown fields while they exist. Objects that are replaced as a
// whole, or have their own UnmarshalJSON, do not.
func TestKeepsUnknownFieldsOfMapEntries(t *testing.T) {
	type item struct {
		Name string    `json:"name,omitempty"`
		Part *Embedded `json:"part,omitempty"`
		Read time.Time `json:"read,omitzero"`
	}
	type document struct {
		Items map[string]item            `json:"items,omitempty"`
		Deep  map[string]map[string]item `json:"deep,omitempty"`
		List  []item                     `json:"list,omitempty"`
		One   item                       `json:"one,omitzero"`
		Raw   json.RawMessage            `json:"raw,omitempty"`
		Plain item
	}
	const plain = `"Plain":{}`
	text := `{"new":1,"items":{"a":{"name":"n","new":[1],"part":{"new":5}},"b":{"new":"<"},"new":{}},"deep":{"x":{"y":{"new":7}}},
		"list":[{"new":3}],"one":{"name":"o","new":4},"raw":{"new":6},` + plain + `}`
	var read document
	rest, err := format.ReadAll([]byte(text), &read)
	if err != nil || rest.Len() != 4 {
		t.Fatalf("%d fields are unknown, %v", rest.Len(), err)
	}
	check := func(want string, unknown int) {
		t.Helper()
		got, err := rest.Write(read)
		testkit.Must(t, err)
		var w, g any
		testkit.Must(t, errors.Join(json.Unmarshal([]byte(want), &w), json.Unmarshal(got, &g)))
		if diff := cmp.Diff(w, g); diff != "" || rest.Len() != unknown {
			t.Errorf("%d fields are unknown, written (-want +got):\n%s", rest.Len(), diff)
		}
	}
	check(`{"new":1,"items":{"a":{"name":"n","new":[1],"part":{}},"b":{"new":"<"},"new":{}},"deep":{"x":{"y":{"new":7}}},"list":[{}],"one":{"name":"o"},"raw":{"new":6},`+plain+`}`, 4)
	delete(read.Items, "a")
	read.Deep = nil
	check(`{"new":1,"items":{"b":{"new":"<"},"new":{}},"list":[{}],"one":{"name":"o"},"raw":{"new":6},`+plain+`}`, 2)
	read.Items["a"] = item{} // another entry with the same key
	check(`{"new":1,"items":{"a":{},"b":{"new":"<"},"new":{}},"list":[{}],"one":{"name":"o"},"raw":{"new":6},`+plain+`}`, 2)

	if rest, err := format.ReadAll([]byte(`{"items":{"a":{}},"one":{"name":"o"}}`), &read); rest != nil || err != nil {
		t.Errorf("%v is unknown in what is known, %v", rest, err)
	}
	if _, err := format.ReadAll([]byte(`{"items":{"a":1},"new":1}`), &read); err == nil {
		t.Error("a number was accepted in place of an object")
	}
}

func normal(t *rapid.T, text []byte) (value any) {
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

func TestReadRefusesInvalidObjects(t *testing.T) {
	for _, text := range []string{``, `{`, `[]`, `"text"`, `{} {}`, `{"version":"one"}`, `{"version":"one","new":1}`, `{"list":[1]}`} {
		if rest, err := format.Read([]byte(text), &known{}); err == nil {
			t.Errorf("%s was read, with %q", text, rest)
		}
	}
}

// Read ignores the previous content of the struct.
func TestReadResetsTheStruct(t *testing.T) {
	read := known{Embedded: Embedded{Name: "before", List: []string{"a", "b"}}}
	if _, err := format.Read([]byte(`{"version":1,"list":["c"],"new":true}`), &read); err != nil {
		t.Fatal(err)
	}
	testkit.Equal(t, "read", known{Version: 1, Embedded: Embedded{List: []string{"c"}}}, read)
}

func TestWriteEmptyStructWithUnknownFields(t *testing.T) {
	text, err := format.Write(struct{}{}, `{"new":1}`)
	if err != nil || string(text) != `{"new":1}` {
		t.Errorf("%s, %v", text, err)
	}
}
