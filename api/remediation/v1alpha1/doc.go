// Package v1alpha1 holds the health checks of medik8s as Autohealer reads and
// writes them: the group, the version and every field are those by which users
// and remediators know them. It promises that every object which the API server
// has stored, under whosever CRD, can be read, because one bad object must not
// hide the others. It refuses to hold any logic beyond reading and naming: what
// an object means is decided by those who use it.
//
// +kubebuilder:object:generate=true
// +groupName=remediation.medik8s.io
package v1alpha1
