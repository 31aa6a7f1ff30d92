package remediation_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

var reboot = remediation.Template{
	GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "RebootRemediationTemplate"},
	Namespace:        "default", Name: "quick",
}

func TestTemplateOf(t *testing.T) {
	good := corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootRemediationTemplate", Namespace: "default", Name: "quick"}
	for _, test := range []struct {
		name   string
		change func(*corev1.ObjectReference)
		want   string // the field of the error; empty for no error
	}{
		{"a template in a namespace", func(*corev1.ObjectReference) {}, ""},
		{"a template without a namespace", func(r *corev1.ObjectReference) { r.Namespace = "" }, ""},
		{"a kind that is not a template's", func(r *corev1.ObjectReference) { r.Kind = "RebootRemediation" }, "kind"},
		{"a kind of which nothing is left", func(r *corev1.ObjectReference) { r.Kind = "Template" }, "kind"},
		{"no kind", func(r *corev1.ObjectReference) { r.Kind = "" }, "kind"},
		{"a kind that no kind can be called", func(r *corev1.ObjectReference) { r.Kind = "a/bTemplate" }, "kind"},
		{"a version without a group", func(r *corev1.ObjectReference) { r.APIVersion = "v1" }, "apiVersion"},
		{"no version", func(r *corev1.ObjectReference) { r.APIVersion = "" }, "apiVersion"},
		{"a group without a version", func(r *corev1.ObjectReference) { r.APIVersion = "example.com/" }, "apiVersion"},
		{"more than a group and a version", func(r *corev1.ObjectReference) { r.APIVersion = "a/b/c" }, "apiVersion"},
		{"a group that none can be", func(r *corev1.ObjectReference) { r.APIVersion = "a b/v1" }, "apiVersion"},
		{"a version that none can be", func(r *corev1.ObjectReference) { r.APIVersion = "a/v 1" }, "apiVersion"},
		{"no name", func(r *corev1.ObjectReference) { r.Name = "" }, "name"},
		{"a name that no object can have", func(r *corev1.ObjectReference) { r.Name = "a b" }, "name"},
		{"a namespace that none can be", func(r *corev1.ObjectReference) { r.Namespace = "a/b" }, "namespace"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ref := good
			test.change(&ref)
			value := map[string]string{"kind": ref.Kind, "apiVersion": ref.APIVersion, "namespace": ref.Namespace, "name": ref.Name}[test.want]
			got, err := remediation.TemplateOf(ref)
			if test.want == "" {
				testkit.Must(t, err)
				if got.Name != ref.Name || got.Namespace != ref.Namespace || got.Kind != ref.Kind || got.GroupVersion().String() != ref.APIVersion {
					t.Errorf("read %+v from %+v", got, ref)
				}
				return
			}
			var bad *triage.FieldError
			if !errors.As(err, &bad) || bad.Field != test.want || bad.Value != value || !strings.HasPrefix(bad.Problem, "want ") {
				t.Errorf("the error is %v, want one about %s %q", err, test.want, value)
			}
		})
	}
}

// The text is stored in plans, statuses and annotations, so it must not change.
func TestTemplateAsText(t *testing.T) {
	nowhere := reboot
	nowhere.Namespace = ""
	for want, template := range map[string]remediation.Template{
		"example.com/v1/RebootRemediationTemplate default/quick": reboot,
		"example.com/v1/RebootRemediationTemplate quick":         nowhere,
	} {
		if got := template.String(); got != want {
			t.Errorf("%+v is written %q, want %q", template, got, want)
		}
		if got, err := remediation.ParseTemplate(want); err != nil || got != template {
			t.Errorf("%q is read as %+v, %v", want, got, err)
		}
	}
	if got, want := reboot.ObjectKind().String(), "example.com/v1, Kind=RebootRemediation"; got != want {
		t.Errorf("the objects are %q, want %q", got, want)
	}
}

func FuzzParseTemplate(f *testing.F) {
	f.Add("example.com/v1/RebootRemediationTemplate default/quick")
	f.Add("example.com/v1/RebootRemediationTemplate quick")
	f.Add("example.com/v1/RebootRemediationTemplate /quick")
	f.Add("v1/Template  a/b/c")
	f.Fuzz(func(t *testing.T, text string) {
		template, err := remediation.ParseTemplate(text)
		if err != nil {
			if template != (remediation.Template{}) {
				t.Errorf("%q is refused, and read as %+v all the same", text, template)
			}
			return
		}
		if got := template.String(); got != text {
			t.Errorf("%q is written again as %q", text, got)
		}
		version, kind := template.ToAPIVersionAndKind()
		again, err := remediation.TemplateOf(corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: template.Namespace, Name: template.Name})
		testkit.Check(t, err == nil && again == template, "as a reference, %q is %+v, %v", text, again, err)
	})
}
