package validate

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	autohealer "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// HealthCase is the input for the verdict on a health check.
type HealthCase struct {
	Check *v1alpha1.NodeHealthCheck // the new version
	// Stored is the stored version; nil if the health check is new.
	Stored *v1alpha1.NodeHealthCheck
	// Others are all other known health checks.
	Others []*v1alpha1.NodeHealthCheck
	// Reported are the condition types that nodes report; nil if they are unknown.
	Reported []string
	// Survey returns what a rule would match now, and how many nodes it shares with other
	// selectors, as [triage.Core.Survey] does; nil if the nodes are unknown.
	Survey func(rule triage.Rule, others ...triage.Selector) (triage.Survey, error)
	// Template reads a template; nil if the caller cannot read templates.
	Template func(remediation.Template) (*unstructured.Unstructured, error)
	// UnderWay reports whether a remediation from a status exists and is not being
	// deleted. It returns true if the caller cannot find out. If UnderWay is nil, the
	// status is taken as correct.
	UnderWay func(corev1.ObjectReference) bool
}

// Further reasons for the rejection of a health check.
const (
	// SameKind: two templates have one kind, whose remediator accepts only one.
	SameKind Reason = "SameKind"
	// Remediating: the change would interrupt a remediation in progress.
	Remediating Reason = "Remediating"
)

// healthAnalysis is a case with the data that several checks need.
type healthAnalysis struct {
	HealthCase
	rule       triage.Rule
	compileErr *triage.FieldError // why the health check does not compile
	// found is what the rule would match now; nil if the nodes are unknown.
	found *triage.Survey
	// otherChecks are the names of the other health checks with other templates, in the order
	// of found.Shared.
	otherChecks []string
}

// healthCheck looks for one kind of mistake in a health check that compiles.
type healthCheck func(*healthAnalysis) (problems, warnings []Problem)

var healthChecks = []healthCheck{
	remediatesHealthy, templates, interruptsRemediation,
	outOfBounds, selectorNodes, overlaps, conditionNames, shortDuration,
}

// StoredHealthCheck returns the problems of a health check that may have been stored without the webhook,
// as far as they are not about other objects: it does not compile, would remediate healthy
// nodes, or would interrupt remediations. inForce has the version in force and its remediations in
// the status; it is nil for none.
func StoredHealthCheck(check, inForce *v1alpha1.NodeHealthCheck) (v Verdict) {
	s := &healthAnalysis{HealthCase: HealthCase{Check: check, Stored: inForce}}
	if s.rule, s.compileErr = compileHealthCheck(check); s.compileErr != nil {
		return Verdict{Problems: []Problem{invalid(s.compileErr)}}
	}
	for _, look := range []healthCheck{remediatesHealthy, interruptsRemediation} {
		problems, _ := look(s)
		v.Problems = append(v.Problems, problems...)
	}
	return v
}

// HealthCheck returns all problems and warnings of a health check that is being
// written. A change that only pauses it is never rejected, even if it has other problems.
func HealthCheck(c HealthCase) Verdict {
	s := &healthAnalysis{HealthCase: c}
	s.rule, s.compileErr = compileHealthCheck(c.Check)
	var v Verdict
	if s.compileErr != nil {
		v.Problems = []Problem{invalid(s.compileErr)}
	} else {
		s.survey()
		for _, look := range healthChecks {
			problems, warnings := look(s)
			v.Problems = append(v.Problems, problems...)
			v.Warnings = append(v.Warnings, warnings...)
		}
		if line := s.impactLine(v); line != "" {
			v.Warnings = append([]Problem{{Text: line}}, v.Warnings...)
		}
	}
	v.Warnings = append(v.Warnings, unusualAcceptance(c.Check.Annotations)...)
	if s.onlyPauses() {
		v = Verdict{Warnings: append(v.Problems, v.Warnings...)}
	}
	return v
}

// compileHealthCheck returns the rule of a health check, or why it does not compile.
func compileHealthCheck(check *v1alpha1.NodeHealthCheck) (triage.Rule, *triage.FieldError) {
	if check.Name == "" && check.GenerateName != "" { // the API server has not named it yet
		named := *check
		named.Name = check.GenerateName
		check = &named
	}
	rule, err := observe.NodeHealthCheck(check)
	return rule, fieldError(err)
}

// survey reads the current nodes once.
func (s *healthAnalysis) survey() {
	if s.Survey == nil {
		return
	}
	var who []triage.Selector
	for _, other := range s.Others {
		if other == nil || other.Name == s.Check.Name || other.DeletionTimestamp != nil {
			continue
		}
		if rule, wrong := compileHealthCheck(other); wrong == nil && !slices.Equal(steps(rule), steps(s.rule)) {
			s.otherChecks, who = append(s.otherChecks, other.Name), append(who, rule.Selector)
		}
	}
	if found, err := s.Survey(s.rule, who...); err == nil { // a compiled rule is valid
		s.found = &found
	}
}

// steps returns the templates of a rule in the order of escalation.
func steps(rule triage.Rule) []string {
	list := make([]string, len(rule.Response.Ladder))
	for i, step := range rule.Response.Ladder {
		list[i] = step.Ref
	}
	return list
}

// onlyPauses reports whether the change does nothing but pause the health check.
func (s *healthAnalysis) onlyPauses() bool {
	if s.Stored == nil || len(s.Check.Spec.PauseRequests) == 0 {
		return false
	}
	one, other := s.Check.Spec, s.Stored.Spec
	one.PauseRequests, other.PauseRequests = nil, nil
	return equality.Semantic.DeepEqual(one, other)
}

func acceptsImpact(check *v1alpha1.NodeHealthCheck) bool {
	return check.Annotations[autohealer.AcceptImpactAnnotation] == "true"
}

// reference is a template reference and its field in the health check.
type reference struct {
	field string
	corev1.ObjectReference
}

// references returns all template references in the order of the spec.
func references(spec v1alpha1.NodeHealthCheckSpec) (list []reference) {
	if spec.RemediationTemplate != nil {
		list = append(list, reference{"spec.remediationTemplate", *spec.RemediationTemplate})
	}
	for i, step := range spec.EscalatingRemediations {
		list = append(list, reference{fmt.Sprintf("spec.escalatingRemediations[%d].remediationTemplate", i), step.RemediationTemplate})
	}
	return list
}
