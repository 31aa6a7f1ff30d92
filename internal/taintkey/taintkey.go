// Package taintkey knows which component owns a taint key. Autohealer never places a taint
// with a reserved key: policies with such a key do not compile. A taint with a reserved key
// never counts as placed by Autohealer, whatever the record on the node says. The package
// does not check the syntax of keys.
package taintkey

import (
	"slices"
	"strings"
)

// owners are components that place and remove taints by their own rules, identified by the
// domain of their keys. Two controllers of one taint would undo each other's work. The CRD
// refuses the same domains in CEL.
//
// Programs that only set taints at the creation of a node, like nvidia.com/gpu, are not
// listed. The domain of Autohealer is not listed either, because copies of the default sets
// use it.
var owners = []struct{ domain, name string }{
	{"kubernetes.io", "Kubernetes"},
	{"k8s.io", "Kubernetes"},
	{"x-k8s.io", "Kubernetes"}, // projects of Kubernetes SIGs, for example Cluster API
	{"karpenter.sh", "Karpenter"},
	{"k8s.aws", "Amazon EKS"}, // includes the Karpenter provider
	{"eks.amazonaws.com", "Amazon EKS"},
	{"cloud.google.com", "Google Cloud"},
	{"kubernetes.azure.com", "Azure"},
	{"medik8s.io", "Medik8s"}, // its remediators fence nodes with taints
	{"cilium.io", "Cilium"},   // keeps pods away until its agent runs
}

// autoscalerKeys are the keys of the Cluster Autoscaler. They have no domain. The Cluster
// Autoscaler removes them from all nodes when it starts.
var autoscalerKeys = []string{"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler"}

// Owner returns the component that owns a taint key, and whether there is one. A key without
// a domain belongs to the users of the cluster.
func Owner(key string) (name string, reserved bool) {
	if slices.Contains(autoscalerKeys, key) {
		return "the Cluster Autoscaler", true
	}
	prefix, _, prefixed := strings.Cut(key, "/")
	for _, owner := range owners {
		if prefixed && within(prefix, owner.domain) {
			return owner.name, true
		}
	}
	return "", false
}

// within says whether a domain equals the other or is a subdomain of it.
func within(domain, other string) bool {
	return domain == other || strings.HasSuffix(domain, "."+other)
}
