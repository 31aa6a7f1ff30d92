// Package v1alpha1 contains Autohealer's own API types: ConditionSet, RepairPolicy and Guardrails.
//
// Every stored object can be decoded, however invalid its fields are, because a single bad object
// must not hide the others. The package contains no logic beyond decoding: other packages decide
// what an object means.
//
// +kubebuilder:object:generate=true
// +groupName=autohealer.resourcestack.com
package v1alpha1
