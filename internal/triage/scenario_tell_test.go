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

// essence is what must have changed for a node to be told of again.
type essence struct {
	todo string // what is to be on the node and to be remembered
	why  string // and why, without the numbers of other nodes
}

func essenceOf(p triage.Plan) essence {
	var e essence
	for _, taint := range p.Taints {
		e.todo += fmt.Sprintln(taint.Taint)
	}
	if p.Treatment != nil {
		e.todo += fmt.Sprintln(p.Treatment.Rule, p.Treatment.Step, p.Treatment.HealthySince)
	}
	for _, off := range p.CallOff {
		e.todo += fmt.Sprintln("call off a step of", off.Rule)
	}
	for _, release := range p.Release {
		switch release.Code {
		case triage.Tainted, triage.FellBack, triage.Unclear, triage.Pending, triage.OnHold, triage.Vetoed, triage.GateClosed, triage.CoolingDown: // the finding does not tell
			e.todo += fmt.Sprintln("call off", release.Rule)
		}
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

// tell prints the nodes whose plans have changed, and checks what every plan
// and every wake-up must keep to.
func (s *story) tell() {
	s.t.Helper()
	woken := map[string]bool{}
	for name, ok := s.core.NextWoken(); ok; name, ok = s.core.NextWoken() {
		if woken[name] {
			s.t.Errorf("%s is woken twice", name)
		}
		woken[name] = true
	}
	s.changes(func(name string, was, is essence) {
		if was.todo != is.todo && !woken[name] {
			s.t.Errorf("at %s there is something new to do on %s, which was not woken", s.now.Format(time.TimeOnly), name)
		}
	})
}

// restarted is tell for a new core, which has woken nobody for what was told by
// the old one.
func (s *story) restarted() {
	for _, ok := s.core.NextWoken(); ok; _, ok = s.core.NextWoken() {
	}
	s.changes(func(string, essence, essence) {})
}

func (s *story) changes(changed func(name string, was, is essence)) {
	type group struct {
		sentence string
		names    []string
	}
	var groups []*group
	for _, name := range slices.SortedFunc(maps.Keys(s.nodes), naturally) {
		plan, ok := s.core.Plan(name)
		if !ok {
			s.t.Fatalf("there is no plan for %s", name)
		}
		s.check(plan)
		is := essenceOf(plan)
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
		s.say("%s: %s", join(g.names), g.sentence)
	}
}

// check asserts what holds for every plan.
func (s *story) check(p triage.Plan) {
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

// sentence says what is to be done on the node, and why.
func (s *story) sentence(node *triage.Node, plan triage.Plan) string {
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

// todo says what brings the node in line with the plan.
func (s *story) todo(node *triage.Node, plan triage.Plan) string {
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
	for _, off := range plan.CallOff {
		add("call off the next step of %s", off.Rule)
	}
	for _, release := range plan.Release {
		for _, have := range node.Treatments {
			if have.Rule == release.Rule {
				step := s.ladders[have.Rule][have.Step]
				add("end %s", strings.TrimSpace(step.Action.String()+" "+step.Ref))
			}
		}
		if s.onItsWay(node, release.Rule) {
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
