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
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// poolPrefix precedes the name of a NodePool in the pool of its rules.
const poolPrefix = "NodePool/"

// Repair returns the rule of a repair block on a NodePool or in a RepairPolicy. Both have
// the same fields and the same paths in errors, which are *[triage.FieldError]. The labels of a node
// alone do not tell which policy applies to it: the policy on its NodePool comes first, and the others
// have an order of precedence. The caller resolves this, and the rule selects the nodes that are assigned
// to it. It shares its bound with the other rules of the
// pool, if there is a pool. The template is for nodes without a machine to replace.
//
// The function validates the whole block, including fields that are not part of the rule:
// the termination and the ready timeout.
func Repair(name, pool string, spec *v1alpha1.RepairSpec, statements []dialect.RepairStatement, template *corev1.ObjectReference) (triage.Rule, error) {
	rule, err := repair(name, pool, spec, statements, template)
	return rule, shortenValue(prefixSpec(err))
}

func repair(name, pool string, spec *v1alpha1.RepairSpec, statements []dialect.RepairStatement, template *corev1.ObjectReference) (triage.Rule, error) {
	if err := validateBlock(spec); err != nil {
		return triage.Rule{}, err
	}
	policy := dialect.Repair{
		Name:               name,
		Statements:         statements,
		DefaultToleration:  spec.DefaultTolerationDuration,
		UnhealthyThreshold: limitText(spec.UnhealthyThreshold),
		Concurrency:        concurrency(spec),
		Pool:               poolOf(pool),
		Hold:               disabledReason(spec),
		Windows:            windows(spec.Windows),
	}
	for _, p := range spec.Policies {
		policy.Policies = append(policy.Policies, dialect.RepairPolicy{
			ConditionType: p.ConditionType, ConditionStatus: p.ConditionStatus, Reason: p.Reason, Toleration: p.Toleration, Urgent: p.Urgent,
		})
	}
	rule, err := policy.Rule()
	if err != nil {
		return triage.Rule{}, err
	}
	rule.AssignedOnly = true
	if err := validateTermination(spec); err != nil {
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

// ReadyTimeout returns the rule that replaces nodes of a pool that do not become ready in
// time. If spec is nil, the timeout of the cluster and the default bound apply. The error is
// a *[triage.FieldError].
func ReadyTimeout(pool string, spec *v1alpha1.RepairSpec, byDefault time.Duration) (triage.Rule, error) {
	rule, err := readyTimeout(pool, spec, byDefault)
	return rule, shortenValue(prefixSpec(err))
}

func readyTimeout(pool string, spec *v1alpha1.RepairSpec, byDefault time.Duration) (triage.Rule, error) {
	if spec == nil {
		spec = &v1alpha1.RepairSpec{}
	}
	if err := validateBlock(spec); err != nil {
		return triage.Rule{}, err
	}
	timeout := spec.ReadyTimeout
	if timeout == "" {
		timeout = byDefault.String()
	}
	rule, err := dialect.ReadyTimeout{
		Name:        pool,
		Timeout:     timeout,
		Concurrency: concurrency(spec),
		Pool:        poolOf(pool),
		Hold:        disabledReason(spec),
		Windows:     windows(spec.Windows),
	}.Rule()
	rule.AssignedOnly = err == nil
	return rule, err
}

func concurrency(spec *v1alpha1.RepairSpec) dialect.Concurrency {
	return dialect.Concurrency{MaxConcurrent: limitText(spec.MaxConcurrent), MaxUnhealthy: limitText(spec.MaxUnhealthy)}
}

// poolOf returns the pool that rules of a NodePool share; empty for none.
func poolOf(pool string) string {
	if pool == "" {
		return ""
	}
	return poolPrefix + pool
}

// disabledReason says why nothing new may begin; empty if it may. It also applies to the
// ready timeout, which is part of the block.
func disabledReason(spec *v1alpha1.RepairSpec) string {
	if spec.Enabled == nil || *spec.Enabled {
		return ""
	}
	return "repair is switched off: spec.repair.enabled is false"
}

// validateBlock refuses a block that a schema would have refused.
func validateBlock(spec *v1alpha1.RepairSpec) error {
	switch {
	case spec.Unreadable != "":
		return &triage.FieldError{Field: "repair", Problem: "cannot be read: " + text.Shorten(spec.Unreadable, 3*maxValueLength, "...") + "; what is wanted is told by kubectl explain repairpolicy.spec.repair"}
	case len(spec.Policies) > v1alpha1.MaxRepairConditions:
		return &triage.FieldError{Field: "repair.policies", Value: strconv.Itoa(len(spec.Policies)), Problem: fmt.Sprintf("a block has at most %d policies", v1alpha1.MaxRepairConditions)}
	}
	for i, p := range spec.Policies {
		path := fmt.Sprintf("repair.policies[%d].", i)
		if len(p.ConditionType) > v1alpha1.MaxTypeLength || strings.ContainsAny(p.ConditionType, " :=") {
			return &triage.FieldError{Field: path + "conditionType", Value: p.ConditionType, Problem: "want the condition type alone, for example KernelReady, of at most 316 characters"}
		}
	}
	return nil
}

// validateTermination checks the termination fields. The controller reads them from the
// block.
func validateTermination(spec *v1alpha1.RepairSpec) error {
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

// prefixSpec changes a path within the block to the path in the object.
func prefixSpec(err error) error {
	var field *triage.FieldError
	if !errors.As(err, &field) || field.Field != "repair" && !strings.HasPrefix(field.Field, "repair.") {
		return err
	}
	inObject := *field
	inObject.Field = "spec." + field.Field
	return &inObject
}
