// Package engine carries out the plans of internal/triage in a cluster. It tells the
// triage core what the API server holds and starts the writes that the core plans.
//
// The engine guarantees, together with the contracts of [Treatment] and [NodeWriter]:
//
//   - The ledger stores a slot under a cap, the one slot of the control plane, and the place of
//     a node under the limits on all policies together, before the write that takes it.
//   - A slot is free only when no write that takes it can still arrive. A treatment says which
//     of its tasks take a slot, and whether a write can still arrive.
//   - Immediately before the first write of a treatment the engine looks for pods that protect the node,
//     reads the node again, asks the core again, and records the attempt. A task that begins a treatment
//     cannot skip this: the engine runs its [Work] only afterwards ([StartChecks]).
//   - An attempt counts, whatever happens to the write, to the node or to the leader.
//   - A failing node does not delay other nodes.
//
// Besides slots, the ledger has the attempts of nodes that are deleted or in treatment, and
// what policies need after a change of the leader ([Recorder]).
//
// The engine starts nothing that the core has not planned. It tells the core facts, vetoes
// and allowances, and it may cancel a planned write that is not sent yet. Policies compile
// what users write to rules; they implement [Policy]. Treatments carry out responses with
// objects of their own; they implement [Treatment]. Taints are on the nodes themselves: one
// [NodeWriter] writes them.
//
// # The loop
//
// One goroutine owns the core and all state. Watches put the newest version of every
// object into an inbox, and writers report their results. Each round of the loop takes in
// all changes, asks the core which nodes are affected, and compares their plans with the
// nodes. The cost of a round follows the number of changes, not the size of the cluster.
//
// # How a write works
//
//	Idle ── plan differs ──► Queued ── needs no slot, or has it ──► Running ──► Idle
//	                         │    ▲
//	           needs a slot  ▼    │  stored
//	                    AwaitingLedger
//
// This is the same for the tasks of a node ([NodeTasks]) and for a [NodeWriter]. Both ask the core for
// the plan again before they send a queued write. A write without an answer may still
// arrive, so its slot stays taken until it cannot. The same holds for writes of the previous
// leader, which the ledger names.
//
// # Nodes that wait for a replacement
//
// A node that a remediator removes for good keeps its slot until it is replaced. The core
// remembers this while the process lives, and the ledger remembers it for the next
// leader. A treatment deletes the object that removed the node only after the ledger names
// the node.
package engine
