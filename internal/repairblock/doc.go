// Package repairblock stores the repair blocks of NodePools and knows which block is in
// force for every pool. This holds even while the NodePool CRD lacks the block's schema
// because Karpenter's own CRD was applied again, after the API server pruned the block, and
// while the block on the pool is invalid. The package does not validate blocks itself: the
// caller passes a function for that.
//
// # Which block is in force
//
// A valid block on a pool is in force at once. The store then writes it to a
// ControllerRevision, and retries if that fails. Only a new leader that takes over before
// that does not know the block. If the block on the pool is invalid, the last valid block
// stays in force.
//
// # When a block is missing
//
// A user who removes a block while the CRD has its schema wants it removed. A user who
// applies a CRD without the schema usually does not. The API server then hides the block at
// once, and prunes it with the next write to the pool, even to its status. The store
// distinguishes these cases by the version of the CRD, which each revision records. If the
// block disappears under the same CRD version, the schema was always present, so a user
// removed the block. Under another version the block may have been pruned. It then stays in
// force until a user writes a block again or deletes the revision. This works even if no
// controller runs in the meantime.
//
// API servers need a moment to apply a changed CRD, and a watch does not report changes that
// only come from the schema. The store therefore lists the pools again for every version of
// the CRD, and once more a little later. Until then it concludes nothing from a missing
// block.
package repairblock
