package ownership_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func golden(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	testkit.Must(t, err)
	return strings.TrimSpace(string(text))
}

// All versions of records and marks are readable. These files never change; a new version
// adds its own.
func TestReadsAllVersions(t *testing.T) {
	at := func(minute, second int) time.Time { return time.Date(2026, 11, 15, 11, minute, second, 0, time.UTC) }
	want := ownership.Record{
		Taints: []ownership.Taint{
			{Rule: set("kernel-deadlock"), Key: "autohealer.resourcestack.com/kernel", Effect: corev1.TaintEffectNoExecute, Added: at(60, 0)},
			{Rule: set("disk-broken"), Key: "disk", Effect: corev1.TaintEffectNoSchedule, Added: at(60, 1)},
		},
		Starts: []ownership.RememberedStart{
			{Rule: ownership.Rule{Kind: policykind.Repair, Name: "NodePool/default"}, Condition: "Ready", Since: at(50, 0), Transition: at(59, 0)},
			{Rule: ownership.Rule{Kind: policykind.NodeHealthCheck, Name: "workers"}, Condition: "DiskBroken", Since: at(51, 0)},
		},
		Initialized: true, Fence: "controller_2c1e/4711",
	}
	mark := &ownership.Mark{
		Rule: ownership.Rule{Kind: policykind.Repair, Name: "NodePool/default"}, Node: "worker-1", NodeUID: "0c7f0f9e-1111-4a6e-9d52-000000000001",
		Since: at(60, 0), Deadline: "2026-11-15T12:10:00Z", Before: "2026-11-15T13:00:00Z",
	}
	for _, version := range []string{"v0", "v1"} {
		got, err := ownership.Read(map[string]string{ownership.Annotation: golden(t, "record-"+version+".json")})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("record %s: %v (-want +got):\n%s", version, err, diff)
		}
		read, err := ownership.ReadMark(map[string]string{ownership.MarkAnnotation: golden(t, "mark-"+version+".json")})
		if diff := cmp.Diff(mark, read); diff != "" || err != nil {
			t.Errorf("mark %s: %v (-want +got):\n%s", version, err, diff)
		}
	}
	if got, _ := want.Encode(); got != golden(t, "record-v1.json") {
		t.Errorf("the stored format has changed; add a new version:\n%s", got)
	}
	if got := mark.Encode(); got != golden(t, "mark-v1.json") {
		t.Errorf("the stored format has changed; add a new version:\n%s", got)
	}
}

func TestKeepsEntriesOfANewerVersion(t *testing.T) {
	text := golden(t, "record-newer.json")
	note, err := ownership.Read(map[string]string{ownership.Annotation: text})
	testkit.Must(t, err)
	testkit.Check(t, len(note.Taints) == 1 && note.Owns(note.Taints[0].Taint()), "taints of known rules: %+v", note.Taints)
	for _, t2 := range note.Unrecognized.Taints[:1] {
		testkit.Check(t, !note.Owns(t2.Taint()) && note.Keeps(t2.Taint()), "the taint of an unknown rule counts as ours: %+v", t2)
	}
	if n := note.CountUnknown(); n != 6 {
		t.Errorf("%d entries and fields are unknown", n)
	}
	again, some := note.Encode()
	testkit.Require(t, some, "Encode returned nothing")
	sameBut(t, text, again)

	mark, err := ownership.ReadMark(map[string]string{ownership.MarkAnnotation: golden(t, "mark-newer.json")})
	testkit.Require(t, err == nil && mark.Unknown.Len() == 1, "%+v, %v", mark, err)
	sameBut(t, golden(t, "mark-newer.json"), mark.Encode())
}

// sameBut compares two documents of different versions.
func sameBut(t interface {
	Helper()
	Fatalf(string, ...any)
}, was, is string) {
	t.Helper()
	var before, after map[string]any
	for text, to := range map[string]*map[string]any{was: &before, is: &after} {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	delete(before, "version")
	delete(after, "version")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatalf("written back (-was +is):\n%s", diff)
	}
}

// No field of a newer version is lost, wherever it is.
func TestKeepsUnknownFields(t *testing.T) {
	added := 0
	rapid.Check(t, func(t *rapid.T) {
		var document map[string]any
		const text = `{"taints":[{"rule":"ConditionSet/a","key":"k","effect":"NoExecute","added":"2026-11-15T12:00:00Z"}],"memories":[{"rule":"Repair/a","condition":"c","since":"2026-11-15T12:00:00Z"}],"fence":"f"}`
		testkit.Must(t, json.Unmarshal([]byte(text), &document))
		objects := []map[string]any{document, document["taints"].([]any)[0].(map[string]any), document["memories"].([]any)[0].(map[string]any)}
		for i, object := range objects {
			for _, name := range rapid.SliceOfN(rapid.StringMatching(`x[a-zA-Z&"]{0,6}`), 0, 3).Draw(t, "fields") {
				object[name] = rapid.SampledFrom([]any{nil, true, "text", 1.5, []any{"a"}, map[string]any{"rule": "b"}}).Draw(t, "value")
				added += i + 1
			}
		}
		was := testkit.Value(json.Marshal(document)).Must(t)
		note := testkit.Value(ownership.Read(map[string]string{ownership.Annotation: string(was)})).Must(t)
		is, _ := note.Encode()
		sameBut(t, string(was), is)
	})
	testkit.Check(t, added != 0, "no field was added")
}
