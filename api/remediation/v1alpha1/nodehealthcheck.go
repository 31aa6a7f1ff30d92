package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeHealthCheck turns conditions over time into remediation: when one of its
// conditions has stood on a node for long enough, and not too many nodes are
// sick, an object is made from a template, and whoever serves that kind of
// object brings the node back.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nodehealthchecks,scope=Cluster,shortName=nhc
// +kubebuilder:printcolumn:name=Observed,type=integer,JSONPath=`.status.observedNodes`,description="Nodes that the selector chooses"
// +kubebuilder:printcolumn:name=Healthy,type=integer,JSONPath=`.status.healthyNodes`
// +kubebuilder:printcolumn:name=Treated,type=integer,JSONPath=`.status.inTreatment`,description="Nodes with a remediation"
// +kubebuilder:printcolumn:name=Phase,type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name=Reason,type=string,JSONPath=`.status.reason`,description="Why the phase is what it is"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type NodeHealthCheck struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NodeHealthCheckSpec `json:"spec"`
	// +optional
	Status NodeHealthCheckStatus `json:"status,omitempty"`
}

// NodeHealthCheckSpec is what a user asks for.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minHealthy) || !has(self.maxUnhealthy)",message="give either minHealthy or maxUnhealthy, not both",fieldPath=".minHealthy"
// +kubebuilder:validation:XValidation:rule="has(self.remediationTemplate) || has(self.escalatingRemediations) && size(self.escalatingRemediations) > 0",message="want a remediationTemplate, or at least one of escalatingRemediations"
// +kubebuilder:validation:XValidation:rule="!has(self.remediationTemplate) || !has(self.escalatingRemediations) || size(self.escalatingRemediations) == 0",message="give either remediationTemplate or escalatingRemediations, not both"
type NodeHealthCheckSpec struct {
	// Selector chooses the nodes by their labels; without it all nodes are
	// meant. Have one health check for the control plane and others for the
	// workers: the bound counts those that one selector chooses.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// UnhealthyConditions are the signs of sickness, any one of which is
	// enough. Ready False or Unknown for 300s if nothing is said.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +listMapKey=status
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:default:={{type:Ready,status:False,duration:"300s"},{type:Ready,status:Unknown,duration:"300s"}}
	UnhealthyConditions []UnhealthyCondition `json:"unhealthyConditions,omitempty"`

	// MinHealthy is how many of the selected nodes must be healthy for anything
	// new to be begun, as a number or a percentage, which is rounded up. A node
	// whose remediation is still there is not healthy yet. 100% means that
	// nothing is ever begun. It says the same as maxUnhealthy from the other
	// side; give one of them.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes such as 3, or a share such as 51%, of at most 100%"
	MinHealthy *intstr.IntOrString `json:"minHealthy,omitempty"`

	// MaxUnhealthy is how many of the selected nodes may be sick, or have a
	// remediation, for anything new to be begun, as a number or a percentage,
	// which is rounded up. 0 means that nothing is ever begun. 49% if neither
	// this nor minHealthy is given.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes such as 3, or a share such as 49%, of at most 100%"
	MaxUnhealthy *intstr.IntOrString `json:"maxUnhealthy,omitempty"`

	// StormCooldownDuration is for how long after a storm nothing new is begun,
	// such as 5m. A storm is when more nodes are sick than the bound allows; it
	// is over when the number has been within the bound for so long without a
	// break. Nodes do not all report at the same moment that their common
	// trouble is gone, and the last of them need no remediation. Nothing means
	// that there is no such wait.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, that is not negative"
	StormCooldownDuration string `json:"stormCooldownDuration,omitempty"`

	// RemediationTemplate names the template that a remediation is made from.
	// Its kind ends in Template; what is made is of the kind without that word,
	// in the namespace of the template. Give this or escalatingRemediations.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.kind) && self.kind.endsWith('Template') && self.kind != 'Template'",message="want a kind that ends in Template, such as SelfNodeRemediationTemplate",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) && self.apiVersion.indexOf('/') > 0",message="want a group and a version, such as self-node-remediation.medik8s.io/v1alpha1",fieldPath=".apiVersion"
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="want the name of the template",fieldPath=".name"
	RemediationTemplate *corev1.ObjectReference `json:"remediationTemplate,omitempty"`

	// EscalatingRemediations are tried one after the other, the smallest order
	// first, until the node is healthy again. Give this or remediationTemplate.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(one, self.exists_one(other, other.order == one.order))",message="two of them have the same order: want every order once"
	EscalatingRemediations []EscalatingRemediation `json:"escalatingRemediations,omitempty"`

	// PauseRequests, while there are any, keep everything new from being begun.
	// What is under way goes on, nodes are counted, and what is no longer needed
	// is removed. Each says, in whatever words, who asks for it and why.
	//
	// +optional
	PauseRequests []string `json:"pauseRequests,omitempty"`

	// HealthyDelay is for how long a node must have been healthy without a break
	// before its remediation is removed, such as 5m. A negative one, such as
	// -1s, means until somebody confirms it by the annotation
	// remediation.medik8s.io/manually-confirmed-healthy on the node. Nothing
	// means at once.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, or a negative one such as -1s to wait for somebody to confirm"
	HealthyDelay string `json:"healthyDelay,omitempty"`

	// Unreadable says why the fields above are empty: what is stored does not
	// fit them. The schema lets no such health check in, but those that it holds
	// may have been stored under another one.
	Unreadable string `json:"-"`
}

// UnhealthyCondition is one sign of sickness.
type UnhealthyCondition struct {
	// Type of the node's condition, such as Ready.
	//
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	Type corev1.NodeConditionType `json:"type"`

	// Status of the condition that is the sign: True, False or Unknown, in
	// quotes where YAML would take it for a boolean.
	//
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self == '' || self.lowerAscii() in ['true', 'false', 'unknown']",message="want True, False or Unknown"
	Status corev1.ConditionStatus `json:"status"`

	// Duration is how long the condition must have had that status, such as
	// 300s or 5m.
	//
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, that is not negative"
	Duration string `json:"duration"`
}

// EscalatingRemediation is one remediation that is tried.
type EscalatingRemediation struct {
	// RemediationTemplate names the template that a remediation is made from.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.kind) && self.kind.endsWith('Template') && self.kind != 'Template'",message="want a kind that ends in Template, such as SelfNodeRemediationTemplate",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) && self.apiVersion.indexOf('/') > 0",message="want a group and a version, such as self-node-remediation.medik8s.io/v1alpha1",fieldPath=".apiVersion"
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="want the name of the template",fieldPath=".name"
	RemediationTemplate corev1.ObjectReference `json:"remediationTemplate"`

	// Order says when its turn is: the smallest is tried first. No two are the
	// same.
	//
	// +required
	Order int64 `json:"order"`

	// Timeout is how long the remediation may take, such as 10m, before the next
	// is tried; at least a minute, so that two are not at work on a node at
	// once. When the last has timed out, the node is left as it is.
	//
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, that is not negative"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$') || duration(self) >= duration('1m')",message="want at least a minute, such as 1m or 10m"
	Timeout string `json:"timeout"`
}

// NodeHealthCheckStatus is what has come of a health check. A field that is
// empty is written all the same, so that a status which is patched in leaves
// nothing of the one before.
type NodeHealthCheckStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// ObservedNodes is how many nodes the selector chooses.
	//
	// +optional
	ObservedNodes *int `json:"observedNodes"`

	// HealthyNodes is how many of them neither show a sign of sickness, for
	// however short a time, nor have a remediation.
	//
	// +optional
	HealthyNodes *int `json:"healthyNodes"`

	// InTreatment is how many nodes have a remediation.
	//
	// +optional
	InTreatment *int `json:"inTreatment"`

	// UnhealthyNodes tells of the nodes that are not healthy: those with a
	// remediation first, and no more than 200.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	UnhealthyNodes []UnhealthyNode `json:"unhealthyNodes"`

	// InFlightRemediations is when the remediation of a node was begun, by the
	// name of the node. It was written by old versions of medik8s' controller,
	// and is removed: see unhealthyNodes.
	//
	// +optional
	InFlightRemediations map[string]metav1.Time `json:"inFlightRemediations"`

	// Conditions of the health check itself: Disabled while it cannot be
	// followed, StormActive while more nodes are sick than its bound allows or
	// the wait after that runs, StormCooldownActive while that wait runs,
	// StandingBack while another controller follows the health checks.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions"`

	// Phase in a word: Disabled, or Paused, or Remediating while any node has a
	// remediation, or else Enabled.
	//
	// +optional
	Phase Phase `json:"phase"`

	// Reason says why the phase is what it is.
	//
	// +optional
	Reason string `json:"reason"`

	// LastUpdateTime is when this status was written.
	//
	// +optional
	LastUpdateTime *metav1.Time `json:"lastUpdateTime"`
}

// UnhealthyNode is one node that is not healthy.
type UnhealthyNode struct {
	// Name of the node.
	Name string `json:"name"`

	// Remediations of the node that are there, in the order in which they were
	// begun.
	//
	// +optional
	Remediations []Remediation `json:"remediations,omitempty"`

	// ConditionsHealthyTimestamp is since when no sign of sickness stands on the
	// node any more. It is told until its remediations are gone.
	//
	// +optional
	ConditionsHealthyTimestamp *metav1.Time `json:"conditionsHealthyTimestamp,omitempty"`

	// HealthyDelayed says that only healthyDelay keeps the node from being
	// counted as healthy.
	//
	// +optional
	HealthyDelayed *bool `json:"healthyDelayed,omitempty"`

	// Reason in a word why the node is treated, or is not: Treating, Pending,
	// GateClosed, Recovering and so on.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message is the same reason in a sentence, as the Events tell it.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// Remediation is one remediation of a node.
type Remediation struct {
	// Resource names the object that was made.
	Resource corev1.ObjectReference `json:"resource"`

	// Started is when it was made.
	Started metav1.Time `json:"started"`

	// TimedOut is when it had taken longer than its timeout.
	//
	// +optional
	TimedOut *metav1.Time `json:"timedOut,omitempty"`

	// TemplateName is the name of the template that it was made from.
	//
	// +optional
	TemplateName string `json:"templateName,omitempty"`
}

// Phase is what a health check is at, in a word.
type Phase string

// The phases; of several that would be right, the first is told.
const (
	PhaseDisabled    Phase = "Disabled"
	PhasePaused      Phase = "Paused"
	PhaseRemediating Phase = "Remediating"
	PhaseEnabled     Phase = "Enabled"
)

// The conditions of a health check.
const (
	// Disabled says that the health check cannot be followed.
	Disabled = "Disabled"
	// StormActive says that more nodes are sick than the bound allows, or that
	// the wait after such a storm runs.
	StormActive = "StormActive"
	// StormCooldownActive says that the wait after a storm runs.
	StormCooldownActive = "StormCooldownActive"
	// StandingBack says that medik8s' own controller follows the health checks,
	// and that Autohealer leaves them to it.
	StandingBack = "StandingBack"
)

// The reasons of the conditions.
const (
	// ReasonTemplateNotFound: a template, or its kind, is not there.
	ReasonTemplateNotFound = "RemediationTemplateNotFound"
	// ReasonTemplateInvalid: nothing can be made from a template.
	ReasonTemplateInvalid = "RemediationTemplateInvalid"
	// ReasonInvalid: a field of the spec says nothing that could be followed.
	ReasonInvalid = "Invalid"
	// ReasonEnabled: nothing disables the health check.
	ReasonEnabled = "NodeHealthCheckEnabled"
	// ReasonThresholdChange: the number of sick nodes has passed the bound, one
	// way or the other.
	ReasonThresholdChange = "HealthyNodeThresholdChange"
)

// MaxListedNodes is how many nodes a status names.
const MaxListedNodes = 200

// NodeHealthCheckList is a list of health checks.
//
// +kubebuilder:object:root=true
type NodeHealthCheckList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeHealthCheck `json:"items"`
}
