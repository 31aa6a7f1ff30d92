// Package history says whether a run was lawful. It takes the testbed's
// recording of the run (every change in its order, and who made it) and replays
// it: after each change it knows the whole cluster as it was at that moment, and
// judges what this system did by what stood there just before. It promises to
// say how much it has looked at, so that nobody takes blindness for innocence;
// and it refuses to ask the product. What a ConditionSet means is written down
// here a second time, naively, and shares no deciding code with the rooms that
// it judges.
//
// # What it finds
//
//   - [CapExceeded]: a write of ours put a set's NoExecute on a node, and then
//     more of the selected nodes carried it than the set allows.
//   - [ForeignTouched]: a write of ours changed something that was not ours. Ours
//     are the taints that the node's record told of before the write, with the
//     same timeAdded, and the record; nothing else of a node, and of a
//     ConditionSet only the status. Bringing back a taint that somebody else has
//     just removed, or claiming one of theirs in the record, is the same.
//   - [DoneTwice]: the same taint was placed again although nothing that could be
//     a cause had changed since the first time, or a write of ours changed nothing.
//   - [Unlawful]: a taint was placed that no set asked for, or taken away while its
//     set still asked for it; NoExecute on a node of the control plane whose set
//     does not select it explicitly.
//   - [Unrecorded]: NoExecute was placed without an entry in the ledger that names
//     the set, the node and the very version of the node that was changed.
//   - [Misrecorded]: after a write of ours the node's record and its taints
//     disagree, or the record cannot be read.
//   - [OutOfTurn]: a node got NoExecute while another one, which had been waiting
//     for it longer, was left waiting.
//   - [WrongEnd]: at the end of the recording a node does not look exactly as the
//     sets ask for, room under a bound is left unused while a node waits, or a
//     record has leftovers.
//   - [UnknownAuthor]: taints or the record of a node were changed, or a node was
//     deleted, and nobody can be proved to have done it.
//
// One wrong is told once: a taint that was taken away unlawfully may be placed
// again without that being done twice.
//
// # What it tolerates
//
// A write of ours carries the version of the node that it was decided on, so of
// this node everything is judged exactly as it stood before the write. What the
// writer knows of the sets and of the other nodes travels through watches, and
// may be as old as [Config.Lag]: a placement is lawful if one of the versions of
// its set that were current within that time asked for it, and a bound is
// exceeded only if it is exceeded by each that held within that time. Only the
// bound may be old, never the number of nodes that carry the taint.
//
// Where the issue leaves two readings, both are lawful: a clock may have started
// with the condition's own stamp or when the change was seen; what stands while
// a condition is Unknown stays as it was, but may go if the node was well, or
// the set was edited, in between; a set that cannot be followed (a bad duration,
// a key that belongs to Kubernetes) places nothing new, and what it had placed
// may stay or go; a taint of somebody else's with the wanted key and effect
// serves in place of ours.
//
// A bound that shrinks under what stands (a set edited, nodes gone) is not
// exceeded by anybody: only placing is. A missed chance to use free room is not
// held against a run until its end.
//
// # The way through
//
//	recording, err := cluster.Recording(ctx)
//	...
//	history.Require(t, recording, history.Config{
//		Us:     history.UserAgent("autohealer-controller"),
//		Ledger: types.NamespacedName{Namespace: "autohealer-system", Name: "autohealer-ledger"},
//		EndAt:  time.Now(),
//	}, history.Counts{Evictions: 98, Fallbacks: 102})
//
// The cluster must have recorded nodes and conditionsets, and ConfigMaps if the
// ledger is to be judged ([Resources]).
package history
