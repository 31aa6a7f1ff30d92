// Package admission is the validating webhook for policies. Every replica answers, leader
// or not, with the verdict of package validate on the current nodes. A policy can always be
// deleted, but the user has to accept the impact first if that interrupts remediations. A
// policy with problems never blocks a change of its metadata. While a replica does not know
// the nodes, it rejects policies and the client retries. NodePools belong to Karpenter, so
// they are validated at once with the available data. The package makes no decisions of its
// own and never changes the objects.
package admission
