package remediation

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
)

// suffixLength is how long the last part of a name is that we choose ourselves, as
// long as the API server would have made it.
const suffixLength = 5

// Make returns the remediation object that is to be created from the template for
// the node, and for whom. The same template always
// makes an object of the same name for the same node, whoever asks, so that there
// cannot be two of it: not by a write whose answer was lost and that was made again,
// and not by one who led before. The object shares nothing with the template.
func Make(template *unstructured.Unstructured, node *corev1.Node, owner Owner) (*unstructured.Unstructured, error) {
	from := Template{template.GroupVersionKind(), template.GetNamespace(), template.GetName()}
	if err := from.check(); err != nil {
		return nil, fmt.Errorf("template %s: %w", from, err)
	}
	spec, err := body(template.Object)
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", from, err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(from.ObjectKind())
	object.SetNamespace(from.Namespace)
	object.SetName(node.Name)
	if TakesSeveral(template) {
		object.SetGenerateName(node.Name + "-") // what a remediator may look for; the server goes by the name
		object.SetName(chosenName(from, node))
	}
	object.SetAnnotations(map[string]string{
		NodeNameAnnotation:     node.Name,
		TemplateNameAnnotation: from.Name,
		NodeUIDAnnotation:      string(node.UID),
	})
	labels := map[string]string{PartOfLabel: PartOf}
	if IsControlPlane(node) {
		labels[ControlPlaneLabel] = ""
	}
	object.SetLabels(labels)
	object.SetOwnerReferences([]metav1.OwnerReference{OwnedBy(owner)})
	return object, nil
}

// Check says what keeps objects from being made from a template.
func Check(template *unstructured.Unstructured) error {
	from := Template{template.GroupVersionKind(), template.GetNamespace(), template.GetName()}
	if _, err := body(template.Object); err != nil {
		return fmt.Errorf("template %s: %w", from, err)
	}
	return nil
}

// OwnedBy returns the reference to the owner that remediators look for. It does not
// control the object: that is left to whoever works on it.
func OwnedBy(owner Owner) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: owner.APIVersion(), Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Controller: new(false)}
}

// body returns a copy of what the template has for the object's spec.
func body(template map[string]any) (map[string]any, error) {
	spec, err := child(template, "spec", "spec")
	if err != nil {
		return nil, err
	}
	whole, err := child(spec, "template", "spec.template")
	if err != nil {
		return nil, err
	}
	switch inner, given := whole["spec"]; inner := inner.(type) {
	case map[string]any:
		whole = inner
	case nil:
		if given { // written as null
			whole = nil
		}
	default:
		return nil, fmt.Errorf("spec.template.spec is %s, want an object", describe(inner))
	}
	if whole == nil {
		return map[string]any{}, nil
	}
	return runtime.DeepCopyJSON(whole), nil
}

func child(of map[string]any, key, path string) (map[string]any, error) {
	switch value := of[key].(type) {
	case map[string]any:
		return value, nil
	case nil:
		return nil, fmt.Errorf("it has no %s", path)
	default:
		return nil, fmt.Errorf("%s is %s, want an object", path, describe(value))
	}
}

// describe says what kind of JSON a value is.
func describe(value any) string {
	switch value.(type) {
	case string:
		return "a text"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	default:
		return "a number"
	}
}

// chosenName is a name of which the template makes one for the node and another
// template another.
func chosenName(from Template, node *corev1.Node) string {
	sum := sha256.Sum256([]byte(string(node.UID) + "\n" + from.String()))
	suffix := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:suffixLength]
	const room = validation.DNS1123SubdomainMaxLength - suffixLength - 1
	return strings.TrimRight(node.Name[:min(len(node.Name), room)], ".-") + "-" + suffix
}

// TakesSeveral says whether a node may have objects of several templates of this kind.
func TakesSeveral(template *unstructured.Unstructured) bool {
	_, several := template.GetAnnotations()[MultipleTemplatesAnnotation]
	return several
}
