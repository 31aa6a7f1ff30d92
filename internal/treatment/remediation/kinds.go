package remediation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/watch"
)

// takeKinds watches the kinds that policies reference and takes in changed templates.
func (rm *Treatment) takeKinds(now time.Time) {
	if rm.referencesChanged {
		rm.referencesChanged = false
		rm.ensureWatches()
	}
	if rm.takeTemplates(now) {
		for _, r := range rm.requesters {
			r.TemplatesChanged()
		}
	}
	if unread := rm.unreadableKinds(); unread != rm.unreadable {
		rm.unreadable = unread
		rm.host.ReobserveControlPlane(now)
	}
}

// ReferencesChanged tells that a policy may reference other kinds.
func (rm *Treatment) ReferencesChanged() { rm.referencesChanged = true }

// areKindsRead reports whether the API server has answered for every kind. A kind that is
// not served has no objects. A kind that cannot be read does not block the others for long: its
// objects, which the limits on all policies count, may be readable soon.
func (rm *Treatment) areKindsRead(now time.Time) bool {
	for gvk, kind := range rm.watches.Known {
		if kind.Current == watch.NotAnswered || !isTemplates(gvk) && !kind.IsLoaded(now) {
			return false
		}
	}
	return true
}

// ensureWatches watches exactly the kinds that policies reference. Kinds of known objects
// stay watched even if their template has been removed from the ladder.
func (rm *Treatment) ensureWatches() {
	referenced := map[schema.GroupVersionKind]bool{}
	for _, r := range rm.requesters {
		for gvk := range r.References() {
			referenced[gvk] = true
		}
	}
	for _, n := range rm.nodes {
		for _, object := range n.objects {
			referenced[object.GroupVersionKind] = true
		}
	}
	for gvk := range referenced {
		rm.watches.Ensure(gvk)
	}
	for gvk := range rm.watches.Known {
		if !referenced[gvk] {
			rm.watches.Stop(gvk)
			rm.forgetTemplates(gvk)
		}
	}
}

func (rm *Treatment) forgetTemplates(gvk schema.GroupVersionKind) {
	maps.DeleteFunc(rm.templates, func(t remediation.Template, _ *unstructured.Unstructured) bool { return t.GroupVersionKind == gvk })
}

// isTemplates reports whether the kind is a template.
func isTemplates(gvk schema.GroupVersionKind) bool { return strings.HasSuffix(gvk.Kind, "Template") }

// takeTemplates takes in changed templates and access to kinds, and reports whether there
// were any changes.
func (rm *Treatment) takeTemplates(now time.Time) (changed bool) {
	for gvk, kind := range rm.watches.Known {
		if kind.UpdateAvailability(now) {
			changed = true
			rm.logAvailability(kind)
		}
		if !isTemplates(gvk) {
			continue
		}
		batch := kind.Take()
		if batch.ListVersion != "" {
			rm.forgetTemplates(gvk)
			changed = true
		}
		for _, change := range batch.Changes {
			t := remediation.Template{GroupVersionKind: gvk, Namespace: change.Object.GetNamespace(), Name: change.Object.GetName()}
			changed = true
			if change.Gone {
				delete(rm.templates, t)
			} else {
				rm.templates[t] = change.Object
			}
		}
	}
	return changed
}

func (rm *Treatment) logAvailability(kind *watch.Kind) {
	switch kind.Current {
	case watch.Available:
		rm.host.Logger().Info("kind watched", "kind", kind.String())
	case watch.NotServed, watch.AccessDenied, watch.Failing:
		rm.host.Logger().Warn("kind not read", "kind", kind.String(), "err", kind.Err)
	case watch.NotAnswered:
	}
}

// unreadableKinds names the kinds of remediation objects that could not be listed, empty
// for none.
func (rm *Treatment) unreadableKinds() string {
	var unread []string
	for gvk, kind := range rm.watches.Known {
		if !isTemplates(gvk) && kind.Current != watch.Available && kind.Current != watch.NotServed {
			unread = append(unread, gvk.Kind)
		}
	}
	if len(unread) == 0 {
		return ""
	}
	slices.Sort(unread)
	return "objects of kind " + strings.Join(unread, ", ") + " could not be read"
}

// template returns a template, nil if it does not exist. References to cluster-scoped
// templates often contain a namespace, so it looks for those too.
func (rm *Treatment) template(t remediation.Template) *unstructured.Unstructured {
	if template := rm.templates[t]; template != nil {
		return template
	}
	t.Namespace = ""
	return rm.templates[t]
}

// missingNamespace says that the reference to a template needs a namespace, if there are
// templates of this kind in namespaces.
func (rm *Treatment) missingNamespace(t remediation.Template) string {
	isNamespaced, found := false, []string{}
	for other := range rm.templates {
		if t.Namespace == "" && other.GroupVersionKind == t.GroupVersionKind && other.Namespace != "" {
			isNamespaced = true
			if other.Name == t.Name {
				found = append(found, other.Namespace)
			}
		}
	}
	switch slices.Sort(found); {
	case len(found) > 0:
		return "; the reference has no namespace: add namespace: " + strings.Join(found, " or ")
	case isNamespaced:
		return "; the reference has no namespace, but templates of this kind are in one"
	}
	return ""
}

// TemplateProblem returns what is wrong with the templates of a ladder, empty for
// nothing.
func (rm *Treatment) TemplateProblem(ladder []remediation.Template) (problem, disabled string) {
	for _, t := range ladder {
		for _, gvk := range []schema.GroupVersionKind{t.GroupVersionKind, t.ObjectKind()} {
			kind := rm.watches.Known[gvk]
			if kind == nil { // until the watches follow the new references
				kind = &watch.Kind{}
			}
			switch kind.Current {
			case watch.Available:
			case watch.NotServed:
				return fmt.Sprintf("there is no kind %s (%s); install its CRD, or name another template", gvk.Kind, gvk.GroupVersion()), remediationv1alpha1.ReasonTemplateNotFound
			case watch.AccessDenied:
				return fmt.Sprintf("kind %s (%s) may not be read: %v; label a ClusterRole that allows it with rbac.ext-remediation/aggregate-to-ext-remediation=true", gvk.Kind, gvk.GroupVersion(), kind.Err), remediationv1alpha1.ReasonTemplateNotFound
			case watch.Failing:
				return fmt.Sprintf("kind %s (%s) could not be read: %v", gvk.Kind, gvk.GroupVersion(), kind.Err), remediationv1alpha1.ReasonTemplateNotFound
			case watch.NotAnswered:
				return fmt.Sprintf("kind %s (%s) has not been read yet", gvk.Kind, gvk.GroupVersion()), ""
			}
		}
		template := rm.template(t)
		if template == nil {
			return fmt.Sprintf("there is no template %s", t) + rm.missingNamespace(t), remediationv1alpha1.ReasonTemplateNotFound
		}
		if err := remediation.Check(template); err != nil {
			return err.Error(), remediationv1alpha1.ReasonTemplateInvalid
		}
	}
	if same := rm.nameConflict(ladder); same != "" {
		return same, remediationv1alpha1.ReasonTemplateInvalid
	}
	return "", ""
}

// nameConflict returns a message if two templates of the ladder would create objects of the
// same name. Templates of one kind do, unless all of them allow several objects per node.
// The webhook may not have seen the templates.
func (rm *Treatment) nameConflict(ladder []remediation.Template) string {
	for i, t := range ladder {
		for _, other := range ladder[:i] {
			if t.GroupKind() != other.GroupKind() || t == other {
				continue
			}
			for _, one := range []remediation.Template{other, t} {
				if !remediation.TakesSeveral(rm.template(one)) {
					return fmt.Sprintf("%s and %s have the same kind, and its remediator may accept only one request per node; if it accepts several, annotate %s with %s: \"true\"", other, t, one, remediation.MultipleTemplatesAnnotation)
				}
			}
		}
	}
	return ""
}
