package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// limit is the largest ConfigMap that the API server accepts.
const limit = 1 << 20

func golden(t *testing.T, name string) []byte {
	t.Helper()
	text := testkit.Value(os.ReadFile("testdata/" + name)).Must(t)
	return bytes.TrimSpace(text)
}

func at(text string) time.Time {
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return when
}

// All versions of the stored format are readable. These files never change; a new version
// adds its own.
func TestReadsAllVersions(t *testing.T) {
	rule := func(kind triage.Kind, name string) ownership.Rule { return ownership.Rule{Kind: kind, Name: name} }
	slot := func(kind triage.Kind, name, node string, n int) Slot {
		return Slot{rule(kind, name), node, fmt.Sprintf("0c7f0f9e-1111-4a6e-9d52-%012d", n)}
	}
	object := func(kind, group, namespace, name string) ObjectRef {
		return ObjectRef{schema.GroupKind{Group: group, Kind: kind}, namespace, name}
	}
	want := []Entry{
		NodeWrite{Slot: slot(policykind.ConditionSet, "kernel-deadlock", "worker-1", 1), ResourceVersion: "4711"},
		NodeWrite{Slot: slot(policykind.ConditionSet, "disk-broken", "worker-1", 1), ResourceVersion: "4711"},
		ObjectWrite{Slot: slot(policykind.NodeHealthCheck, "masters", "master-1", 2), Object: object("Reboot", "example.com", "ns", "master-1"), Step: 1, ControlPlane: true},
		ObjectWrite{Slot: slot(policykind.Repair, "NodePool/default", "worker-2", 3), Object: object("NodeClaim", "karpenter.sh", "", "default-x7f2"), ResourceVersion: "4712", Since: at("2026-11-15T11:58:00Z"), Pool: "default"},
		DeletedNode{Slot: slot(policykind.NodeHealthCheck, "workers", "worker-3", 4), Gone: at("2026-11-15T12:00:00.123456789Z"), Since: at("2026-11-15T11:50:00Z")},
		DeletedNode{Slot: slot(policykind.Repair, "RepairPolicy/plain", "worker-4", 5), Gone: at("2026-11-15T12:01:00Z"), Since: at("2026-11-15T11:51:00Z"), Pool: "plain", Replaced: true},
		LaunchFailures{Rule: rule(policykind.ReadyTimeout, "default"), Failed: 3, Last: at("2026-11-15T12:02:00Z"), Template: "8013434817"},
	}
	for _, name := range []string{"page-v0.json", "page-v1.json"} {
		got, err := parse(golden(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, got.grants); diff != "" || got.holder != "autohealer-controller-7d4b_2c1e" || len(got.kept) > 0 || got.unknown != "" {
			t.Errorf("%s: holder %q, unknown %q, grants (-want +got):\n%s", name, got.holder, got.unknown, diff)
		}
	}
	if got := (contents{holder: "autohealer-controller-7d4b_2c1e", grants: want}).encode(); !bytes.Equal(got, golden(t, "page-v1.json")) {
		t.Errorf("the stored format has changed; add a new version:\n%s", got)
	}
}

func TestKeepsEntriesOfANewerVersion(t *testing.T) {
	text := golden(t, "page-newer.json")
	p := testkit.Value(parse(text)).Must(t)
	known := NodeWrite{Slot{ownership.Rule{Kind: policykind.ConditionSet, Name: "kernel-deadlock"}, "worker-1", "u1"}, "4711", false, `{"zone":"a"}`}
	testkit.Equal(t, "known entries", []Entry{known}, p.grants)
	if len(p.kept) != 3 || !p.kept[1].ControlPlane || p.kept[1].Rule.IsKnown() {
		t.Errorf("kept entries: %+v", p.kept)
	}
	l := &Ledger{holder: "second", kept: p.kept, unknown: p.unknown}
	if n := l.CountUnknown(p.grants); n != 5 {
		t.Errorf("%d entries and fields are unknown", n)
	}
	was, is := decode(t, text), decode(t, p.encode())
	was["version"] = float64(Version)
	testkit.Equal(t, "written back", byNode(was), byNode(is))
	testkit.Check(t, is["epoch"] != nil && is["holder"] == "autohealer-controller-7d4b_2c1e", "the ledger is %v", is)
}

func decode(t *testing.T, text []byte) (all map[string]any) {
	t.Helper()
	testkit.Must(t, json.Unmarshal(text, &all))
	return all
}

// byNode returns the entries of a ledger by node, with the names of the rules.
func byNode(page map[string]any) map[string][]string {
	all := map[string][]string{}
	for _, e := range page["grants"].([]any) {
		entry := e.(map[string]any)
		for _, place := range entry["rule"].([]any) {
			entry["rule"] = page["rules"].([]any)[int(place.(float64))]
			text, _ := json.Marshal(entry) // it was JSON
			all[entry["node"].(string)] = append(all[entry["node"].(string)], string(text))
		}
	}
	for _, list := range all {
		slices.Sort(list)
	}
	return all
}

func TestEncodingRoundTrip(t *testing.T) {
	name := rapid.StringMatching(`[ab]`)
	entries := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Entry {
		e := record{
			Rule: ownership.Rule{Kind: rapid.SampledFrom([]triage.Kind{policykind.ConditionSet, policykind.Repair}).Draw(t, "kind"), Name: name.Draw(t, "rule")},
			Node: name.Draw(t, "node"), UID: name.Draw(t, "uid"), ResourceVersion: rapid.StringMatching(`[1-9]`).Draw(t, "version"),
			Object: rapid.SampledFrom([]string{"", "", "Kind.group ns/name", "of another form"}).Draw(t, "object"),
		}
		switch e.Object {
		case "":
			e.Closes = rapid.Bool().Draw(t, "closes")
		case "Kind.group ns/name":
			e.Topology = rapid.SampledFrom([]string{"", "zone=a", "zone=a,rack=7"}).Draw(t, "topology")
		}
		if rapid.IntRange(0, 5).Draw(t, "starts") == 0 {
			return record{Starts: rapid.IntRange(1, 9).Draw(t, "treatments"), Since: at("2026-11-15T12:00:00Z").Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "second")) * time.Second)}.entry()
		}
		if rapid.Bool().Draw(t, "newer") {
			e.Unknown = format.Unknown(fmt.Sprintf(`{"new":%q}`, name.Draw(t, "new")))
		}
		if rapid.IntRange(0, 3).Draw(t, "other") == 0 {
			e.Rule = ownership.Rule{Name: "Other/" + name.Draw(t, "rule")}
		}
		return e.entry()
	}), 0, 20)
	merged := 0
	rapid.Check(t, func(t *rapid.T) {
		all := entries.Draw(t, "entries")
		for _, e := range all { // a node often has several rules
			if r := e.record(); r.Rule.Name != "" && rapid.Bool().Draw(t, "another rule") {
				r.Rule.Name += "2"
				all = append(all, r.entry())
			}
		}
		seen := map[Entry]bool{}
		all = slices.DeleteFunc(all, func(e Entry) bool { // a ledger has each entry once
			is := seen[e]
			seen[e] = true
			return is
		})
		written := contents{holder: "h", unknown: `{"new":1}`}
		for _, e := range all {
			if unknown, is := e.(UnknownEntry); is {
				written.kept = append(written.kept, unknown)
			} else {
				written.grants = append(written.grants, e)
			}
		}
		text := written.encode()
		merged += len(all) - bytes.Count(text, []byte(`"uid"`))
		got := testkit.Value(parse(text)).Must(t)
		back := map[Entry]bool{}
		for _, e := range got.grants {
			back[e] = true
		}
		for _, e := range got.kept {
			back[e] = true
		}
		if diff := cmp.Diff(seen, back, cmp.AllowUnexported(UnknownEntry{})); diff != "" || got.holder != "h" || got.unknown != written.unknown || len(got.kept) != len(written.kept) {
			t.Fatalf("read (-want +got):\n%s\n%s", diff, text)
		}
		l := &Ledger{holder: "h", kept: written.kept, unknown: written.unknown, stored: newConfigMap("ns")}
		room := l.Room()
		room.Add(written.grants...)
		if needs, counted := len(text), maxBytes-room.left; counted < needs {
			t.Fatalf("Room counts %d bytes for a ledger of %d", counted, needs)
		}
	})
	testkit.Check(t, merged != 0, "no node had two rules")
}

func TestRefusesDamagedContents(t *testing.T) {
	for _, text := range []string{
		``, `scribble`, `{}`, `{"holder":""}`, `{"holder":"h","grants":[{"rule":7}]}`, `{"holder":"h","grants":[{"rule":[0]}]}`,
		`{"version":1,"holder":"h","rules":["ConditionSet/a"],"grants":[{"rule":[-1]}]}`, `{"holder":"h","grants":[{"rule":"ConditionSet/a","step":"one"}]}`,
	} {
		if p, err := parse([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", text, p)
		}
	}
}

// longest returns the longest possible name.
func longest(prefix string, i int) string {
	return strings.Repeat("n", 253-len(prefix)-6) + prefix + fmt.Sprintf("%06d", i)
}

// 10,000 nodes under 100 sets with the longest names fit in a few ConfigMaps that the API
// server accepts.
func TestWorstCaseFits(t *testing.T) {
	const nodes, sets, nodesPerPage = 10_000, 100, 500
	l := &Ledger{holder: longest("holder", 0), stored: newConfigMap("ns")}
	names := make([]string, sets)
	for set := range names {
		names[set] = longest("set", set)
	}
	pages, served := 0, 0
	for served < nodes {
		room, p := l.Room(), contents{holder: l.holder}
		onPage := 0
		for ; onPage < nodesPerPage && served+onPage < nodes; onPage++ {
			entries, node := make([]Entry, sets), longest("node", served+onPage)
			for set := range entries {
				entries[set] = NodeWrite{
					Slot:            Slot{ownership.Rule{Kind: policykind.ConditionSet, Name: names[set]}, node, "0c7f0f9e-1111-4a6e-9d52-000000000001"},
					ResourceVersion: "18446744073709551615",
				}
			}
			if !room.Take(entries...) {
				break
			}
			p.grants = append(p.grants, entries...)
		}
		testkit.Require(t, onPage != 0, "no other node fits after %d nodes", served)
		if pages%10 == 0 { // they are all alike
			size, counted := len(p.encode()), maxBytes-room.left
			t.Logf("page %d has %d nodes and %d bytes", pages, onPage, size)
			if size > counted || counted > maxBytes || maxBytes > limit {
				t.Fatalf("a ledger with %d nodes has %d bytes, and Room counts %d", onPage, size, counted)
			}
		}
		served += onPage
		pages++
	}
	t.Logf("%d pages", pages)
	testkit.Check(t, pages <= 40, "%d ledgers for %d nodes", pages, nodes)
}

// An entry that does not fit takes no space.
func TestRoomTakesAllOrNothing(t *testing.T) {
	room := (*Ledger)(nil).Room()
	taken := 0
	for i := range 100_000 { // each with its own rules
		a := NodeWrite{Slot: Slot{Rule: ownership.Rule{Kind: policykind.ConditionSet, Name: longest("a", i)}, Node: longest("node", i)}, ResourceVersion: "1"}
		b := a
		b.Rule.Name = longest("b", i)
		before := *room
		rules := len(room.rules)
		if !room.Take(a, b) {
			if room.left != before.left || len(room.rules) != rules {
				t.Errorf("%d bytes and %d rules were taken of %d and %d", before.left-room.left, len(room.rules)-rules, before.left, rules)
			}
			break
		}
		taken++
	}
	testkit.Check(t, taken >= 1000 && room.left >= 0, "%d nodes were taken, and %d bytes are left", taken, room.left)
}
