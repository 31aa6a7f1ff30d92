package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeHealthCheck creates a remediation for nodes that are unhealthy for too long. When a node has
// had one of the unhealthy conditions for its duration, and not too many nodes are unhealthy, the
// controller creates an object from a template. The operator of that kind of object repairs the
// node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nodehealthchecks,scope=Cluster,shortName=nhc,categories=autohealer
// +kubebuilder:printcolumn:name=Mode,type=string,JSONPath=`.status.mode`,description="Enforce, Observe or Paused"
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

// NodeHealthCheckSpec is the desired behavior of a NodeHealthCheck.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minHealthy) || !has(self.maxUnhealthy)",message="give either minHealthy or maxUnhealthy, not both",fieldPath=".minHealthy"
// +kubebuilder:validation:XValidation:rule="has(self.remediationTemplate) || has(self.escalatingRemediations) && size(self.escalatingRemediations) > 0",message="want a remediationTemplate, or at least one of escalatingRemediations"
// +kubebuilder:validation:XValidation:rule="!has(self.remediationTemplate) || !has(self.escalatingRemediations) || size(self.escalatingRemediations) == 0",message="give either remediationTemplate or escalatingRemediations, not both"
type NodeHealthCheckSpec struct {
	// Selector selects the nodes by label. The default is all nodes. Use separate health checks for
	// the control plane and for workers, because the bound counts the nodes of a selector.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// UnhealthyConditions are the conditions that make a node unhealthy. Any of them is enough. The
	// default is Ready False or Unknown for 300s.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +listMapKey=status
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:default:={{type:Ready,status:False,duration:"300s"},{type:Ready,status:Unknown,duration:"300s"}}
	UnhealthyConditions []UnhealthyCondition `json:"unhealthyConditions,omitempty"`

	// MinHealthy is how many of the selected nodes must be healthy before a new remediation is
	// created, as a number or a percentage, which is rounded up. A node with a remediation is not
	// healthy yet. With 100%, no remediation is ever created. It is the opposite of maxUnhealthy.
	// Set only one of them.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 51%, of at most 100%"
	MinHealthy *intstr.IntOrString `json:"minHealthy,omitempty"`

	// MaxUnhealthy is how many of the selected nodes may be unhealthy or have a remediation while a
	// new remediation is created, as a number or a percentage, which is rounded up. With 0, no
	// remediation is ever created. The default is 49% if minHealthy is not set either.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 49%, of at most 100%"
	MaxUnhealthy *intstr.IntOrString `json:"maxUnhealthy,omitempty"`

	// StormCooldownDuration is how long no new remediation is created after a storm, for example 5m.
	// During a storm more nodes are unhealthy than the bound allows. The storm ends when the number
	// has been within the bound for this duration without interruption. Nodes do not all report at
	// the same moment that their common cause is gone, and the last of them need no remediation.
	// The default is no delay.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, for example 90s, 5m or 1h30m, that is not negative"
	StormCooldownDuration string `json:"stormCooldownDuration,omitempty"`

	// RemediationTemplate is the template of remediations. Its kind ends in Template. The
	// remediation has the kind without that suffix and is created in the namespace of the template.
	// Set either this or escalatingRemediations.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.kind) && self.kind.endsWith('Template') && self.kind != 'Template'",message="want a kind that ends in Template, for example SelfNodeRemediationTemplate",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) && self.apiVersion.indexOf('/') > 0",message="want a group and a version, for example self-node-remediation.medik8s.io/v1alpha1",fieldPath=".apiVersion"
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="want the name of the template",fieldPath=".name"
	RemediationTemplate *corev1.ObjectReference `json:"remediationTemplate,omitempty"`

	// EscalatingRemediations are tried in ascending order until the node is healthy. Set either
	// this or remediationTemplate.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(one, self.exists_one(other, other.order == one.order))",message="two of them have the same order: want every order once"
	EscalatingRemediations []EscalatingRemediation `json:"escalatingRemediations,omitempty"`

	// PauseRequests prevent new remediations while the list is not empty. Existing remediations
	// continue, nodes are counted, and remediations that are no longer needed are removed. Each
	// entry is free text that says who requests the pause and why.
	//
	// +optional
	PauseRequests []string `json:"pauseRequests,omitempty"`

	// HealthyDelay is how long a node must be healthy without interruption before its remediation
	// is removed, for example 5m. A negative value, for example -1s, means until a user confirms it with
	// the annotation remediation.medik8s.io/manually-confirmed-healthy on the node. The default is
	// no delay.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, for example 90s, 5m or 1h30m, or a negative duration like -1s to wait until a user confirms"
	HealthyDelay string `json:"healthyDelay,omitempty"`

	// Unreadable is why the fields above are empty: the stored object does not match the types. The
	// schema refuses such health checks, but they may have been stored under another schema.
	Unreadable string `json:"-"`
}

// UnhealthyCondition is a condition that makes a node unhealthy.
type UnhealthyCondition struct {
	// Type of the node condition, for example Ready.
	//
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	Type corev1.NodeConditionType `json:"type"`

	// Status that makes the node unhealthy: True, False or Unknown, in quotes where YAML would read
	// a boolean.
	//
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self == '' || self.lowerAscii() in ['true', 'false', 'unknown']",message="want True, False or Unknown"
	Status corev1.ConditionStatus `json:"status"`

	// Duration is how long the condition must have had that status, like
	// 300s or 5m.
	//
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, for example 90s, 5m or 1h30m, that is not negative"
	Duration string `json:"duration"`
}

// EscalatingRemediation is a step of the escalation.
type EscalatingRemediation struct {
	// RemediationTemplate is the template of the remediation.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.kind) && self.kind.endsWith('Template') && self.kind != 'Template'",message="want a kind that ends in Template, for example SelfNodeRemediationTemplate",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) && self.apiVersion.indexOf('/') > 0",message="want a group and a version, for example self-node-remediation.medik8s.io/v1alpha1",fieldPath=".apiVersion"
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="want the name of the template",fieldPath=".name"
	RemediationTemplate corev1.ObjectReference `json:"remediationTemplate"`

	// Order of the step. The smallest is tried first. Every step needs a different order.
	//
	// +required
	Order int64 `json:"order"`

	// Timeout is how long the remediation may take, for example 10m, before the next step. It is at
	// least a minute, so that two remediations do not work on a node at once. After the timeout of
	// the last step, the node is left unchanged.
	//
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, for example 90s, 5m or 1h30m, that is not negative"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$') || duration(self) >= duration('1m')",message="want at least a minute, for example 1m or 10m"
	Timeout string `json:"timeout"`
}

// NodeHealthCheckStatus is the observed state of a NodeHealthCheck. Empty fields are written too,
// so that a patch removes all previous values.
type NodeHealthCheckStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// ObservedNodes is how many nodes the selector selects.
	//
	// +optional
	ObservedNodes *int `json:"observedNodes"`

	// HealthyNodes is how many of them have neither an unhealthy condition, for however short a
	// time, nor a remediation.
	//
	// +optional
	HealthyNodes *int `json:"healthyNodes"`

	// InTreatment is how many nodes have a remediation.
	//
	// +optional
	InTreatment *int `json:"inTreatment"`

	// Mode is Enforce, Observe (by an annotation: no remediation starts) or Paused (by
	// pauseRequests: no new remediation starts).
	//
	// +optional
	Mode string `json:"mode,omitempty"`

	// MaxUnhealthyNodes is how many of the selected nodes may currently be unhealthy while a new
	// remediation is created, as maxUnhealthy or minHealthy say, or the default of 49%.
	//
	// +optional
	MaxUnhealthyNodes *int `json:"maxUnhealthyNodes,omitempty"`

	// UnhealthyNodes lists at most 200 of the nodes that are not healthy. Nodes with a remediation
	// come first.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	UnhealthyNodes []UnhealthyNode `json:"unhealthyNodes"`

	// InFlightRemediations is when the remediation of each node was created, by node name. Old
	// versions of medik8s' controller wrote it. The controller removes it: see unhealthyNodes.
	//
	// +optional
	InFlightRemediations map[string]metav1.Time `json:"inFlightRemediations"`

	// AcceptedSpec is the last accepted version of the spec. It stays in effect while a newer
	// version is invalid or would interrupt remediations. It is a text in JSON.
	//
	// +optional
	AcceptedSpec string `json:"acceptedSpec,omitempty"`

	// Conditions of the health check itself: Ready (it is in effect), Disabled (it is not), StormActive (more
	// nodes are unhealthy than the bound allows, or the cool-down after a storm is running),
	// StormCooldownActive (the cool-down is running), StandingBack (another controller manages
	// health checks).
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions"`

	// Phase is Disabled, Paused, Remediating while any node has a remediation, or else Enabled.
	//
	// +optional
	Phase Phase `json:"phase"`

	// Reason explains the phase.
	//
	// +optional
	Reason string `json:"reason"`

	// LastUpdateTime is when this status was written.
	//
	// +optional
	LastUpdateTime *metav1.Time `json:"lastUpdateTime"`
}

// UnhealthyNode is a node that is not healthy.
type UnhealthyNode struct {
	// Name of the node.
	Name string `json:"name"`

	// Remediations are the existing remediations of the node, oldest first.
	//
	// +optional
	Remediations []Remediation `json:"remediations,omitempty"`

	// ConditionsHealthyTimestamp is since when the node has no unhealthy condition. It is present
	// until its remediations are gone.
	//
	// +optional
	ConditionsHealthyTimestamp *metav1.Time `json:"conditionsHealthyTimestamp,omitempty"`

	// HealthyDelayed is true if only healthyDelay keeps the node from being counted as healthy.
	//
	// +optional
	HealthyDelayed *bool `json:"healthyDelayed,omitempty"`

	// Reason is a CamelCase word that explains why the node is under remediation or not: Treating,
	// Pending, GateClosed, Recovering and so on.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message is the reason as a sentence, as in the Events.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// Remediation is a remediation of a node.
type Remediation struct {
	// Resource is a reference to the remediation object.
	Resource corev1.ObjectReference `json:"resource"`

	// Started is when it was created.
	Started metav1.Time `json:"started"`

	// TimedOut is when it exceeded its timeout.
	//
	// +optional
	TimedOut *metav1.Time `json:"timedOut,omitempty"`

	// TemplateName is the name of its template.
	//
	// +optional
	TemplateName string `json:"templateName,omitempty"`
}

// Phase summarizes the state of a health check.
type Phase string

// The phases. If several apply, the first is reported.
const (
	PhaseDisabled    Phase = "Disabled"
	PhasePaused      Phase = "Paused"
	PhaseRemediating Phase = "Remediating"
	PhaseEnabled     Phase = "Enabled"
)

// The conditions of a health check.
const (
	// Ready means that the health check is in effect. Its message says what happens to the nodes.
	Ready = "Ready"
	// Disabled means that the health check is not in effect.
	Disabled = "Disabled"
	// StormActive means that more nodes are unhealthy than the bound allows, or that the cool-down
	// after a storm is running.
	StormActive = "StormActive"
	// StormCooldownActive means that the cool-down after a storm is running.
	StormCooldownActive = "StormCooldownActive"
	// StandingBack means that medik8s' own controller manages health checks, and that Autohealer
	// leaves them alone.
	StandingBack = "StandingBack"
)

// The reasons of the conditions.
const (
	// ReasonTemplateNotFound means that a template, or its kind, does not exist.
	ReasonTemplateNotFound = "RemediationTemplateNotFound"
	// ReasonTemplateInvalid means that a template cannot be used.
	ReasonTemplateInvalid = "RemediationTemplateInvalid"
	// ReasonInvalid means that a field of the spec is invalid.
	ReasonInvalid = "Invalid"
	// ReasonEnabled means that nothing disables the health check.
	ReasonEnabled = "NodeHealthCheckEnabled"
	// ReasonThresholdChange means that the number of unhealthy nodes crossed the bound in either
	// direction.
	ReasonThresholdChange = "HealthyNodeThresholdChange"
)

// MaxListedNodes is the maximum number of nodes in a status.
const MaxListedNodes = 200

// NodeHealthCheckList is a list of NodeHealthChecks.
//
// +kubebuilder:object:root=true
type NodeHealthCheckList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeHealthCheck `json:"items"`
}
