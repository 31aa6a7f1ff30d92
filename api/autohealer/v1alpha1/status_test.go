package v1alpha1_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

func TestConditionStatus(t *testing.T) {
	tests := []struct {
		name string
		json string
		want v1alpha1.ConditionStatus
	}{
		{"an unquoted true", `true`, "True"},
		{"an unquoted false", `false`, "False"},
		{"the seed's unknown", `"unknown"`, "Unknown"},
		{"the spelling of Kubernetes", `"True"`, "True"},
		{"capitals", `"FALSE"`, "False"},
		{"an escaped letter", `"\u0074rue"`, "True"},
		{"a boolean of YAML 1.1", `"yes"`, "True"},
		{"another one", `"Off"`, "False"},
		{"another word", `"maybe"`, "maybe"},
		{"a word with a space", `"true "`, "true "},
		{"nothing", `""`, ""},
		{"null", `null`, ""},
		{"a number", `1`, "1"},
		{"an object", `{"a":true}`, `{"a":true}`},
		{"a list", `[true]`, `[true]`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got v1alpha1.ConditionStatus
			if err := json.Unmarshal([]byte(test.json), &got); err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("%s is read as %q, want %q", test.json, got, test.want)
			}
		})
	}
}

// Any JSON value can be decoded, and only the three statuses give a status.
func FuzzConditionStatus(f *testing.F) {
	for _, seed := range []string{`true`, `"unknown"`, `"False"`, `null`, `1e999`, `{"a":[1,"b",null]}`, `[]`, `"\ud800"`, ` true `, `"tr`, ``, "{\"\":\"\x8e\"}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		status := v1alpha1.ConditionStatus("left over")
		if err := status.UnmarshalJSON(data); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if !json.Valid(data) {
			return // the decoder never passes this
		}
		if err := json.Unmarshal(data, &status); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		checkStatus(t, data, status)
	})
}

func TestAnyConditionStatusCanBeRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data, err := json.Marshal(anyJSON(3).Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		var status v1alpha1.ConditionStatus
		if err := json.Unmarshal(data, &status); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		checkStatus(t, data, status)
	})
}

// checkStatus compares a status with the JSON that it was decoded from.
func checkStatus(tb rapid.TB, data []byte, status v1alpha1.ConditionStatus) {
	tb.Helper()
	var value any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // some numbers fit no Go type
	if err := decoder.Decode(&value); err != nil {
		tb.Fatal(err)
	}
	var want v1alpha1.ConditionStatus
	switch value := value.(type) {
	case bool:
		want = map[bool]v1alpha1.ConditionStatus{true: "True", false: "False"}[value]
	case string:
		want = v1alpha1.ConditionStatus(value)
		for word, status := range map[string]v1alpha1.ConditionStatus{
			"true": "True", "yes": "True", "on": "True", "false": "False", "no": "False", "off": "False", "unknown": "Unknown",
		} {
			if strings.ToLower(value) == word {
				want = status
			}
		}
	case nil:
	default:
		want = v1alpha1.ConditionStatus(strings.ToValidUTF8(strings.TrimSpace(string(data)), "\ufffd"))
	}
	if status != want {
		tb.Fatalf("%s is read as %q, want %q", data, status, want)
	}
	// Encoding and decoding does not change it.
	again, err := json.Marshal(status)
	if err != nil {
		tb.Fatal(err)
	}
	var second v1alpha1.ConditionStatus
	if err := json.Unmarshal(again, &second); err != nil || second != status {
		tb.Fatalf("%q is written as %s and read as %q: %v", status, again, second, err)
	}
}

// anyJSON generates JSON values of every type, including numbers that fit no Go type.
func anyJSON(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(),
		rapid.SampledFrom([]any{"true", "UNKNOWN", "False", "49%", "", "2020-01-01t00:00:00z", json.Number("1e30"), json.Number("-3000000000"), json.Number("9223372036854775808"), json.Number("0.5")}),
		rapid.String().AsAny(),
		rapid.Int64().AsAny(),
		rapid.Float64().AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds,
			rapid.Custom(func(t *rapid.T) any { return rapid.SliceOfN(anyJSON(depth-1), 0, 3).Draw(t, "list") }),
			rapid.Custom(func(t *rapid.T) any {
				return rapid.MapOfN(rapid.StringN(0, 4, 8), anyJSON(depth-1), 0, 3).Draw(t, "object")
			}),
		)
	}
	return rapid.OneOf(kinds...)
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
