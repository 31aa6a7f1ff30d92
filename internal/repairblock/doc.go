// Package repairblock keeps the repair blocks of NodePools. It promises that whoever
// asks always knows which block is in force for every pool: also while the schema of
// the block is lost because Karpenter's own CRD was applied again, after the block was
// pruned meanwhile, and while something stands there that cannot be followed. It
// refuses to judge what a block would do: whether it can be followed at all it is told.
//
// # What is in force
//
// A block that stands on its pool and can be followed is in force at once. Its copy,
// a ControllerRevision, is made after that: should it fail, it is tried again, and
// only whoever takes over in between knows nothing of the block. When what stands
// there cannot be followed, the last one that could be stays in force.
//
// # When a block is gone
//
// Who removes a block with its schema there wants it to be gone. Who applies a CRD
// without the schema does not know what he does: the API server hides the block at
// once, and deletes it with the next write to the pool, even to its status. The two
// are told apart by the version of the CRD, which is noted with the copy for as long
// as the block is seen. If the block is gone under that same version, nobody can have
// taken the schema away in between, so somebody has removed the block. Under another
// version it may have been pruned, and stays in force until somebody writes a block
// again, or deletes the copy. That needs no luck: nobody has to watch while it happens.
//
// API servers take a moment until they follow a CRD that has changed, and a watch does
// not bring what only the schema shows. So pools are listed anew with every version of
// the CRD, and again a little later; until then nothing is concluded from a block that
// is not seen.
package repairblock
