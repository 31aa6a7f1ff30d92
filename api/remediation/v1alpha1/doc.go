// Package v1alpha1 contains the API types of medik8s' NodeHealthCheck. Group, version and all
// fields are the same as in medik8s, so that existing objects and remediators work.
//
// Every stored object can be decoded, whichever CRD was installed when it was stored, because a
// single bad object must not hide the others. The package contains no logic beyond decoding: other
// packages decide what an object means.
//
// +kubebuilder:object:generate=true
// +groupName=remediation.medik8s.io
package v1alpha1
