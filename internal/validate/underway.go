package validate

import (
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	autohealer "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/format"
)

// interruptsRemediation rejects a change of the selector or the templates of a health check while its
// remediations are in progress, unless the user accepted the impact. Bounds, durations and
// other fields may change.
func interruptsRemediation(s *healthAnalysis) (problems, warnings []Problem) {
	if s.Stored == nil {
		return nil, nil
	}
	fields := s.restrictedChanges()
	if len(fields) == 0 {
		return nil, nil
	}
	nodes := remediatedNodes(s.Stored, s.UnderWay)
	if len(nodes) == 0 {
		return nil, nil
	}
	for _, field := range fields {
		if acceptsImpact(s.Check) {
			warnings = append(warnings, warning(field, "%s, and what no longer fits is cut off by this change", underWay(nodes)))
			continue
		}
		problems = append(problems, Problem{field, fmt.Sprintf(
			"%s, and could be cut off in the middle by a change here. Wait until all nodes are healthy again; pauseRequests keep more from being begun meanwhile. If it is meant, annotate the health check with %s: \"true\"",
			underWay(nodes), autohealer.AcceptImpactAnnotation), Remediating})
	}
	return problems, warnings
}

// inForce returns the version of a stored health check whose remediations are in progress. Another
// controller follows the newest version.
func inForce(check *v1alpha1.NodeHealthCheck) *v1alpha1.NodeHealthCheck {
	if check.Status.AcceptedSpec == "" || meta.IsStatusConditionTrue(check.Status.Conditions, v1alpha1.StandingBack) {
		return check
	}
	spec, err := format.DecodeSpec[v1alpha1.NodeHealthCheckSpec](check.Status.AcceptedSpec)
	if err != nil {
		return check
	}
	version := *check
	version.Spec = spec
	return &version
}

// restrictedChanges returns the restricted fields that change, compared with the version in force.
// Two spellings of the same value are equal.
func (s *healthAnalysis) restrictedChanges() (fields []string) {
	current := inForce(s.Stored)
	written, stored := s.Check.Spec, current.Spec
	templates := "spec.remediationTemplate"
	if len(written.EscalatingRemediations) > 0 {
		templates = "spec.escalatingRemediations"
	}
	before, wrong := compileHealthCheck(current)
	if wrong != nil { // without a rule, compare the specs literally
		if !reflect.DeepEqual(written.Selector, stored.Selector) {
			fields = append(fields, "spec.selector")
		}
		if !reflect.DeepEqual(written.RemediationTemplate, stored.RemediationTemplate) || !reflect.DeepEqual(written.EscalatingRemediations, stored.EscalatingRemediations) {
			fields = append(fields, templates)
		}
		return fields
	}
	if !slices.Equal(requirements(s.rule), requirements(before)) {
		fields = append(fields, "spec.selector")
	}
	if !slices.Equal(steps(s.rule), steps(before)) || (written.RemediationTemplate == nil) != (stored.RemediationTemplate == nil) {
		fields = append(fields, templates)
	}
	return fields
}

// remediatedNodes returns the nodes with remediations in progress. A status may be outdated if
// no controller follows the health check any more. underWay therefore reads the objects,
// until the first one in progress is found.
func remediatedNodes(check *v1alpha1.NodeHealthCheck, underWay func(corev1.ObjectReference) bool) (nodes []string) {
	for _, node := range check.Status.UnhealthyNodes {
		if len(nodes) > 0 && len(node.Remediations) > 0 || slices.ContainsFunc(node.Remediations, func(r v1alpha1.Remediation) bool {
			return underWay == nil || underWay(r.Resource)
		}) {
			nodes = append(nodes, node.Name)
		}
	}
	return nodes
}

func underWay(nodes []string) string {
	if len(nodes) == 1 {
		return fmt.Sprintf("a remediation of node %s is under way", truncate(nodes[0]))
	}
	return fmt.Sprintf("remediations of %d nodes are under way (%s)", len(nodes), shortList(nodes))
}

// HealthCheckDeletion rejects the deletion of a health check while a remediation is
// in progress, because the remediation would be deleted too. It allows the deletion if the
// remediations in the status no longer exist, if the health check is already being
// deleted, or if the user accepted the impact.
func HealthCheckDeletion(stored *v1alpha1.NodeHealthCheck, isUnderWay func(corev1.ObjectReference) bool) Verdict {
	if stored.DeletionTimestamp != nil {
		return Verdict{}
	}
	nodes := remediatedNodes(stored, isUnderWay)
	switch {
	case len(nodes) == 0:
		return Verdict{}
	case acceptsImpact(stored):
		return Verdict{Warnings: []Problem{warning("", "%s, and cut off by the deletion", underWay(nodes))}}
	}
	return Verdict{Problems: []Problem{{"status.unhealthyNodes", fmt.Sprintf(
		"%s, and would be cut off in the middle. Wait until all nodes are healthy again; pauseRequests keep more from being begun meanwhile. To delete the health check all the same, annotate it first with %s: \"true\"",
		underWay(nodes), autohealer.AcceptImpactAnnotation), Remediating}}}
}
