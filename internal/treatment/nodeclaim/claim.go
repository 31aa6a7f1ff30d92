package nodeclaim

import (
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// nodeClaim is a NodeClaim: the machine behind a node, which Karpenter replaces when the
// claim is deleted. It implements [machine.Machine].
type nodeClaim struct {
	*karpenter.NodeClaim
	mark          *ownership.Mark // nil if there is none of ours, or it cannot be read
	unknownFields int             // fields of the mark that this version does not know
	deletedByUs   bool            // this controller has deleted it; the watch may be behind
	// forcedAt is when this controller began to end the drain of another client, zero for never.
	forcedAt time.Time
	// protectedUntil is when to look again for pods that protect the node from the end of that drain.
	protectedUntil time.Time
}

// ProviderID returns the provider ID, which the Node has too. It is empty until the machine
// exists.
func (c *nodeClaim) ProviderID() string { return c.Status.ProviderID }

// Pool returns the NodePool of the claim.
func (c *nodeClaim) Pool() string { return c.Labels[karpenter.NodePoolLabel] }

// Template returns Karpenter's hash of the template.
func (c *nodeClaim) Template() string { return c.Annotations[karpenter.HashAnnotation] }

// CapacityType returns the capacity type that Karpenter has chosen.
func (c *nodeClaim) CapacityType() string { return c.Labels[karpenter.CapacityTypeLabel] }

// Reference returns a reference for Events.
func (c *nodeClaim) Reference() *corev1.ObjectReference { return treat.AboutNodeClaim(c.NodeClaim) }

// HasInstance reports whether the claim has or will have an instance.
func (c *nodeClaim) HasInstance() bool { return !c.Is(karpenter.InstanceTerminating) }

// IsRebooting reports whether Karpenter restarts the machine.
func (c *nodeClaim) IsRebooting() bool { return c.Is(karpenter.Rebooting) }

// ReadySince returns since when Karpenter calls the claim initialized.
func (c *nodeClaim) ReadySince() time.Time {
	if !c.Is(karpenter.Initialized) {
		return time.Time{}
	}
	if since := c.Condition(karpenter.Initialized).LastTransitionTime.Time; !since.IsZero() {
		return since
	}
	return c.CreationTimestamp.Time
}

// HasStarted reports whether the node is ready for work.
func (c *nodeClaim) HasStarted(node *corev1.Node) bool {
	return karpenter.IsInitialized(node, c.NodeClaim)
}

// IsEnding reports whether the claim is being deleted.
func (c *nodeClaim) IsEnding() bool { return c.deletedByUs || c.DeletionTimestamp != nil }

// Mark returns the mark of the claim.
func (c *nodeClaim) Mark() *ownership.Mark { return c.mark }

// Vetoes returns the annotations that forbid the deletion of the claim.
func (c *nodeClaim) Vetoes() (vetoes []string) {
	if by, is := karpenter.DoNotRepair(c.Annotations); is {
		vetoes = append(vetoes, "NodeClaim "+c.Name+" is annotated "+by)
	}
	if _, is := c.Annotations[ownership.MarkAnnotation]; is && c.mark == nil { // a newer version may have written it
		vetoes = append(vetoes, "NodeClaim "+c.Name+" has annotation "+ownership.MarkAnnotation+", which this version cannot read; remove it to have the node repaired")
	}
	return vetoes
}

// isMarkedBy reports whether the rule has marked the claim for this node.
func (c *nodeClaim) isMarkedBy(rule triage.RuleID, node *corev1.Node) bool {
	return c.mark != nil && triage.RuleID(c.mark.Rule) == rule && c.mark.NodeUID == node.UID
}

// isForced reports whether the pods of the claim have nearly no time left. The clock of the leader
// that wrote the deadline may differ from this one.
func (c *nodeClaim) isForced(now time.Time) bool {
	at, err := time.Parse(time.RFC3339, c.Annotations[karpenter.TerminationTimestampAnnotation])
	return err == nil && !at.After(now.Add(time.Minute))
}

// IsForced reports whether another client deletes the claim and its drain is being ended.
func (c *nodeClaim) IsForced() bool {
	return c.mark == nil && c.IsEnding() && (!c.forcedAt.IsZero() || c.isForced(time.Now()))
}

// The methods below implement [machine.Provider].

// TakeMachines takes in changed claims.
func (nc *Treatment) TakeMachines(now time.Time) { nc.takeClaims(now) }

// MachineOf returns the claim of a node.
func (nc *Treatment) MachineOf(node *corev1.Node) (m machine.Machine, problem string) {
	c, problem := nc.claimOf(node)
	if c == nil {
		return nil, problem
	}
	return c, ""
}

// Candidates yields the claims with the provider ID of the node.
func (nc *Treatment) Candidates(node *corev1.Node) iter.Seq[machine.Machine] {
	return func(yield func(machine.Machine) bool) {
		for _, c := range nc.byID[node.Spec.ProviderID] {
			if !yield(c) {
				return
			}
		}
	}
}

// Machine returns the claim that a reference names.
func (nc *Treatment) Machine(ref ledger.ObjectRef) machine.Machine {
	if c := nc.byName[ref.Name]; c != nil && isClaim(ref) {
		return c
	}
	return nil
}

// Machines yields all claims.
func (nc *Treatment) Machines() iter.Seq[machine.Machine] {
	return func(yield func(machine.Machine) bool) {
		for _, c := range nc.byName {
			if !yield(c) {
				return
			}
		}
	}
}

// Kind returns the kind of Karpenter's machines.
func (nc *Treatment) Kind() string { return "NodeClaim" }

// IsInitialized reports whether Karpenter has recorded that the node was ready for work.
func (nc *Treatment) IsInitialized(node *corev1.Node) bool {
	return node.Labels[karpenter.InitializedLabel] == "true"
}

// HasMachines reports whether there are any claims.
func (nc *Treatment) HasMachines() bool { return len(nc.byName) > 0 }

// NodesOf returns the names of the nodes with the provider ID of the claim.
func (nc *Treatment) NodesOf(m machine.Machine) []string {
	c, _ := m.(*nodeClaim)
	if c == nil {
		return nil
	}
	return nc.nodesOf(c)
}
