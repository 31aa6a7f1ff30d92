// Package karpenter is what this system knows of Karpenter: its NodeClaims and
// NodePools with the few fields that are used of them, the names by which its
// objects find each other, and how it counts a node as started. It promises that
// a list of them is read whatever stands in it: a field that does not fit is left
// out, a repair block or a budget that does not fit says so, and the others are
// there. It refuses to be written back: a NodePool with only these fields in it
// would take away all others, so whoever changes one sends a patch.
//
// The facts are those of Karpenter 1.15, group karpenter.sh/v1.
package karpenter
