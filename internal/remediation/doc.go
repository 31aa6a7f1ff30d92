// Package remediation is the contract with remediators: how the controller writes a
// request to remediate a node, and how it reads the answer. The contract is that of
// medik8s, so its remediators work unchanged.
//
// A request contains the template's spec, the node and the owner, and nothing else. Two
// attempts create only one request. Any object that a remediator writes can be read. The
// package has no client, and does not decide what an answer means for the node.
//
// # The body of a template
//
// A request gets the spec from the template's spec.template.spec. If that key is missing,
// all of spec.template is the spec, as in the first version of the contract, where a
// template has for example spec.template.size. An empty spec.template thus gives an empty
// spec. Other fields of spec.template, for example metadata, are not copied. A missing
// spec.template, or a body that is not an object, is an error.
package remediation
