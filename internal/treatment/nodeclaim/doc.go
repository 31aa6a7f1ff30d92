// Package nodeclaim deletes the Karpenter NodeClaims of nodes to terminate them, and is the
// provider of Karpenter's machines. It does not decide which nodes to terminate: it serves
// one [Terminator]. The tests of internal/policy/repair cover it together with its policy.
//
//	planned ──► ledger names the claim ──► mark on the claim ──► claim deleted ──► node gone
//	                                            │                                     │
//	                                   cancelled: mark removed        ledger awaits the replacement
//
// The mark and the deletion each carry the claim's resourceVersion, so an earlier request
// cannot delete a claim whose termination was cancelled. At every moment the ledger or
// the mark tells the next leader about the termination. The watches of nodes and claims
// are not ordered. A node that outlives its claim stays in treatment until it is gone. A
// node of a pool whose claim is not known yet does not count as ready.
package nodeclaim
