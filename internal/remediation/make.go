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

// suffixLength is the length of the random-looking suffix of a name, the same as that of
// the API server's generateName.
const suffixLength = 5

// Make returns the remediation object to create from the template for the node and the
// owner. The name depends only on the template and the node. A repeated write, or a write
// of a previous leader, thus cannot create a second object. The object shares no memory
// with the template.
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
		object.SetGenerateName(node.Name + "-") // for remediators that read it; the API server uses the name
		object.SetName(objectName(from, node))
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

// Check returns why no object can be created from a template.
func Check(template *unstructured.Unstructured) error {
	from := Template{template.GroupVersionKind(), template.GetNamespace(), template.GetName()}
	if _, err := body(template.Object); err != nil {
		return fmt.Errorf("template %s: %w", from, err)
	}
	return nil
}

// OwnedBy returns the owner reference that remediators look for. It is not a controller
// reference, so that the remediator can set one.
func OwnedBy(owner Owner) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: owner.APIVersion(), Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Controller: new(false)}
}

// body returns a copy of the template's spec for the object.
func body(template map[string]any) (map[string]any, error) {
	spec, err := objectAt(template, "spec", "spec")
	if err != nil {
		return nil, err
	}
	whole, err := objectAt(spec, "template", "spec.template")
	if err != nil {
		return nil, err
	}
	switch inner, given := whole["spec"]; inner := inner.(type) {
	case map[string]any:
		whole = inner
	case nil:
		if given { // explicit null
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

func objectAt(of map[string]any, key, path string) (map[string]any, error) {
	switch value := of[key].(type) {
	case map[string]any:
		return value, nil
	case nil:
		return nil, fmt.Errorf("it has no %s", path)
	default:
		return nil, fmt.Errorf("%s is %s, want an object", path, describe(value))
	}
}

// describe names the JSON type of a value.
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

// objectName returns a name that is unique for the template and the node.
func objectName(from Template, node *corev1.Node) string {
	sum := sha256.Sum256([]byte(string(node.UID) + "\n" + from.String()))
	suffix := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:suffixLength]
	const room = validation.DNS1123SubdomainMaxLength - suffixLength - 1
	return strings.TrimRight(node.Name[:min(len(node.Name), room)], ".-") + "-" + suffix
}

// TakesSeveral reports whether a node may have objects of several templates of this kind.
func TakesSeveral(template *unstructured.Unstructured) bool {
	_, several := template.GetAnnotations()[MultipleTemplatesAnnotation]
	return several
}
