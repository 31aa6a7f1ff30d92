package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// RepairSpec is the repair block: which conditions of a node are tolerated for
// how long, and how a node goes that has been sick for longer. It stands in a
// RepairPolicy, and, field for field the same, in a Karpenter NodePool.
type RepairSpec struct {
	// Enabled, when false, lets nothing be repaired, while the nodes are still
	// counted. True if nothing is said.
	//
	// +optional
	Enabled *bool `json:"enabled,omitempty"`

	// Policies are how long single conditions are tolerated. They go before
	// defaultTolerationDuration. There is one for each condition, or with each
	// conditionStatus and reason one.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Policies []ConditionRepair `json:"policies,omitempty"`

	// DefaultTolerationDuration is how long every other condition is tolerated
	// that the provider of the nodes calls sick, such as 30m. What the provider
	// recommends if nothing is said.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, that is not negative"
	DefaultTolerationDuration string `json:"defaultTolerationDuration,omitempty"`

	// MaxUnhealthy is how many of the nodes may be in repair at once, as a
	// number or a percentage, which is rounded down, but to no less than 1. 0
	// means that nothing is ever repaired. 20% if nothing is said. In a
	// RepairPolicy with a selector it holds for every NodePool by itself, and
	// once for the nodes without one: with 40 pools, 2 are up to 80 nodes. It
	// is no breaker: if all are sick, all are replaced, so many at a time.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([0-9]{1,9}|[0-9]{1,2}%|100%)$') : self >= 0 && self <= 2147483647",message="want a number of nodes such as 3, or a share such as 20%, of at most 100%"
	MaxUnhealthy *intstr.IntOrString `json:"maxUnhealthy,omitempty"`

	// Termination is how a node goes: Forceful ends its pods at once, around
	// PodDisruptionBudgets, because on a sick node a drain may never end.
	// Graceful drains it, for no longer than terminationGracePeriod if that is
	// given. Forceful if nothing is said.
	//
	// +optional
	// +kubebuilder:validation:Enum=Forceful;Graceful
	Termination Termination `json:"termination,omitempty"`

	// TerminationGracePeriod is how long a graceful drain may take, such as 1h,
	// before what is left is ended by force. For as long as it takes if nothing
	// is said. Without termination Graceful it means nothing.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, that is not negative"
	TerminationGracePeriod string `json:"terminationGracePeriod,omitempty"`

	// ReadyTimeout is how long after its creation a node may take to become
	// ready, such as 10m, before it is replaced. What holds for the whole
	// cluster if nothing is said. It takes the feature gate
	// NodeReadyTimeoutRecovery.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, that is not negative"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0.]+(ns|us|µs|ms|s|m|h))+$')",message="a node needs some time to become ready; want a duration such as 10m"
	ReadyTimeout string `json:"readyTimeout,omitempty"`

	// Unreadable says why the fields above are empty: what is stored does not
	// fit them. The schema lets no such block in, but on a NodePool the schema
	// is not ours alone.
	Unreadable string `json:"-"`
}

// ConditionRepair is how long one condition is tolerated.
type ConditionRepair struct {
	// ConditionType is the type of the node's condition, such as Ready.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	ConditionType string `json:"conditionType"`

	// ConditionStatus narrows this to one status, True, False or Unknown, in
	// quotes where YAML would take it for a boolean. With it, the condition is
	// sick in that status even if no provider says so. Without it, what is meant
	// is every status that a provider calls sick.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self == '' || self.lowerAscii() in ['true', 'false', 'unknown']",message="want True, False or Unknown"
	ConditionStatus string `json:"conditionStatus,omitempty"`

	// Reason narrows this to the condition with that reason. There it holds
	// instead of what holds for any reason.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// Toleration is how long the condition is tolerated before the node is
	// repaired, such as 10m. It counts from the condition's last transition.
	//
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="want a duration with its unit, such as 90s, 5m or 1h30m, that is not negative"
	Toleration string `json:"toleration"`
}

// Termination is how a node goes.
type Termination string

// The ways in which a node goes; none means Forceful.
const (
	Forceful Termination = "Forceful"
	Graceful Termination = "Graceful"
)

// MaxRepairConditions is how many policies a block may have, as the schema says
// too.
const MaxRepairConditions = 64
