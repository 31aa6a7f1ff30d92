package ownership_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// newKind is a kind of policy of another module.
var newKind = policykind.Register("Toy")

func TestMarkRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9]([-a-z0-9./]{0,20}[a-z0-9])?`)
		want := ownership.Mark{
			Rule: ownership.Rule{Kind: rapid.SampledFrom([]triage.Kind{policykind.Repair, policykind.ReadyTimeout, newKind}).Draw(t, "kind"), Name: name.Draw(t, "rule")},
			Node: name.Draw(t, "node"), NodeUID: types.UID(name.Draw(t, "uid")), Since: second,
			Deadline: rapid.SampledFrom([]string{"", "2026-11-15T12:00:00Z"}).Draw(t, "deadline"), Before: rapid.String().Draw(t, "before"),
		}
		got := testkit.Value(ownership.ReadMark(map[string]string{"other": "one", ownership.MarkAnnotation: want.Encode()})).Must(t)
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Fatalf("read (-want +got):\n%s", diff)
		}
	})
}

func TestReadMarkRefusesInvalidMarks(t *testing.T) {
	if mark, err := ownership.ReadMark(map[string]string{"other": "one"}); mark != nil || err != nil {
		t.Errorf("without a mark: %+v, %v", mark, err)
	}
	for name, text := range map[string]string{
		"nothing":         "",
		"no mark":         "true",
		"an empty mark":   "{}",
		"an unknown kind": `{"rule":"Deployment/x","node":"n","nodeUID":"u","since":"2026-11-15T12:00:00Z"}`,
		"no rule":         `{"node":"n","nodeUID":"u","since":"2026-11-15T12:00:00Z"}`,
		"no node":         `{"rule":"Repair/NodePool/x","nodeUID":"u","since":"2026-11-15T12:00:00Z"}`,
		"no node UID":     `{"rule":"Repair/NodePool/x","node":"n","since":"2026-11-15T12:00:00Z"}`,
		"an invalid time": `{"rule":"Repair/NodePool/x","node":"n","nodeUID":"u","since":"soon"}`,
	} {
		mark, err := ownership.ReadMark(map[string]string{ownership.MarkAnnotation: text})
		testkit.Check(t, mark == nil && err != nil && strings.Contains(err.Error(), ownership.MarkAnnotation), "%s: %+v, %v", name, mark, err)
	}
}

func FuzzReadMark(f *testing.F) {
	f.Add(ownership.Mark{Rule: ownership.Rule{Kind: policykind.Repair, Name: "NodePool/default"}, Node: "n", NodeUID: "u", Since: second, Deadline: "x", Before: "y"}.Encode())
	f.Add(`{"rule":"ReadyTimeout/default","node":"n","nodeUID":"u"}`)
	f.Fuzz(func(t *testing.T, text string) {
		mark, err := ownership.ReadMark(map[string]string{ownership.MarkAnnotation: text})
		if err != nil {
			return
		}
		back, err := ownership.ReadMark(map[string]string{ownership.MarkAnnotation: mark.Encode()})
		testkit.Require(t, err == nil, "what was read from %q cannot be read again: %v", text, err)
		if diff := cmp.Diff(mark, back); diff != "" {
			t.Fatalf("read again (-first +second):\n%s", diff)
		}
	})
}
