// Package v1alpha1 holds the resources that users of Autohealer write, in their
// first version. It promises that every object which the API server has stored
// can be read, however wrong its fields are, because one bad object must not
// hide the others. It refuses to hold any logic beyond reading and naming: what
// an object means is decided by those who use it.
//
// +kubebuilder:object:generate=true
// +groupName=autohealer.resourcestack.com
package v1alpha1
