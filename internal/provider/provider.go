package provider

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
)

// provider states which conditions are unhealthy for the nodes that it manages.
type provider struct {
	name string
	// nodeClass is the API group of the node classes whose NodePools the provider manages.
	nodeClass  string
	statements []statement
}

// condition is a condition together with a status in which it is unhealthy.
type condition struct {
	kind   corev1.NodeConditionType
	status corev1.ConditionStatus
}

// statement is an unhealthy condition with the recommended toleration.
type statement struct {
	condition
	toleration time.Duration
}

// Names of the providers. A file can also name all providers of NodePools.
const (
	staticName    = "static"
	karpenterName = "karpenter"
	awsName       = "aws"
	azureName     = "azure"
)

// names are the names that a file can use, and the providers that each means.
var names = map[string][]string{
	staticName:    {staticName},
	karpenterName: {karpenterName, awsName, azureName},
	awsName:       {awsName},
	azureName:     {azureName},
}

// defaultToleration is the recommendation for conditions without their own.
const defaultToleration = 30 * time.Minute

// everywhere are the statements for every node: the conditions of the kubelet, of the node
// lifecycle controller and of the cloud's network, and those of the node monitoring agent
// of EKS, which also runs on nodes without a NodePool. A statement about a condition that
// no node has is harmless.
var everywhere = []statement{
	{condition{corev1.NodeReady, corev1.ConditionFalse}, defaultToleration},
	{condition{corev1.NodeReady, corev1.ConditionUnknown}, defaultToleration},
	{condition{corev1.NodeNetworkUnavailable, corev1.ConditionTrue}, defaultToleration},
	{condition{"AcceleratedHardwareReady", corev1.ConditionFalse}, 10 * time.Minute},
	{condition{"StorageReady", corev1.ConditionFalse}, defaultToleration},
	{condition{"NetworkingReady", corev1.ConditionFalse}, defaultToleration},
	{condition{"KernelReady", corev1.ConditionFalse}, defaultToleration},
	{condition{"ContainerRuntimeReady", corev1.ConditionFalse}, defaultToleration},
}

// providers are all providers: static for nodes that no NodePool replaces, karpenter for
// NodePools of a cloud without its own entry. The conditions and tolerations of AWS and
// Azure are those of their Karpenter providers.
var providers = []provider{
	{name: staticName, statements: everywhere},
	{name: karpenterName, statements: everywhere},
	{name: awsName, nodeClass: "karpenter.k8s.aws", statements: everywhere},
	{name: azureName, nodeClass: "karpenter.azure.com", statements: []statement{
		{condition{corev1.NodeReady, corev1.ConditionFalse}, 10 * time.Minute},
		{condition{corev1.NodeReady, corev1.ConditionUnknown}, 10 * time.Minute},
		{condition{corev1.NodeNetworkUnavailable, corev1.ConditionTrue}, defaultToleration},
		{condition{"kubernetes.azure.com/NodeHealthy", corev1.ConditionFalse}, 0},
		{condition{"PreemptionScheduled", corev1.ConditionTrue}, 0}, // of a spot machine, about 30 seconds ahead
	}},
}

// Statements returns what all providers state, with the additions of a user's file. The
// zero File adds nothing.
func Statements(file File) dialect.Statements {
	all := dialect.Statements{ByNodeClass: map[string][]dialect.RepairStatement{}}
	for _, p := range providers {
		switch stated := file.addTo(p); {
		case p.name == staticName:
			all.Static = stated
		case p.nodeClass == "":
			all.Pools = stated
		default:
			all.ByNodeClass[p.nodeClass] = stated
		}
	}
	return all
}

// addTo returns the statements of a provider with those of the file. For statements of
// both, the toleration of the file wins.
func (f File) addTo(p provider) []dialect.RepairStatement {
	var list []dialect.RepairStatement
	for _, s := range p.statements {
		list = append(list, stated(s.condition, *cmp.Or(f.defaultToleration, &s.toleration)))
	}
	for _, s := range f.statements {
		if !s.isFor(p.name) {
			continue
		}
		at := slices.IndexFunc(list, func(one dialect.RepairStatement) bool {
			return one.Type == string(s.kind) && one.Status == string(s.status)
		})
		switch recommended := defaultToleration; {
		case at < 0:
			list = append(list, stated(s.condition, *cmp.Or(s.toleration, f.defaultToleration, &recommended)))
		case s.toleration != nil:
			list[at].Toleration = s.toleration.String()
		}
	}
	return list
}

func stated(c condition, toleration time.Duration) dialect.RepairStatement {
	return dialect.RepairStatement{Type: string(c.kind), Status: string(c.status), Toleration: toleration.String()}
}
