package triage_test

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// surveyRule returns a rule that remediates nodes with Disk or Fan True. It tolerates
// Disk=False for ever, so these nodes do not count.
func surveyRule(who triage.Selector) triage.Rule {
	return triage.Rule{
		ID:       triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "asked"},
		Stage:    policykind.StageRemediate,
		Selector: who,
		When: triage.When{Signals: []triage.Signal{
			{Condition: "Disk", Status: triage.True, For: time.Minute}, {Condition: "Fan", Status: triage.True},
			{Condition: "Disk", Status: triage.False, For: triage.Never},
		}},
		Bound:    triage.Bound{Gate: &triage.Limit{Number: 49, Percent: true, RoundUp: true}},
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Remediate, Ref: "template"}}},
	}
}

// TestSurvey compares the result of a core with a separate count.
func TestSurvey(t *testing.T) {
	saw := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		core := triage.New()
		var nodes []triage.Node
		for i := range rapid.IntRange(0, 40).Draw(t, "nodes") {
			node := triage.Node{
				Name: fmt.Sprintf("n%02d", i), UID: "u", ControlPlane: rapid.Bool().Draw(t, "control plane"),
				Labels: map[string]string{"pool": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pool"), "zone": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "zone")},
			}
			for _, name := range []string{"Disk", "Fan"} {
				node.Conditions = append(node.Conditions, triage.Condition{Type: name, Status: rapid.SampledFrom([]triage.Status{triage.True, triage.False, triage.Unknown}).Draw(t, name)})
			}
			nodes = append(nodes, node)
		}
		for _, i := range rapid.Permutation(indices(len(nodes))).Draw(t, "order") {
			core.Observe(time.Unix(1, 0), nodes[i])
		}
		texts := rapid.SliceOfN(rapid.SampledFrom([]string{"", "pool=a", "zone=x", "pool=a,zone=y", "!pool", "unheard"}), 1, 4).Draw(t, "selectors")
		selectors := make([]triage.Selector, len(texts))
		for i, text := range texts {
			var err error
			if selectors[i], err = triage.ParseSelector(text); err != nil {
				t.Fatal(err)
			}
		}
		chosen := func(n triage.Node, text string) bool {
			return map[string]bool{
				"": true, "pool=a": n.Labels["pool"] == "a", "zone=x": n.Labels["zone"] == "x", "pool=a,zone=y": n.Labels["pool"] == "a" && n.Labels["zone"] == "y",
			}[text]
		}
		want := triage.Survey{Shared: make([]triage.Shared, len(texts)-1)}
		for _, n := range nodes { // by name
			if !chosen(n, texts[0]) {
				continue
			}
			want.Selected++
			if n.ControlPlane {
				want.ControlPlane++
			}
			if slices.ContainsFunc(n.Conditions, func(c triage.Condition) bool { return c.Status == triage.True }) {
				if want.Matching++; want.Matching <= 5 {
					want.First = append(want.First, n.Name)
				} else {
					saw["more than are named"]++
				}
			}
			for i, text := range texts[1:] {
				if shared := &want.Shared[i]; chosen(n, text) {
					if shared.Nodes++; shared.Nodes == 1 {
						shared.First = n.Name
					}
					saw["shared"]++
				}
			}
		}
		work, symbols := core.Work(), core.Symbols()
		got := testkit.Value(core.Survey(surveyRule(selectors[0]), selectors[1:]...)).Must(t)
		testkit.Require(t, reflect.DeepEqual(got, want), "found %+v, want %+v", got, want)
		testkit.Require(t, core.Work() == work && reflect.DeepEqual(core.Symbols(), symbols), "Survey has changed the core")
	})
	t.Logf("saw %v", saw)
	requireSeen(t, saw, []string{"shared", "more than are named"})
	if _, err := triage.New().Survey(triage.Rule{}); err == nil {
		t.Error("Survey accepts an invalid rule")
	}
}

func indices(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// BenchmarkSurvey measures a survey of a health check among 10,000 nodes with twenty other
// selectors.
func BenchmarkSurvey(b *testing.B) {
	core := triage.New()
	for i := range 10000 {
		core.Observe(time.Unix(1, 0), triage.Node{
			Name: fmt.Sprintf("node-%05d", i), UID: "u", Labels: map[string]string{"pool": strconv.Itoa(i % 20), "zone": strconv.Itoa(i % 3)},
			Conditions: []triage.Condition{{Type: "Disk", Status: triage.True}, {Type: "Fan", Status: triage.False}},
		})
	}
	others := make([]triage.Selector, 20)
	for i := range others {
		others[i], _ = triage.ParseSelector(fmt.Sprintf("pool=%d", i))
	}
	for b.Loop() {
		if found, err := core.Survey(surveyRule(triage.Selector{}), others...); err != nil || found.Matching != 10000 || found.Shared[3].Nodes != 500 {
			b.Fatal(found, err)
		}
	}
}
