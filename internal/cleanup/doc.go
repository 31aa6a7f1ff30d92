// Package cleanup removes what Autohealer has left in a cluster: taints and annotations of
// nodes, marks of NodeClaims, Leases, the ledger and stored revisions.
//
// It removes only what is provably Autohealer's. For everything else that may be
// Autohealer's, it prints the command that removes it. It can run repeatedly, and fails
// while a controller is the leader, because that controller would restore everything. It
// does not delete policies, CRDs or namespaces, and only names remediation objects.
package cleanup
