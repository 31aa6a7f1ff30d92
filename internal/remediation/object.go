package remediation

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Owner is a health check or a repair policy. Its UID tells it from a later one of that
// name.
type Owner struct {
	Kind, Name string
	UID        types.UID
}

// APIVersion is that of the owner's kind.
func (o Owner) APIVersion() string {
	if o.Kind == PolicyKind {
		return PolicyAPIVersion
	}
	return CheckAPIVersion
}

// Object is what is to be known of a remediation object: who asked for it, for
// which node, and how its remediator has answered.
type Object struct {
	schema.GroupVersionKind
	Namespace, Name string
	UID             types.UID
	ResourceVersion string

	// Owner is the policy that asked for it, zero if none of ours did.
	Owner Owner
	// Node is the name of the node that it is about, and NodeUID is empty if
	// whoever made the object did not note it.
	Node    string
	NodeUID types.UID
	// Template is the name of the template it was made from, empty if unknown.
	Template     string
	ControlPlane bool

	Created time.Time
	// Deleting says that it is on its way out, and DeletedAt since when; Finalizers
	// are whom it waits for.
	Deleting   bool
	DeletedAt  time.Time
	Finalizers []string

	// Succeeded and Failed are the remediator's word on how it went, at most one of
	// them; neither means that it is still at work.
	Succeeded, Failed bool
	// DeletesNode says that the remediator means the node to go for good.
	DeletesNode bool
	// TimedOut says that the remediator was told to stop, and TimedOutAt when; zero
	// if that cannot be read.
	TimedOut   bool
	TimedOutAt time.Time
	// HealthySince is what was noted of a node that is healthy again; zero if
	// nothing was, or if it cannot be read.
	HealthySince time.Time
}

// Read reads an object of any kind. What is missing or is not what it should be
// counts as not said.
func Read(u *unstructured.Unstructured) Object {
	annotations := u.GetAnnotations()
	o := Object{
		GroupVersionKind: u.GroupVersionKind(),
		Namespace:        u.GetNamespace(),
		Name:             u.GetName(),
		UID:              u.GetUID(),
		ResourceVersion:  u.GetResourceVersion(),
		Node:             annotations[NodeNameAnnotation],
		NodeUID:          types.UID(annotations[NodeUIDAnnotation]),
		Template:         annotations[TemplateNameAnnotation],
		Created:          u.GetCreationTimestamp().Time,
		Deleting:         u.GetDeletionTimestamp() != nil,
		Finalizers:       u.GetFinalizers(),
		HealthySince:     stamp(annotations[HealthyDelayAnnotation]),
		TimedOutAt:       stamp(annotations[TimedOutAnnotation]),
	}
	if o.Node == "" {
		o.Node = o.Name
	}
	if o.Deleting {
		o.DeletedAt = u.GetDeletionTimestamp().Time
	}
	_, o.TimedOut = annotations[TimedOutAnnotation]
	_, o.ControlPlane = u.GetLabels()[ControlPlaneLabel]
	for _, owner := range u.GetOwnerReferences() {
		if group, _, _ := strings.Cut(owner.APIVersion, "/"); owner.Kind == CheckKind && group == CheckGroup || owner.Kind == PolicyKind && group == PolicyGroup {
			o.Owner = Owner{Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
			break
		}
	}
	succeeded := condition(u.Object, SucceededCondition)
	o.Succeeded, o.Failed = succeeded == metav1.ConditionTrue, succeeded == metav1.ConditionFalse
	o.DeletesNode = condition(u.Object, DeletesNodeCondition) == metav1.ConditionTrue
	return o
}

// Noted returns the object as it is with annotations set, or removed where they are
// nil, in its new version.
func (o Object) Noted(notes map[string]*string, resourceVersion string) Object {
	o.ResourceVersion = resourceVersion
	if note, written := notes[TimedOutAnnotation]; written {
		o.TimedOut, o.TimedOutAt = note != nil, stampOf(note)
	}
	if note, written := notes[HealthyDelayAnnotation]; written {
		o.HealthySince = stampOf(note)
	}
	return o
}

func stampOf(note *string) time.Time {
	if note == nil {
		return time.Time{}
	}
	return stamp(*note)
}

// condition returns the status of the first condition of that type, empty if there
// is none.
func condition(object map[string]any, kind string) metav1.ConditionStatus {
	status, _ := object["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		fields, _ := c.(map[string]any)
		if fields["type"] == kind {
			text, _ := fields["status"].(string)
			return metav1.ConditionStatus(text)
		}
	}
	return ""
}

// stamp reads a time from an annotation, zero if it is none.
func stamp(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Stamp writes a time the way that annotations of the contract have it.
func Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// IsOf says whether the object is about this very node, and not about an earlier
// one of that name. Where nobody noted which node it was, an object that is older
// than the node is about another one.
func (o Object) IsOf(node *corev1.Node) bool {
	switch {
	case o.Node != node.Name:
		return false
	case o.NodeUID != "":
		return o.NodeUID == node.UID
	}
	return !o.Created.Before(node.CreationTimestamp.Truncate(time.Second))
}

// Step says which step of a ladder the object belongs to: the first template of its
// kind, namespace and name. The version of the kind may have changed since. An
// object that does not tell its template belongs to the first of its kind.
func (o Object) Step(ladder []Template) (int, bool) {
	for i, t := range ladder {
		sameKind := t.ObjectKind().GroupKind() == o.GroupKind()
		// A kind without namespaces is often referred to with one all the same.
		samePlace := o.Namespace == "" || o.Namespace == t.Namespace
		if sameKind && samePlace && (o.Template == "" || o.Template == t.Name) {
			return i, true
		}
	}
	return 0, false
}
