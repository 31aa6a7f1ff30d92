package provider

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
)

// Provider is one who knows what makes a node sick.
type Provider interface {
	// Name is how files and people call it.
	Name() string
	// RepairPolicy is what it calls sick.
	RepairPolicy() []RepairStatement
	// DefaultToleration is how long it recommends to tolerate that.
	DefaultToleration() time.Duration
}

// RepairStatement is a condition that is sick in a status.
type RepairStatement struct {
	Type   corev1.NodeConditionType
	Status corev1.ConditionStatus
}

// picky is a provider that recommends something of its own for a statement.
type picky interface {
	toleration(RepairStatement) (time.Duration, bool)
}

// The names of the providers.
const (
	karpenterName = "karpenter"
	staticName    = "static"
)

// Karpenter is for nodes that have a NodeClaim. It states what is known of nodes
// everywhere, and what Karpenter's provider for AWS states: the conditions that EKS'
// agent reports. A condition that no node has is nobody's sickness.
func Karpenter() Provider {
	statements := anywhere()
	for _, condition := range []corev1.NodeConditionType{
		"AcceleratedHardwareReady", "StorageReady", "NetworkingReady", "KernelReady", "ContainerRuntimeReady",
	} {
		statements = append(statements, RepairStatement{condition, corev1.ConditionFalse})
	}
	return fixed{karpenterName, statements}
}

// Static is for plain nodes, that nobody can replace by deleting an object.
func Static() Provider { return fixed{staticName, anywhere()} }

// anywhere is what is sick on any node: what the kubelet, or whoever misses it, and
// the cloud's network say.
func anywhere() []RepairStatement {
	return []RepairStatement{
		{corev1.NodeReady, corev1.ConditionFalse},
		{corev1.NodeReady, corev1.ConditionUnknown},
		{corev1.NodeNetworkUnavailable, corev1.ConditionTrue},
	}
}

// fixed is a provider whose statements never change.
type fixed struct {
	name       string
	statements []RepairStatement
}

func (f fixed) Name() string                     { return f.name }
func (f fixed) RepairPolicy() []RepairStatement  { return slices.Clone(f.statements) }
func (f fixed) DefaultToleration() time.Duration { return 30 * time.Minute }

// Statements is everything that the providers call sick, each with what is
// recommended for it. Where two state the same, the longer toleration counts.
func Statements(providers ...Provider) []dialect.RepairStatement {
	var all []RepairStatement
	longest := map[RepairStatement]time.Duration{}
	for _, p := range providers {
		for _, statement := range p.RepairPolicy() {
			if _, stated := longest[statement]; !stated {
				all = append(all, statement)
			}
			longest[statement] = max(longest[statement], tolerationOf(p, statement))
		}
	}
	words := make([]dialect.RepairStatement, 0, len(all))
	for _, statement := range all {
		words = append(words, dialect.RepairStatement{
			Type: string(statement.Type), Status: string(statement.Status), Toleration: longest[statement].String(),
		})
	}
	return words
}

func tolerationOf(p Provider, statement RepairStatement) time.Duration {
	if own, ok := p.(picky); ok {
		if toleration, ok := own.toleration(statement); ok {
			return toleration
		}
	}
	return p.DefaultToleration()
}
