package remediation

import (
	corev1 "k8s.io/api/core/v1"
)

// Who asks for remediations, as owner references name them.
const (
	CheckGroup      = "remediation.medik8s.io"
	CheckAPIVersion = CheckGroup + "/v1alpha1"
	CheckKind       = "NodeHealthCheck"

	PolicyGroup      = "autohealer.resourcestack.com"
	PolicyAPIVersion = PolicyGroup + "/v1alpha1"
	PolicyKind       = "RepairPolicy"
)

// What stands on a remediation object.
const (
	// NodeNameAnnotation is the node that it is about. Without it, the object's
	// name is the node's.
	NodeNameAnnotation = "remediation.medik8s.io/node-name"
	// TemplateNameAnnotation is the template that it was made from.
	TemplateNameAnnotation = "remediation.medik8s.io/template-name"
	// NodeUIDAnnotation is our own: the very node that it is about, and not a later
	// one of that name.
	NodeUIDAnnotation = "autohealer.resourcestack.com/node-uid"
	// TimedOutAnnotation tells the remediator that its time is up, and when it was
	// (RFC 3339).
	TimedOutAnnotation = "remediation.medik8s.io/nhc-timed-out"
	// HealthyDelayAnnotation is since when the node is healthy again (RFC 3339),
	// while the object stays for a while yet.
	HealthyDelayAnnotation = "remediation.medik8s.io/healthy-delay"

	// PartOfLabel has the value PartOf on every remediation object.
	PartOfLabel = "app.kubernetes.io/part-of"
	PartOf      = "node-healthcheck-controller"
	// ControlPlaneLabel is on the objects of control-plane nodes, without a value.
	ControlPlaneLabel = "remediation.medik8s.io/isControlPlaneNode"
)

// MultipleTemplatesAnnotation says, on a template, that its remediator takes
// several objects for one node, from several templates of one kind.
const MultipleTemplatesAnnotation = "remediation.medik8s.io/multiple-templates-support"

// What people put on a node.
const (
	// ExcludeLabel with the value ExcludeValue asks that the node be left alone.
	ExcludeLabel = "remediation.medik8s.io/exclude-from-remediation"
	ExcludeValue = "true"
	// ConfirmedAnnotation says that somebody has looked and found the node healthy.
	ConfirmedAnnotation = "remediation.medik8s.io/manually-confirmed-healthy"
)

// The conditions by which a remediator answers.
const (
	SucceededCondition   = "Succeeded"
	DeletesNodeCondition = "PermanentNodeDeletionExpected"
)

// controlPlaneRoles are the labels by which a node of the control plane is known:
// the one of today, and the one of old clusters.
var controlPlaneRoles = [...]string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// IsControlPlane says whether remediators are told that a node is one of the
// control plane.
func IsControlPlane(node *corev1.Node) bool {
	for _, role := range controlPlaneRoles {
		if _, has := node.Labels[role]; has {
			return true
		}
	}
	return false
}
