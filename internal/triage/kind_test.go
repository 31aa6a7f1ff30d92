package triage_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// A new kind of policy needs no change of the core. Two invented kinds, one with a taint and
// one with a ladder, work like the others.
func TestInventedKinds(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	when := triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.False}}}
	taints := triage.Rule{
		ID: triage.RuleID{Kind: "Quarantine", Name: "q"}, Stage: "Toy", When: when, Bound: triage.Bound{Cap: &triage.Limit{Number: 1}}, Precedence: 7,
		Response: triage.Response{Taint: &triage.TaintResponse{Key: "example.com/unhealthy", Effect: triage.NoExecute}},
	}
	treats := triage.Rule{
		ID: triage.RuleID{Kind: "Reimage", Name: "r"}, Stage: "Toy", When: when, Bound: triage.Bound{Cap: &triage.Limit{Number: 1}}, Precedence: 6,
		Response: triage.Response{Ladder: []triage.Step{{Action: triage.Reboot}}},
	}
	node := func(name string, status triage.Status) triage.Node {
		return triage.Node{Name: name, UID: name, Created: now, Conditions: []triage.Condition{{Type: "Disk", Status: status, Transition: now}}}
	}
	responds := func(n triage.Node) triage.Node {
		n.Taints = []triage.Taint{{Rule: taints.ID, Key: "example.com/unhealthy", Effect: triage.NoExecute}}
		n.Treatments = []triage.Treatment{{Rule: treats.ID, Since: now}}
		return n
	}
	start := func(rules ...triage.Rule) *triage.Core {
		core := triage.New()
		for _, rule := range rules {
			mustSet(t, core, now, rule)
		}
		return core
	}
	has := func(core *triage.Core, name string, want ...string) {
		t.Helper()
		plan, _ := core.Plan(name)
		var got []string
		for _, reason := range plan.Findings {
			got = append(got, reason.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("findings of %s are\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	grants := func(core *triage.Core, want ...triage.Grant) {
		t.Helper()
		if got := core.Grants(); !slices.Equal(got, want) {
			t.Errorf("grants are %+v, want %+v", got, want)
		}
	}
	slots := func(name string) []triage.Grant {
		return []triage.Grant{{Rule: taints.ID, Node: name, UID: name, Since: now, Taint: true}, {Rule: treats.ID, Node: name, UID: name, Since: now}}
	}
	const since = ": Disk=False since 2026-07-01T12:00:00Z, "

	t.Run("keep their bounds and release their slots", func(t *testing.T) {
		core := start(taints, treats)
		core.Observe(now, node("a", triage.False), node("b", triage.False))
		core.Loaded(now)
		grants(core, slots("a")...)
		has(core, "a", "Reimage/r"+since+"reboot is under way", "Quarantine/q"+since+"taint example.com/unhealthy:NoExecute")
		has(core, "b", "Reimage/r"+since+"waits: 1 in treatment, at most 1 of 2 selected nodes may be",
			"Quarantine/q"+since+"taint example.com/unhealthy:NoSchedule instead of NoExecute: 1 placed or under way, at most 1 of 2 selected nodes may have it")
		core.Observe(now, responds(node("a", triage.True)))
		grants(core, slots("a")...)
		has(core, "a", "Reimage/r: the node has recovered, the treatment ends", "Quarantine/q: the node has recovered, the taint is removed")
		core.Observe(now, node("a", triage.True))
		grants(core, slots("b")...)
	})
	gone := []string{"Quarantine/q: the policy no longer exists, the taint is removed", "Reimage/r: the policy no longer exists, the treatment ends"}
	t.Run("are found on nodes without their rules", func(t *testing.T) {
		core := start()
		core.Observe(now, responds(node("a", triage.False)))
		core.Loaded(now)
		grants(core, slots("a")...)
		has(core, "a", gone...)
		mustSet(t, core, now, treats)
		mustSet(t, core, now, taints)
		has(core, "a", "Reimage/r"+since+"reboot is under way", "Quarantine/q"+since+"taint example.com/unhealthy:NoExecute")
		core.RemoveRule(now, treats.ID)
		core.RemoveRule(now, taints.ID)
		has(core, "a", gone...)
	})
	t.Run("are restored without their rules", func(t *testing.T) {
		core := start()
		core.Observe(now, node("a", triage.False))
		for _, g := range slots("a") {
			core.Resume(now, g)
		}
		grants(core, slots("a")...)
		has(core, "a", gone...)
	})
	t.Run("only a treatment excludes another treatment", func(t *testing.T) {
		other := treats
		other.ID.Name = "other"
		for taint, want := range map[bool]string{true: since + "reboot is under way", false: since + "waits: Reimage/r treats this node"} {
			core := start(other)
			facts := responds(node("a", triage.False))
			if taint {
				facts.Treatments = nil
			} else {
				facts.Taints = nil
			}
			core.Observe(now, facts)
			core.Loaded(now)
			plan, _ := core.Plan("a")
			if last := plan.Findings[len(plan.Findings)-1].String(); len(plan.Findings) != 2 || last != "Reimage/other"+want {
				t.Errorf("beside a taint (%t): %s, want Reimage/other%s", taint, last, want)
			}
		}
	})
	t.Run("keep to a taint or a ladder while a rule is in use", func(t *testing.T) {
		core := start(taints)
		changed := treats
		changed.ID = taints.ID
		var field *triage.FieldError
		if err := core.SetRule(now, changed); !errors.As(err, &field) || field.Field != "response" {
			t.Errorf("changing the response: %v", err)
		}
		core.Observe(now, responds(node("a", triage.False)))
		core.RemoveRule(now, taints.ID)
		if err := core.SetRule(now, changed); err == nil {
			t.Error("the rule has a ladder although its taint is on a node")
		}
		core.Forget(now, "a")
		mustSet(t, core, now, changed)
	})
}

// The rule says everything that the core needs to know, so no code of the core names a kind.
func TestCoreNamesNoKind(t *testing.T) {
	files := testkit.Value(filepath.Glob("*.go")).Must(t)
	kinds := regexp.MustCompile(`ConditionSet|NodeHealthCheck|\bRepair\b|ReadyTimeout`)
	read := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text := testkit.Value(os.ReadFile(file)).Must(t)
		read++
		if named := kinds.FindString(string(text)); named != "" {
			t.Errorf("%s names the kind %s: give the rule a field that says it", file, named)
		}
	}
	testkit.Check(t, read >= 10, "only %d files were read", read)
}
