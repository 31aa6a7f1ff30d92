package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// RepairSpec is the repair block. It defines how long unhealthy conditions of a node are tolerated,
// and how a node is terminated after that. RepairPolicy and Karpenter NodePools contain the same
// block.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnhealthy) || !has(self.maxConcurrent)",message="maxUnhealthy is the old name of maxConcurrent, and both are set; want maxConcurrent alone, so remove maxUnhealthy",fieldPath=".maxUnhealthy"
type RepairSpec struct {
	// Enabled can be set to false to stop all repairs. Nodes are still counted. The default is
	// true.
	//
	// +optional
	Enabled *bool `json:"enabled,omitempty"`

	// Policies define how long individual conditions are tolerated. They take precedence over
	// defaultTolerationDuration. There may be one for each combination of condition,
	// conditionStatus and reason.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Policies []ConditionRepair `json:"policies,omitempty"`

	// DefaultTolerationDuration is how long all other conditions are tolerated that the cloud
	// provider considers unhealthy, for example 30m. Never means that only the conditions in
	// policies are repaired. The default is the provider's recommendation.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == 'Never' || self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit that is not negative, like 90s, 5m or 1h30m, or Never"
	DefaultTolerationDuration string `json:"defaultTolerationDuration,omitempty"`

	// UnhealthyThreshold is how many nodes may be unhealthy, as a number or a percentage. While
	// more nodes are unhealthy, under repair or not replaced yet, no new repair starts, because the
	// cause is probably not in the nodes. Existing repairs continue. Percentages are rounded up.
	// The default is 20%, or 49% of at most 5 nodes. 100% means no threshold. In a RepairPolicy with
	// a selector the threshold applies to each NodePool separately, and once to the nodes without a
	// NodePool. It does not apply to readyTimeout.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 20%, of at most 100%"
	UnhealthyThreshold *intstr.IntOrString `json:"unhealthyThreshold,omitempty"`

	// MaxConcurrent is how many nodes may be under repair at once, as a number or a percentage.
	// Percentages are rounded down, to at least 1. 0 means that no node is ever repaired. The
	// default is 20%. In a RepairPolicy with a selector the bound applies to each NodePool
	// separately, and once to the nodes without a NodePool: with 40 pools, 2 allows up to 80 nodes.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 20%, of at most 100%"
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`

	// MaxUnhealthy is the old name of maxConcurrent. It still works if maxConcurrent is not set.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes like 3, or a percentage like 20%, of at most 100%"
	MaxUnhealthy *intstr.IntOrString `json:"maxUnhealthy,omitempty"`

	// Termination is how a node is terminated. Forceful deletes its pods at once and ignores
	// PodDisruptionBudgets, because a drain of an unhealthy node may never end. Graceful drains the
	// node, for at most terminationGracePeriod if that is set. The default is Forceful.
	//
	// +optional
	// +kubebuilder:default:=Forceful
	// +kubebuilder:validation:Enum=Forceful;Graceful
	Termination Termination `json:"termination,omitempty"`

	// TerminationGracePeriod is how long a graceful drain may take, for example 1h, before the
	// remaining pods are deleted by force. The default is no limit. It has no effect unless
	// termination is Graceful.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, for example 90s, 5m or 1h30m, that is not negative"
	TerminationGracePeriod string `json:"terminationGracePeriod,omitempty"`

	// ReadyTimeout is how long after its creation a node may take to become Ready, for example 10m,
	// before it is replaced. The default is the timeout of the cluster. It requires the feature
	// gate NodeReadyTimeoutRecovery.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, for example 90s, 5m or 1h30m, that is not negative"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0.]+(ns|us|µs|ms|s|m|h))+$')",message="a node needs some time to become ready; want a duration like 10m"
	ReadyTimeout string `json:"readyTimeout,omitempty"`

	// Windows are when repairs may begin. At other times nodes that are due wait, the oldest first,
	// unless their condition is urgent. Repairs that have begun continue. The default is at any time.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Windows []Window `json:"windows,omitempty"`

	// Unreadable is why the fields above are empty: the stored object does not match the types. The
	// schema refuses such blocks, but the schema of NodePools belongs to Karpenter too.
	Unreadable string `json:"-"`
}

// ConditionRepair defines how long a condition is tolerated.
type ConditionRepair struct {
	// ConditionType is the type of the node condition, for example Ready.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	ConditionType string `json:"conditionType"`

	// ConditionStatus limits this to a single status: True, False or Unknown, in quotes where YAML
	// would read a boolean. The condition is then unhealthy in this status even if the cloud
	// provider does not say so. Without it, all statuses count that the provider considers
	// unhealthy.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self == '' || self.lowerAscii() in ['true', 'false', 'unknown']",message="want True, False or Unknown"
	ConditionStatus string `json:"conditionStatus,omitempty"`

	// Reason limits this to conditions with this reason. It takes precedence over a policy without
	// a reason.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// Toleration is how long the condition is tolerated before the node is repaired, for example
	// 10m. It starts at the condition's last transition. Never means that the node is not repaired
	// because of this condition.
	//
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == 'Never' || self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit that is not negative, like 90s, 5m or 1h30m, or Never"
	Toleration string `json:"toleration"`

	// Urgent means that repairs because of this condition do not wait for a window.
	//
	// +optional
	Urgent bool `json:"urgent,omitempty"`
}

// Termination is how a node is terminated.
type Termination string

// The ways to terminate a node. The default is Forceful.
const (
	Forceful Termination = "Forceful"
	Graceful Termination = "Graceful"
)

// MaxRepairConditions is the maximum number of policies in a block. The schema has the same limit.
const MaxRepairConditions = 64
