package triage

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// ReplacementWait is how long a terminated node occupies its slot if no replacement becomes
// ready.
const ReplacementWait = 15 * time.Minute

// Rule says which response nodes get: the nodes that it selects, when When has matched for
// its duration, within Bound.
type Rule struct {
	ID       RuleID
	Selector Selector
	// AssignedOnly limits the selected nodes to those that name the rule in [Node.Assigned].
	AssignedOnly bool

	When     When
	Bound    Bound
	Response Response
	Recovery Recovery

	// Window says when disruptive steps may begin: treatments, each step of a ladder, and NoExecute
	// taints. Nil means at any time. Steps that have begun continue.
	Window Window

	// Precedence is the order of the rules that become eligible for a node at the same time,
	// and of the findings about a node. The smaller value comes first. Rules with the same
	// value follow by kind and name. A rule that is not set has the value zero.
	Precedence int

	// Stage is the stage of the rule, which [Rails.Hold] can stop. Every rule has one, so that a hold of
	// all stages stops every rule.
	Stage Stage

	// Hold, if not empty, is the reason why nothing new may begin. Existing responses stay
	// until the node recovers.
	Hold string

	// DryRun evaluates, counts and explains the rule without any response. Existing
	// responses are removed. DryRun takes precedence over Hold. The core also asks for no
	// memories. After a restart the rule may therefore report another start of a condition,
	// and may no longer count a node whose condition is Unknown as unhealthy.
	DryRun bool
}

// RuleID identifies a rule. While a rule is set or has responses, it cannot change between a
// taint and a ladder.
type RuleID struct {
	Kind Kind
	Name string
}

func (id RuleID) String() string { return string(id.Kind) + "/" + id.Name }

// Compare orders rules by kind and name.
func (id RuleID) Compare(other RuleID) int {
	if id.Kind != other.Kind {
		return strings.Compare(string(id.Kind), string(other.Kind))
	}
	return strings.Compare(id.Name, other.Name)
}

// Kind is the kind of policy that a rule was compiled from. The core only compares kinds.
// What a rule does follows from its fields.
type Kind string

// When is the set of signals that make a node unhealthy.
type When struct {
	// All requires a match for every condition in Signals. Otherwise one matching condition
	// is enough.
	All     bool
	Signals []Signal
}

// Signal is a condition in a status.
type Signal struct {
	Condition string
	Status    Status
	Reason    string        // empty matches any reason
	For       time.Duration // how long the condition must have matched; [Never] for no match

	// EvenSilent lets the signal match Unknown with reason AgentSilent.
	EvenSilent bool
	// FromCreation counts the duration from the creation of the node. The signal matches
	// only until the node is initialized. All signals of a condition have the same value.
	FromCreation bool
	// Urgent lets all steps begin outside the window, once the condition has matched long enough.
	// Only rules without All may have it.
	Urgent bool
}

// Never is the duration of a signal that takes a reason or a status out of the rule, although
// another signal of the condition would match it. Only rules without All may have it.
const Never time.Duration = math.MaxInt64

// Bound limits how many nodes a rule may affect.
type Bound struct {
	// Gate stops new treatments while more than this many selected nodes are unhealthy or
	// still in treatment. Nil means no gate.
	Gate *Limit
	// GateName is the name of the gate in reasons, for example the field that sets it. It may
	// be empty.
	GateName string
	// Cap limits how many selected nodes are in treatment, or have the NoExecute taint of
	// the rule, at the same time. Nil means no cap.
	Cap *Limit
	// Cooldown keeps the gate closed after a storm until the gate has not been exceeded for
	// this long without interruption. Zero opens the gate at once. A rule without a gate has
	// no cooldown.
	Cooldown time.Duration
	// Pool names a group of rules that share their caps. The treatments of all rules of a
	// pool count under the cap of each. Empty means that the rule does not share its cap.
	// Only rules with a ladder may have a pool.
	Pool string
}

// Recovery says how long a treatment stays on a node that is healthy again. The zero value
// removes it at once. Only rules with a ladder may have a recovery.
type Recovery struct {
	// Delay is how long the node must have been healthy without interruption.
	Delay time.Duration
	// ByHand keeps the treatment until a user confirms that the node is healthy.
	ByHand bool
}

// Response is what a rule does: it places a taint, or it treats nodes with a ladder.
type Response struct {
	Taint  *TaintResponse
	Ladder []Step
}

// TaintResponse keeps pods off a node.
type TaintResponse struct {
	Key    string
	Effect Effect
	// ControlPlane allows NoExecute on control-plane nodes.
	ControlPlane bool
}

// Effect is the effect of a taint. A stronger effect is a greater value.
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

// ParseEffect parses an effect in the spelling of the Kubernetes API.
func ParseEffect(s string) (Effect, error) {
	for e := PreferNoSchedule; e <= NoExecute; e++ {
		if effectNames[e] == s {
			return e, nil
		}
	}
	return 0, &FieldError{Field: "effect", Value: s, Problem: "want NoExecute, NoSchedule or PreferNoSchedule"}
}

// Step is a step of a ladder.
type Step struct {
	Action Action
	// Ref identifies what carries out the step, for example the name of a template.
	Ref string
	// Timeout is how long the step may run before the next step begins. Zero means no
	// timeout. It has no effect on the last step.
	Timeout time.Duration
	// Urgent lets the step begin outside the window.
	Urgent bool
}

// Action is the way to treat a node.
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

// noun is the word for the action in messages.
func (a Action) noun() string {
	if a > 0 && int(a) < len(actionNouns) {
		return actionNouns[a]
	}
	return a.String()
}

// clone returns a deep copy of r.
func (r Rule) clone() Rule {
	r.Selector.requirements = slices.Clone(r.Selector.requirements)
	for i := range r.Selector.requirements {
		r.Selector.requirements[i].Values = slices.Clone(r.Selector.requirements[i].Values)
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

// FieldError describes an invalid field of a rule.
type FieldError struct {
	Field   string // path, for example when.signals[1].for
	Value   string
	Problem string // what is wrong and what is expected
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%q: %s", e.Value, e.Problem)
	}
	return fmt.Sprintf("%s: %q: %s", e.Field, e.Value, e.Problem)
}

// Validate returns a *[FieldError] for the first invalid field.
func (r Rule) Validate() error {
	bad := func(field string, value any, problem string) error {
		return &FieldError{Field: field, Value: fmt.Sprint(value), Problem: problem}
	}
	switch {
	case r.ID.Kind == "" || strings.Contains(string(r.ID.Kind), "/"):
		return bad("id.kind", r.ID.Kind, "want the kind of the policy, without a slash")
	case r.ID.Name == "":
		return bad("id.name", r.ID.Name, "a rule needs a name")
	case r.Stage == "":
		return bad("stage", r.Stage, "a rule needs a stage, so that Guardrails can stop it")
	case len(r.When.Signals) == 0:
		return bad("when.signals", "", "a rule needs at least one signal")
	}
	for i, requirement := range r.Selector.requirements {
		if err := requirement.validate(); err != nil {
			return within(fmt.Sprintf("selector[%d]", i), err)
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
		case s.For == Never && r.When.All:
			return bad(field+"for", "Never", "a rule that requires all conditions cannot leave one out")
		case s.Urgent && r.When.All:
			return bad(field+"urgent", s.Urgent, "a rule that requires all conditions has no urgent one")
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
		return bad("recovery.delay", r.Recovery.Delay, "a recovery that waits for a confirmation has no delay")
	case r.Response.Taint != nil && r.Bound.Pool != "":
		return bad("bound.pool", r.Bound.Pool, "a taint has a cap of its own; only ladders share theirs")
	case r.Response.Taint != nil && r.Recovery.Delay > 0:
		return bad("recovery.delay", r.Recovery.Delay, onlyTreatmentsRemain)
	case r.Response.Taint != nil && r.Recovery.ByHand:
		return bad("recovery.byHand", r.Recovery.ByHand, onlyTreatmentsRemain)
	}
	return r.Response.validate(r.Bound)
}

const onlyTreatmentsRemain = "a taint goes when the node recovers; only a treatment stays"

func (r Response) validate(bound Bound) error {
	switch {
	case r.Taint != nil && len(r.Ladder) > 0:
		return &FieldError{Field: "response.taint", Value: r.Taint.Key, Problem: "want a taint or a ladder, not both"}
	case r.Taint != nil:
		return r.Taint.validate(bound)
	case len(r.Ladder) == 0:
		return &FieldError{Field: "response.ladder", Problem: "want a taint, or a ladder with at least one step"}
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

func (t *TaintResponse) validate(bound Bound) error {
	switch {
	case t.Key == "":
		return &FieldError{Field: "response.taint.key", Problem: "a taint needs a key"}
	case t.Effect < PreferNoSchedule || t.Effect > NoExecute:
		return &FieldError{Field: "response.taint.effect", Value: t.Effect.String(), Problem: "want NoExecute, NoSchedule or PreferNoSchedule"}
	case bound.Gate != nil:
		return &FieldError{Field: "bound.gate", Value: bound.Gate.String(), Problem: "a taint has no gate, only a cap"}
	case bound.Cap != nil && t.Effect != NoExecute:
		return &FieldError{Field: "bound.cap", Value: bound.Cap.String(), Problem: "only NoExecute is capped"}
	}
	return nil
}

// within prefixes the field of an error with the path of its parent.
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
