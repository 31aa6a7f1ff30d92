package remediation_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
)

var (
	noon  = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	check = remediation.Owner{Kind: remediation.CheckKind, Name: "workers", UID: "check-uid"}
)

func worker() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "node-uid"}}
}

// templateWith returns a template with that spec.
func templateWith(spec any, annotations ...string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if spec != nil {
		u.Object["spec"] = spec
	}
	u.SetGroupVersionKind(reboot.GroupVersionKind)
	u.SetNamespace(reboot.Namespace)
	u.SetName(reboot.Name)
	u.SetUID("template-uid")
	u.SetResourceVersion("7")
	u.SetFinalizers([]string{"example.com/keep"})
	u.SetLabels(map[string]string{"team": "a"})
	marks := map[string]string{"note": "mine"}
	for _, annotation := range annotations {
		marks[annotation] = ""
	}
	u.SetAnnotations(marks)
	return u
}

func simple() map[string]any {
	return map[string]any{"template": map[string]any{"spec": map[string]any{"size": int64(42)}}}
}

func TestMake(t *testing.T) {
	got, err := remediation.Make(templateWith(simple()), worker(), check)
	testkit.Must(t, err)
	want := map[string]any{
		"apiVersion": "example.com/v1",
		"kind":       "RebootRemediation",
		"metadata": map[string]any{
			"namespace": "default",
			"name":      "worker-1",
			"annotations": map[string]any{
				"remediation.medik8s.io/node-name":      "worker-1",
				"remediation.medik8s.io/template-name":  "quick",
				"autohealer.resourcestack.com/node-uid": "node-uid",
			},
			"labels": map[string]any{"app.kubernetes.io/part-of": "node-healthcheck-controller"},
			"ownerReferences": []any{map[string]any{
				"apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck",
				"name": "workers", "uid": "check-uid", "controller": false,
			}},
		},
		"spec": map[string]any{"size": int64(42)},
	}
	testkit.Equal(t, "the object", want, got.Object)
}

func TestMakeTellsOfTheControlPlane(t *testing.T) {
	for role, want := range map[string]bool{
		"node-role.kubernetes.io/control-plane": true,
		"node-role.kubernetes.io/master":        true,
		"node-role.kubernetes.io/worker":        false,
	} {
		node := worker()
		node.Labels = map[string]string{role: ""}
		object, err := remediation.Make(templateWith(simple()), node, check)
		testkit.Must(t, err)
		if _, got := object.GetLabels()["remediation.medik8s.io/isControlPlaneNode"]; got != want {
			t.Errorf("with the label %s the object is marked: %v", role, got)
		}
	}
}

func TestMakeFindsTheBody(t *testing.T) {
	type object = map[string]any
	for _, test := range []struct {
		name string
		spec any
		want object
		err  string
	}{
		{"in its place", object{"template": object{"spec": object{"a": "b"}}}, object{"a": "b"}, ""},
		{"in its place, beside metadata", object{"template": object{"metadata": object{"labels": object{}}, "spec": object{"a": "b"}}}, object{"a": "b"}, ""},
		{"in the simple form", object{"template": object{"size": int64(42), "deep": object{"list": []any{"x", nil, 1.5}}}}, object{"size": int64(42), "deep": object{"list": []any{"x", nil, 1.5}}}, ""},
		{"that is empty", object{"template": object{"spec": object{}}}, object{}, ""},
		{"that is empty in the simple form", object{"template": object{}}, object{}, ""},
		{"that is null", object{"template": object{"spec": nil, "size": int64(42)}}, object{}, ""},
		{"of a template without a spec", nil, nil, "it has no spec"},
		{"of a spec without a template", object{"size": int64(42)}, nil, "it has no spec.template"},
		{"of a template that is null", object{"template": nil}, nil, "it has no spec.template"},
		{"of a spec that is a text", "words", nil, "spec is a text, want an object"},
		{"of a template that is a list", object{"template": []any{}}, nil, "spec.template is a list, want an object"},
		{"that is a number", object{"template": object{"spec": int64(1)}}, nil, "spec.template.spec is a number, want an object"},
		{"that is a flag", object{"template": object{"spec": true}}, nil, "spec.template.spec is true or false, want an object"},
	} {
		t.Run(test.name, func(t *testing.T) {
			made, err := remediation.Make(templateWith(test.spec), worker(), check)
			if test.err != "" {
				if want := "template example.com/v1/RebootRemediationTemplate default/quick: " + test.err; err == nil || err.Error() != want {
					t.Errorf("the error is %v, want %q", err, want)
				}
				return
			}
			testkit.Must(t, err)
			testkit.Equal(t, "the spec", test.want, made.Object["spec"])
		})
	}
}

func TestMakeRefusesWhatIsNoTemplate(t *testing.T) {
	template := templateWith(simple())
	template.SetKind("ConfigMap")
	if _, err := remediation.Make(template, worker(), check); err == nil || !strings.Contains(err.Error(), `kind: "ConfigMap": want`) {
		t.Errorf("the error is %v", err)
	}
}

func TestMakeSharesNothingWithTheTemplate(t *testing.T) {
	for _, spec := range []map[string]any{
		{"template": map[string]any{"spec": map[string]any{"deep": map[string]any{"list": []any{map[string]any{"a": "b"}}}}}},
		{"template": map[string]any{"deep": map[string]any{"list": []any{map[string]any{"a": "b"}}}}},
	} {
		template := templateWith(spec, remediation.MultipleTemplatesAnnotation)
		before := template.DeepCopy()
		made, err := remediation.Make(template, worker(), check)
		testkit.Must(t, err)
		deep := made.Object["spec"].(map[string]any)["deep"].(map[string]any)
		deep["list"].([]any)[0].(map[string]any)["a"] = "changed"
		deep["new"] = true
		made.Object["spec"].(map[string]any)["new"] = true
		made.SetAnnotations(nil)
		testkit.Equal(t, "a change of the object changed the template", before.Object, template.Object)
	}
}

func TestMakeForSeveralTemplatesOfAKind(t *testing.T) {
	several := templateWith(simple(), remediation.MultipleTemplatesAnnotation)
	name := func(template *unstructured.Unstructured, node *corev1.Node) string {
		made, err := remediation.Make(template, node, check)
		testkit.Must(t, err)
		if got, want := made.GetGenerateName(), node.Name+"-"; got != want {
			t.Errorf("generateName is %q, want %q", got, want)
		}
		if got := made.GetAnnotations()[remediation.NodeNameAnnotation]; got != node.Name {
			t.Errorf("the node's name is %q", got)
		}
		return made.GetName()
	}
	first := name(several, worker())
	const golden = "worker-1-d73i6" // an older version may have created this object, so the name must stay
	testkit.Check(t, first == golden, "the name is %s, want %s", first, golden)
	replaced, other := worker(), several.DeepCopy()
	replaced.UID = "another-uid"
	other.SetName("slow")
	names := map[string]bool{first: true, name(several, replaced): true, name(other, worker()): true}
	testkit.Check(t, len(names) == 3, "different objects have one name: %v", names)
}

// For any node name, the chosen name is a valid object name.
func TestMakeChoosesNamesThatFit(t *testing.T) {
	label := rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`)
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		node := worker()
		node.Name = strings.Repeat(label.Draw(t, "label")+".", rapid.IntRange(1, validation.DNS1123SubdomainMaxLength).Draw(t, "times"))
		node.Name = strings.TrimRight(node.Name[:min(len(node.Name), validation.DNS1123SubdomainMaxLength)], ".-")
		node.UID = types.UID(rapid.String().Draw(t, "uid"))
		made := testkit.Value(remediation.Make(templateWith(simple(), remediation.MultipleTemplatesAnnotation), node, check)).Must(t)
		if wrong := validation.IsDNS1123Subdomain(made.GetName()); len(wrong) > 0 {
			t.Fatalf("%q: %v", made.GetName(), wrong)
		}
		if len(node.Name) > validation.DNS1123SubdomainMaxLength-6 {
			seen["cut"]++
		} else {
			seen["whole"]++
		}
	})
	t.Logf("saw %v", seen)
	testkit.Check(t, seen["cut"] != 0 && seen["whole"] != 0, "this test looked at nothing")
}
