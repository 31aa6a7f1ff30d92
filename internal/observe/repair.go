package observe

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Which policy governs a node is not for its labels to say alone: the one on its
// NodePool goes before others, and of those one goes before another. Whoever has
// resolved that tells it in the facts, by labels that no node can have.
const (
	// RepairedBy is the name of the rule that may repair the node.
	RepairedBy = "autohealer: repaired by"
	// TimedBy is the pool whose ready timeout is the node's.
	TimedBy = "autohealer: ready timeout of"
)

// poolPrefix is before the name of a NodePool in what the rules of it share.
const poolPrefix = "NodePool/"

// Repair returns the rule that a repair block asks for, be it on a NodePool or in a
// RepairPolicy: the block is the same, and so are the paths in the error, which is a
// *[triage.FieldError]. The rule is for the nodes whose facts name it as theirs; its
// bound is shared with the others of the pool, if there is one. A template is for the
// nodes that have no machine to replace.
//
// The whole block is judged, also what the rule does not hold: how a node goes, and
// the ready timeout.
func Repair(name, pool string, spec *v1alpha1.RepairSpec, statements []dialect.RepairStatement, template *corev1.ObjectReference) (triage.Rule, error) {
	rule, err := repair(name, pool, spec, statements, template)
	return rule, briefly(underSpec(err))
}

func repair(name, pool string, spec *v1alpha1.RepairSpec, statements []dialect.RepairStatement, template *corev1.ObjectReference) (triage.Rule, error) {
	if err := readable(spec); err != nil {
		return triage.Rule{}, err
	}
	who, err := named(RepairedBy, name)
	if err != nil {
		return triage.Rule{}, err
	}
	words := dialect.Repair{
		Name:              name,
		Selector:          who,
		Statements:        statements,
		DefaultToleration: spec.DefaultTolerationDuration,
		MaxUnhealthy:      bound(spec.MaxUnhealthy),
		Pool:              poolOf(pool),
		Hold:              switchedOff(spec),
	}
	for _, p := range spec.Policies {
		words.Policies = append(words.Policies, dialect.RepairPolicy{
			ConditionType: p.ConditionType, ConditionStatus: p.ConditionStatus, Reason: p.Reason, Toleration: p.Toleration,
		})
	}
	rule, err := words.Rule()
	if err != nil {
		return triage.Rule{}, err
	}
	if err := termination(spec); err != nil {
		return triage.Rule{}, err
	}
	if spec.ReadyTimeout != "" {
		if _, err := (dialect.ReadyTimeout{Name: name, Timeout: spec.ReadyTimeout}).Rule(); err != nil {
			return triage.Rule{}, err
		}
	}
	if template != nil {
		text, err := templateText("spec.remediationTemplate", *template)
		if err != nil {
			return triage.Rule{}, err
		}
		rule.Response.Ladder[0].Ref = text
	}
	return rule, nil
}

// ReadyTimeout returns the rule by which the nodes of a pool are replaced that do not
// become ready in time. The block may be nil: then it is the time of the whole cluster,
// and the usual bound. The error is a *[triage.FieldError].
func ReadyTimeout(pool string, spec *v1alpha1.RepairSpec, byDefault time.Duration) (triage.Rule, error) {
	rule, err := readyTimeout(pool, spec, byDefault)
	return rule, briefly(underSpec(err))
}

func readyTimeout(pool string, spec *v1alpha1.RepairSpec, byDefault time.Duration) (triage.Rule, error) {
	if spec == nil {
		spec = &v1alpha1.RepairSpec{}
	}
	if err := readable(spec); err != nil {
		return triage.Rule{}, err
	}
	who, err := named(TimedBy, pool)
	if err != nil {
		return triage.Rule{}, err
	}
	timeout := spec.ReadyTimeout
	if timeout == "" {
		timeout = byDefault.String()
	}
	return dialect.ReadyTimeout{
		Name:         pool,
		Selector:     who,
		Timeout:      timeout,
		MaxUnhealthy: bound(spec.MaxUnhealthy),
		Pool:         poolOf(pool),
		Hold:         switchedOff(spec),
	}.Rule()
}

func named(key, value string) (triage.Selector, error) {
	return triage.NewSelector(triage.Requirement{Key: key, Op: triage.In, Values: []string{value}})
}

// poolOf is what the rules of a pool share; those of no pool share nothing.
func poolOf(pool string) string {
	if pool == "" {
		return ""
	}
	return poolPrefix + pool
}

// switchedOff says why nothing new may begin, if so. It is the block's switch, and
// the ready timeout stands in the block.
func switchedOff(spec *v1alpha1.RepairSpec) string {
	if spec.Enabled == nil || *spec.Enabled {
		return ""
	}
	return "repair is switched off: spec.repair.enabled is false"
}

// readable refuses a block that no schema would have let in.
func readable(spec *v1alpha1.RepairSpec) error {
	switch {
	case spec.Unreadable != "":
		return &triage.FieldError{Field: "repair", Problem: "cannot be read: " + cut(spec.Unreadable, 3*longestValue) + "; what is wanted is told by kubectl explain repairpolicy.spec.repair"}
	case len(spec.Policies) > v1alpha1.MaxRepairConditions:
		return &triage.FieldError{Field: "repair.policies", Value: strconv.Itoa(len(spec.Policies)), Problem: fmt.Sprintf("a block has at most %d policies", v1alpha1.MaxRepairConditions)}
	}
	for i, p := range spec.Policies {
		path := fmt.Sprintf("repair.policies[%d].", i)
		if len(p.ConditionType) > v1alpha1.MaxTypeLength || strings.ContainsAny(p.ConditionType, " :=") {
			return &triage.FieldError{Field: path + "conditionType", Value: p.ConditionType, Problem: "want the condition type alone, such as KernelReady, of at most 316 characters"}
		}
	}
	return nil
}

// termination judges how a node goes. Whoever carries it out reads it from the block.
func termination(spec *v1alpha1.RepairSpec) error {
	switch spec.Termination {
	case "", v1alpha1.Forceful, v1alpha1.Graceful:
	default:
		return &triage.FieldError{Field: "repair.termination", Value: string(spec.Termination), Problem: "want Forceful or Graceful"}
	}
	if spec.TerminationGracePeriod == "" {
		return nil
	}
	_, err := triage.ParseDuration(spec.TerminationGracePeriod)
	var bad *triage.FieldError
	if errors.As(err, &bad) {
		return &triage.FieldError{Field: "repair.terminationGracePeriod", Value: bad.Value, Problem: bad.Problem}
	}
	return err
}

// underSpec gives the path of a block's field as it stands in the object.
func underSpec(err error) error {
	var field *triage.FieldError
	if !errors.As(err, &field) || field.Field != "repair" && !strings.HasPrefix(field.Field, "repair.") {
		return err
	}
	inObject := *field
	inObject.Field = "spec." + field.Field
	return &inObject
}
