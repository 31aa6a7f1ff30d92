// Package controller joins the rooms: it lets triage know what the API server
// holds, and has treat do what triage plans. It promises that a place under a
// bound is written down in the ledger before anything is sent that takes it,
// that a place is freed only when nothing can be on its way any more, and that
// one node's trouble does not hold up another's. It refuses to decide: every
// taint it has placed or removed stands in a plan, with the plan's own reason.
//
// # One loop
//
// A single goroutine owns the core and everything that is known. Watches put
// the newest version of every object into a mailbox, writers report what became
// of their writes, and the loop takes in all that has come, asks the core which
// nodes are concerned, and for each compares the plan with the node. The work of
// a round follows what has changed, not the size of the cluster.
//
// # Who is followed
//
// A webhook judges a set before it is stored, if there is one, and it may have been
// off. So the loop judges every set again by the same rules (internal/validate) once nodes and
// sets have come in. One that is refused is not followed, and its status says why.
// What a status says has been accepted, in this version, is held against the other
// sets only and never against the nodes: whoever takes over in the middle of a storm
// goes on with the policies that there were. A set that is refused for what nodes
// report is judged again when they report something else.
//
// Sets that are written in ConfigMaps are in force once they are kept, and whoever
// takes over begins with what was kept. Where that cannot be read, because a right is
// missing or a later reader does not understand it, the rules are not known, and a
// rule that is not known has its taints removed. So what such rules have placed is
// held as it is: the note on a node names them, and no other rule has such a name.
//
// # The way of a write
//
//	consider ── plan differs from node ──► queue ──► takes a place? ── no ──► write
//	                                                      │ yes                ▲
//	                                                      ▼                    │
//	                                                   ledger ── committed ────┘
//
// A write carries the version of the node that its plan was made from, so it is
// made only if nothing has changed since: that is the fresh look before every
// step. If the node has changed, it is read again, and planned again.
//
// A write whose answer was lost may be on its way still. It can only be made
// while the node has the version that it names; until the node is seen with
// another, its place stays taken. When such a write is no longer wanted, a fence
// gives the node a new version first. The same holds for the writes of a
// predecessor, which the ledger names.
//
// # Who is gone
//
// A node that a remediator takes away for good keeps its place until it is replaced. The
// core keeps it while this process lives. For an heir the ledger names it, and what took
// it away is not ended before it does: one of the two always tells of it.
//
// # How a node is terminated
//
// By whom a node may be terminated is found out here, once for every node, and told to the
// core as a label that no node can have: so a node has one policy, and a policy counts no
// node of another. How many may go, beside the bound, is told as an allowance: what the
// pool's disruption budgets leave, and for nodes that do not become ready how many tries
// their pool has left.
//
//	decided ──► ledger names the claim ──► mark on the claim ──► claim deleted ──► node gone
//	                                            │                                     │
//	                                   spared: mark taken off            ledger names the departure
//
// The mark and the deletion each carry the claim's version: what has changed meanwhile is
// looked at first, and a claim that was spared cannot be deleted by what was sent before.
// One of ledger, mark and departure always tells whoever comes next. The watches of nodes
// and of claims tell in any order: a node that outlives its claim is in treatment until it
// goes too, and a node of a pool whose claim is not known yet is not called ready.
package controller
