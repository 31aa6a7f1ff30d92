package triage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ReplacementWait is how long a terminated node keeps its place under the bounds when
// no replacement becomes ready.
const ReplacementWait = 15 * time.Minute

// Rule is one sentence: for these nodes, when these signals have stood for so
// long, and no more than so many are sick or in treatment, do this.
type Rule struct {
	ID       RuleID
	Who      Selector
	When     When
	Bound    Bound
	Response Response
	Recovery Recovery

	// Hold, when not empty, says why nothing new may begin: what stands stays
	// and is still taken back when the node recovers.
	Hold string

	// DryRun has the rule judged, counted and explained, but nothing done: what
	// it did earlier is taken back. It goes before Hold. Nothing is remembered
	// for it either, so that after a restart it may tell another start of a
	// condition, and may no longer count as sick who was before an Unknown.
	DryRun bool
}

// RuleID names a rule.
type RuleID struct {
	Kind Kind
	Name string
}

func (id RuleID) String() string { return id.Kind.String() + "/" + id.Name }

// ParseRuleID reads what String wrote.
func ParseRuleID(s string) (RuleID, error) {
	kind, name, _ := strings.Cut(s, "/")
	for k := ConditionSet; k <= ReadyTimeout; k++ {
		if kindNames[k] == kind && name != "" {
			return RuleID{Kind: k, Name: name}, nil
		}
	}
	return RuleID{}, &FieldError{Field: "rule", Value: s, Problem: "want a kind and a name such as ConditionSet/kernel-deadlock"}
}

func (id RuleID) compare(other RuleID) int {
	if id.Kind != other.Kind {
		return int(id.Kind) - int(other.Kind)
	}
	return strings.Compare(id.Name, other.Name)
}

// Kind is the dialect that a rule was written in. Where two rules became
// eligible to treat a node at the same time, the smaller kind goes first.
type Kind uint8

// The kinds, in their order of precedence.
const (
	_ Kind = iota
	ConditionSet
	NodeHealthCheck
	Repair
	ReadyTimeout
)

var kindNames = [...]string{"", "ConditionSet", "NodeHealthCheck", "Repair", "ReadyTimeout"}

func (k Kind) String() string {
	if k > 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// When says which signals make a node sick.
type When struct {
	// All asks for every condition that the signals name; otherwise any one of
	// them is enough.
	All     bool
	Signals []Signal
}

// Signal is one condition in one status.
type Signal struct {
	Condition string
	Status    Status
	Reason    string        // empty matches any
	For       time.Duration // how long it must have stood

	// EvenSilent lets an Unknown match whose reason is AgentSilent.
	EvenSilent bool
	// FromCreation counts from the node's creation, and only until the node has
	// been initialised. All signals of one condition agree on it.
	FromCreation bool
}

// Bound is how much of the cluster a rule may touch.
type Bound struct {
	// Gate: while more of the selected nodes than this are sick, or still in
	// treatment, nothing new is begun. Nil means no gate.
	Gate *Limit
	// Cap: at most this many of the selected nodes are in treatment at once, or
	// carry the rule's NoExecute taint. Nil means no cap.
	Cap *Limit
	// Cooldown is how long the gate stays closed after a storm: once it was closed,
	// it opens when as few as it allows have been sick for so long without a break.
	// Zero opens it at once. Only a gate has one.
	Cooldown time.Duration
	// Pool lets rules share their caps: what any rule of the same pool has in
	// treatment counts under the cap of each. Empty shares it with nobody. Only
	// ladders share.
	Pool string
}

// Recovery is how long the treatment stays on a node that is not sick any more; its
// zero value is not at all. Only a ladder has one.
type Recovery struct {
	// Delay is how long the node must have been not sick without a break.
	Delay time.Duration
	// ByHand waits until somebody confirms that the node is healthy, however long.
	ByHand bool
}

// Response is what a rule does: a taint if it is a ConditionSet, a ladder if it is
// of any other kind. What is found under a rule's name can so be told apart even
// when the rule itself is gone.
type Response struct {
	Taint  *TaintResponse
	Ladder []Step
}

// TaintResponse keeps work off a node.
type TaintResponse struct {
	Key    string
	Effect Effect
	// ControlPlane lets NoExecute be placed on control-plane nodes too.
	ControlPlane bool
}

// Effect is what a taint does to pods; a greater effect does more.
type Effect uint8

// The effects, weakest first.
const (
	_ Effect = iota
	PreferNoSchedule
	NoSchedule
	NoExecute
)

var effectNames = [...]string{"", "PreferNoSchedule", "NoSchedule", "NoExecute"}

func (e Effect) String() string {
	if e > 0 && int(e) < len(effectNames) {
		return effectNames[e]
	}
	return fmt.Sprintf("Effect(%d)", uint8(e))
}

// ParseEffect reads an effect as the Kubernetes API spells it.
func ParseEffect(s string) (Effect, error) {
	for e := PreferNoSchedule; e <= NoExecute; e++ {
		if effectNames[e] == s {
			return e, nil
		}
	}
	return 0, &FieldError{Field: "effect", Value: s, Problem: "want NoExecute, NoSchedule or PreferNoSchedule"}
}

// Step is one rung of a ladder: what is tried, and for how long before the next
// is tried.
type Step struct {
	Action Action
	// Ref is for whoever carries the step out, a template's name for instance.
	Ref string
	// Timeout is how long the step may run before the next one is taken; zero
	// means for ever. The last step has nothing to give way to.
	Timeout time.Duration
}

// Action is a way to treat a node.
type Action uint8

// The actions.
const (
	_ Action = iota
	Remediate
	Reboot
	Drain
	Terminate
)

var actionNames = [...]string{"", "Remediate", "Reboot", "Drain", "Terminate"}

func (a Action) String() string {
	if a > 0 && int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

var actionNouns = [...]string{"", "remediation", "reboot", "drain", "termination"}

// noun is how sentences speak of the action.
func (a Action) noun() string {
	if a > 0 && int(a) < len(actionNouns) {
		return actionNouns[a]
	}
	return a.String()
}

// clone returns a rule that shares nothing with r.
func (r Rule) clone() Rule {
	r.Who.requirements = slices.Clone(r.Who.requirements)
	for i := range r.Who.requirements {
		r.Who.requirements[i].Values = slices.Clone(r.Who.requirements[i].Values)
	}
	r.When.Signals = slices.Clone(r.When.Signals)
	r.Bound.Gate, r.Bound.Cap = copied(r.Bound.Gate), copied(r.Bound.Cap)
	r.Response.Taint, r.Response.Ladder = copied(r.Response.Taint), slices.Clone(r.Response.Ladder)
	return r
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	value := *p
	return &value
}

// FieldError says what is wrong with one field of a rule.
type FieldError struct {
	Field   string // path, such as when.signals[1].for
	Value   string
	Problem string // what is wrong and what would be right
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%q: %s", e.Value, e.Problem)
	}
	return fmt.Sprintf("%s: %q: %s", e.Field, e.Value, e.Problem)
}

// Validate returns a *FieldError for the first thing that keeps the rule from
// being followed.
func (r Rule) Validate() error {
	bad := func(field string, value any, problem string) error {
		return &FieldError{Field: field, Value: fmt.Sprint(value), Problem: problem}
	}
	switch {
	case r.ID.Kind < ConditionSet || r.ID.Kind > ReadyTimeout:
		return bad("id.kind", r.ID.Kind, "not a kind of rule")
	case r.ID.Name == "":
		return bad("id.name", r.ID.Name, "a rule needs a name")
	case len(r.When.Signals) == 0:
		return bad("when.signals", "", "a rule needs at least one signal")
	}
	for i, requirement := range r.Who.requirements {
		if err := requirement.validate(); err != nil {
			return within(fmt.Sprintf("who[%d]", i), err)
		}
	}
	fromCreation := map[string]bool{}
	for i, s := range r.When.Signals {
		field := fmt.Sprintf("when.signals[%d].", i)
		switch counts, met := fromCreation[s.Condition]; {
		case s.Condition == "":
			return bad(field+"condition", "", "a signal needs a condition type")
		case s.Status > Unknown:
			return bad(field+"status", s.Status, "want True, False, Unknown or Missing")
		case s.For < 0:
			return bad(field+"for", s.For, "a duration cannot be negative")
		case met && counts != s.FromCreation:
			return bad(field+"fromCreation", s.FromCreation, "the signals of one condition must agree from when they count")
		}
		fromCreation[s.Condition] = s.FromCreation
	}
	if err := r.Bound.Gate.validate(); err != nil {
		return within("bound.gate", err)
	}
	if err := r.Bound.Cap.validate(); err != nil {
		return within("bound.cap", err)
	}
	if r.Bound.Cap != nil && r.Bound.Cap.Healthy {
		return bad("bound.cap", r.Bound.Cap, "a cap counts nodes in treatment, not healthy ones")
	}
	switch {
	case r.Bound.Cooldown < 0:
		return bad("bound.cooldown", r.Bound.Cooldown, "a cooldown cannot be negative")
	case r.Bound.Cooldown > 0 && r.Bound.Gate == nil:
		return bad("bound.cooldown", r.Bound.Cooldown, "only a gate has a cooldown")
	case r.Recovery.Delay < 0:
		return bad("recovery.delay", r.Recovery.Delay, "a delay cannot be negative")
	case r.Recovery.Delay > 0 && r.Recovery.ByHand:
		return bad("recovery.delay", r.Recovery.Delay, "who waits for somebody's word has no delay")
	case r.ID.Kind == ConditionSet && r.Bound.Pool != "":
		return bad("bound.pool", r.Bound.Pool, "a taint has a cap of its own; only ladders share theirs")
	case r.ID.Kind == ConditionSet && r.Recovery.Delay > 0:
		return bad("recovery.delay", r.Recovery.Delay, onlyTreatmentsStay)
	case r.ID.Kind == ConditionSet && r.Recovery.ByHand:
		return bad("recovery.byHand", r.Recovery.ByHand, onlyTreatmentsStay)
	}
	return r.Response.validate(r.ID.Kind, r.Bound)
}

const onlyTreatmentsStay = "a taint goes when the node recovers; only a treatment stays"

func (r Response) validate(kind Kind, bound Bound) error {
	if kind == ConditionSet {
		return r.validateTaint(bound)
	}
	switch {
	case r.Taint != nil:
		return &FieldError{Field: "response.taint", Value: r.Taint.Key, Problem: "only a ConditionSet places a taint; want a ladder"}
	case len(r.Ladder) == 0:
		return &FieldError{Field: "response.ladder", Problem: "want at least one step"}
	}
	for i, step := range r.Ladder {
		field := fmt.Sprintf("response.ladder[%d].", i)
		if step.Action < Remediate || step.Action > Terminate {
			return &FieldError{Field: field + "action", Value: step.Action.String(), Problem: "want Remediate, Reboot, Drain or Terminate"}
		}
		if step.Timeout < 0 {
			return &FieldError{Field: field + "timeout", Value: step.Timeout.String(), Problem: "a timeout cannot be negative"}
		}
	}
	return nil
}

func (r Response) validateTaint(bound Bound) error {
	switch {
	case len(r.Ladder) > 0:
		return &FieldError{Field: "response.ladder", Value: r.Ladder[0].Action.String(), Problem: "a ConditionSet has no ladder; want a taint"}
	case r.Taint == nil:
		return &FieldError{Field: "response.taint", Problem: "want a taint"}
	case r.Taint.Key == "":
		return &FieldError{Field: "response.taint.key", Problem: "a taint needs a key"}
	case r.Taint.Effect < PreferNoSchedule || r.Taint.Effect > NoExecute:
		return &FieldError{Field: "response.taint.effect", Value: r.Taint.Effect.String(), Problem: "want NoExecute, NoSchedule or PreferNoSchedule"}
	case bound.Gate != nil:
		return &FieldError{Field: "bound.gate", Value: bound.Gate.String(), Problem: "a taint has no gate, only a cap"}
	case bound.Cap != nil && r.Taint.Effect != NoExecute:
		return &FieldError{Field: "bound.cap", Value: bound.Cap.String(), Problem: "only NoExecute is capped"}
	}
	return nil
}

// within puts a field's error under the path of what holds it.
func within(path string, err error) error {
	var field *FieldError
	if !errors.As(err, &field) {
		return fmt.Errorf("%s: %w", path, err)
	}
	inner := *field
	inner.Field = path
	if field.Field != "" {
		inner.Field += "." + field.Field
	}
	return &inner
}
