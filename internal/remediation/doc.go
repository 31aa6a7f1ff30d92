// Package remediation is the contract with remediators: how a request to bring a
// node back is written, and how their answer is read. It is the one that medik8s
// has with its remediators, word for word, so that those work with us unchanged.
//
// It promises that a request says no more than the template does, beside whom it is
// about and who asks, that asking twice makes one request, and that whatever a
// remediator writes into its object can be read. It refuses to talk to anybody: it
// has no client, and what an answer means for the node is not its business.
//
// # The body of a template
//
// A request gets the spec that the template has under spec.template.spec. If there
// is no such key, all that is under spec.template is the spec: the form in which
// this contract was first written down, where a template said spec.template.size.
// So a template that is an empty object asks for a request with an empty spec. What
// stands beside the spec under spec.template, such as metadata, is not copied. No
// spec.template at all, or a body that is no object, is an error.
package remediation
