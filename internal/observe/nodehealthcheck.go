package observe

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	autohealerv1alpha1 "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// NodeHealthCheck returns the rule of a health check. The error is a *[triage.FieldError]
// with the path of the field in the object. The function relies on no validation or default
// of the CRD, because another CRD of that name may be installed.
func NodeHealthCheck(check *v1alpha1.NodeHealthCheck) (triage.Rule, error) {
	rule, err := nodeHealthCheck(check.Name, check.Annotations, check.Spec)
	return rule, shortenValue(err)
}

func nodeHealthCheck(name string, annotations map[string]string, spec v1alpha1.NodeHealthCheckSpec) (triage.Rule, error) {
	switch {
	case spec.Unreadable != "":
		return triage.Rule{}, &triage.FieldError{Field: "spec", Problem: "cannot be read: " + text.Shorten(spec.Unreadable, 3*maxValueLength, "...") + "; what is wanted is told by kubectl explain nodehealthcheck.spec"}
	case spec.UnhealthyConditions != nil && len(spec.UnhealthyConditions) == 0:
		// A user who removed all conditions wanted no remediation, not the default one.
		return triage.Rule{}, &triage.FieldError{Field: "spec.unhealthyConditions", Problem: "want at least one condition; without the field it is Ready False or Unknown for 300s"}
	}
	who, err := nodeSelector(spec.Selector)
	if err != nil {
		return triage.Rule{}, err
	}
	steps, orders, err := remediationSteps(spec)
	if err != nil {
		return triage.Rule{}, err
	}
	windows, err := checkWindows(annotations)
	if err != nil {
		return triage.Rule{}, err
	}
	if err := markUrgent(annotations, spec, steps); err != nil {
		return triage.Rule{}, err
	}
	policy := dialect.NodeHealthCheck{
		Name:          name,
		Selector:      who,
		MaxUnhealthy:  limitText(spec.MaxUnhealthy),
		MinHealthy:    limitText(spec.MinHealthy),
		StormCooldown: spec.StormCooldownDuration,
		HealthyDelay:  spec.HealthyDelay,
		Steps:         steps,
		Windows:       windows,
		WindowsPath:   annotationPath(autohealerv1alpha1.WindowsAnnotation),
	}
	for _, c := range spec.UnhealthyConditions {
		policy.UnhealthyConditions = append(policy.UnhealthyConditions, dialect.UnhealthyCondition{
			Type: string(c.Type), Status: string(c.Status), Duration: c.Duration,
		})
	}
	if len(spec.PauseRequests) > 0 {
		policy.Hold = "paused: " + strings.Join(spec.PauseRequests, ", ")
	}
	rule, err := policy.Rule()
	if err != nil {
		return triage.Rule{}, err
	}
	// Sort last, so that errors name steps by their index in the object.
	rule.Response.Ladder = sortSteps(rule.Response.Ladder, orders)
	return rule, nil
}

func limitText(limit *intstr.IntOrString) string {
	if limit == nil {
		return ""
	}
	return limit.String()
}

// remediationSteps returns the steps in the order of the object, and the order field of
// each.
func remediationSteps(spec v1alpha1.NodeHealthCheckSpec) (steps []dialect.RemediationStep, orders []int64, err error) {
	if spec.RemediationTemplate != nil {
		const path = "spec.remediationTemplate"
		if len(spec.EscalatingRemediations) > 0 {
			return nil, nil, &triage.FieldError{Field: path, Value: spec.RemediationTemplate.Name, Problem: "give either remediationTemplate or escalatingRemediations, not both"}
		}
		template, err := templateText(path, *spec.RemediationTemplate)
		return []dialect.RemediationStep{{Template: template}}, []int64{0}, err
	}
	for i, e := range spec.EscalatingRemediations {
		path := fmt.Sprintf("spec.escalatingRemediations[%d].", i)
		template, err := templateText(path+"remediationTemplate", e.RemediationTemplate)
		switch {
		case err != nil:
			return nil, nil, err
		case slices.ContainsFunc(steps, func(s dialect.RemediationStep) bool { return s.Template == template }):
			return nil, nil, &triage.FieldError{Field: path + "remediationTemplate", Value: template, Problem: "is named twice, so the controller could not tell to which of the two a remediation belongs; want another template of that kind"}
		case slices.Contains(orders, e.Order):
			return nil, nil, &triage.FieldError{Field: path + "order", Value: strconv.FormatInt(e.Order, 10), Problem: "another one has the same order: want every order once"}
		case e.Timeout == "":
			return nil, nil, &triage.FieldError{Field: path + "timeout", Problem: "want a duration like 10m, of at least a minute"}
		}
		steps = append(steps, dialect.RemediationStep{Template: template, Timeout: e.Timeout})
		orders = append(orders, e.Order)
	}
	return steps, orders, nil
}

// sortSteps sorts the steps by their order field, smallest first.
func sortSteps(ladder []triage.Step, orders []int64) []triage.Step {
	indexes := make([]int, len(ladder))
	for i := range indexes {
		indexes[i] = i
	}
	slices.SortFunc(indexes, func(a, b int) int { return cmp.Compare(orders[a], orders[b]) })
	sortedSteps := make([]triage.Step, 0, len(ladder))
	for _, index := range indexes {
		sortedSteps = append(sortedSteps, ladder[index])
	}
	return sortedSteps
}

// templateText returns a template reference as one line. The controller finds the template
// by it.
func templateText(path string, ref corev1.ObjectReference) (string, error) {
	template, err := remediation.TemplateOf(ref)
	var bad *triage.FieldError
	if errors.As(err, &bad) {
		return "", &triage.FieldError{Field: path + "." + bad.Field, Value: bad.Value, Problem: bad.Problem}
	}
	return template.String(), err
}
