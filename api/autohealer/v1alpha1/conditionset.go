package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ConditionSet is a combination of node conditions that becomes a taint. While all of its
// conditions match on a node, the node has the taint.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:labels=app.kubernetes.io/part-of=autohealer
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cset,categories=autohealer
// +kubebuilder:printcolumn:name=Type,type=string,JSONPath=`.spec.type`,priority=1
// +kubebuilder:printcolumn:name=Effect,type=string,JSONPath=`.spec.effect`
// +kubebuilder:printcolumn:name=Mode,type=string,JSONPath=`.status.mode`,description="Enforce, Observe or Paused"
// +kubebuilder:printcolumn:name=Matched,type=integer,JSONPath=`.status.matched`,description="Nodes on which all conditions of the set match"
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name=Reason,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,description="What happens to the nodes, or why the set is not followed"
// +kubebuilder:printcolumn:name=Tainted,type=integer,JSONPath=`.status.tainted`,priority=1
// +kubebuilder:printcolumn:name=Held back,type=integer,JSONPath=`.status.heldBack`,priority=1,description="Nodes that have NoSchedule instead of NoExecute"
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type ConditionSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ConditionSetSpec `json:"spec"`
	// +optional
	Status ConditionSetStatus `json:"status,omitempty"`
}

// ConditionSetSpec is the desired behavior of a ConditionSet.
//
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || !has(self.dryRun) || self.dryRun == (self.mode == 'Observe')",message="dryRun and mode contradict each other: dryRun: true means mode: Observe; want mode alone, so remove dryRun",fieldPath=".dryRun"
type ConditionSetSpec struct {
	// Type names the combination, in the style of a condition type.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="want a name of letters, digits, dashes, underscores and dots like KubeletContainerRuntimeUnhealthy, or one with a domain before it like example.com/FanBroken"
	Type string `json:"type"`

	// Effect of the taint. If several sets match a node, only those with the highest effect set
	// their taint: NoExecute before NoSchedule before PreferNoSchedule.
	//
	// +required
	// +kubebuilder:validation:Enum=NoExecute;NoSchedule;PreferNoSchedule
	Effect corev1.TaintEffect `json:"effect"`

	// TaintKey is the key of the taint.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="want a domain of your own in small letters, a slash, and a name of at most 63 letters, digits, dashes, underscores and dots, like example.com/KernelDeadlock; value and effect of the taint are not part of its key"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(kubernetes[.]io|k8s[.]io|x-k8s[.]io|karpenter[.]sh|k8s[.]aws|eks[.]amazonaws[.]com|cloud[.]google[.]com|kubernetes[.]azure[.]com|medik8s[.]io|cilium[.]io)/')",message="the key is reserved: the owner of the domain places and removes taints with this key; want a key in a domain of your own, like example.com/KernelDeadlock"
	// +kubebuilder:validation:XValidation:rule="!(self in ['ToBeDeletedByClusterAutoscaler', 'DeletionCandidateOfClusterAutoscaler'])",message="the key is reserved: the Cluster Autoscaler places and removes such taints itself; want a key of your own, like example.com/KernelDeadlock"
	TaintKey string `json:"taintKey"`

	// Conditions that must all match, by condition type. A condition that the node does not have
	// does not match.
	//
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(type, size(type) > 0 && size(type) <= 316)",message="a condition type has 1 to 316 characters; want one like KernelDeadlock"
	// +kubebuilder:validation:XValidation:rule="self.all(type, !type.contains('=') && !type.contains(':') && !type.contains(' '))",message="a condition type has no spaces, colons or equals signs; want the type alone, for example KernelDeadlock, and its status below it, for example status: true"
	Conditions map[string]SetCondition `json:"conditions"`

	// Selector selects the nodes by label. The default is all nodes. Control-plane nodes get
	// NoSchedule instead of NoExecute, unless the selector contains the label
	// node-role.kubernetes.io/control-plane.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// MaxUnhealthy is how many of the selected nodes may have this set's NoExecute taint at once,
	// as a number or a percentage. Further nodes get NoSchedule until a place is free. The default
	// is 49%.
	//
	// +optional
	// +kubebuilder:default:="49%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 49%, of at most 100%"
	MaxUnhealthy *intstr.IntOrString `json:"maxUnhealthy,omitempty"`

	// Mode says whether the set acts. Observe evaluates the set and reports in its status what it
	// would do. The set adds no taints, and its existing taints are removed. The default is Enforce.
	//
	// +optional
	Mode PolicyMode `json:"mode,omitempty"`

	// DryRun with the value true means the same as mode: Observe.
	//
	// +optional
	DryRun bool `json:"dryRun,omitempty"`

	// Windows are when NoExecute taints may be added. At other times matching nodes get NoSchedule,
	// and NoExecute when a window opens. Existing taints stay. The default is at any time.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Windows []Window `json:"windows,omitempty"`

	// Unreadable is why the fields above are empty: the stored object does not match the types. The
	// schema refuses such objects, but an object may be older than the schema.
	Unreadable string `json:"-"`
}

// SetCondition defines when a condition of a set matches.
type SetCondition struct {
	// Status that the condition must have: true, false or unknown, in any case, with or without
	// quotes. Yes and on mean true, no and off mean false.
	//
	// +required
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Status ConditionStatus `json:"status"`

	// Duration is how long the condition must have had that status, for example 90s or 5m. The default
	// is no delay.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[+]?(0|(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$')",message="want a duration with its unit, for example 90s, 5m or 1h30m, that is not negative"
	Duration string `json:"duration,omitempty"`

	// EvenSilent lets the status unknown match also if it only means that the node's agent has
	// stopped reporting (reason AgentSilent).
	//
	// +optional
	EvenSilent bool `json:"evenSilent,omitempty"`
}

// ConditionSetStatus is the observed state of a ConditionSet.
type ConditionSetStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// Mode is Enforce, Observe (the set places no taint) or Paused (by an annotation: the set places no
	// new taint).
	//
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// Selected is how many nodes the selector selects.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Selected int32 `json:"selected"`

	// Matched is on how many of them all conditions match.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Matched int32 `json:"matched"`

	// Tainted is how many nodes have the taint with the effect of the set.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Tainted int32 `json:"tainted"`

	// HeldBack is how many nodes have NoSchedule instead of NoExecute.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	HeldBack int32 `json:"heldBack"`

	// Superseded is how many nodes have the taint of another set with a higher effect instead of
	// this one's.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Superseded int32 `json:"superseded"`

	// MaxTainted is how many nodes may currently have the set's NoExecute taint. It is absent for
	// weaker effects, which have no bound.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxTainted *int32 `json:"maxTainted,omitempty"`

	// Nodes lists at most 20 of the nodes that this set concerns. Nodes with its taint come first,
	// oldest taint first.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	Nodes []MatchedNode `json:"nodes"`

	// AcceptedSpec is the last version of the spec that was accepted without reservation. It stays
	// in effect while a newer version is invalid. It is a text in JSON, so that a patch replaces it
	// as a whole.
	//
	// +optional
	AcceptedSpec string `json:"acceptedSpec,omitempty"`

	// Conditions of the set itself: Ready and Accepted (the set is in effect), HeldBack (its bound keeps
	// NoExecute from some nodes), OwnershipUnclear (nodes have its taint without a record that the
	// controller set it).
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions"`
}

// MatchedNode is a node that a set concerns.
type MatchedNode struct {
	// Name of the node.
	Name string `json:"name"`
	// Reason is a CamelCase word: Tainted, FellBack, Superseded, Pending and so on.
	Reason string `json:"reason"`
	// Message is the reason as a sentence, as in the Events.
	Message string `json:"message"`
}

const (
	// Ready is the condition that every policy has: whether it is in effect. Its message says what
	// happens to the nodes.
	Ready = "Ready"
	// Accepted is the condition that tells whether a policy is in effect.
	Accepted = "Accepted"
	// HeldBack is the condition that tells whether a bound prevents some of a policy's actions.
	HeldBack = "HeldBack"
	// OwnershipUnclear is the condition that tells whether nodes have a taint with the key and
	// effect of a policy, without a record that the controller set it.
	OwnershipUnclear = "OwnershipUnclear"

	// MaxListedNodes is the maximum number of nodes in a status.
	MaxListedNodes = 20
	// MaxTypeLength is the maximum length of the type of a set or condition. The schema has the
	// same limit.
	MaxTypeLength = 316
	// MaxConditions is the maximum number of conditions of a set. The schema has the same limit.
	MaxConditions = 32

	// AcceptImpactAnnotation with the value "true" admits a policy that would already match more
	// nodes than its bound allows.
	AcceptImpactAnnotation = "autohealer.resourcestack.com/accept-impact"

	// MirrorLabel marks an object that the controller writes to show a policy that another object
	// contains. Its value is the kind of that object: NodePool or ConfigMap.
	MirrorLabel = "autohealer.resourcestack.com/mirror"
)

// ConditionSetList is a list of ConditionSets.
//
// +kubebuilder:object:root=true
type ConditionSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ConditionSet `json:"items"`
}
