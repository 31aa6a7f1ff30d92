// Package history says whether a run was lawful. It takes the testbed's
// recording of the run (every change in its order, and who made it) and replays
// it: after each change it knows the whole cluster as it was at that moment, and
// judges what this system did by what stood there just before. It promises to
// say how much it has looked at, so that nobody takes blindness for innocence;
// and it refuses to ask the product. What a ConditionSet, a NodeHealthCheck and
// a repair policy mean is written down here a second time, naively, and shares no
// deciding code with the rooms that it judges.
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
//     deleted, and nobody can prove who did it, or that it was not us.
//
// Of health checks:
//
//   - [Unlawful]: a remediation object was made for a node that was not sick for long
//     enough, not selected or excluded, on pause, without its template, or without
//     the node's Lease; or one was deleted while its node was sick, or nobody knew,
//     or while it means its node to go for good; or the Lease was given back during
//     the treatment.
//   - [GateIgnored]: something was begun while more of the selected nodes were sick,
//     still had an object of the health check, or had been taken away by one and not
//     replaced, than its bound allows, or while a storm that the status tells of was
//     cooling down.
//   - [TreatedTwice]: something was made for a node that another health check treats,
//     a second object was made from one template, or a node of the control plane was
//     treated while another one had an object of ours.
//   - [Malformed]: an object has not the form that the contract with remediators
//     asks for (kind, namespace, name, annotations, labels, owner, the spec of its
//     template), or a note or a Lease has not.
//   - [TooSoon]: a later step was begun before the one before had failed, or had
//     taken its time and was told so; or an object was deleted during healthyDelay.
//   - [ForeignTouched]: an object that no health check owns, a template, somebody
//     else's Lease, more of an object than our two annotations on it, or more of a
//     health check than its status was written to; or a confirmation was taken off a
//     node that still has an object.
//   - [Fought]: we wrote about health checks while medik8s' own controller renewed
//     its Lease. That we stand back may be said in the status.
//   - [DoneTwice]: a write changed nothing, or told an object again that its time is
//     up.
//   - [WrongEnd]: a sick node has no object although nothing speaks against it, an
//     object or a Lease is left over, or a status does not tell the truth.
//   - [UnknownAuthor]: something was made or deleted that would be one of these if it
//     was us, and nobody can prove that it was not.
//
// Of repairs, where a node is replaced by deleting its NodeClaim:
//
//   - [Unrecorded]: a claim was deleted that has no mark of ours on it, or was marked
//     without an entry in the ledger that names the rule, the node, the claim and the
//     very version of the claim that was marked.
//   - [Malformed]: a mark cannot be read, or names a node that is not the claim's; the
//     deadline on the claim is not the one that the policy asks for; or a mark was taken
//     off, and the deadline that came with it was not.
//   - [Unlawful]: a node was replaced that is not sick by the policy that governs it
//     (what stands on its NodePool, then the RepairPolicy that names the pool, then one
//     that selects the node; of two the older), or, for the ready timeout, is or was
//     ready for work; or while somebody forbids it: do-not-repair on the node, its claim
//     or its pool, somebody else's Lease, a claim that is being taken away already, or
//     two claims with one provider ID.
//   - [TooSoon]: the sickness was still tolerated, the node still had time to become
//     ready, or its pool is held because three in a row have not.
//   - [CapExceeded]: more nodes of the pool were in repair than its policy allows: all
//     that we have marked, until the mark is taken off, or until the node is gone and a
//     younger one of the pool is ready, or for 15 minutes. All rules of a pool count
//     together.
//   - [GateIgnored]: a claim was deleted for which the disruption budgets of the pool had
//     no room, counted as Karpenter counts for the reason Unhealthy.
//   - [TreatedTwice]: a claim was marked whose node a health check treats.
//   - [ForeignTouched]: we wrote something else to a claim than the mark and its
//     deadline, anything to a NodePool but a block that was lost and may be put back, or
//     more than the status of a RepairPolicy.
//   - [DoneTwice]: a claim was deleted again, or a write changed nothing.
//   - [WrongEnd]: a mark is left on a claim that nobody deletes. Whether every sick node
//     was replaced is not said: that is for the test to ask.
//
// What is made for a node without a machine because a RepairPolicy asks for it is judged
// by the same policy, and held to the contract with remediators.
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
// A remediation object carries no version of its node, so of the node, too, what was
// so within that time counts. Of the other nodes, those count as not healthy that have
// been for that time; and those that fell sick before the node that is treated did,
// however short ago: whoever knows of the one knows of the others. A node that was taken
// away counts from when that could be known, and no longer than until any node that came
// after the object was made has become ready since that means its node to go, or for 15
// minutes: from outside nobody can tell which node replaces which. What a step was
// given, and what a node had to wait for, is not judged across an edit of the health
// check.
//
// Where the issue leaves two readings, both are lawful: a clock may have started
// with the condition's own stamp or when the change was seen; what stands while
// a condition is Unknown stays as it was, but may go if the node was well, or
// the set was edited, in between; a set that cannot be followed (a bad duration,
// a key that belongs to Kubernetes) places nothing new, and what it had placed
// may stay or go; a taint of somebody else's with the wanted key and effect
// serves in place of ours.
//
// Of a repair everything is judged by what was so within that time when the claim was
// marked, and once more when it was deleted: that the node must still not be well, and
// that nobody forbids it, and the budgets. What others take out of service uses up a
// budget from when that could be known, our own marks at once. Nobody can tell from
// outside which node replaces which, so one that has come since the mark may replace any.
// A block that cannot be followed changes nothing about the one before.
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
// ledger is to be judged ([Resources]). Health checks are judged if
// [Config.Remediation] names the kinds that they make; then the Leases in [Namespaces]
// must have been recorded as well. Repairs are judged wherever NodeClaims were recorded,
// by the flags that [Config.Repairs] tells:
//
//	history.Require(t, recording, history.Config{
//		Us:      history.UserAgent("autohealer-controller"),
//		Ledger:  ledger,
//		Repairs: history.Repairs{ReadyTimeout: 10 * time.Second}, // as --node-ready-timeout
//		EndAt:   time.Now(),
//	}, history.Counts{Marks: 4, Terminations: 4})
package history
