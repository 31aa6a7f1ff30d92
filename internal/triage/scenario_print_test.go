package triage_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// planSummary is the part of a plan that is compared to decide whether to print a node
// again.
type planSummary struct {
	todo string // what should be on the node and be remembered
	why  string // the reason, without the numbers of other nodes
}

func summarize(p triage.Plan) planSummary {
	var e planSummary
	for _, taint := range p.Taints {
		e.todo += fmt.Sprintln(taint.Taint)
	}
	if p.Treatment != nil {
		e.todo += fmt.Sprintln(p.Treatment.Rule, p.Treatment.Step, p.Treatment.HealthySince)
	}
	for _, off := range p.Cancel {
		e.todo += fmt.Sprintln("call off a step of", off.Rule)
	}
	for _, release := range p.Release {
		switch release.Code {
		case triage.Tainted, triage.FellBack, triage.Unclear, triage.Pending, triage.OnHold, triage.NodePaused, triage.OutsideWindow, triage.Vetoed, triage.GateClosed, triage.CoolingDown, triage.GivenUp: // the finding does not say it
			e.todo += fmt.Sprintln("call off", release.Rule)
		}
	}
	if p.Reopen {
		e.todo += "reopen\n"
	}
	for _, memory := range p.Remember {
		e.todo += fmt.Sprintln("remember", memory)
	}
	for _, reason := range append([]triage.Reason{p.Reason}, p.Findings...) {
		if reason.Code != triage.Partial {
			reason.Have, reason.Limit, reason.Of, reason.Recovering, reason.Departed = 0, 0, 0, 0, 0
		}
		e.why += fmt.Sprintf("%+v\n", reason)
	}
	return e
}

// printChanges prints the nodes whose plans have changed, and checks the invariants of plans
// and woken nodes.
func (s *scenario) printChanges() {
	s.t.Helper()
	woken := map[string]bool{}
	for name, ok := s.core.NextWoken(); ok; name, ok = s.core.NextWoken() {
		if woken[name] {
			s.t.Errorf("%s is woken twice", name)
		}
		woken[name] = true
	}
	s.changes(func(name string, was, is planSummary) {
		if was.todo != is.todo && !woken[name] {
			s.t.Errorf("at %s there is something new to do on %s, which was not woken", s.now.Format(time.TimeOnly), name)
		}
	})
}

// printRestarted is printChanges for a new core, which does not wake nodes for what the old
// core already reported.
func (s *scenario) printRestarted() {
	for _, ok := s.core.NextWoken(); ok; _, ok = s.core.NextWoken() {
	}
	s.changes(func(string, planSummary, planSummary) {})
}

func (s *scenario) changes(changed func(name string, was, is planSummary)) {
	type group struct {
		sentence string
		names    []string
	}
	var groups []*group
	for _, name := range slices.SortedFunc(maps.Keys(s.nodes), compareNatural) {
		plan, ok := s.core.Plan(name)
		if !ok {
			s.t.Fatalf("there is no plan for %s", name)
		}
		s.check(plan)
		is := summarize(plan)
		if was := s.told[name]; was != is {
			changed(name, was, is)
			s.told[name] = is
			sentence := s.sentence(s.nodes[name], plan)
			at := slices.IndexFunc(groups, func(g *group) bool { return g.sentence == sentence })
			if at < 0 {
				at = len(groups)
				groups = append(groups, &group{sentence: sentence})
			}
			groups[at].names = append(groups[at].names, name)
		}
	}
	for _, g := range groups {
		s.printf("%s: %s", join(g.names), g.sentence)
	}
}

// check asserts the invariants of a plan.
func (s *scenario) check(p triage.Plan) {
	if p.Reason.Code == 0 {
		s.t.Errorf("the plan of %s has no reason", p.Node)
	}
	if p.Next.IsZero() {
		return
	}
	if !p.Next.After(s.now) {
		s.t.Errorf("the plan of %s is to change at %s, which has passed", p.Node, p.Next)
	}
	if deadline, ok := s.core.Deadline(); !ok || deadline.After(p.Next) {
		s.t.Errorf("the plan of %s is to change at %s, and the deadline is %s", p.Node, p.Next, deadline)
	}
}

var stamp = regexp.MustCompile(`2024-11-01T(\d\d:\d\d:\d\d)Z`)

// sentence describes the required actions on the node, and the reason.
func (s *scenario) sentence(node *triage.Node, plan triage.Plan) string {
	lines := []string{s.todo(node, plan) + " | " + plan.Reason.String()}
	said := false
	for _, finding := range plan.Findings {
		if finding == plan.Reason && !said {
			said = true
			continue
		}
		lines = append(lines, "         also "+finding.String())
	}
	return stamp.ReplaceAllString(strings.Join(lines, "\n"), "$1")
}

// todo describes the actions that bring the node in line with the plan.
func (s *scenario) todo(node *triage.Node, plan triage.Plan) string {
	var do []string
	add := func(format string, args ...any) { do = append(do, fmt.Sprintf(format, args...)) }
	for _, want := range plan.Taints {
		if slices.Contains(node.Taints, want.Taint) {
			add("keep %s:%s", want.Key, want.Effect)
		} else {
			add("place %s:%s", want.Key, want.Effect)
		}
	}
	for _, have := range node.Taints {
		if !slices.ContainsFunc(plan.Taints, func(want triage.PlannedTaint) bool { return want.Taint == have }) {
			add("remove %s:%s", have.Key, have.Effect)
		}
	}
	if want := plan.Treatment; want != nil {
		verb, note := "begin", time.Time{}
		if at := findTreatment(node, want.Rule, want.Step); at >= 0 {
			verb, note = "keep", node.Treatments[at].HealthySince
		}
		add("%s %s", verb, strings.TrimSpace(want.Action.String()+" "+want.Ref))
		switch {
		case want.HealthySince.Equal(note):
		case want.HealthySince.IsZero():
			add("forget that it was healthy")
		default:
			add("note that it is healthy since %s", want.HealthySince.Format(time.TimeOnly))
		}
	}
	if plan.Reopen {
		add("call off closing the node")
	}
	for _, off := range plan.Cancel {
		add("call off the next step of %s", off.Rule)
	}
	for _, release := range plan.Release {
		for _, have := range node.Treatments {
			if have.Rule == release.Rule {
				step := s.ladders[have.Rule][have.Step]
				add("end %s", strings.TrimSpace(step.Action.String()+" "+step.Ref))
			}
		}
		if s.inFlight(node, release.Rule) {
			add("call off %s", release.Rule)
		}
	}
	for _, memory := range plan.Remember {
		if !slices.Contains(node.Memories, memory) {
			add("remember %s since %s for %s", memory.Condition, memory.Since.Format(time.TimeOnly), memory.Rule)
		}
	}
	for _, memory := range node.Memories {
		renewed := func(other triage.Memory) bool {
			return other.Rule == memory.Rule && other.Condition == memory.Condition
		}
		if !slices.ContainsFunc(plan.Remember, renewed) {
			add("forget %s for %s", memory.Condition, memory.Rule)
		}
	}
	if len(do) == 0 {
		return "nothing to do"
	}
	return strings.Join(do, ", ")
}
