// Package remediation treats nodes with remediation objects, by the contract of medik8s: the
// controller creates an object from a template, a remediator works on the node, and the
// controller deletes the object when the node is healthy. It serves every policy that
// implements [Requester]. It holds the maintenance Lease of a node while a remediator works,
// creates at most one object per step, and leaves objects of other owners alone. It does not
// decide which nodes are unhealthy. The contract itself is in internal/remediation.
package remediation
