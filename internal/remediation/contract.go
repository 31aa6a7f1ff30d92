package remediation

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Kinds that own remediations, as in owner references.
const (
	CheckGroup      = "remediation.medik8s.io"
	CheckAPIVersion = CheckGroup + "/v1alpha1"
	CheckKind       = "NodeHealthCheck"

	PolicyGroup      = "autohealer.resourcestack.com"
	PolicyAPIVersion = PolicyGroup + "/v1alpha1"
	PolicyKind       = "RepairPolicy"
)

// Annotations and labels of a remediation object.
const (
	// NodeNameAnnotation is the name of the node. Without it, the object has the name of
	// the node.
	NodeNameAnnotation = "remediation.medik8s.io/node-name"
	// TemplateNameAnnotation is the name of the template.
	TemplateNameAnnotation = "remediation.medik8s.io/template-name"
	// NodeUIDAnnotation is Autohealer's own: the UID of the node, which distinguishes it
	// from a later node of the same name.
	NodeUIDAnnotation = "autohealer.resourcestack.com/node-uid"
	// TimedOutAnnotation tells the remediator that its time is over, and since when (RFC
	// 3339).
	TimedOutAnnotation = "remediation.medik8s.io/nhc-timed-out"
	// HealthyDelayAnnotation is since when the node is healthy again (RFC 3339), while
	// the object is kept for a while.
	HealthyDelayAnnotation = "remediation.medik8s.io/healthy-delay"

	// OldAnnotation has the value OldValue on an object that exists for longer than OldAfter
	// while its node is unhealthy. medik8s alerts on it.
	OldAnnotation = "nodehealthcheck.medik8s.io/old-remediation-cr-flag"
	OldValue      = "flagon"
	OldAfter      = 48 * time.Hour

	// PartOfLabel has the value PartOf on every remediation object.
	PartOfLabel = "app.kubernetes.io/part-of"
	PartOf      = "node-healthcheck-controller"
	// ControlPlaneLabel is on the objects of control-plane nodes, with an empty value.
	ControlPlaneLabel = "remediation.medik8s.io/isControlPlaneNode"
)

// MultipleTemplatesAnnotation on a template says that its remediator accepts several
// objects for one node, from several templates of one kind.
const MultipleTemplatesAnnotation = "remediation.medik8s.io/multiple-templates-support"

// Label and annotation that users set on a node.
const (
	// ExcludeLabel with the value ExcludeValue excludes the node from remediation.
	ExcludeLabel = "remediation.medik8s.io/exclude-from-remediation"
	ExcludeValue = "true"
	// ConfirmedAnnotation says that a user has confirmed that the node is healthy.
	ConfirmedAnnotation = "remediation.medik8s.io/manually-confirmed-healthy"
)

// Conditions in which a remediator answers.
const (
	SucceededCondition   = "Succeeded"
	DeletesNodeCondition = "PermanentNodeDeletionExpected"
)

// controlPlaneRoles are the labels of control-plane nodes: the current one, and that of
// old clusters.
var controlPlaneRoles = [...]string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// IsControlPlane reports whether remediators are told that a node belongs to the control
// plane.
func IsControlPlane(node *corev1.Node) bool {
	for _, role := range controlPlaneRoles {
		if _, has := node.Labels[role]; has {
			return true
		}
	}
	return false
}
