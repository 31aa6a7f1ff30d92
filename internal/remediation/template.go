package remediation

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/resourcestack/autohealer/internal/triage"
)

// templateSuffix is the part of a template's kind that the kind of its objects lacks.
const templateSuffix = "Template"

// exampleVersion is the example in error messages.
const exampleVersion = "self-node-remediation.medik8s.io/v1alpha1"

// Template identifies a template. It is a comparable value.
type Template struct {
	schema.GroupVersionKind
	// Namespace is empty for a cluster-scoped kind.
	Namespace, Name string
}

// TemplateOf reads a user's reference. The error is a *[triage.FieldError] that names the
// field of the reference.
func TemplateOf(ref corev1.ObjectReference) (Template, error) {
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || version.Group == "" || version.Version == "" {
		return Template{}, &triage.FieldError{Field: "apiVersion", Value: ref.APIVersion, Problem: "want a group and a version, for example " + exampleVersion}
	}
	t := Template{version.WithKind(ref.Kind), ref.Namespace, ref.Name}
	if err := t.check(); err != nil {
		return Template{}, err
	}
	return t, nil
}

// check returns why the template is invalid. A valid template has an unambiguous String.
func (t Template) check() error {
	trimmed, named := strings.CutSuffix(t.Kind, templateSuffix)
	for _, part := range []struct {
		field, value, want string
		wrong              bool
	}{
		{"apiVersion", t.GroupVersion().String(), "a group and a version, for example " + exampleVersion,
			len(validation.IsDNS1123Subdomain(t.Group)) > 0 || len(validation.IsDNS1035Label(t.Version)) > 0},
		{"kind", t.Kind, "a kind that ends in " + templateSuffix + ", for example SelfNodeRemediation" + templateSuffix,
			!named || trimmed == "" || len(validation.IsDNS1035Label(strings.ToLower(t.Kind))) > 0},
		{"namespace", t.Namespace, "the namespace of the template",
			t.Namespace != "" && len(validation.IsDNS1123Label(t.Namespace)) > 0},
		{"name", t.Name, "the name of the template", len(validation.IsDNS1123Subdomain(t.Name)) > 0},
	} {
		if part.wrong {
			return &triage.FieldError{Field: part.field, Value: part.value, Problem: "want " + part.want}
		}
	}
	return nil
}

// String returns the template in one line that ParseTemplate reads:
// example.com/v1/RebootRemediationTemplate default/quick, without "default/" if it has no
// namespace.
func (t Template) String() string {
	name := t.Name
	if t.Namespace != "" {
		name = t.Namespace + "/" + t.Name
	}
	return t.Group + "/" + t.Version + "/" + t.Kind + " " + name
}

// ParseTemplate reads the result of String.
func ParseTemplate(text string) (Template, error) {
	kind, name, _ := strings.Cut(text, " ")
	var t Template
	parts := strings.Split(kind, "/")
	if len(parts) != 3 {
		return Template{}, fmt.Errorf("template %q: want group/version/Kind namespace/name", text)
	}
	t.GroupVersionKind = schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]}
	t.Name = name
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		t.Namespace, t.Name = namespace, rest
	}
	err := t.check()
	if err == nil && t.String() != text { // for example an explicit empty namespace
		err = errors.New("want group/version/Kind namespace/name")
	}
	if err != nil {
		return Template{}, fmt.Errorf("template %q: %w", text, err)
	}
	return t, nil
}

// ObjectKind returns the kind of the objects that are created from the template.
func (t Template) ObjectKind() schema.GroupVersionKind {
	return t.GroupVersion().WithKind(strings.TrimSuffix(t.Kind, templateSuffix))
}

// YieldKinds yields the kinds of a template reference: of the template, and of the objects
// that are made from it. It yields nothing for an invalid reference, and reports whether
// the caller wants more.
func YieldKinds(ref corev1.ObjectReference, yield func(schema.GroupVersionKind) bool) bool {
	t, err := TemplateOf(ref)
	return err != nil || yield(t.GroupVersionKind) && yield(t.ObjectKind())
}
