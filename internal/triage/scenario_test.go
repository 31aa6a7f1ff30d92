package triage_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// TestScenarios runs the scenarios in testdata. Each is a list of commands for a core and a
// simulated cluster; testdata/README.md explains them.
//
// After every command the test prints a line for each node whose plan has changed: the time,
// the node, the required actions and the reason. Numbers that count other nodes may change
// without a line.
func TestScenarios(t *testing.T) {
	files := testkit.Value(filepath.Glob(filepath.Join("testdata", "*.txt"))).Must(t)
	testkit.Require(t, len(files) != 0, "there is no scenario in testdata")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text := testkit.Value(os.ReadFile(file)).Must(t)
			testkit.Check(t, strings.HasPrefix(string(text), "# "), "the file does not begin with a comment that tells the story")
			s := newScenario()
			commands := 0
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				t.Helper()
				commands++
				return s.run(t, d)
			})
			testkit.Check(t, commands != 0, "the story has no command")
		})
	}
}

// day is the date of all scenarios.
var day = time.Date(2024, time.November, 1, 0, 0, 0, 0, time.UTC)

// scenario is a core, the simulated cluster, and the output so far.
type scenario struct {
	t    *testing.T
	now  time.Time
	core *triage.Core

	rules map[triage.RuleID]triage.Rule
	// ladders are the ladders of all rules, including removed ones.
	ladders map[triage.RuleID][]triage.Step
	nodes   map[string]*triage.Node
	unseen  []*triage.Node       // they arrive with the next restart
	seen    map[string]time.Time // when the last version of a node arrived
	// allowed are the current allowances by rule.
	allowed map[triage.RuleID]triage.Allowance
	rails   triage.Rails

	told map[string]planSummary
	out  strings.Builder
}

func newScenario() *scenario {
	return &scenario{
		rules:   map[triage.RuleID]triage.Rule{},
		ladders: map[triage.RuleID][]triage.Step{},
		nodes:   map[string]*triage.Node{},
		seen:    map[string]time.Time{},
		allowed: map[triage.RuleID]triage.Allowance{},
		told:    map[string]planSummary{},
	}
}

// commands are all commands of scenarios.
var commands = map[string]func(*scenario, *command){
	"at":            (*scenario).at,
	"wait":          (*scenario).wait,
	"conditionset":  (*scenario).conditionset,
	"healthcheck":   (*scenario).healthcheck,
	"repair":        (*scenario).repair,
	"ready-timeout": (*scenario).readyTimeout,
	"delete-rule":   (*scenario).deleteRule,
	"allow":         (*scenario).allow,
	"guardrails":    (*scenario).guardrails,
	"nodes":         (*scenario).newNodes,
	"gone":          (*scenario).gone,
	"condition":     (*scenario).condition,
	"label":         (*scenario).label,
	"becomes":       (*scenario).becomes,
	"veto":          (*scenario).veto,
	"unveto":        (*scenario).unveto,
	"pause":         (*scenario).pause,
	"resume":        (*scenario).resume,
	"inherits":      (*scenario).inherits,
	"forgive":       (*scenario).forgive,
	"cordon":        (*scenario).cordon,
	"uncordon":      (*scenario).uncordon,
	"confirm":       (*scenario).confirm,
	"starts":        (*scenario).starts,
	"started":       (*scenario).started,
	"carry-out":     (*scenario).carryOut,
	"abandon":       (*scenario).abandon,
	"lands":         (*scenario).lands,
	"failed":        (*scenario).failed,
	"deletes":       (*scenario).deletes,
	"removed":       (*scenario).removed,
	"record-lost":   (*scenario).recordLost,
	"others-place":  (*scenario).othersPlace,
	"others-remove": (*scenario).othersRemove,
	"restart":       (*scenario).restart,
	"loaded":        (*scenario).loaded,
	"explain":       (*scenario).explain,
	"population":    (*scenario).population,
	"rails":         (*scenario).railUse,
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	s.t = t
	run, ok := commands[d.Cmd]
	if !ok {
		d.Fatalf(t, "there is no command %q", d.Cmd)
	}
	if s.core == nil && d.Cmd != "at" {
		d.Fatalf(t, "a story begins with at")
	}
	s.out.Reset()
	c := newCommand(t, d)
	if text := c.value("at"); text != "" {
		s.advanceToText(c, text)
	}
	run(s, c)
	c.end()
	if s.out.Len() == 0 && len(s.nodes) > 0 {
		s.printf("no plan changes")
	}
	return s.out.String()
}

func (s *scenario) printf(format string, args ...any) {
	fmt.Fprintf(&s.out, "%s %s\n", s.now.Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// ---- time

func (s *scenario) at(c *command) {
	text := c.word("a time")
	if s.core == nil {
		s.now = c.time(text)
		s.core = triage.New()
		if !c.flag("unloaded") {
			s.core.Loaded(s.now)
		}
		return
	}
	c.end()
	s.advanceToText(c, text)
}

func (s *scenario) wait(c *command) {
	d := c.duration(c.word("a duration"))
	c.end()
	s.advance(s.now.Add(d))
}

func (s *scenario) advanceToText(c *command, text string) {
	when := c.time(text)
	if when.Before(s.now) {
		c.fatalf("it is %s already", s.now.Format(time.TimeOnly))
	}
	s.advance(when)
}

// advance lets time pass from deadline to deadline, like a caller.
func (s *scenario) advance(until time.Time) {
	for {
		deadline, ok := s.core.Deadline()
		if !ok || deadline.After(until) {
			break
		}
		if !deadline.After(s.now) {
			s.t.Fatalf("the deadline %s does not move on", deadline)
		}
		s.now = deadline
		s.core.Advance(s.now)
		s.printChanges()
	}
	s.now = until
	s.core.Advance(s.now)
	s.printChanges()
}

// ---- rules

func (s *scenario) conditionset(c *command) {
	set := dialect.ConditionSet{
		Name:         c.word("a name"),
		TaintKey:     c.value("key"),
		Effect:       c.value("effect"),
		Selector:     c.selector(),
		MaxUnhealthy: c.value("max"),
		ControlPlane: c.flag("control-plane"),
		DryRun:       c.flag("dry-run"),
		Hold:         c.value("hold"),
		Windows:      c.windows(),
	}
	for _, line := range c.takeLines() {
		var condition dialect.SetCondition
		condition.Type, condition.Status = line.pair()
		condition.Duration = line.after("for")
		condition.EvenSilent = line.flag("even-silent")
		line.end()
		set.Conditions = append(set.Conditions, condition)
	}
	s.setRule(c, set)
}

func (s *scenario) healthcheck(c *command) {
	check := dialect.NodeHealthCheck{
		Name:         c.word("a name"),
		Selector:     c.selector(),
		MaxUnhealthy: c.value("max"),
		MinHealthy:   c.value("min"),
		Hold:         c.value("hold"),
		Windows:      c.windows(),

		StormCooldown: c.value("cooldown"),
		HealthyDelay:  c.value("healthy-delay"),
	}
	for _, line := range c.takeLines() {
		switch verb := line.word("when or then"); verb {
		case "when":
			var condition dialect.UnhealthyCondition
			condition.Type, condition.Status = line.pair()
			condition.Duration = line.after("for")
			check.UnhealthyConditions = append(check.UnhealthyConditions, condition)
		case "then":
			step := dialect.RemediationStep{Template: line.word("a template"), Urgent: line.flag("urgent")}
			step.Timeout = line.after("for")
			check.Steps = append(check.Steps, step)
		default:
			line.fatalf("want when or then, not %q", verb)
		}
		line.end()
	}
	s.setRule(c, check)
}

func (s *scenario) repair(c *command) {
	repair := dialect.Repair{
		Name:               c.word("a name"),
		Selector:           c.selector(),
		DefaultToleration:  c.value("default"),
		UnhealthyThreshold: c.value("threshold"),
		Concurrency:        dialect.Concurrency{MaxConcurrent: c.value("max")},
		Pool:               c.value("pool"),
		Hold:               c.value("hold"),
		Windows:            c.windows(),
	}
	for _, line := range c.takeLines() {
		switch verb := line.word("provider or policy"); verb {
		case "provider":
			var statement dialect.RepairStatement
			statement.Type, statement.Status = line.pair()
			statement.Toleration = line.after("for")
			repair.Statements = append(repair.Statements, statement)
		case "policy":
			var policy dialect.RepairPolicy
			policy.ConditionType, policy.ConditionStatus, _ = strings.Cut(line.word("a condition"), "=")
			policy.Reason = line.after("because")
			policy.Toleration, policy.Urgent = line.after("for"), line.flag("urgent")
			repair.Policies = append(repair.Policies, policy)
		default:
			line.fatalf("want provider or policy, not %q", verb)
		}
		line.end()
	}
	s.setRule(c, repair)
}

func (s *scenario) readyTimeout(c *command) {
	s.setRule(c, dialect.ReadyTimeout{
		Name:        c.word("a name"),
		Selector:    c.selector(),
		Timeout:     c.value("timeout"),
		Concurrency: dialect.Concurrency{MaxConcurrent: c.value("max")},
		Pool:        c.value("pool"),
		Hold:        c.value("hold"),
		Windows:     c.windows(),
	})
}

func (s *scenario) setRule(c *command, d interface {
	Rule() (triage.Rule, error)
}) {
	rehearses := c.flag("dry-run") // policies with ladders have no dry run
	unnoticed := c.flag("unnoticed")
	c.end()
	rule, err := d.Rule()
	if err != nil {
		s.printf("refused: %v", err)
		return
	}
	rule.DryRun = rule.DryRun || rehearses
	if !unnoticed {
		if err := s.core.SetRule(s.now, rule); err != nil {
			s.printf("refused: %v", err)
			return
		}
	}
	s.rules[rule.ID] = rule
	s.ladders[rule.ID] = rule.Response.Ladder
	s.printChanges()
}

func (s *scenario) deleteRule(c *command) {
	id := s.rule(c)
	unnoticed := c.flag("unnoticed")
	c.end()
	delete(s.rules, id)
	delete(s.allowed, id)
	if !unnoticed {
		s.core.RemoveRule(s.now, id)
	}
	s.printChanges()
}

// allow sets the allowance of a rule.
func (s *scenario) allow(c *command) {
	id, err := policykind.ParseRuleID(c.word("a rule"))
	if err != nil {
		c.fatalf("%v", err)
	}
	number, words := c.word("a number or any"), c.value("words")
	c.end()
	delete(s.allowed, id)
	if number == "any" {
		s.core.Allow(s.now, id, nil)
		s.printChanges()
		return
	}
	places, err := strconv.Atoi(number)
	if err != nil {
		c.fatalf("want a number or any, not %q", number)
	}
	allowance := triage.Allowance{Remaining: places, Reason: words}
	s.allowed[id] = allowance
	s.core.Allow(s.now, id, &allowance)
	s.printChanges()
}

// guardrails sets the limits on all rules together. Options that are left out limit nothing.
func (s *scenario) guardrails(c *command) {
	limit := func(text string) *triage.Limit {
		if text == "" {
			return nil
		}
		l, err := triage.ParseLimit(text)
		if err != nil {
			c.fatalf("%v", err)
		}
		return &l
	}
	s.rails = triage.Rails{
		InTreatment: limit(c.value("in-treatment")), Unschedulable: limit(c.value("unschedulable")), KeepLast: c.flag("keep-last"),
	}
	if text := c.value("topology"); text != "" {
		label, share, _ := strings.Cut(text, ":")
		s.rails.Topology = []triage.Share{{Label: label, Limit: *limit(share)}}
	}
	if text := c.value("pace"); text != "" {
		s.rails.Pace = &triage.Pace{Limit: *limit(text), AtLeast: 2, Period: time.Minute}
	}
	if text := c.value("correlated"); text != "" { // label:share or image:share
		label, share, _ := strings.Cut(text, ":")
		s.rails.CorrelatedFailure = &triage.CorrelatedFailure{Threshold: *limit(share), MinNodes: 3, Window: 5 * time.Minute}
		if s.rails.CorrelatedFailure.Image = label == "image"; !s.rails.CorrelatedFailure.Image {
			s.rails.CorrelatedFailure.Labels = []string{label}
		}
		if text := c.value("longest"); text != "" {
			longest, err := time.ParseDuration(text)
			if err != nil {
				c.fatalf("%v", err)
			}
			s.rails.CorrelatedFailure.LongestHold = longest
		}
	}
	if text := c.value("attempts"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil {
			c.fatalf("want a number of attempts, not %q", text)
		}
		s.rails.MaxAttempts = &triage.MaxAttempts{Limit: limit, Window: 24 * time.Hour}
	}
	if reason := c.value("hold"); reason != "" {
		s.rails.Hold = map[triage.Stage]string{}
		for _, stage := range policykind.Stages() {
			s.rails.Hold[stage] = reason
		}
	}
	c.end()
	if err := s.core.SetRails(s.now, s.rails); err != nil {
		c.fatalf("%v", err)
	}
	s.printChanges()
}

// rule reads the ID of a known rule.
func (s *scenario) rule(c *command) triage.RuleID {
	name := c.word("a rule")
	for id := range s.ladders {
		if id.String() == name {
			return id
		}
	}
	c.fatalf("there is no rule %q", name)
	return triage.RuleID{}
}

// ---- nodes

func (s *scenario) newNodes(c *command) {
	names := c.nodes()
	created := day
	if text := c.value("created"); text != "" {
		created = c.time(text)
	}
	since := created
	if text := c.value("since"); text != "" {
		since = c.time(text)
	}
	uid, image := c.value("uid"), c.value("image")
	zones := strings.Split(c.value("zone"), ",")
	controlPlane := c.flag("control-plane")
	starting := c.flag("starting")
	unseen := c.flag("unseen") // until a restart
	labels := map[string]string{}
	if text := c.value("labels"); text != "" {
		for _, label := range strings.Split(text, ",") {
			key, value, _ := strings.Cut(label, "=")
			labels[key] = value
		}
	}
	conditions := c.conditions()
	c.end()

	var seen []triage.Node
	for i, name := range names {
		uid := name + "/" + uid
		if old := s.nodes[name]; old != nil && old.UID == uid {
			c.fatalf("there is a node %s already; another one of that name needs a uid", name)
		}
		node := &triage.Node{
			Name: name, UID: uid, Zone: zones[i%len(zones)], Image: image,
			Labels: maps.Clone(labels), Created: created, ControlPlane: controlPlane,
			Conditions: []triage.Condition{{Type: triage.Ready, Status: triage.True, Transition: created}},
		}
		for _, row := range conditions {
			setCondition(node, row.Type, row.Status, row.Reason, since)
		}
		setStarting(node, starting)
		if unseen {
			s.unseen = append(s.unseen, node)
			continue
		}
		s.nodes[name] = node
		seen = append(seen, observed(node))
	}
	s.observe(seen...)
	s.printChanges()
}

func (s *scenario) condition(c *command) {
	names := c.nodes()
	since := s.now
	stated := c.value("since")
	if stated != "" {
		since = c.time(stated)
	}
	reason := c.value("reason")
	unnoticed := c.flag("unnoticed")
	conditions := c.conditions()
	c.end()
	if len(conditions) == 0 {
		c.fatalf("want conditions like Ready=False")
	}
	change := s.change
	if unnoticed {
		change = s.changeUnnoticed
	}
	change(c, names, func(node *triage.Node) {
		for _, row := range conditions {
			since := since
			if old := slices.IndexFunc(node.Conditions, func(c triage.Condition) bool { return c.Type == row.Type }); stated == "" && old >= 0 && node.Conditions[old].Status == row.Status {
				since = node.Conditions[old].Transition
			}
			setCondition(node, row.Type, row.Status, reason, since)
		}
	})
}

// setCondition sets a condition; Missing removes it.
func setCondition(node *triage.Node, kind string, status triage.Status, reason string, since time.Time) {
	node.Conditions = slices.DeleteFunc(node.Conditions, func(c triage.Condition) bool { return c.Type == kind })
	if status != triage.Missing {
		node.Conditions = append(node.Conditions, triage.Condition{Type: kind, Status: status, Reason: reason, Transition: since})
	}
}

// setStarting adds or removes the startup taints of a node.
func setStarting(node *triage.Node, starting bool) {
	node.Starting = starting
	status := map[bool]triage.Status{true: triage.True}[starting]
	setCondition(node, triage.StartupTaints, status, "", node.Created)
}

// observed returns the facts of a node. It stores that a node is initialized once it is
// ready without startup taints.
func observed(node *triage.Node) triage.Node {
	node.Initialized = node.Initialized || !node.Starting && slices.ContainsFunc(node.Conditions, func(c triage.Condition) bool {
		return c.Type == triage.Ready && c.Status == triage.True
	})
	return *node
}

// observe passes versions of nodes to the core. Every version of a node has arrived.
func (s *scenario) observe(nodes ...triage.Node) {
	for i := range nodes {
		nodes[i].Previous, s.seen[nodes[i].Name] = s.seen[nodes[i].Name], s.now
	}
	s.core.Observe(s.now, nodes...)
}

// change changes nodes and passes all of them to the core at once.
func (s *scenario) change(c *command, names []string, change func(*triage.Node)) {
	var seen []triage.Node
	for _, name := range names {
		node := s.nodes[name]
		if node == nil {
			c.fatalf("there is no node %s", name)
		}
		change(node)
		seen = append(seen, observed(node))
	}
	s.observe(seen...)
	s.printChanges()
}

// changeUnnoticed changes nodes without telling the core.
func (s *scenario) changeUnnoticed(c *command, names []string, change func(*triage.Node)) {
	for _, name := range names {
		if s.nodes[name] == nil {
			c.fatalf("there is no node %s", name)
		}
		change(s.nodes[name])
	}
	s.printChanges()
}

func (s *scenario) label(c *command) {
	names := c.nodes()
	labels := c.rest()
	c.end()
	s.change(c, names, func(node *triage.Node) {
		node.Labels = maps.Clone(node.Labels)
		for key, value := range labels {
			if value == "" {
				delete(node.Labels, key)
			} else {
				node.Labels[key] = value
			}
		}
	})
}

// becomes makes nodes control-plane nodes or workers.
func (s *scenario) becomes(c *command) {
	names := c.nodes()
	role := c.word("control-plane or worker")
	c.end()
	if role != "control-plane" && role != "worker" {
		c.fatalf("want control-plane or worker, not %q", role)
	}
	s.change(c, names, func(node *triage.Node) { node.ControlPlane = role == "control-plane" })
}

func (s *scenario) veto(c *command) {
	names := c.nodes()
	veto := triage.Veto{Reason: c.value("reason"), Respected: c.flag("respected")}
	if name := c.value("action"); name != "" {
		for veto.Action = triage.Remediate; veto.Action.String() != name; veto.Action++ {
			if veto.Action == triage.Terminate {
				c.fatalf("want Remediate, Reboot, Drain or Terminate, not %q", name)
			}
		}
	}
	c.end()
	s.change(c, names, func(node *triage.Node) { node.Vetoes = append(node.Vetoes, veto) })
}

func (s *scenario) unveto(c *command) {
	s.changeNodes(c, func(node *triage.Node) { node.Vetoes = nil })
}

// pause puts nodes on hold, and resume ends that.
func (s *scenario) pause(c *command) {
	names := c.nodes()
	reason, until := c.value("reason"), time.Time{}
	if text := c.value("until"); text != "" {
		until = c.time(text)
	}
	c.end()
	s.change(c, names, func(node *triage.Node) { node.Hold, node.HoldUntil = reason, until })
}

func (s *scenario) resume(c *command) {
	s.changeNodes(c, func(node *triage.Node) { node.Hold, node.HoldUntil = "", time.Time{} })
}

// inherits gives nodes the attempts of the nodes that they replace.
func (s *scenario) inherits(c *command) {
	names := c.nodes()
	rule := s.rule(c)
	var attempts []triage.Attempt
	for _, text := range strings.Split(c.value("began"), ",") {
		attempts = append(attempts, triage.Attempt{Rule: rule, Began: c.time(text), Inherited: true})
	}
	c.end()
	s.change(c, names, func(node *triage.Node) { node.Attempts = slices.Concat(node.Attempts, attempts) })
}

// forgive removes the attempts of nodes, as a user does.
func (s *scenario) forgive(c *command) {
	s.changeNodes(c, func(node *triage.Node) { node.Attempts = nil })
}

// cordon lets others close nodes to new pods, and uncordon opens them.
func (s *scenario) cordon(c *command) {
	s.changeNodes(c, func(node *triage.Node) { node.Closed = true })
}

func (s *scenario) uncordon(c *command) {
	s.changeNodes(c, func(node *triage.Node) { node.Closed = false })
}

// confirm confirms that nodes are healthy.
func (s *scenario) confirm(c *command) {
	s.changeNodes(c, func(node *triage.Node) { node.Confirmed = true })
}

// starts adds startup taints to nodes.
func (s *scenario) starts(c *command) {
	s.changeNodes(c, func(node *triage.Node) { setStarting(node, true) })
}

// started removes the startup taints of nodes.
func (s *scenario) started(c *command) {
	s.changeNodes(c, func(node *triage.Node) { setStarting(node, false) })
}

func (s *scenario) gone(c *command) {
	names := c.nodes()
	unnoticed := c.flag("unnoticed")
	c.end()
	for _, name := range names {
		if s.nodes[name] == nil {
			c.fatalf("there is no node %s", name)
		}
		delete(s.nodes, name)
		delete(s.told, name)
		if !unnoticed {
			s.core.Forget(s.now, name)
		}
		s.printChanges()
	}
}

// ---- responses

// carryOut carries out the plans, so that the facts show the responses.
func (s *scenario) carryOut(c *command) {
	names := slices.SortedFunc(maps.Keys(s.nodes), compareNatural)
	if c.hasWord() {
		names = c.nodes()
	}
	c.end()
	var seen []triage.Node
	var callOff []func()
	for _, name := range names {
		node := s.nodes[name]
		if node == nil {
			c.fatalf("there is no node %s", name)
		}
		plan, ok := s.core.Plan(name)
		if !ok {
			s.t.Fatalf("there is no plan for %s", name)
		}
		for _, release := range plan.Release {
			if s.inFlight(node, release.Rule) {
				callOff = append(callOff, func() { s.core.Abandon(s.now, name, release.Rule, 0) })
			}
		}
		before := *node
		node.Taints = nil
		for _, taint := range plan.Taints {
			node.Taints = append(node.Taints, taint.Taint)
		}
		node.Treatments = slices.DeleteFunc(slices.Clone(node.Treatments), func(have triage.Treatment) bool {
			return slices.ContainsFunc(plan.Release, func(r triage.Reason) bool { return r.Rule == have.Rule })
		})
		if want := plan.Treatment; want != nil {
			if findTreatment(node, want.Rule, want.Step) < 0 {
				if s.rails.MaxAttempts != nil && want.Step == 0 && s.core.IsNewAttempt(name, want.Rule) {
					node.Attempts = append(slices.Clone(node.Attempts), triage.Attempt{Rule: want.Rule, Began: s.now})
				}
				node.Treatments = append(node.Treatments, triage.Treatment{Rule: want.Rule, Step: want.Step, Since: s.now})
			}
			node.Treatments[findTreatment(node, want.Rule, want.Step)].HealthySince = want.HealthySince
		}
		if plan.Reopen {
			callOff = append(callOff, func() { s.core.Reopen(s.now, name, 0) })
		}
		for _, off := range plan.Cancel {
			callOff = append(callOff, func() { s.core.Abandon(s.now, name, off.Rule, 0) })
		}
		node.Memories = slices.Clone(plan.Remember)
		if !slices.Equal(before.Taints, node.Taints) || !slices.Equal(before.Treatments, node.Treatments) || !slices.Equal(before.Memories, node.Memories) {
			seen = append(seen, observed(node))
		}
	}
	if len(seen) > 0 {
		s.observe(seen...)
		s.printChanges()
	}
	for _, call := range callOff {
		call()
		s.printChanges()
	}
}

// inFlight says that a response of the rule with a slot was decided and is not on the node.
func (s *scenario) inFlight(node *triage.Node, rule triage.RuleID) bool {
	return !takesSlot(*node, rule) && slices.ContainsFunc(s.core.Grants(), func(g triage.Grant) bool {
		return g.Rule == rule && g.Node == node.Name && g.UID == node.UID
	})
}

func findTreatment(node *triage.Node, rule triage.RuleID, step int) int {
	return slices.IndexFunc(node.Treatments, func(have triage.Treatment) bool { return have.Rule == rule && have.Step == step })
}

func (s *scenario) abandon(c *command) {
	name := c.word("a node")
	rule := s.rule(c)
	retry := c.duration(c.value("retry"))
	c.end()
	s.core.Abandon(s.now, name, rule, retry)
	s.printChanges()
}

// lands lets an earlier write take effect, whatever the plan says now.
func (s *scenario) lands(c *command) {
	names := c.nodes()
	rule := s.rule(c)
	key, effect, _ := strings.Cut(c.word("a taint"), ":")
	parsed, err := triage.ParseEffect(effect)
	if err != nil {
		c.fatalf("%v", err)
	}
	c.end()
	s.change(c, names, func(node *triage.Node) {
		node.Taints = append(slices.Clone(node.Taints), triage.Taint{Rule: rule, Key: key, Effect: parsed})
	})
}

// failed says that the remediator of the latest treatment has given up.
func (s *scenario) failed(c *command) {
	s.changeTreatment(c, func(t *triage.Treatment) { t.Failed = true })
}

// deletes says that the remediator of the latest treatment is going to delete the node.
func (s *scenario) deletes(c *command) {
	s.changeTreatment(c, func(t *triage.Treatment) { t.Deletes = true })
}

// changeTreatment changes the latest treatment of nodes.
func (s *scenario) changeTreatment(c *command, change func(*triage.Treatment)) {
	s.changeNodes(c, func(node *triage.Node) {
		if len(node.Treatments) == 0 {
			c.fatalf("no treatment is under way on %s", node.Name)
		}
		node.Treatments = slices.Clone(node.Treatments)
		change(&node.Treatments[len(node.Treatments)-1])
	})
}

// changeNodes changes the nodes of a command without further words.
func (s *scenario) changeNodes(c *command, change func(*triage.Node)) {
	names := c.nodes()
	c.end()
	s.change(c, names, change)
}

// removed removes all responses from a node, as another component does.
func (s *scenario) removed(c *command) {
	s.changeNodes(c, func(node *triage.Node) {
		if len(node.Treatments) == 0 && len(node.Taints) == 0 {
			c.fatalf("there is nothing to remove on %s", node.Name)
		}
		node.Treatments, node.Taints = nil, nil
	})
}

// recordLost keeps the taints on nodes, but removes the proof that they are ours.
func (s *scenario) recordLost(c *command) {
	s.changeNodes(c, func(node *triage.Node) {
		for _, taint := range node.Taints {
			if taint.Effect == triage.NoExecute {
				node.Foreign = append(slices.Clone(node.Foreign), taint.Key)
			}
		}
		node.Taints, node.Memories = nil, nil
	})
}

// othersPlace lets another component place a NoExecute taint on nodes. Our taint with the
// same key becomes foreign.
func (s *scenario) othersPlace(c *command) {
	names := c.nodes()
	key := c.word("the key of a taint")
	c.end()
	s.change(c, names, func(node *triage.Node) {
		node.Taints = slices.DeleteFunc(slices.Clone(node.Taints), func(t triage.Taint) bool { return t.Key == key && t.Effect == triage.NoExecute })
		node.Foreign = append(slices.Clone(node.Foreign), key)
	})
}

// othersRemove removes the foreign taints of nodes.
func (s *scenario) othersRemove(c *command) {
	s.changeNodes(c, func(node *triage.Node) {
		if len(node.Foreign) == 0 {
			c.fatalf("there is nothing to remove on %s", node.Name)
		}
		node.Foreign = nil
	})
}

// restart builds a new core from the rules, the nodes, the grants and the storms.
func (s *scenario) restart(c *command) {
	for _, node := range s.unseen {
		s.nodes[node.Name] = node
	}
	s.unseen = nil
	names := slices.SortedFunc(maps.Keys(s.nodes), compareNatural)
	if c.flag("backwards") {
		slices.Reverse(names)
	}
	c.end()
	grants, old := s.core.Grants(), s.core
	s.core = triage.New()
	if err := s.core.SetRails(s.now, s.rails); err != nil {
		s.t.Fatal(err)
	}
	s.core.ResumeStarts(s.now, old.Starts())
	for _, rule := range s.rules {
		if err := s.core.SetRule(s.now, rule); err != nil {
			s.t.Fatal(err)
		}
	}
	for id, allowance := range s.allowed {
		s.core.Allow(s.now, id, &allowance)
	}
	for _, name := range names {
		s.observe(observed(s.nodes[name]))
	}
	for _, grant := range slices.Concat(grants, old.Closings()) {
		s.core.Resume(s.now, grant)
	}
	for id := range s.rules {
		if population, _ := old.Population(id); population.Storm {
			s.core.ResumeStorm(s.now, id, population.CalmSince)
		}
	}
	s.core.Loaded(s.now)
	s.printRestarted()
}

func (s *scenario) loaded(c *command) {
	c.end()
	s.core.Loaded(s.now)
	s.printChanges()
}

// ---- output

func (s *scenario) explain(c *command) {
	for _, name := range c.nodes() {
		node := s.nodes[name]
		if node == nil {
			c.fatalf("there is no node %s", name)
		}
		plan, ok := s.core.Plan(name)
		if !ok {
			s.t.Fatalf("there is no plan for %s", name)
		}
		s.printf("%s: %s", name, s.sentence(node, plan))
	}
}

func (s *scenario) population(c *command) {
	id := s.rule(c)
	c.end()
	p, ok := s.core.Population(id)
	if !ok {
		s.printf("%s: no such rule", id)
		return
	}
	line := fmt.Sprintf("%s: %s", id, counts(p.Counts))
	if p.Gate >= 0 {
		line += fmt.Sprintf("; at most %d may be unhealthy", p.Gate)
	}
	if p.Cap >= 0 {
		line += fmt.Sprintf("; at most %d may be in treatment", p.Cap)
	}
	if pool := s.rules[id].Bound.Pool; pool != "" {
		line += fmt.Sprintf(", %d are in %s", p.Pooled, pool)
	}
	switch {
	case p.Storm && p.CalmSince.IsZero():
		line += "; a storm"
	case p.Storm:
		line += fmt.Sprintf("; a storm that is over since %s, until %s", p.CalmSince.Format(time.TimeOnly), p.CalmUntil.Format(time.TimeOnly))
	}
	s.printf("%s", line)
	for _, zone := range slices.Sorted(maps.Keys(p.Zones)) {
		if zone != "" {
			fmt.Fprintf(&s.out, "         zone %s: %s\n", zone, counts(p.Zones[zone]))
		}
	}
}

func (s *scenario) railUse(c *command) {
	c.end()
	use := s.core.RailUse()
	s.printf("%d held, %d given up", use.Held, use.GivenUp)
	for _, rail := range use.Rails {
		line := rail.Rail.String()
		if rail.Domain != "" {
			line += " " + rail.Domain
		}
		if rail.HasLimit() {
			line += fmt.Sprintf(" (%d of %d)", rail.Used, rail.Limit)
		}
		fmt.Fprintf(&s.out, "         %s holds %d\n", line, rail.Held)
	}
}

func counts(c triage.Counts) string {
	line := fmt.Sprintf("%d selected, %d unhealthy, %d in treatment", c.Selected, c.Unhealthy, c.Treated)
	if c.Recovering > 0 {
		line += fmt.Sprintf(" (%d not unhealthy)", c.Recovering)
	}
	if c.Departed > 0 {
		line += fmt.Sprintf(" (%d gone)", c.Departed)
	}
	if c.Foreign > 0 {
		line += fmt.Sprintf(", %d with a foreign taint", c.Foreign)
	}
	return line
}
