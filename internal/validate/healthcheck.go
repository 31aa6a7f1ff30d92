package validate

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	autohealer "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// HealthCase is what a verdict on a health check is asked for.
type HealthCase struct {
	Check *v1alpha1.NodeHealthCheck // as it is to be
	// Stored is the health check as it is; nil if it is new.
	Stored *v1alpha1.NodeHealthCheck
	// Others are all other health checks, as far as they are known.
	Others []*v1alpha1.NodeHealthCheck
	// Reported are the condition types that nodes report; nil if nobody knows.
	Reported []string
	// Survey answers what a rule would find now, and with which other selectors it
	// shares nodes, as [triage.Core.Survey] does; nil if nobody knows.
	Survey func(rule triage.Rule, others ...triage.Selector) (triage.Survey, error)
	// Template reads a template; nil if nobody can.
	Template func(remediation.Template) (*unstructured.Unstructured, error)
	// UnderWay says whether a remediation that a status names is there and not on
	// its way out. Where that cannot be told, it is. Nil means that the status is
	// believed.
	UnderWay func(corev1.ObjectReference) bool
}

// The further reasons for which a health check is refused.
const (
	// SameKind: two templates are of one kind, whose remediator takes but one.
	SameKind Reason = "SameKind"
	// Remediating: what is under way would be cut off.
	Remediating Reason = "Remediating"
)

// healthStudy is a case, with what several checks want to know of it.
type healthStudy struct {
	HealthCase
	rule  triage.Rule
	wrong *triage.FieldError // why there is no rule
	// found is what the rule would find now; nil if nobody knows.
	found *triage.Survey
	// rivals are the other health checks with other templates, in the order of what
	// found has in common with each.
	rivals []string
}

// healthCheck looks for one kind of mistake in a health check that compiles.
type healthCheck func(*healthStudy) (problems []Problem, warnings []string)

var healthChecks = []healthCheck{
	remediatesHealthy, templates, cutsOff,
	outOfBounds, chooses, overlaps, namesOfSigns, hasty,
}

// JudgeHealthCheck says everything that there is to say of a health check which is
// being written. To pause one is never refused: what is wrong with it already is
// one more reason to.
func JudgeHealthCheck(c HealthCase) Verdict {
	s := &healthStudy{HealthCase: c}
	s.rule, s.wrong = compileHealthCheck(c.Check)
	var v Verdict
	if s.wrong != nil {
		v.Problems = []Problem{invalid(s.wrong)}
	} else {
		s.survey()
		for _, look := range healthChecks {
			problems, warnings := look(s)
			v.Problems = append(v.Problems, problems...)
			v.Warnings = append(v.Warnings, warnings...)
		}
		if line := s.impactLine(v); line != "" {
			v.Warnings = append([]string{line}, v.Warnings...)
		}
	}
	v.Warnings = append(v.Warnings, oddAcceptance(c.Check.Annotations)...)
	if s.onlyPauses() {
		v = Verdict{Warnings: append(lines(v.Problems), v.Warnings...)}
	}
	for i, warning := range v.Warnings { // names are as odd as the schema in force lets them be
		v.Warnings[i] = oneLine(warning)
	}
	return v
}

// compileHealthCheck returns the rule that a health check asks for, or why there is
// none.
func compileHealthCheck(check *v1alpha1.NodeHealthCheck) (triage.Rule, *triage.FieldError) {
	if check.Name == "" && check.GenerateName != "" { // the API server has not named it yet
		named := *check
		named.Name = check.GenerateName
		check = &named
	}
	rule, err := observe.NodeHealthCheck(check)
	return rule, fieldError(err)
}

// survey looks at the nodes, once.
func (s *healthStudy) survey() {
	if s.Survey == nil {
		return
	}
	var who []triage.Selector
	for _, other := range s.Others {
		if other == nil || other.Name == s.Check.Name || other.DeletionTimestamp != nil {
			continue
		}
		if rule, wrong := compileHealthCheck(other); wrong == nil && !slices.Equal(steps(rule), steps(s.rule)) {
			s.rivals, who = append(s.rivals, other.Name), append(who, rule.Who)
		}
	}
	if found, err := s.Survey(s.rule, who...); err == nil { // a compiled rule is valid
		s.found = &found
	}
}

// steps returns the templates of a rule in the order in which they are tried.
func steps(rule triage.Rule) []string {
	list := make([]string, len(rule.Response.Ladder))
	for i, step := range rule.Response.Ladder {
		list[i] = step.Ref
	}
	return list
}

// onlyPauses says whether nothing is asked for but a pause.
func (s *healthStudy) onlyPauses() bool {
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

func lines(problems []Problem) []string {
	list := make([]string, len(problems))
	for i, p := range problems {
		list[i] = p.String()
	}
	return list
}

// oneLine is a text in which nothing but words is left.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// reference is a template as the health check names it.
type reference struct {
	field string
	corev1.ObjectReference
}

// references returns all templates in the order in which they are written.
func references(spec v1alpha1.NodeHealthCheckSpec) (list []reference) {
	if spec.RemediationTemplate != nil {
		list = append(list, reference{"spec.remediationTemplate", *spec.RemediationTemplate})
	}
	for i, step := range spec.EscalatingRemediations {
		list = append(list, reference{fmt.Sprintf("spec.escalatingRemediations[%d].remediationTemplate", i), step.RemediationTemplate})
	}
	return list
}
