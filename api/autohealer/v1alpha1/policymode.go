package v1alpha1

// PolicyMode says whether one policy acts. Guardrails have a mode for all policies together.
//
// +kubebuilder:validation:Enum=Enforce;Observe
type PolicyMode string

// The modes of a policy. In mode Observe the controller evaluates the policy, counts its nodes and
// explains what it would do. The policy starts nothing, and what it has placed is removed.
const (
	PolicyEnforce PolicyMode = "Enforce"
	PolicyObserve PolicyMode = "Observe"
)

const (
	// PausedAnnotation pauses one policy: nothing new starts, and what exists stays until the node
	// recovers. Its value is the reason; "false" means not paused. It is for ConditionSets,
	// RepairPolicies, ConfigMaps with condition sets, and NodePools with a repair block. On the
	// Guardrails it pauses all policies, and a tool that applies the object from a repository does not
	// remove it.
	PausedAnnotation = "autohealer.resourcestack.com/paused"

	// ModeAnnotation sets the mode of a NodeHealthCheck, or of the repair block of a NodePool: their
	// schemas belong to others.
	ModeAnnotation = "autohealer.resourcestack.com/mode"
)

// Observes says whether the set only reports what it would do.
func (s *ConditionSetSpec) Observes() bool { return s.DryRun || s.Mode == PolicyObserve }
