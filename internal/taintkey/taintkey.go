// Package taintkey knows whose a taint key is. It promises that a key which it calls
// reserved is never placed by this system: policies with such a key do not compile, and
// such a taint on a node never counts as ours, whatever the record on the node says. It
// does not say whether a key is well-formed.
package taintkey

import (
	"slices"
	"strings"
)

// owners place and remove taints by rules of their own; each is found by the domain of
// its keys. Two programs that keep one taint undo each other's work. The CRD refuses the
// same domains in CEL.
//
// Programs that only give taints to nodes when they are made, as users do with
// nvidia.com/gpu, are not here. Nor is the domain of Autohealer: copies of the default
// sets have it.
var owners = []struct{ domain, name string }{
	{"kubernetes.io", "Kubernetes"},
	{"k8s.io", "Kubernetes"},
	{"x-k8s.io", "Kubernetes"}, // the projects of its special interest groups, Cluster API among them
	{"karpenter.sh", "Karpenter"},
	{"k8s.aws", "Amazon EKS"}, // Karpenter's provider among others
	{"eks.amazonaws.com", "Amazon EKS"},
	{"cloud.google.com", "Google Cloud"},
	{"kubernetes.azure.com", "Azure"},
	{"medik8s.io", "Medik8s"}, // whose remediators fence nodes by taints
	{"cilium.io", "Cilium"},   // which keeps pods away until its agent runs
}

// autoscalerKeys are the keys of the Cluster Autoscaler, which have no domain, and which
// it removes from all nodes when it starts.
var autoscalerKeys = []string{"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler"}

// Owner returns the component that keeps taints of that key, and whether there is one.
// A key without a domain belongs to the users of a cluster, as everywhere in Kubernetes.
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

// within says whether a domain is the other or below it.
func within(domain, other string) bool {
	return domain == other || strings.HasSuffix(domain, "."+other)
}
