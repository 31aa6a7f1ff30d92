package provider

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
)

// Provider states which conditions are unhealthy for the nodes that it manages.
type Provider interface {
	// Name is the provider's name in files and messages.
	Name() string
	// RepairPolicy returns the conditions that the provider calls unhealthy.
	RepairPolicy() []RepairStatement
	// DefaultToleration is how long the provider recommends to tolerate a condition.
	DefaultToleration() time.Duration
}

// RepairStatement is a condition together with a status in which it is unhealthy.
type RepairStatement struct {
	Type   corev1.NodeConditionType
	Status corev1.ConditionStatus
}

// tolerator is a provider that recommends a toleration for a single statement.
type tolerator interface {
	toleration(RepairStatement) (time.Duration, bool)
}

// Names of the providers.
const (
	karpenterName = "karpenter"
	staticName    = "static"
)

// Karpenter is the provider for nodes that have a NodeClaim. It states the conditions
// that every node has, and those of Karpenter's AWS provider, which the EKS node
// monitoring agent reports. A statement about a condition that no node has is harmless.
func Karpenter() Provider {
	statements := commonStatements()
	for _, condition := range []corev1.NodeConditionType{
		"AcceleratedHardwareReady", "StorageReady", "NetworkingReady", "KernelReady", "ContainerRuntimeReady",
	} {
		statements = append(statements, RepairStatement{condition, corev1.ConditionFalse})
	}
	return fixed{karpenterName, statements}
}

// Static is the provider for nodes that cannot be replaced by deleting an object.
func Static() Provider { return fixed{staticName, commonStatements()} }

// commonStatements returns the statements for every node: those of the kubelet, of the
// node lifecycle controller and of the cloud's network.
func commonStatements() []RepairStatement {
	return []RepairStatement{
		{corev1.NodeReady, corev1.ConditionFalse},
		{corev1.NodeReady, corev1.ConditionUnknown},
		{corev1.NodeNetworkUnavailable, corev1.ConditionTrue},
	}
}

// fixed is a provider with constant statements.
type fixed struct {
	name       string
	statements []RepairStatement
}

func (f fixed) Name() string                     { return f.name }
func (f fixed) RepairPolicy() []RepairStatement  { return slices.Clone(f.statements) }
func (f fixed) DefaultToleration() time.Duration { return 30 * time.Minute }

// Statements returns all statements of the providers, each with its recommended
// toleration. If two providers make the same statement, the longer toleration wins.
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
	result := make([]dialect.RepairStatement, 0, len(all))
	for _, statement := range all {
		result = append(result, dialect.RepairStatement{
			Type: string(statement.Type), Status: string(statement.Status), Toleration: longest[statement].String(),
		})
	}
	return result
}

func tolerationOf(p Provider, statement RepairStatement) time.Duration {
	if own, ok := p.(tolerator); ok {
		if toleration, ok := own.toleration(statement); ok {
			return toleration
		}
	}
	return p.DefaultToleration()
}
