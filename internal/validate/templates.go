package validate

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/remediation"
)

// namedTemplate is a template reference together with the object that it refers to.
type namedTemplate struct {
	field string
	remediation.Template
	object *unstructured.Unstructured // nil if it could not be read
}

// templates checks the referenced templates. It warns of templates that cannot be used
// yet, because a health check may be created before them. It rejects two templates of one
// kind, unless both are annotated to allow that.
func templates(s *healthAnalysis) (problems, warnings []Problem) {
	ofKind := map[schema.GroupKind][]namedTemplate{}
	var kinds []schema.GroupKind
	for _, ref := range references(s.Check.Spec) {
		template, err := remediation.TemplateOf(ref.ObjectReference)
		if wrong := fieldError(err); wrong != nil {
			problem := invalid(wrong)
			problem.Field = ref.field + "." + problem.Field
			problems = append(problems, problem)
			continue
		}
		one := namedTemplate{field: ref.field, Template: template}
		if s.Template != nil {
			one.object, err = s.Template(template)
			if why := one.unusable(err); why != "" {
				warnings = append(warnings, warning(ref.field, "%s", why))
			}
		}
		kind := template.GroupKind() // all versions of a kind count as one
		if ofKind[kind] == nil {
			kinds = append(kinds, kind)
		}
		ofKind[kind] = append(ofKind[kind], one)
	}
	for _, kind := range kinds {
		several, unknown := sameKindTemplates(ofKind[kind])
		problems, warnings = append(problems, several...), append(warnings, unknown...)
	}
	return problems, warnings
}

// unusable says why no remediation can be created from a template in its current state.
func (n namedTemplate) unusable(err error) string {
	name := truncate(n.Kind) + " " + truncate(n.location())
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Sprintf("the cluster does not know the kind %s of %s; no remediation is created until its remediator is installed", truncate(n.Kind), truncate(n.GroupVersion().String()))
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("there is no %s; no remediation is created until there is", name)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the controller may not read %s; no remediation is created until a ClusterRole with the label rbac.ext-remediation/aggregate-to-ext-remediation: \"true\" lets it", name)
	case err != nil:
		return fmt.Sprintf("%v; no remediation is created until that works", err)
	}
	if err := remediation.Check(n.object); err != nil {
		return fmt.Sprintf("nothing can be made from it: %v; no remediation is created until the template is corrected", err)
	}
	return ""
}

// location returns the template's namespace and name.
func (n namedTemplate) location() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// sameKindTemplates checks templates of one kind.
func sameKindTemplates(list []namedTemplate) (problems, warnings []Problem) {
	if len(list) < 2 {
		return nil, nil
	}
	var silent, unread []string
	for _, one := range list {
		if one.object == nil {
			unread = append(unread, one.location())
		} else if !remediation.TakesSeveral(one.object) {
			silent = append(silent, one.location())
		}
	}
	field, kind := list[1].field, truncate(list[1].Kind)
	if len(silent) > 0 {
		return []Problem{{field, fmt.Sprintf(
			"%s is the kind of %d templates here, and its remediator may accept only one request per node. Want templates of different kinds; or, if it accepts several, annotate %s with %s: \"true\"",
			kind, len(list), shortList(silent), remediation.MultipleTemplatesAnnotation), SameKind}}, nil
	}
	if len(unread) > 0 {
		return nil, []Problem{warning(field, "%s is the kind of %d templates here; it is unknown whether its remediator takes several requests for a node, because %s could not be read for the annotation %s",
			kind, len(list), shortList(unread), remediation.MultipleTemplatesAnnotation)}
	}
	return nil, nil
}
