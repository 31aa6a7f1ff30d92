package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ConditionSet is a combination of node conditions that becomes a taint: while
// all of its conditions stand on a node, work is kept off that node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cset,categories=autohealer
// +kubebuilder:printcolumn:name=Type,type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name=Effect,type=string,JSONPath=`.spec.effect`
// +kubebuilder:printcolumn:name=Matched,type=integer,JSONPath=`.status.matched`,description="Nodes on which all conditions of the set stand"
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
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

// ConditionSetSpec is what a user asks for.
type ConditionSetSpec struct {
	// Type names the combination, as a condition type would be named.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="want a name of letters, digits, dashes, underscores and dots such as KubeletContainerRuntimeUnhealthy, or one with a domain before it such as example.com/FanBroken"
	Type string `json:"type"`

	// Effect of the taint. Of several sets that match one node, only those with
	// the highest effect place their taint: NoExecute before NoSchedule before
	// PreferNoSchedule.
	//
	// +required
	// +kubebuilder:validation:Enum=NoExecute;NoSchedule;PreferNoSchedule
	Effect corev1.TaintEffect `json:"effect"`

	// TaintKey is the key of the taint.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="want a domain of your own in small letters, a slash, and a name of at most 63 letters, digits, dashes, underscores and dots, such as example.com/KernelDeadlock; value and effect of the taint are not part of its key"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(kubernetes[.]io|k8s[.]io|x-k8s[.]io|karpenter[.]sh|k8s[.]aws|eks[.]amazonaws[.]com|cloud[.]google[.]com|kubernetes[.]azure[.]com|medik8s[.]io|cilium[.]io)/')",message="the key is reserved: those whom the domain belongs to place and remove such taints themselves; want a key in a domain of your own, such as example.com/KernelDeadlock"
	// +kubebuilder:validation:XValidation:rule="!(self in ['ToBeDeletedByClusterAutoscaler', 'DeletionCandidateOfClusterAutoscaler'])",message="the key is reserved: the Cluster Autoscaler places and removes such taints itself; want a key of your own, such as example.com/KernelDeadlock"
	TaintKey string `json:"taintKey"`

	// Conditions that must all stand, by condition type. A condition that a node
	// does not have does not stand.
	//
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(type, size(type) > 0 && size(type) <= 316)",message="a condition type has 1 to 316 characters; want one such as KernelDeadlock"
	// +kubebuilder:validation:XValidation:rule="self.all(type, !type.contains('=') && !type.contains(':') && !type.contains(' '))",message="a condition type has no spaces, colons or equals signs; want the type alone, such as KernelDeadlock, and its status below it, such as status: true"
	Conditions map[string]SetCondition `json:"conditions"`

	// Selector chooses the nodes by their labels; without it all nodes are
	// meant. Control-plane nodes get NoSchedule instead of NoExecute, unless the
	// selector asks for the label node-role.kubernetes.io/control-plane.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// MaxUnhealthy is how many of the selected nodes may carry this set's
	// NoExecute taint at once, as a number or a percentage; further nodes get
	// NoSchedule until there is room. 49% if nothing is said.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes such as 3, or a share such as 49%, of at most 100%"
	MaxUnhealthy *intstr.IntOrString `json:"maxUnhealthy,omitempty"`

	// DryRun: the set is judged and its status tells what it would do, but it
	// places no taint, and those that it has placed are taken back.
	//
	// +optional
	DryRun bool `json:"dryRun,omitempty"`

	// Unreadable says why the fields above are empty: what is stored does not
	// fit them. The schema lets no such set in, but sets outlive schemas.
	Unreadable string `json:"-"`
}

// SetCondition is what one condition of a set must look like.
type SetCondition struct {
	// Status that the condition must have: true, false or unknown, in any letter
	// case, with or without quotes.
	//
	// +required
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Status ConditionStatus `json:"status"`

	// Duration is how long the condition must have had that status, such as
	// 90s or 5m. Nothing means that it counts at once.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[+]?(0|(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, that is not negative"
	Duration string `json:"duration,omitempty"`

	// EvenSilent lets the status unknown match also when it only says that the
	// node's agent has stopped reporting (reason AgentSilent).
	//
	// +optional
	EvenSilent bool `json:"evenSilent,omitempty"`
}

// ConditionSetStatus is what has come of a set.
type ConditionSetStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// Selected is how many nodes the selector chooses.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Selected int32 `json:"selected"`

	// Matched is on how many of them all conditions stand.
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

	// Superseded is on how many nodes the taint of another set, with a higher
	// effect, stands in place of this one's.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Superseded int32 `json:"superseded"`

	// MaxTainted is how many nodes may have the NoExecute taint of the set now.
	// It is absent for the weaker effects, which have no bound.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxTainted *int32 `json:"maxTainted,omitempty"`

	// Nodes tells of the nodes that the set has something to say about: those
	// with its taint first, the longest-standing first, and no more than 20.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	Nodes []MatchedNode `json:"nodes"`

	// Conditions of the set itself: Accepted says whether it is followed,
	// HeldBack whether its bound keeps NoExecute from some nodes, OwnershipUnclear
	// whether nodes have its taint without a record that the controller placed it.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions"`
}

// MatchedNode is one node that a set has something to say about.
type MatchedNode struct {
	// Name of the node.
	Name string `json:"name"`
	// Reason in a word: Tainted, FellBack, Superseded, Pending and so on.
	Reason string `json:"reason"`
	// Message is the same reason in a sentence, as the Events tell it.
	Message string `json:"message"`
}

const (
	// Accepted is the condition that says whether a policy is followed.
	Accepted = "Accepted"
	// HeldBack is the condition that says whether a bound keeps a policy from
	// doing all that it asks for.
	HeldBack = "HeldBack"
	// OwnershipUnclear is the condition that says whether nodes have a taint with the
	// key and effect of a policy that no record proves to be the controller's.
	OwnershipUnclear = "OwnershipUnclear"

	// MaxListedNodes is how many nodes a status names.
	MaxListedNodes = 20
	// MaxTypeLength is how long the type of a set or a condition may be, as the
	// schema says too.
	MaxTypeLength = 316
	// MaxConditions is how many conditions a set may have, likewise.
	MaxConditions = 32

	// AcceptImpactAnnotation on a policy, with the value "true", lets it in
	// although it matches more nodes than its bound allows already now.
	AcceptImpactAnnotation = "autohealer.resourcestack.com/accept-impact"
)

// ConditionSetList is a list of sets.
//
// +kubebuilder:object:root=true
type ConditionSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ConditionSet `json:"items"`
}
