package triage_test

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// TestImpact asks for the impact of a rule after every call of random histories. The core
// must continue like a core that was not asked. The result must match the naive core, and a
// third core after the rule is set.
func TestImpact(t *testing.T) {
	t.Parallel()
	saw := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		born := func() []decider { return []decider{triage.New(), triage.New(), newNaiveCore(saw), triage.New()} }
		runHistory(t, saw, born, func(h *history) func(call) {
			return func(call) {
				rule := h.drawImpactRule()
				got := h.impact(rule)
				h.checkSame(h.deciders[1], "the core that was not asked")
				h.checkImpact(rule, got)
				h.checkAgainstSetRule(rule, got)
				h.checkImpactBeyond(rule, h.drawImpactRule())
				h.countImpact(rule, got)
			}
		})
	})
	wanted := []string{
		"impacts", "impacts on no node", "impacts on some", "impacts on all", "impacts on the control plane",
		"impacts on more than a rule before", "impacts on no more than a rule before", "impacts with a duration", "impacts through a selector", "impacts of unreported conditions",
		"impacts of a rule that is followed", "nodes that are unclear", "nodes that may match once they report", "nodes that were ready once",
	}
	var totals []string
	for _, what := range wanted {
		totals = append(totals, fmt.Sprintf("%s %d", what, saw[what]))
	}
	t.Logf("saw %s", strings.Join(totals, ", "))
	requireSeen(t, saw, wanted)
}

// unreportedCondition is a condition that no node of the histories reports.
const unreportedCondition = "Unheard"

// drawImpactRule draws a new rule, or a rule that is set, with or without a change.
func (h *history) drawImpactRule() triage.Rule {
	rule := h.drawRule(h.drawID())
	if ids := h.ids(); len(ids) > 0 && rare(h.t, 3) {
		rule = h.alterRule(h.rules[pick(h.t, ids)])
	} else if rare(h.t, 6) {
		rule.When.Signals = append(slices.Clone(rule.When.Signals), triage.Signal{
			Condition: unreportedCondition, Status: pick(h.t, []triage.Status{triage.True, triage.Missing}), Reason: pick(h.t, []string{"", "Unheard"}),
		})
	}
	return rule
}

// impact returns the impact of a rule, and ends the history if the core has changed.
func (h *history) impact(rule triage.Rule) triage.Impact {
	core := h.core()
	work, symbols := core.Work(), core.Symbols()
	deadline, _ := core.Deadline()
	got, err := core.Impact(rule)
	if err != nil {
		h.fail("asking about " + describeRule(rule) + ": " + err.Error())
	}
	for name, before := range h.plans {
		if plan, _ := core.Plan(name); !reflect.DeepEqual(plan, before) {
			h.log("plan of %s (-before +after):\n%s", name, diff(plan, before))
			h.fail("a plan has changed after Impact of " + describeRule(rule))
		}
	}
	if d, _ := core.Deadline(); core.Work() != work || !d.Equal(deadline) || !maps.Equal(core.Symbols(), symbols) {
		h.log("work %v, then %v; symbols (-before +after):\n%s", work, core.Work(), diff(core.Symbols(), symbols))
		h.fail("the core has changed after Impact of " + describeRule(rule))
	}
	return got
}

// checkImpact compares an impact with the naive core, and the reported conditions with the
// facts.
func (h *history) checkImpact(rule triage.Rule, got triage.Impact) {
	naive := h.deciders[2].(*naiveCore)
	var want triage.Impact
	var matching []string
	for _, name := range slices.Sorted(maps.Keys(naive.nodes)) {
		p := naive.nodes[name]
		if !selects(rule, p.facts) {
			continue
		}
		want.Selected++
		switch naive.verdict(p, rule) {
		case holds:
			want.Matching++
			matching = append(matching, name)
			if p.facts.ControlPlane {
				want.ControlPlane++
			}
			if len(want.First) < 5 {
				want.First = append(want.First, name)
			}
		case unclear:
			h.saw["nodes that are unclear"]++
			want.Open++
		case not:
			if naive.mayMatch(p, rule) {
				h.saw["nodes that may match once they report"]++
				want.Open++
			}
		}
		if p.initialized && slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return s.FromCreation }) {
			h.saw["nodes that were ready once"]++
		}
	}
	if d := diff(got, want); d != "" {
		h.log("impact of %s (-naive +core):\n%s", describeRule(rule), d)
		h.fail("the impacts of a rule differ")
	}
	named, err := h.core().Matching(rule)
	if err != nil {
		h.fail("Matching of " + describeRule(rule) + ": " + err.Error())
	}
	if d := diff(slices.Sorted(named), matching); d != "" {
		h.log("nodes that match %s (-naive +core):\n%s", describeRule(rule), d)
		h.fail("the matching nodes differ")
	}
	reported := map[string]int{}
	for _, p := range naive.nodes {
		for _, row := range p.facts.Conditions {
			reported[row.Type]++
		}
	}
	for _, kind := range append(slices.Collect(maps.Keys(reported)), unreportedCondition) {
		if got := h.core().Reports(kind); got != reported[kind] {
			h.fail(fmt.Sprintf("the core counts %d reports of %s, want %d", got, kind, reported[kind]))
		}
	}
	if d := diff(h.core().Reported(), slices.Sorted(maps.Keys(reported))); d != "" {
		h.log("reported conditions (-naive +core):\n%s", d)
		h.fail("the reported conditions differ")
	}
}

// mayMatch says whether a rule that does not match a node could match once the node reports
// missing conditions.
func (t *naiveCore) mayMatch(p *nodeState, rule triage.Rule) bool {
	absent, denied := 0, 0
	for _, condition := range groups(rule) {
		if v, _ := t.group(p, rule, condition); v != not {
			continue
		}
		if _, isThere := rowOf(p.facts, condition); isThere || slices.ContainsFunc(signalsOf(rule, condition), func(s triage.Signal) bool { return s.FromCreation }) {
			denied++
		} else {
			absent++
		}
	}
	return absent > 0 && (denied == 0 || !rule.When.All)
}

// checkImpactBeyond compares the impact beyond another rule with the naive core.
func (h *history) checkImpactBeyond(rule, before triage.Rule) {
	got, err := h.core().Impact(rule, before)
	if err != nil {
		h.fail("comparing " + describeRule(rule) + " with " + describeRule(before) + ": " + err.Error())
	}
	naive := h.deciders[2].(*naiveCore)
	matches := func(p *nodeState, r triage.Rule) bool { return selects(r, p.facts) && naive.verdict(p, r) == holds }
	more, both := 0, 0
	for _, p := range naive.nodes {
		switch {
		case !matches(p, rule):
		case matches(p, before):
			both++
		default:
			more++
		}
	}
	if got.Matching != more {
		h.fail(fmt.Sprintf("%s is said to add %d nodes to %s, and adds %d", describeRule(rule), got.Matching, describeRule(before), more))
	}
	if more > 0 && both > 0 {
		h.saw["impacts on more than a rule before"]++
	}
	if more == 0 && both > 0 {
		h.saw["impacts on no more than a rule before"]++
	}
}

// checkAgainstSetRule compares an impact with the counts of a core after the rule is set
// under a new name.
func (h *history) checkAgainstSetRule(rule triage.Rule, got triage.Impact) {
	if rule.AssignedOnly { // no node is assigned to the new name
		return
	}
	core := h.deciders[3].(*triage.Core)
	rule.ID.Name, rule.DryRun = "never-met", true // it must not affect the other rules
	if err := core.SetRule(h.lastTime, rule); err != nil {
		h.fail(err.Error())
	}
	counts, _ := core.Population(rule.ID)
	core.RemoveRule(h.lastTime, rule.ID)
	if counts.Selected != got.Selected || counts.Unhealthy != got.Matching {
		h.log("%s selects %d, of which %d are unhealthy", describeRule(rule), counts.Selected, counts.Unhealthy)
		h.fail(fmt.Sprintf("its impact was said to be %+v", got))
	}
}

func (h *history) countImpact(rule triage.Rule, got triage.Impact) {
	count := func(what string, is bool) {
		if is {
			h.saw[what]++
		}
	}
	signals := rule.When.Signals
	_, isFollowed := h.rules[rule.ID]
	count("impacts", true)
	count("impacts on no node", got.Selected > 0 && got.Matching == 0)
	count("impacts on some", got.Matching > 0 && got.Matching < got.Selected)
	count("impacts on all", got.Matching > 1 && got.Matching == got.Selected)
	count("impacts on the control plane", got.ControlPlane > 0 && got.ControlPlane < got.Matching)
	count("impacts through a selector", !rule.Selector.Everything() && got.Matching > 0)
	count("impacts of a rule that is followed", isFollowed && got.Matching > 0)
	count("impacts with a duration", got.Matching > 0 && !slices.ContainsFunc(signals, func(s triage.Signal) bool { return s.For == 0 }))
	count("impacts of unreported conditions", got.Matching > 0 && slices.ContainsFunc(signals, func(s triage.Signal) bool { return s.Condition == unreportedCondition }))
}

// The race detector fails this test if concurrent calls of Impact write.
func TestImpactIsSafeForConcurrentUse(t *testing.T) {
	w := newBenchCluster(t, 100)
	rule := impactRule(t)
	want := testkit.Value(w.core.Impact(rule)).Must(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				got, err := w.core.Impact(rule)
				if d := diff(got, want); err != nil || d != "" {
					t.Errorf("another answer (-first +later):\n%s%v", d, err)
				}
				w.core.Reported()
			}
		})
	}
	all.Wait()
}

// More nodes match than Impact names, in any order.
func TestImpactNamesFirstNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		core, there := triage.New(), map[string]bool{}
		rule := triage.Rule{
			ID:       triage.RuleID{Kind: policykind.ConditionSet, Name: "asked"},
			Stage:    policykind.StageTaint,
			When:     triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.True}}},
			Response: triage.Response{Taint: &triage.TaintResponse{Key: "example.com/asked", Effect: triage.NoSchedule}},
		}
		for range rapid.IntRange(0, 60).Draw(t, "changes") {
			name := fmt.Sprintf("node-%02d", rapid.IntRange(0, 20).Draw(t, "node"))
			if rapid.IntRange(0, 3).Draw(t, "goes") == 0 {
				core.Forget(benchStart, name)
				delete(there, name)
				continue
			}
			core.Observe(benchStart, triage.Node{Name: name, UID: name, Conditions: []triage.Condition{{Type: "Disk", Status: triage.True}}})
			there[name] = true
		}
		names := slices.Sorted(maps.Keys(there))
		want := triage.Impact{Selected: len(names), Matching: len(names), First: names[:min(len(names), 5)]}
		got, err := core.Impact(rule)
		if d := diff(got, want); err != nil || d != "" {
			t.Fatalf("the impact (-want +got): %v\n%s", err, d)
		}
	})
}

func TestImpactOfAnInvalidRule(t *testing.T) {
	core := triage.New()
	_, got := core.Impact(triage.Rule{})
	if want := (triage.Rule{}).Validate(); got == nil || got.Error() != want.Error() {
		t.Errorf("the answer is %v, want %v", got, want)
	}
	if _, err := core.Matching(triage.Rule{}); err == nil {
		t.Error("nodes match a rule that says nothing")
	}
	if _, err := core.Impact(impactRule(t), triage.Rule{}); err == nil {
		t.Error("a rule is compared with an invalid one")
	}
}

// The allocations of Impact must not grow with the cluster, nor with the number of matching
// nodes.
func TestAskingAllocatesLittle(t *testing.T) {
	const most, mostBytes = 32, 4096 // the race detector allocates as well
	allNodes := impactRule(t)
	noMatch := impactRule(t)
	noMatch.When.Signals[0].Status = triage.Missing
	for _, size := range []int{100, 5_000} {
		w := newBenchCluster(t, size)
		before := w.core.Work()
		for name, ask := range map[string]func(){
			"on most": func() {
				if got, err := w.core.Impact(allNodes); err != nil || got.Selected != size || got.Matching < size*9/10 || len(got.First) != triage.MostNamed {
					t.Errorf("the impact is %+v, %v", got, err)
				}
			},
			"on no node": func() {
				if got, err := w.core.Impact(noMatch); err != nil || got.Selected != size || got.Matching > 0 {
					t.Errorf("the impact is %+v, %v", got, err)
				}
			},
			"on no more": func() {
				if got, err := w.core.Impact(allNodes, allNodes); err != nil || got.Selected != size || got.Matching > 0 {
					t.Errorf("the impact is %+v, %v", got, err)
				}
			},
			"by name": func() {
				names := testkit.Value(w.core.Matching(allNodes)).Must(t)
				found := 0
				for range names {
					found++
				}
				testkit.Check(t, found >= size*9/10, "%d nodes match", found)
				for range names { // the caller may stop early
					break
				}
			},
			"of what is reported": func() {
				if got := w.core.Reported(); len(got) != benchConditions {
					t.Errorf("reported are %v", got)
				}
			},
		} {
			allocated, bytes := allocations(ask)
			if allocated > most || bytes > mostBytes || w.core.Work() != before {
				t.Errorf("impact %s among %d nodes: %d allocations of %d bytes, want at most %d of %d; work %v, then %v", name, size, allocated, bytes, most, mostBytes, before, w.core.Work())
			}
		}
	}
}

// allocations returns the smallest number of allocations and bytes of a few runs.
func allocations(of func()) (count, bytes uint64) {
	count, bytes = math.MaxUint64, math.MaxUint64
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		of()
		runtime.ReadMemStats(&after)
		count, bytes = min(count, after.Mallocs-before.Mallocs), min(bytes, after.TotalAlloc-before.TotalAlloc)
	}
	return count, bytes
}

// impactRule selects every node and requires two conditions, the second of which is Ready in
// any status except Unknown.
func impactRule(tb testing.TB) triage.Rule {
	tb.Helper()
	who, err := triage.ParseSelector("pool,pool notin (none),!excluded")
	if err != nil {
		tb.Fatal(err)
	}
	return triage.Rule{
		ID:       triage.RuleID{Kind: policykind.ConditionSet, Name: "asked"},
		Stage:    policykind.StageTaint,
		Selector: who,
		When: triage.When{All: true, Signals: []triage.Signal{
			{Condition: "Problem13", Status: triage.False, For: 5 * time.Minute},
			{Condition: triage.Ready, Status: triage.True},
			{Condition: triage.Ready, Status: triage.False},
		}},
		Bound:    triage.Bound{Cap: &triage.Limit{Number: 49, Percent: true}},
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "example.com/asked", Effect: triage.NoExecute}},
	}
}

// BenchmarkImpact measures the worst case: a rule that selects every node and matches 95% of
// them.
func BenchmarkImpact(b *testing.B) {
	for _, size := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) {
			w, rule := newBenchCluster(b, size), impactRule(b)
			before := w.core.Work()
			b.ReportAllocs()
			b.ResetTimer()
			var got triage.Impact
			for range b.N {
				var err error
				if got, err = w.core.Impact(rule); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			if got.Selected != size || got.Matching < size*9/10 || w.core.Work() != before {
				b.Errorf("selected %d, matching %d, work %v, then %v", got.Selected, got.Matching, before, w.core.Work())
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/op")
		})
	}
}
