package repairblock

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestStateOf(t *testing.T) {
	seen := &lastGood{UID: "u", Generation: 3, Definition: "crd/5"}
	fault := errors.New("no duration")
	has := func(version string) view {
		return view{definition: definition{exists: true, hasBlock: true, version: version}, isKnown: true, isSettled: true}
	}
	lacks, early := has("crd/6"), has("crd/5")
	lacks.hasBlock, early.isSettled = false, false
	for _, c := range []struct {
		name       string
		stands     bool
		generation int64
		fault      error
		last       *lastGood
		view       view
		want       state
	}{
		{"a pool that never had a block", false, 1, nil, nil, has("crd/5"), neverSet},
		{"a pool that never had one, without the schema", false, 1, nil, nil, lacks, neverSet},
		{"a block", true, 1, nil, nil, has("crd/5"), applied},
		{"an invalid block", true, 1, fault, nil, has("crd/5"), refused},
		{"a block seen before the loss was", true, 3, nil, seen, lacks, lost},
		{"a block that is gone with its schema", false, 3, nil, seen, lacks, lost},
		{"a block that is gone with its schema, after a write", false, 4, nil, seen, lacks, lost},
		{"a block that a user has removed", false, 4, nil, seen, has("crd/5"), removed},
		{"a block that is gone under another schema", false, 4, nil, seen, has("crd/7"), vanished},
		{"a block that is gone under another schema, unwritten", false, 3, nil, seen, has("crd/7"), vanished},
		{"a missing block under the same generation", false, 3, nil, seen, has("crd/5"), hidden},
		{"a block that may be shown in a moment", false, 4, nil, seen, early, hidden},
		{"a block that is gone, and no look at the schema", false, 4, nil, seen, view{}, unsure},
		{"a block that was never seen with a schema", false, 4, nil, &lastGood{UID: "u", Generation: 3}, has("crd/5"), vanished},
	} {
		pool := &karpenter.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Generation: c.generation}}
		if c.stands {
			pool.Spec.Repair = &v1alpha1.RepairSpec{}
		}
		if got := stateOf(pool, c.fault, c.last, c.view); got != c.want {
			t.Errorf("%s: state %d, want %d", c.name, got, c.want)
		}
	}
}

// A block without a known valid version differs from no block, and the user learns the
// consequence.
func TestNeverValidIsNotNone(t *testing.T) {
	fault := errors.New("no duration")
	last := &lastGood{Block: &v1alpha1.RepairSpec{}}
	words := "no node is repaired unless a RepairPolicy applies to it"
	for name, test := range map[string]struct {
		pool       pool
		neverValid bool
	}{
		"never had a block":                    {pool{is: neverSet}, false},
		"a valid block":                        {pool{is: applied, last: last}, false},
		"an invalid block":                     {pool{is: refused, fault: fault}, true},
		"an invalid block after a valid block": {pool{is: refused, fault: fault, last: last}, false},
		"an invalid block after a block that is no longer valid": {pool{is: refused, fault: fault, last: last, lastFault: fault}, true},
		"a lost invalid block": {pool{is: lost, fault: fault}, true},
		"a lost block":         {pool{is: lost, last: last}, false},
		"a removed block":      {pool{is: removed}, false},
	} {
		if is := test.pool.inForce(); is.NeverValid() != test.neverValid || strings.Contains(is.Problem, words) != test.neverValid {
			t.Errorf("%s: never valid is %t: %s", name, is.NeverValid(), is.Problem)
		}
	}
}

func TestKeepsTellsWhatTheAPIServerPrunes(t *testing.T) {
	object := func(fields ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(fields); i += 2 {
			m[fields[i].(string)] = fields[i+1]
		}
		return m
	}
	const all = "x-kubernetes-preserve-unknown-fields"
	for name, c := range map[string]struct {
		schema map[string]any
		want   bool
	}{
		"nothing":            {nil, false},
		"no spec":            {object("properties", object()), false},
		"a spec without":     {object("properties", object("spec", object("properties", object("weight", object())))), false},
		"a spec with it":     {object("properties", object("spec", object("properties", object("repair", object())))), true},
		"a spec of anything": {object("properties", object("spec", object(all, true))), true},
		"a pool of anything": {object(all, true), true},
		"a spec of nothing":  {object("properties", object("spec", object(all, false))), false},
		"a field of no sort": {object("properties", object("spec", "text")), false},
	} {
		crd := &unstructured.Unstructured{Object: object("spec", object("versions", []any{
			object("name", "v1beta1"), "nonsense", object("name", "v1", "served", true, "schema", object("openAPIV3Schema", c.schema)),
		}))}
		got := readDefinition(crd)
		if got.hasBlock != c.want || got.index != 2 || !got.exists {
			t.Errorf("%s: has the block: %v, at %d, there: %v", name, got.hasBlock, got.index, got.exists)
		}
		if old := readDefinition(&unstructured.Unstructured{Object: object("spec", object("versions", []any{object("name", "v1beta1", "served", true)}))}); old.exists {
			t.Error("a CRD without our version is there")
		}
	}
}

// fakeStore is a pool and its CRD as an API server stores them, with the actions of users.
type fakeStore struct {
	version int  // of the CRD
	has     bool // the CRD has the schema
	stands  bool // the block is stored
	block   string
	gen     int64
	// wanted is what users want to be in force, empty for nothing: the last written
	// block, unless a user has removed a visible one.
	wanted string
}

// prune is the first step of every write.
func (s *fakeStore) prune() {
	if !s.has {
		s.stands = false
	}
}

func (s *fakeStore) shown() *karpenter.NodePool {
	pool := &karpenter.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Generation: s.gen}}
	if s.stands && s.has {
		pool.Spec.Repair = &v1alpha1.RepairSpec{DefaultTolerationDuration: s.block}
	}
	return pool
}

// For any sequence of changes, the block in force is the one that users want, if the store
// has seen it. There is one ambiguous case: a block was removed, and the CRD changed before
// the store ran again. The block may then have been pruned, and users are told how to drop
// it.
func TestNoBlockIsLostAndNoneOutlivesItsRemoval(t *testing.T) {
	var losses, removals, ambiguous int
	rapid.Check(t, func(t *rapid.T) {
		s := &fakeStore{version: 1, has: true, gen: 1}
		var last *lastGood // in memory, and here also in the stored revision
		isSeen := true     // the store has seen what users want
		isSure := true     // no removal is ambiguous
		change := func(has bool) {
			s.version, s.has = s.version+1, has
			if s.wanted == "" && last != nil {
				isSure = false
			}
		}
		look := func() {
			v := view{definition: definition{exists: true, hasBlock: s.has, version: string(rune('a' + s.version))}, isKnown: true, isSettled: true}
			pool := s.shown()
			is := stateOf(pool, nil, last, v)
			if is == lost || is == vanished {
				losses++
			}
			if is == removed {
				removals++
			}
			last = updateLastGood(pool, is, nil, last, v)
			if is == applied {
				isSeen, isSure = true, true
			}
			if is == removed {
				isSeen = true
			}
			got := ""
			if last != nil {
				got = last.Block.DefaultTolerationDuration
			}
			if s.wanted == "" && !isSure {
				return
			}
			if (isSeen || s.wanted == "") && got != s.wanted {
				t.Fatalf("in force is %q, want %q (state %d)", got, s.wanted, is)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"the schema is lost":        func(*rapid.T) { change(false) },
			"the schema is put back":    func(*rapid.T) { change(true) },
			"the CRD changes otherwise": func(*rapid.T) { change(s.has) },
			"a status is written":       func(*rapid.T) { s.prune() },
			"a spec is written":         func(*rapid.T) { s.prune(); s.gen++ },
			"a block is written": func(t *rapid.T) {
				block := rapid.SampledFrom([]string{"1m", "2m", "3m"}).Draw(t, "block")
				if s.prune(); s.has && (!s.stands || s.block != block) {
					s.stands, s.block, s.wanted, isSeen = true, block, block, false
					s.gen++
				}
			},
			"a block is removed": func(t *rapid.T) {
				if s.prune(); !s.stands {
					t.Skip("the block is not visible")
				}
				if last == nil || last.Definition != string(rune('a'+s.version)) || !isSeen {
					isSure = false
					ambiguous++
				}
				s.stands, s.wanted, isSeen = false, "", true
				s.gen++
			},
			"the store runs":       func(*rapid.T) { look() },
			"the store runs again": func(*rapid.T) { look() },
		})
	})
	t.Logf("%d losses, %d removals, %d ambiguous cases", losses, removals, ambiguous)
	testkit.Check(t, losses != 0 && removals != 0, "nothing was lost or removed: this test looks at nothing")
}

func TestRestorePaceIsFourPerHourAndResets(t *testing.T) {
	start := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	var p restorePace
	var taken []time.Duration
	for d := time.Duration(0); d < time.Hour; d += 10 * time.Second { // another writer removes it all the time
		if p.take(start.Add(d)) {
			taken = append(taken, d)
		}
	}
	if want := []time.Duration{0, time.Minute, 5 * time.Minute, 21 * time.Minute}; len(taken) != len(want) {
		t.Fatalf("put back at %v, want %v", taken, want)
	}
	if !p.take(start.Add(100*time.Hour)) || p.at != start.Add(100*time.Hour+time.Minute) {
		t.Errorf("after a long peace the next time is %v", p.at)
	}
}

func FuzzACopyIsReadAsItWasWrittenOrNotAtAll(f *testing.F) {
	f.Add([]byte(`{"pool":"default","uid":"u","generation":3,"definition":"crd/5","repair":{"defaultTolerationDuration":"5m"}}`))
	f.Add([]byte(`{"pool":"default","uid":"u","repair":{"policies":5}}`))
	f.Add([]byte(`{"uid":"u","repair":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		read, err := readRevision(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: text}})
		if err != nil {
			return
		}
		again := testkit.Value(newRevision("ns", 1, read)).Must(t)
		same, err := readRevision(again)
		testkit.Check(t, err == nil && read.isEquivalent(same), "%s was read as %+v, and written as %s: %v", text, read, again.Data.Raw, err)
	})
}

// The revisions of all format versions can be read. The files never change; a new version
// adds its own.
func TestRevisionsOfAllVersionsAreRead(t *testing.T) {
	want := &lastGood{
		Pool: "default", UID: "0c7f0f9e-1111-4a6e-9d52-000000000001", Generation: 3, Definition: "0c7f0f9e-1111-4a6e-9d52-000000000002/5",
		Block: &v1alpha1.RepairSpec{DefaultTolerationDuration: "5m"},
	}
	read := func(text string) *lastGood {
		t.Helper()
		return testkit.Value(readRevision(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(text)}})).Must(t)
	}
	var latest string
	for _, name := range []string{"copy-v0.json", "copy-v1.json"} {
		text := testkit.Value(os.ReadFile("testdata/" + name)).Must(t)
		latest = strings.TrimSpace(string(text))
		testkit.Equal(t, name, want, read(latest))
	}
	if made, err := newRevision("ns", 1, want); err != nil || string(made.Data.Raw) != latest {
		t.Errorf("today's format has changed, which takes a new version: %v\n%s", err, made.Data.Raw)
	}
	newer := read(strings.Replace(latest, `{"version":1,`, `{"version":7,"by":"x",`, 1))
	if made, err := newRevision("ns", 2, newer); err != nil || !strings.HasSuffix(string(made.Data.Raw), `,"by":"x"}`) {
		t.Errorf("what a newer version has kept is lost: %v\n%s", err, made.Data.Raw)
	}
}
