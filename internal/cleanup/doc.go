// Package cleanup removes what Autohealer has left in a cluster: taints and annotations
// of nodes, marks of NodeClaims, Leases, the ledger and kept revisions.
//
// It promises to remove nothing that is not provably Autohealer's. What may be is told
// with the command that removes it. It may be run as often as one likes, and refuses to
// run while a controller leads, which would put everything back. It does not delete
// policies, remediation objects, CRDs or namespaces.
package cleanup
