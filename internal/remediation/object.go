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

// Owner is a health check or a repair policy. The UID distinguishes it from a later object
// of the same name.
type Owner struct {
	Kind, Name string
	UID        types.UID
}

// APIVersion is the API version of the owner's kind.
func (o Owner) APIVersion() string {
	if o.Kind == PolicyKind {
		return PolicyAPIVersion
	}
	return CheckAPIVersion
}

// Object is the content of a remediation object: its owner, its node, and the answer of
// its remediator.
type Object struct {
	schema.GroupVersionKind
	Namespace, Name string
	UID             types.UID
	ResourceVersion string

	// Owner is the policy that requested it, zero if it is not a policy of Autohealer.
	Owner Owner
	// Node is the name of the node. NodeUID is empty if the creator of the object did not
	// record it.
	Node    string
	NodeUID types.UID
	// Template is the name of the template, empty if unknown.
	Template     string
	ControlPlane bool

	Created time.Time
	// Deleting says that the object is being deleted, since DeletedAt. Finalizers are the
	// finalizers that still block it.
	Deleting   bool
	DeletedAt  time.Time
	Finalizers []string

	// Succeeded and Failed are the remediator's result. At most one is true; if neither
	// is, the remediation is in progress.
	Succeeded, Failed bool
	// DeletesNode says that the remediator deletes the node permanently.
	DeletesNode bool
	// TimedOut says that the remediator was told to stop, at TimedOutAt; zero if the time
	// is unreadable.
	TimedOut   bool
	TimedOutAt time.Time
	// IsOld says that the object has the annotation of old objects.
	IsOld bool
	// HealthySince is since when the node is healthy again; zero if not recorded or
	// unreadable.
	HealthySince time.Time
}

// ObjectChange is a change of a remediation object.
type ObjectChange int

// The changes. ObjectExists comes with every version of an object.
const (
	ObjectExists ObjectChange = iota
	ObjectIsOld               // it exists for longer than OldAfter
	ObjectIsGone
)

// Read reads an object of any kind. It treats missing and malformed fields as unset.
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
		HealthySince:     parseTime(annotations[HealthyDelayAnnotation]),
		TimedOutAt:       parseTime(annotations[TimedOutAnnotation]),
	}
	if o.Node == "" {
		o.Node = o.Name
	}
	if o.Deleting {
		o.DeletedAt = u.GetDeletionTimestamp().Time
	}
	_, o.TimedOut = annotations[TimedOutAnnotation]
	_, o.IsOld = annotations[OldAnnotation]
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

// Noted returns the object with the annotations set, or removed if nil, and with the new
// resourceVersion.
func (o Object) Noted(notes map[string]*string, resourceVersion string) Object {
	o.ResourceVersion = resourceVersion
	if note, written := notes[TimedOutAnnotation]; written {
		o.TimedOut, o.TimedOutAt = note != nil, parseOptionalTime(note)
	}
	if note, written := notes[OldAnnotation]; written {
		o.IsOld = note != nil
	}
	if note, written := notes[HealthyDelayAnnotation]; written {
		o.HealthySince = parseOptionalTime(note)
	}
	return o
}

func parseOptionalTime(note *string) time.Time {
	if note == nil {
		return time.Time{}
	}
	return parseTime(*note)
}

// condition returns the status of the first condition of this type; "" if there is none.
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

// parseTime reads a time from an annotation; zero if it is malformed.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Stamp formats a time for the annotations of the contract.
func Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// IsOf reports whether the object is about this node, and not about an earlier node of the
// same name. If the object has no node UID, it must not be older than the node.
func (o Object) IsOf(node *corev1.Node) bool {
	switch {
	case o.Node != node.Name:
		return false
	case o.NodeUID != "":
		return o.NodeUID == node.UID
	}
	return !o.Created.Before(node.CreationTimestamp.Truncate(time.Second))
}

// Step returns the step of a ladder that the object belongs to: the first template of its
// kind, namespace and name. It ignores the version of the kind, which may have changed. An
// object without a template name belongs to the first template of its kind.
func (o Object) Step(ladder []Template) (int, bool) {
	for i, t := range ladder {
		sameKind := t.ObjectKind().GroupKind() == o.GroupKind()
		// Users often write a namespace for cluster-scoped kinds, too.
		samePlace := o.Namespace == "" || o.Namespace == t.Namespace
		if sameKind && samePlace && (o.Template == "" || o.Template == t.Name) {
			return i, true
		}
	}
	return 0, false
}
