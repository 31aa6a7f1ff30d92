package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Guardrails limit what all policies together may do to the nodes of the cluster. They apply in
// addition to the bounds of each policy. There is one object, and its name is cluster. Without the
// object the defaults apply.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:labels=app.kubernetes.io/part-of=autohealer
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=guardrails,singular=guardrails,scope=Cluster,shortName=gr,categories=autohealer
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster'",message="the cluster has one Guardrails object; want metadata.name: cluster",fieldPath=".metadata"
// +kubebuilder:printcolumn:name=Mode,type=string,JSONPath=`.status.mode`,description="The mode in force"
// +kubebuilder:printcolumn:name=Nodes,type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name=Unhealthy,type=integer,JSONPath=`.status.unhealthy`,description="Nodes that some policy considers unhealthy"
// +kubebuilder:printcolumn:name=In Treatment,type=integer,JSONPath=`.status.inTreatment`,description="Nodes in a disruptive treatment"
// +kubebuilder:printcolumn:name=Held,type=integer,JSONPath=`.status.held`,description="Nodes that are due for treatment, and that the guardrails hold back"
// +kubebuilder:printcolumn:name=Reason,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,description="What the guardrails hold back, or why this version is not in force"
// +kubebuilder:printcolumn:name=Unschedulable,type=integer,JSONPath=`.status.unschedulable`,priority=1,description="Nodes that are closed to new pods"
// +kubebuilder:printcolumn:name=Given Up,type=integer,JSONPath=`.status.givenUp`,priority=1,description="Nodes that have reached maxAttempts"
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,priority=1
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type Guardrails struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:default:={}
	Spec GuardrailsSpec `json:"spec,omitzero"`
	// +optional
	Status GuardrailsStatus `json:"status,omitempty"`
}

// GuardrailsSpec is the desired behavior of the Guardrails.
type GuardrailsSpec struct {
	// All lists are atomic. Server-side apply would merge lists of other types with their default,
	// so that a user could not remove an entry of the default.

	// Mode says whether the policies act. Enforce lets them act within the guardrails. Observe
	// evaluates, counts and explains everything and starts nothing. Paused starts nothing new
	// anywhere: running steps may finish, and recovery and clean-up continue. In Observe and Paused
	// existing taints stay until their conditions recover. The default is Enforce.
	//
	// +optional
	// +kubebuilder:default:=Enforce
	// +kubebuilder:validation:Enum=Enforce;Observe;Paused
	Mode Mode `json:"mode,omitempty"`

	// Enforce lists the stages that act in mode Enforce: Taint (ConditionSets), Remediate
	// (NodeHealthChecks) and Repair (repair policies and the ready timeout). The other stages
	// behave as in mode Observe. The default is all three. With an empty list, [], no stage acts.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:default:={Taint,Remediate,Repair}
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a == b))",message="a stage is named twice; want each stage once"
	Enforce []Stage `json:"enforce,omitzero"`

	// MaxInTreatment is how many nodes may be in a disruptive treatment at once, all policies
	// together: a NoExecute taint, a remediation, a termination or a drain. It is a number, or a
	// percentage of all nodes, which is rounded down to at least 1. 0 means that no treatment
	// starts. The last node that is Ready and schedulable is never treated. The default is 49%.
	//
	// +optional
	// +kubebuilder:default:="49%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 49%, of at most 100%"
	MaxInTreatment *intstr.IntOrString `json:"maxInTreatment,omitempty"`

	// MaxUnschedulable is how many nodes may be closed to new pods at once. Taints of all policies,
	// cordons by other people and node.kubernetes.io taints count. Permanent taints do not: control
	// plane, dedicated nodes, GPUs. At the limit new taints wait. It is a number, or a percentage of all
	// nodes, which is rounded down to at least 1. The last node that is Ready and schedulable is
	// never closed. The default is 49%.
	//
	// +optional
	// +kubebuilder:default:="49%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 49%, of at most 100%"
	MaxUnschedulable *intstr.IntOrString `json:"maxUnschedulable,omitempty"`

	// Pace limits how many remediations, terminations and drains may start within a period, all
	// policies together. Taints are not paced. The default is 10% of the nodes, at least 2, per
	// minute.
	//
	// +optional
	// +kubebuilder:default:={}
	Pace Pace `json:"pace,omitzero"`

	// Topology limits how many nodes with the same value of a label may be in a disruptive treatment
	// at once. A label with a single value in the cluster is ignored. The default is 49% of a zone.
	// An empty list, [], sets no such limit.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:default:={{key: "topology.kubernetes.io/zone", max: "49%"}}
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.key == b.key))",message="a key is named twice; want one limit for each key"
	Topology []TopologyLimit `json:"topology,omitzero"`

	// CorrelatedFailure stops new treatments in a part of the cluster where many nodes become
	// unhealthy within a short time: the cause is then probably not in the nodes. The default is more
	// than 50%, and at least 3 nodes, of one zone, node pool, instance type or image within 5m.
	//
	// +optional
	// +kubebuilder:default:={}
	CorrelatedFailure CorrelatedFailure `json:"correlatedFailure,omitzero"`

	// MaxAttempts limits how often one node, or a chain of nodes that replaced each other, is
	// treated. After that no further treatment starts for it. The default is 3 attempts in 24h.
	//
	// +optional
	// +kubebuilder:default:={}
	MaxAttempts MaxAttempts `json:"maxAttempts,omitzero"`

	// Respect says which work of other people and components keeps the controller from treating a
	// node. By default all of it does.
	//
	// +optional
	// +kubebuilder:default:={}
	Respect Respect `json:"respect,omitzero"`

	// Unreadable is why the fields above are empty: the stored object does not match the types. The
	// schema refuses such objects, but an object may be older than the schema.
	Unreadable string `json:"-"`
}

// Mode says whether policies act.
type Mode string

// The modes. The default is Enforce.
const (
	Enforce Mode = "Enforce"
	Observe Mode = "Observe"
	Paused  Mode = "Paused"
)

// Stage is a group of policies that act in the same way.
//
// +kubebuilder:validation:Enum=Taint;Remediate;Repair
type Stage string

// Pace is how many treatments may start within a period.
type Pace struct {
	// Max is how many may start within the period, as a number or a percentage of all nodes. 100%
	// means no limit, and 0 means that none starts. The default is 10%.
	//
	// +optional
	// +kubebuilder:default:="10%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 10%, of at most 100%"
	Max *intstr.IntOrString `json:"max,omitempty"`

	// AtLeast is the smallest number that a percentage in max stands for, so that a small cluster is
	// not too slow. It has no effect if max is a number or 0%. The default is 2.
	//
	// +optional
	// +kubebuilder:default:=2
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 100000",message="want a number of nodes from 0 to 100000, like 2"
	AtLeast *int32 `json:"atLeast,omitempty"`

	// Period is the time in which they may start, from 1s to 24h. The default is 1m.
	//
	// +optional
	// +kubebuilder:default:="1m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,3})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="want a duration with its unit, for example 1m, from 1s to 24h"
	Period string `json:"period,omitempty"`
}

// The rule of Max in a TopologyLimit reads single characters. The API server of Kubernetes 1.30
// ignores maxLength when it estimates the cost of a regular expression on a number or string, and
// refuses the CRD for that in a list of 16.

// TopologyLimit is a limit on the nodes with the same value of a label.
type TopologyLimit struct {
	// Key is the key of the label, for example topology.kubernetes.io/zone. Nodes without the label are
	// not limited.
	//
	// +required
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="want the key of a label, without a value, for example topology.kubernetes.io/zone"
	Key string `json:"key"`

	// Max is how many nodes with the same value may be in treatment at once, as a number or a
	// percentage of these nodes, which is rounded down to at least 1. The default is 49%.
	//
	// +optional
	// +kubebuilder:default:="49%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self == '100%' || self != '' && self.size() <= 9 && [0, 1, 2, 3, 4, 5, 6, 7, 8].all(i, i >= self.size() || self.charAt(i) in ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'] || self.charAt(i) == '%' && i in [1, 2] && i == self.size() - 1) : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 49%, of at most 100%"
	Max *intstr.IntOrString `json:"max,omitempty"`
}

// CorrelatedFailure says when unhealthy nodes probably have a common cause.
type CorrelatedFailure struct {
	// Threshold is the share of the nodes with the same value of a key. If more of them become
	// unhealthy within the window, no new treatment starts on any of them. It is a percentage or a
	// number of nodes. 100% is never exceeded. The default is 50%.
	//
	// +optional
	// +kubebuilder:default:="50%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a percentage like 50%, of at most 100%, or a number of nodes like 5"
	Threshold *intstr.IntOrString `json:"threshold,omitempty"`

	// MinNodes is how many nodes must become unhealthy within the window in any case. The default is
	// 3.
	//
	// +optional
	// +kubebuilder:default:=3
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 100000",message="want a number of nodes from 1 to 100000, like 3"
	MinNodes int32 `json:"minNodes,omitempty"`

	// Window is the time in which they become unhealthy, from 1s to 24h. The default is 5m.
	//
	// +optional
	// +kubebuilder:default:="5m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,3})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="want a duration with its unit, for example 5m, from 1s to 24h"
	Window string `json:"window,omitempty"`

	// Keys are the keys of labels whose values are counted, each value by itself. The word image
	// stands for the operating system image in the status of the node. The default is the zone, the
	// node pool, the instance type and the image. An empty list, [], switches the rail off.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:default:={"topology.kubernetes.io/zone","karpenter.sh/nodepool","eks.amazonaws.com/nodegroup","cloud.google.com/gke-nodepool","kubernetes.azure.com/agentpool","node.kubernetes.io/instance-type","image"}
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a == b))",message="a key is named twice; want each key once"
	Keys []DomainKey `json:"keys,omitzero"`

	// LongestHold is after which time treatments start again although the failures go on, from 1m to
	// 720h. The default is no limit.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,3})?(ms|s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="want a duration with its unit, for example 2h, from 1m to 720h"
	LongestHold string `json:"longestHold,omitempty"`
}

// DomainKey is the key of a label, or the word image.
//
// +kubebuilder:validation:MaxLength=317
// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="want the key of a label, without a value, for example topology.kubernetes.io/zone, or the word image"
type DomainKey string

// ImageKey is the [DomainKey] for the operating system image of a node.
const ImageKey DomainKey = "image"

// MaxAttempts is how often a node is treated.
type MaxAttempts struct {
	// Limit is how many attempts may begin within the window. All steps of one case are one
	// attempt, for example all remediations of a NodeHealthCheck. Taints do not count. The default
	// is 3.
	//
	// +optional
	// +kubebuilder:default:=3
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 1000",message="want a number of attempts from 1 to 1000, like 3; to stop all treatments set spec.mode to Paused"
	Limit int32 `json:"limit,omitempty"`

	// Window is the time in which attempts count, from 1m to 720h. The default is 24h.
	//
	// +optional
	// +kubebuilder:default:="24h"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,3})?(ms|s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="want a duration with its unit, for example 24h, from 1m to 720h"
	Window string `json:"window,omitempty"`
}

// Respect says which work of other people and components the controller does not disturb.
type Respect struct {
	// Cordons leaves nodes alone that a person has cordoned. The default is true.
	//
	// +optional
	// +kubebuilder:default:=true
	Cordons *bool `json:"cordons,omitempty"`

	// ClusterAutoscaler leaves nodes alone that the Cluster Autoscaler is removing, as its taint
	// says. The default is true.
	//
	// +optional
	// +kubebuilder:default:=true
	ClusterAutoscaler *bool `json:"clusterAutoscaler,omitempty"`

	// Karpenter leaves nodes alone that Karpenter is disrupting, as its taint says. The default is
	// true.
	//
	// +optional
	// +kubebuilder:default:=true
	Karpenter *bool `json:"karpenter,omitempty"`

	// Maintenance leaves nodes alone that another component maintains, as its Lease on the node or a
	// condition of the node says. The default is true.
	//
	// +optional
	// +kubebuilder:default:=true
	Maintenance *bool `json:"maintenance,omitempty"`

	// DeletingMachines leaves nodes alone whose NodeClaim another client deletes or disrupts. The
	// default is true.
	//
	// +optional
	// +kubebuilder:default:=true
	DeletingMachines *bool `json:"deletingMachines,omitempty"`

	// ExcludeLabel leaves nodes alone that have the label
	// remediation.medik8s.io/exclude-from-remediation of medik8s. The default is true.
	//
	// +optional
	// +kubebuilder:default:=true
	ExcludeLabel *bool `json:"excludeLabel,omitempty"`

	// DoNotDisrupt leaves nodes alone that run a pod with a do-not-disrupt annotation. The default
	// is true.
	//
	// +optional
	// +kubebuilder:default:=true
	DoNotDisrupt *bool `json:"doNotDisrupt,omitempty"`
}

// GuardrailsStatus is the observed state of the Guardrails. Empty fields are written too, so that a
// patch removes all previous values.
type GuardrailsStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// Mode is the mode in force.
	//
	// +optional
	Mode Mode `json:"mode"`

	// Nodes is how many nodes the cluster has.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Nodes int32 `json:"nodes"`

	// Unhealthy is how many of them some policy considers unhealthy.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Unhealthy int32 `json:"unhealthy"`

	// InTreatment is how many nodes are in a disruptive treatment. Terminated nodes that are not
	// replaced yet count too.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	InTreatment int32 `json:"inTreatment"`

	// Unschedulable is how many nodes are closed to new pods, as maxUnschedulable counts them.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Unschedulable int32 `json:"unschedulable"`

	// Held is how many nodes are due for treatment but held back by the guardrails.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Held int32 `json:"held"`

	// GivenUp is how many nodes get no further treatment because of maxAttempts.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	GivenUp int32 `json:"givenUp"`

	// Rails are the limits with their current numbers. Of topology only the label values are listed
	// that hold nodes back or have nodes in treatment. Of correlatedFailure only those are listed in
	// which two thirds as many nodes are unhealthy as a correlated failure needs. At most 64 are listed.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Rails []RailStatus `json:"rails"`

	// AcceptedSpec is the last version of the spec that was accepted. It stays in effect while a
	// newer version is invalid. It is a text in JSON, so that a patch replaces it as a whole.
	//
	// +optional
	AcceptedSpec string `json:"acceptedSpec,omitempty"`

	// Conditions of the Guardrails: Ready and Accepted (this version is in effect). The message of
	// Ready says what is held back and why.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions"`
}

// RailStatus is a limit with its current numbers.
type RailStatus struct {
	// Name is the field of the spec, for example maxInTreatment.
	Name string `json:"name"`
	// Domain is the label and value that the numbers are about, like
	// topology.kubernetes.io/zone=a. It is empty if they are about the whole cluster.
	//
	// +optional
	Domain string `json:"domain,omitempty"`
	// Limit is the number of nodes that the field currently allows.
	//
	// +kubebuilder:validation:Minimum=0
	Limit int32 `json:"limit"`
	// Used is how many nodes count against the limit.
	//
	// +kubebuilder:validation:Minimum=0
	Used int32 `json:"used"`
	// Held is how many nodes wait because of it.
	//
	// +kubebuilder:validation:Minimum=0
	Held int32 `json:"held"`
}

const (
	// GuardrailsName is the name of the only Guardrails object.
	GuardrailsName = "cluster"

	// MaxListedRails is the maximum number of rails in the status. The schema has the same limit.
	MaxListedRails = 64
	// MaxDomainKeys is the maximum number of label keys in topology, and in the keys of
	// correlatedFailure. The schema has the same limit.
	MaxDomainKeys = 16

	// ReleaseHoldAnnotation on the Guardrails lets treatments start again where a correlated failure
	// has stopped them. Its value is until= and a time in RFC 3339, like
	// until=2026-03-01T12:00:00Z.
	ReleaseHoldAnnotation = "autohealer.resourcestack.com/release-hold"
)

// GuardrailsList is a list of Guardrails.
//
// +kubebuilder:object:root=true
type GuardrailsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Guardrails `json:"items"`
}
